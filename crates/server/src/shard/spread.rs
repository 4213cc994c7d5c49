//! The spread of queues as far as this node knows it, and how it is changed.
//!
//! The control group keeps the spreads and every node follows it. A change carries the version of
//! the queue's own settings, so that a change with a lost outcome may be repeated.

use super::{
    Shards,
    remote::{ShardCall, ShardReply},
    route::{PATIENCE, Tried},
};
use crate::{Error, clock::real_now};
use std::time::Duration;
use taskyard_machine::{ShardId, spread_shards};
use taskyard_replica::{ControlCommand, NodeId, SetSpread, Spread};
use tokio::time::timeout;

/// The pause before the control group's leader is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long to wait until a decided change is known on this node.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

impl Shards {
    /// A queue's spread; `None` if all of its tasks are on its home shard.
    pub(crate) fn spread(&self, queue: &str) -> Option<Spread> {
        self.routes().spread(queue)
    }

    /// The shards that may have tasks of a queue, its home first.
    pub(crate) fn reach(&self, queue: &str) -> Vec<ShardId> {
        match self.spread(queue) {
            None => vec![self.home(queue)],
            Some(spread) => spread_shards(queue, spread.reach, self.count()).collect(),
        }
    }

    /// Sets a queue's spread. This node knows it when this returns, the other nodes soon after.
    pub(crate) async fn set_spread(&self, set: SetSpread) -> Result<(), Error> {
        let until = real_now() + PATIENCE;
        let mut changes = self.routes().changes();
        loop {
            changes.borrow_and_update();
            match self.try_set_spread(&set).await {
                Ok(()) => break,
                Err(Error::Unavailable(_) | Error::NoControl | Error::OutcomeUnknown)
                    if real_now() < until =>
                {
                    let _ = timeout(ASK_AGAIN_AFTER, changes.changed()).await;
                }
                Err(error) => return Err(error),
            }
        }
        let is_heard = || match self.spread(&set.queue) {
            Some(spread) => spread.version >= set.version,
            None => set.reach == 1,
        };
        let hear = async { while !is_heard() && changes.changed().await.is_ok() {} };
        // After that, this node still routes by the old spread for a while, as other nodes may.
        let _ = timeout(HEARD_WITHIN, hear).await;
        Ok(())
    }

    async fn try_set_spread(&self, set: &SetSpread) -> Result<(), Error> {
        let command = ControlCommand::SetSpread(set.clone());
        match (self.routes().control_leader(), self.network()) {
            (Some(leader), Some(network)) if leader != self.routes().me() => {
                let call = ShardCall::SetSpread(command.encode().into());
                let take = |reply| match reply {
                    ShardReply::SpreadSet(set) => Some(set),
                    _ => None,
                };
                match self.forward(network, leader, &call, PATIENCE, take).await {
                    Tried::Answered(answer) => answer,
                    Tried::Refused(_) => Err(Error::NoControl),
                    Tried::Unknown => Err(Error::OutcomeUnknown),
                }
            }
            (None, Some(_)) if !self.routes().is_alone() => Err(Error::NoControl),
            _ => self.control(command).await,
        }
    }

    /// Sets a spread for another node, if this node leads the control group.
    pub(super) async fn set_spread_here(&self, command: &[u8]) -> Result<(), Error> {
        let leader: Option<NodeId> = self.routes().control_leader();
        match ControlCommand::decode(command) {
            Ok(_) if leader != Some(self.routes().me()) => Err(Error::NoControl),
            Ok(command @ ControlCommand::SetSpread(_)) => self.control(command).await,
            Ok(other) => Err(Error::Invalid(format!("{other:?} is not about a spread"))),
            Err(error) => Err(Error::Invalid(error.to_string())),
        }
    }
}
