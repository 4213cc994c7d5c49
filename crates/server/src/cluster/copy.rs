//! Copy: a backup of the whole cluster, taken from the replicas of the node that is asked.
//!
//! A shard drops what it owed another when that one has it. In a copy of both, the other may be copied a
//! moment before it had it, and then nobody has. So for as long as a copy is begun, no leader drops
//! anything; and this node's replicas first come as far as their leaders were when that began. What is
//! copied twice is taken once: shards know each other's messages by number.

use super::{Cluster, ClusterCall, sight::Sight};
use crate::{Error, clock::real_now, shard::BackupPart};
use futures_util::future::join_all;
use std::time::Duration;
use taskyard_replica::CONTROL_GROUP;
use tokio::sync::mpsc;

/// How long leaders keep what others have taken, at most: for as long as the slowest checkpoint takes.
const HOLD_FOR: Duration = Duration::from_secs(300);
/// How long this node's replicas may take to come as far as their leaders.
const CATCH_UP_FOR: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Leaders that change meanwhile make it begin anew.
const TRIES: usize = 3;

impl Cluster {
    /// A consistent copy of every shard, as the bytes of one file, in parts.
    pub(crate) async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        if self.routes().is_alone() {
            return self.shards().backup().await;
        }
        self.check_holds_all()?;
        for _ in 0..TRIES {
            self.hold(HOLD_FOR).await?;
            let copied = self.copy().await;
            let released = self.hold(Duration::ZERO).await;
            if let Some(parts) = copied? {
                released?;
                return Ok(parts);
            }
        }
        Err(Error::Unavailable(
            "leaders have changed while the backup was begun; take it again when the cluster is calm"
                .into(),
        ))
    }

    /// `None` if somebody else began to lead a shard meanwhile, who knew nothing of the hold.
    async fn copy(&self) -> Result<Option<mpsc::Receiver<Result<BackupPart, Error>>>, Error> {
        let before = self.look().await;
        self.catch_up(&before).await?;
        let parts = self.shards().backup().await?;
        let after = self.look().await;
        let led =
            |sight: &Sight, group| sight.leader(group).map(|(node, status)| (node, status.term));
        let mut groups = self.routes().control().groups();
        let is_calm = groups.all(|group| led(&before, group) == led(&after, group));
        Ok(is_calm.then_some(parts))
    }

    /// Waits until this node's replicas have applied all that was committed by then.
    async fn catch_up(&self, sight: &Sight) -> Result<(), Error> {
        let until = real_now() + CATCH_UP_FOR;
        for group in self.routes().control().groups().filter(|group| *group != CONTROL_GROUP) {
            let shard = u16::try_from(group - 1).unwrap_or(u16::MAX);
            let Some((_, leader)) = sight.leader(group) else {
                return Err(Error::NoQuorum { shard });
            };
            loop {
                let groups = self.shards().groups().await?;
                let own = groups.iter().find(|status| status.group == group);
                if own.is_some_and(|own| own.applied >= leader.committed) {
                    break;
                }
                if real_now() >= until {
                    return Err(Error::Unavailable(format!(
                        "this node's replica of shard {shard} lags behind; take the backup from another node"
                    )));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Has every node that answers keep what its shards have delivered, for so long. One that does not
    /// answer leads nothing that could go on without it.
    async fn hold(&self, hold: Duration) -> Result<(), Error> {
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let control = self.routes().control();
        let asked = control.nodes().keys().map(|&node| async move {
            let reply = self.ask(node, ClusterCall::Hold { hold_ms }, ANSWER_WITHIN).await;
            reply.and_then(|reply| reply.done())
        });
        for answer in join_all(asked).await {
            match answer {
                Ok(()) | Err(Error::NotLeader { .. } | Error::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn check_holds_all(&self) -> Result<(), Error> {
        let (control, me) = (self.routes().control(), self.me());
        let holds_all =
            |node| control.groups().all(|group| control.replica_on(group, node).is_some());
        if holds_all(me) {
            return Ok(());
        }
        Err(Error::Refused(match control.nodes().keys().find(|node| holds_all(**node)) {
            Some(node) => format!(
                "node {me} has no replica of some shards; take the backup from node {node}, which has all"
            ),
            None => {
                "no node has a replica of every shard, and a backup is taken from one; raise the \
                     replication to the number of nodes, or drain nodes until one holds all"
                    .into()
            }
        }))
    }
}
