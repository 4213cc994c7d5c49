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
use tokio::sync::mpsc;

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

/// The next bytes of a backup.
#[derive(Clone, Debug)]
pub struct BackupPart {
    /// The file's next bytes.
    pub data: Bytes,
    /// Shards that are in it whole.
    pub shards_done: u16,
}

/// How one shard stands.
#[derive(Clone, Copy, Debug)]
pub struct ShardStatus {
    /// Which.
    pub shard: ShardId,
    /// Its term.
    pub term: u64,
    /// The replica of this node leads it and has applied its own first entry: it serves.
    pub serves: bool,
    /// Index of the last entry on this node's disk.
    pub persisted: u64,
    /// Index of the last entry that was applied.
    pub applied: u64,
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
    /// entry. Empty when the wait is over. Dropping the future takes the waiter away; what was
    /// claimed for it by then, even if already handed over, is released: no claim is ever orphaned.
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
    /// A hint is no claim: it takes nothing from parked claims, and if the one that was woken does
    /// not claim (it went away), the next one is woken soon.
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

    /// Claims that a session was handed and never reported started, as the gateway knows them when
    /// the session falls silent; replaces what was said before. They go into its `EndSession` as
    /// `not_started`: released, not lost. Forgotten when the session is named alive again.
    pub fn session_not_started(&self, session: SessionId, tasks: Vec<TaskId>) {
        let _ = (session, tasks);
        unimplemented!("engine")
    }

    /// A consistent copy of every shard, as the bytes of one file, in parts. A slow reader slows the
    /// copy, not the shards; dropping the receiver ends it.
    pub async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        unimplemented!("engine")
    }

    /// How each shard stands, in order.
    pub async fn status(&self) -> Result<Vec<ShardStatus>, Error> {
        unimplemented!("engine")
    }

    /// Metrics of this node, in the Prometheus text format.
    pub fn metrics(&self) -> String {
        unimplemented!("engine")
    }

    /// All events of all shards from now on, batched per loop turn. A slow reader misses some and is told how many.
    pub fn events(&self) -> tokio::sync::broadcast::Receiver<std::sync::Arc<Vec<Event>>> {
        unimplemented!("engine")
    }
}
