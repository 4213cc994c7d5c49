//! Forward: one call to the shards of one other node, and what its answer means.

use super::{
    Shards,
    remote::{ShardCall, ShardReply},
    route::Tried,
};
use crate::{
    Error,
    cluster::call_kind,
    limits::PEER_FRAME_BYTES_MAX,
    peer::{CallError, LateReply, PeerNetwork},
};
use bytes::Bytes;
use std::time::Duration;
use taskyard_machine::ShardId;
use taskyard_replica::NodeId;

/// What a leader may take beyond the wait that it was asked for, and the way there and back.
pub(super) const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// What a leader that was deposed has left to send the answers that are on their way.
const DEPOSED_FOR: Duration = Duration::from_millis(300);
/// A frame has a head of a few bytes.
const CALL_BYTES_MAX: usize = PEER_FRAME_BYTES_MAX - 64;

impl Shards {
    /// Asks another node and waits for its answer at most so long. `take` picks the answer out of the
    /// reply.
    pub(super) async fn forward<T>(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        call: &ShardCall,
        wait: Duration,
        take: impl FnOnce(ShardReply) -> Option<Result<T, Error>>,
    ) -> Tried<Result<T, Error>> {
        let shards = call.shards();
        let call = match encode(call) {
            Ok(call) => call,
            Err(error) => return Tried::Answered(Err(error)),
        };
        let reply = self.unless_deposed(node, &shards, network.call(node, call, wait)).await;
        answer(reply, node, take)
    }

    /// The same; an answer that comes when nobody waits any more goes to `late`.
    pub(super) async fn forward_minding<T>(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        call: &ShardCall,
        wait: Duration,
        take: impl FnOnce(ShardReply) -> Option<Result<T, Error>>,
        late: LateReply,
    ) -> Tried<Result<T, Error>> {
        let shards = call.shards();
        let call = match encode(call) {
            Ok(call) => call,
            Err(error) => return Tried::Answered(Err(error)),
        };
        let asked = network.call_minding(node, call, wait, late);
        answer(self.unless_deposed(node, &shards, asked).await, node, take)
    }
}

impl Shards {
    /// Waits for an answer of a node, but not for one that another has taken the place of and that can't
    /// be heard, as one that is cut off: it would not answer before its silence is noticed.
    async fn unless_deposed(
        &self,
        node: NodeId,
        shards: &[ShardId],
        asked: impl Future<Output = Result<Bytes, CallError>>,
    ) -> Result<Bytes, CallError> {
        let deposed = async {
            let mut changes = self.routes().changes();
            let leads_elsewhere =
                |shard: &ShardId| self.routes().leader(*shard).is_some_and(|leader| leader != node);
            loop {
                changes.borrow_and_update();
                if !shards.is_empty() && shards.iter().all(leads_elsewhere) {
                    tokio::time::sleep(DEPOSED_FOR).await;
                    if shards.iter().all(leads_elsewhere) {
                        return;
                    }
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            biased;
            reply = asked => reply,
            () = deposed => Err(CallError::TimedOut),
        }
    }
}

/// A call as it is sent.
pub(super) fn encode(call: &ShardCall) -> Result<Bytes, Error> {
    let call = [&[call_kind::SHARD], &*call.encode()].concat();
    if call.len() > CALL_BYTES_MAX {
        return Err(Error::LimitExceeded(format!(
            "the request has {} bytes, nodes send each other {CALL_BYTES_MAX}; ask for less at once",
            call.len()
        )));
    }
    Ok(call.into())
}

fn answer<T>(
    reply: Result<Bytes, CallError>,
    node: NodeId,
    take: impl FnOnce(ShardReply) -> Option<Result<T, Error>>,
) -> Tried<Result<T, Error>> {
    let reply = match reply {
        Ok(reply) => reply,
        Err(CallError::NotSent { .. }) => return Tried::Refused(None),
        Err(CallError::Lost | CallError::TimedOut) => return Tried::Unknown,
    };
    match ShardReply::decode(&reply) {
        Ok(ShardReply::Unread(words)) => {
            let text = format!("node {node} is of another version and can't read this: {words}");
            Tried::Answered(Err(Error::Unavailable(text)))
        }
        // What can't be read, or answers something else, says nothing of what was done there.
        Ok(reply) => take(reply).map_or(Tried::Unknown, Tried::there),
        Err(error) => {
            tracing::warn!(node, %error, "an answer of another node can't be read");
            Tried::Unknown
        }
    }
}
