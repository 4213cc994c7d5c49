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
use taskyard_replica::NodeId;

/// What a leader may take beyond the wait that it was asked for, and the way there and back.
pub(super) const ANSWER_MARGIN: Duration = Duration::from_secs(5);
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
        let call = match encode(call) {
            Ok(call) => call,
            Err(error) => return Tried::Answered(Err(error)),
        };
        answer(network.call(node, call, wait).await, node, take)
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
        let call = match encode(call) {
            Ok(call) => call,
            Err(error) => return Tried::Answered(Err(error)),
        };
        answer(network.call_minding(node, call, wait, late).await, node, take)
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
