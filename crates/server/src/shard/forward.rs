//! Forward: one call to the shards of one other node, and what its answer means.

use super::{
    Shards,
    remote::{ShardCall, ShardReply},
    route::{NO_LEADER_FOR_MAX, Tried},
};
use crate::{
    Error,
    clock::real_now,
    cluster::call_kind,
    limits::{COMMAND_BYTES_MAX, PEER_FRAME_BYTES_MAX},
    log::group_of,
    peer::{CallError, CallOptions, LateReply, PeerNetwork},
};
use bytes::Bytes;
use std::time::{Duration, Instant};
use taskyard_machine::ShardId;
use taskyard_replica::NodeId;

/// What a leader may take beyond the wait that it was asked for, and the way there and back.
pub(super) const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// What a leader that was deposed has left to send the answers that are on their way, if it is silent.
const DEPOSED_FOR: Duration = Duration::from_millis(300);
/// The same while it is heard: it is there, and only slow.
const DEPOSED_HEARD_FOR: Duration = Duration::from_secs(2);
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
        self.forward_minding(network, node, call, wait, take, None).await
    }

    /// The same; an answer that comes when nobody waits any more goes to `late`.
    pub(super) async fn forward_minding<T>(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        call: &ShardCall,
        wait: Duration,
        take: impl FnOnce(ShardReply) -> Option<Result<T, Error>>,
        late: Option<LateReply>,
    ) -> Tried<Result<T, Error>> {
        let (shards, options) = (call.shards(), CallOptions { parks: call.parks(), late });
        let call = match encode(call) {
            Ok(call) => call,
            Err(error) => return Tried::Answered(Err(error)),
        };
        let asked = network.call_with(node, call, wait, options);
        answer(self.unless_deposed(network, node, &shards, asked).await, node, take)
    }
}

impl Shards {
    /// Waits for an answer of a node, but not for one that leads no more or can't be heard, as one that
    /// is cut off, or that this node is cut off from: it would not answer before its connection is given up.
    async fn unless_deposed(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        shards: &[ShardId],
        asked: impl Future<Output = Result<Bytes, CallError>>,
    ) -> Result<Bytes, CallError> {
        let deposed = async {
            let mut changes = self.routes().changes();
            loop {
                changes.borrow_and_update();
                let Some(until) = self.waits_until(network, node, shards) else {
                    // It leads, as far as is known.
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    continue;
                };
                let left = until.saturating_duration_since(real_now());
                if left.is_zero() {
                    return;
                }
                let _ = tokio::time::timeout(left, changes.changed()).await;
            }
        };
        tokio::select! {
            biased;
            reply = asked => reply,
            () = deposed => Err(CallError::TimedOut),
        }
    }
}

impl Shards {
    /// Until when an answer of a node is waited for that leads none of the shards any more; `None` while
    /// it leads one, or no more is known. One that is silent, so that nobody here would hear of its
    /// successor, leads nothing.
    fn waits_until(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        shards: &[ShardId],
    ) -> Option<Instant> {
        let routes = self.routes();
        let is_silent = !network.is_heard(node);
        let until = |shard: &ShardId| {
            let group = group_of(*shard);
            let hears_of_others =
                self.has_replica_here(*shard) && self.hears_majority(network, *shard);
            if is_silent && !hears_of_others {
                return Some(real_now());
            }
            match routes.leader(*shard) {
                Some(leader) if leader == node => None,
                Some(_) if is_silent => Some(routes.changed_at(group)? + DEPOSED_FOR),
                Some(_) => Some(routes.changed_at(group)? + DEPOSED_HEARD_FOR),
                None => Some(routes.changed_at(group)? + NO_LEADER_FOR_MAX),
            }
        };
        let until: Option<Vec<Instant>> = shards.iter().map(until).collect();
        until?.into_iter().max()
    }
}

/// A call as it is sent. A command that its leader would refuse for its length is refused here.
fn encode(call: &ShardCall) -> Result<Bytes, Error> {
    if let ShardCall::Propose { commands, .. } = call {
        let lengths = commands.iter().map(|(_, command)| command.as_bytes().len());
        if let Some(bytes) = lengths.max().filter(|bytes| *bytes > COMMAND_BYTES_MAX) {
            return Err(Error::CommandTooLarge { bytes, bytes_max: COMMAND_BYTES_MAX });
        }
    }
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
        Err(CallError::TooManyParked { parked }) => {
            return Tried::Answered(Err(Error::LimitExceeded(format!(
                "{parked} calls of this node wait for the shards of node {node}; use another node, or ask \
                 without waiting"
            ))));
        }
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
