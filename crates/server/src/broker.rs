//! Broker: one method per operation: route, propose, translate.
//!
//! The broker decides nothing about a task. It checks what only this node knows (its payload limit,
//! the grammar of names), finds the shard, encodes the command outside the shard loop, and returns
//! the answer. Operations on several shards are put together here.

mod bulk;
mod by_name;
mod claim;
mod cluster;
mod cursor;
mod delete;
mod enqueue;
mod finish;
mod flow;
mod inspect;
mod newest;
mod place;
mod retry;
mod schedules;
mod shares;
mod spread;
mod staging;
mod tally;
mod why;

pub use bulk::{BulkJob, BulkReport, DeadSelection};
pub(crate) use claim::check_wait;
pub use claim::{ClaimAsked, Places};
pub use enqueue::QUEUE_DEFAULT;
pub(crate) use enqueue::check_batch_length;
pub(crate) use finish::finished_task;
pub use flow::{FlowsAsked, FoundFlow, SubmittedFlow};
pub(crate) use flow::{in_node, not_added};
pub use inspect::{Found, ListAsked, ListOrder, NodeInfo, Page, QueuePage, TaskResult};
pub use retry::Edit;
pub use schedules::{FoundSchedule, SchedulePage};
pub use tally::OpenTallyAsked;
pub use why::WaitReason;

use crate::{
    Clock, Config, Error,
    buffers::Buffers,
    cluster::{About, Cluster},
    moment::{InWords, NEARER},
    random::random_u64,
    sessions::Sessions,
    shard::Shards,
};
use std::sync::{Arc, atomic::AtomicU64};
use taskyard_machine::{
    Command, EncodedCommand, Outcome, QueueName, Rejection, ShardId, TaskId, Timestamp, limits,
};
use tokio::sync::watch;

/// Routes every operation to its shards. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    shards: Shards,
    clock: Clock,
    payload_bytes_max: usize,
    stopping: watch::Sender<bool>,
    /// Counts tasks that may go to any shard of their queue, to spread them.
    turns: AtomicU64,
}

impl Broker {
    /// A broker over the shards of this node.
    pub fn new(shards: Shards, config: &Config) -> Broker {
        let cluster = Cluster::new(shards, About::default(), config.clock.clone());
        Broker::in_cluster(cluster, config)
    }

    /// A broker for a node of a cluster.
    pub(crate) fn in_cluster(cluster: Cluster, config: &Config) -> Broker {
        let shards = cluster.shards().clone();
        Broker(Arc::new(Inner {
            cluster,
            shards,
            clock: config.clock.clone(),
            payload_bytes_max: config.payload_bytes_max,
            stopping: watch::Sender::new(false),
            turns: AtomicU64::new(random_u64()),
        }))
    }

    /// The memory budget for requests and answers in flight.
    pub(crate) fn buffers(&self) -> &Buffers {
        self.shards().buffers()
    }

    /// The shards of this node.
    pub(crate) fn shards(&self) -> &Shards {
        &self.0.shards
    }

    /// The workers' sessions on this node.
    pub(crate) fn sessions(&self) -> &Sessions {
        self.0.cluster.sessions()
    }

    /// This node's clock.
    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Ends long polls and worker streams, and keeps new ones from waiting.
    pub(crate) fn stop_waiting(&self) {
        self.0.stopping.send_replace(true);
    }

    /// Completes when this node stops.
    pub(crate) async fn stopping(&self) {
        // The sender lives as long as this handle, so waiting can't fail before the stop.
        let _ = self.0.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Whether this node stops.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Proposes a command that adds no tasks.
    async fn propose(&self, shard: ShardId, command: &Command<'_>) -> Result<Outcome, Error> {
        self.shards().propose(shard, EncodedCommand::new(command), false).await
    }

    fn shard_of_queue(&self, queue: &str) -> Result<ShardId, Error> {
        check_queue(queue)?;
        Ok(self.shards().home(queue))
    }

    /// The shards that may have tasks of a queue, its home first.
    fn reach_of_queue(&self, queue: &str) -> Result<Vec<ShardId>, Error> {
        check_queue(queue)?;
        Ok(self.shards().reach(queue))
    }

    /// The shard in a task id, if this cluster has it.
    fn shard_of_task(&self, task: TaskId) -> Result<ShardId, Error> {
        if task.home.0 < self.shards().count() {
            Ok(task.home)
        } else {
            Err(Rejection::TaskNotFound { task }.into())
        }
    }

    /// Refuses a moment past the horizon, with a date: the shard's own check has only numbers. A
    /// moment that was accepted once is accepted again, because it only comes nearer.
    fn check_moment(&self, field: &str, at: Timestamp) -> Result<(), Error> {
        if at.ms_since(self.now()) <= limits::HORIZON_MS_MAX {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{field} {} is more than ten years ahead; {NEARER}",
            InWords(at)
        )))
    }

    /// This node's wall time.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.clock().wall_ms())
    }
}

/// Checks a queue's name; the error shows the name.
pub(crate) fn check_queue(queue: &str) -> Result<(), Error> {
    QueueName::check(queue).map_err(|reason| {
        let shown: String = queue.chars().take(64).collect();
        Error::Invalid(format!("queue {shown:?}: {reason}"))
    })
}

/// Panics, because a shard's answer does not belong to its command.
fn unexpected(outcome: &Outcome) -> ! {
    panic!("a shard gave the answer to another command: {outcome:?}")
}
