//! Shards: the handle through which everything else reaches the shards of this node.
//!
//! Cheap to clone. Every method hands its request to the shard loop's thread and awaits the answer;
//! nothing here decides anything about a task.

use crate::Error;
use bytes::Bytes;
use std::time::Duration;
use taskyard_machine::{
    ClaimQueue, ClaimedTask, EncodedCommand, Event, Machine, Outcome, SessionId, ShardId, TaskId,
};

/// All shards of this node.
#[derive(Clone, Debug)]
pub struct Shards {}

/// A claim, owned, as it may be parked.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Queue names and weights; all must live on the same shard.
    pub queues: Vec<(String, u32)>,
    /// `true`: drawn by weight; else strict order.
    pub weighted: bool,
    /// At most this many.
    pub tasks_max: u32,
    /// Lease of each claim.
    pub lease_ms: u64,
    /// The session that will hold them.
    pub session: Option<SessionId>,
    /// Who claims, for people.
    pub worker: String,
}

impl ClaimRequest {
    /// The queues, borrowed.
    pub fn queues(&self) -> Vec<ClaimQueue<'_>> {
        self.queues.iter().map(|(name, weight)| ClaimQueue { name, weight: *weight }).collect()
    }
}

/// A claimed task with its body (see `taskyard_machine::Body::decode`).
#[derive(Clone, Debug)]
pub struct HandedTask {
    /// The claim.
    pub task: ClaimedTask,
    /// The encoded body.
    pub body: Bytes,
}

impl Shards {
    /// How many shards there are.
    pub fn count(&self) -> u16 {
        unimplemented!("engine")
    }

    /// The shard of a queue.
    pub fn home(&self, queue: &str) -> ShardId {
        taskyard_machine::home_shard(queue, self.count())
    }

    /// Proposes a command and awaits its outcome, durable by then. `enqueue` tells whether it adds
    /// tasks, and so is refused when disk or memory budgets are used up.
    pub async fn propose(
        &self,
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
    ) -> Result<Outcome, Error> {
        let _ = (shard, command, enqueue);
        unimplemented!("engine")
    }

    /// Proposes several commands with one hand-off; answers in the same order.
    pub async fn propose_all(
        &self,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
    ) -> Vec<Result<Outcome, Error>> {
        let _ = (commands, enqueue);
        unimplemented!("engine")
    }

    /// Claims from queues of one shard; parks up to `wait` when nothing is ready, without a log
    /// entry. Dropping the future takes the waiter away. Empty when the wait is over.
    pub async fn claim(
        &self,
        shard: ShardId,
        claim: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        let _ = (shard, claim, wait);
        unimplemented!("engine")
    }

    /// Parks until one of `queues` (all on `shard`) may have something to claim, or `wait` is over
    /// (`false`). For claims over several shards: the gateway then claims from one shard at a time.
    pub async fn claimable(
        &self,
        shard: ShardId,
        queues: Vec<String>,
        wait: Duration,
    ) -> Result<bool, Error> {
        let _ = (shard, queues, wait);
        unimplemented!("engine")
    }

    /// Reads the state on the loop's thread after confirming leadership. `read` must be quick.
    pub async fn read<T, F>(&self, shard: ShardId, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Machine) -> T + Send + 'static,
    {
        let _ = (shard, read);
        unimplemented!("engine")
    }

    /// The encoded bodies of tasks, from memory or disk; `None` for one that is gone.
    pub async fn bodies(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Bytes>>, Error> {
        let _ = tasks;
        unimplemented!("engine")
    }

    /// Waits until the task has ended or `wait` is over; `true` if it has ended.
    pub async fn finished(&self, task: TaskId, wait: Duration) -> Result<bool, Error> {
        let _ = (task, wait);
        unimplemented!("engine")
    }

    /// Tells the leaders which sessions live (once a second, from the gateway).
    pub fn sessions_alive(&self, sessions: Vec<SessionId>) {
        let _ = sessions;
        unimplemented!("engine")
    }

    /// The connection of a session closed without a goodbye: its silence limit becomes 5 s from now,
    /// unless it is named alive again.
    pub fn session_cut(&self, session: SessionId) {
        let _ = session;
        unimplemented!("engine")
    }

    /// All events of all shards from now on, batched per loop turn. A slow reader misses some and is told how many.
    pub fn events(&self) -> tokio::sync::broadcast::Receiver<std::sync::Arc<Vec<Event>>> {
        unimplemented!("engine")
    }
}
