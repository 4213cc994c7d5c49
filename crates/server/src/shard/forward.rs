//! Forward: one call to the shards of one other node, and the meaning of its answer.

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

/// The time that a leader may take beyond the requested wait, including the way there and back.
pub(super) const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// How long a silent former leader may take to send answers that are on their way.
const DEPOSED_FOR: Duration = Duration::from_millis(300);
/// How long a former leader that is still heard may take, because it is only slow.
const DEPOSED_HEARD_FOR: Duration = Duration::from_secs(2);
/// The most bytes of a call. The head of a frame takes a few bytes.
const CALL_BYTES_MAX: usize = PEER_FRAME_BYTES_MAX - 64;

impl Shards {
    /// Calls another node and waits for its answer up to `wait`. `take` extracts the answer from
    /// the reply.
    pub(super) async fn forward<T>(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        call: &ShardCall,
        wait: Duration,
        take: impl FnOnce(ShardReply) -> Option<Result<T, Error>>,
    ) -> Tried<Result<T, Error>> {
        self.forward_with_late(network, node, call, wait, take, None).await
    }

    /// Like `forward`; an answer that arrives after the wait goes to `late`.
    pub(super) async fn forward_with_late<T>(
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
    /// Waits for a node's answer, but not if the node no longer leads or is no longer heard. A node
    /// that is cut off would not answer before its connection is given up.
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
                    // As far as is known, the node leads.
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
    /// Until when to wait for a node that leads none of the shards any more; `None` while the node
    /// leads one, or while no new leader is known. A silent node counts as not leading, because no
    /// news of its successor would reach this node.
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

/// The bytes of a call. A command that its leader would refuse as too long is refused here.
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
        // An unreadable or unexpected answer leaves the outcome unknown.
        Ok(reply) => take(reply).map_or(Tried::Unknown, Tried::there),
        Err(error) => {
            tracing::warn!(node, %error, "an answer of another node can't be read");
            Tried::Unknown
        }
    }
}
