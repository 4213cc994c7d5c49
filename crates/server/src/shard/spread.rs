//! Where queues lie that are spread over shards, as far as this node knows, and how that is
//! changed.
//!
//! The control group keeps it and every node follows it. What is said carries the version of the
//! queue's own rules, so that it may be said again whenever nobody knows what came of it.

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

/// How long before the control group's leader is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long a change is waited for on this node, once it is decided.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

impl Shards {
    /// How far a queue lies; `None` if it lies on its home shard alone.
    pub(crate) fn spread(&self, queue: &str) -> Option<Spread> {
        self.routes().spread(queue)
    }

    /// The shards that may hold tasks of a queue, its home first.
    pub(crate) fn reach(&self, queue: &str) -> Vec<ShardId> {
        match self.spread(queue) {
            None => vec![self.home(queue)],
            Some(lies) => spread_shards(queue, lies.reach, self.count()).collect(),
        }
    }

    /// Tells all nodes how far a queue lies. This one knows it when this returns, the others soon
    /// after.
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
            Some(lies) => lies.version >= set.version,
            None => set.reach == 1,
        };
        let hear = async { while !is_heard() && changes.changed().await.is_ok() {} };
        // If it takes longer, this node routes as before for a while, as any other may.
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

    /// The same for another node, if this one leads the control group.
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
