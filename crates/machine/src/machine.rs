//! Machine: the state of one shard, and `apply`, its only door.

use crate::{
    Claim, Claimable, ClaimedTask, Entry, Event, ImageError, Outcome, Payloads, QueueName,
    QueueSettings, QueueView, Record, RecordKey, Rejection, SessionId, ShardId, TaskFilter, TaskId,
    TaskPage, TaskView, Timestamp,
};

/// Which shard this is, of how many, in which cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's incarnation, part of every task id.
    pub incarnation: u32,
    /// This shard.
    pub shard: ShardId,
    /// How many shards the cluster has.
    pub shards: u16,
}

/// The state of one shard, as a value: two machines fed the same entries are equal byte for byte.
#[derive(Debug)]
pub struct Machine {
    identity: Identity,
}

/// What the outbox owes another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom.
    pub to: ShardId,
    /// Its number, from 1, per target.
    pub sequence: u64,
    /// The encoded command.
    pub command: Box<[u8]>,
}

impl Machine {
    /// An empty shard.
    pub fn new(identity: Identity) -> Machine {
        Machine { identity }
    }

    /// Which shard this is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Decides the commands of one committed entry. The only way this state ever changes.
    ///
    /// # Panics
    /// On rules this build does not know: going on would diverge from the other replicas.
    pub fn apply(
        &mut self,
        entry: &Entry<'_>,
        payloads: &mut dyn Payloads,
        events: &mut Vec<Event>,
    ) -> Vec<Result<Outcome, Rejection>> {
        let _ = (entry, payloads, events);
        unimplemented!("machine crate")
    }

    /// The time of the last entry.
    pub fn now(&self) -> Timestamp {
        unimplemented!("machine crate")
    }

    /// When `ExpireDue` next has something to do; `None` if nothing has a deadline.
    pub fn next_due(&self) -> Option<Timestamp> {
        unimplemented!("machine crate")
    }

    /// Whether a claim would get something at `now`. Empty claims never enter the log.
    pub fn claimable(&self, claim: &Claim<'_>, now: Timestamp) -> Claimable {
        let _ = (claim, now);
        unimplemented!("machine crate")
    }

    /// One task, whole.
    pub fn task(&self, task: TaskId) -> Option<TaskView> {
        let _ = task;
        unimplemented!("machine crate")
    }

    /// Tasks that match, in id order after `after`; looks at `SCAN_TASKS_MAX` at most.
    pub fn tasks(&self, filter: &TaskFilter<'_>, after: Option<TaskId>, limit: usize) -> TaskPage {
        let _ = (filter, after, limit);
        unimplemented!("machine crate")
    }

    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueView> {
        unimplemented!("machine crate")
    }

    /// One queue.
    pub fn queue(&self, queue: &QueueName) -> Option<QueueView> {
        let _ = queue;
        unimplemented!("machine crate")
    }

    /// A queue's own settings.
    pub fn queue_settings(&self, queue: &QueueName) -> Option<QueueSettings> {
        let _ = queue;
        unimplemented!("machine crate")
    }

    /// Sessions that hold claims here.
    pub fn sessions(&self) -> Vec<SessionId> {
        unimplemented!("machine crate")
    }

    /// What the outbox owes, in order, at most `limit`.
    pub fn outgoing(&self, limit: usize) -> Vec<Outgoing> {
        unimplemented!("machine crate: {limit}")
    }

    /// Bytes of memory that this state takes, estimated; bodies not included.
    pub fn memory_bytes(&self) -> u64 {
        unimplemented!("machine crate")
    }

    /// Tasks in the state, in any state of their life.
    pub fn task_count(&self) -> u64 {
        unimplemented!("machine crate")
    }

    /// How many records have changed since the last freeze.
    pub fn dirty_records(&self) -> usize {
        unimplemented!("machine crate")
    }

    /// Marks the cut of a checkpoint: `frozen_bite` then hands out all changes since the previous one.
    ///
    /// # Panics
    /// If the previous cut has not been handed out whole.
    pub fn freeze(&mut self) {
        unimplemented!("machine crate")
    }

    /// Encodes up to `records_max` records of the frozen cut; empty when all were handed out.
    pub fn frozen_bite(&mut self, records_max: usize) -> Vec<Record> {
        unimplemented!("machine crate: {records_max}")
    }

    /// Rebuilds the state from all records of a checkpoint, in any order.
    pub fn load<I>(identity: Identity, records: I) -> Result<Machine, ImageError>
    where
        I: IntoIterator<Item = (RecordKey, Box<[u8]>)>,
    {
        let _ = (identity, records.into_iter().count());
        unimplemented!("machine crate")
    }

    /// Every record of the state, sorted by key: equal for equal states.
    pub fn records(&self) -> Vec<(RecordKey, Box<[u8]>)> {
        unimplemented!("machine crate")
    }

    /// A hash of the whole state, for comparing replicas.
    pub fn state_hash(&self) -> u64 {
        unimplemented!("machine crate")
    }

    /// Checks every invariant between the parts of the state; the first violation, in words. Slow: for tests and the simulator.
    pub fn check(&self) -> Result<(), String> {
        unimplemented!("machine crate")
    }
}

/// Shard of a queue: the hash of its name over the number of shards.
pub fn home_shard(queue: &str, shards: u16) -> ShardId {
    let hash = xxhash_rust::xxh3::xxh3_64(queue.as_bytes());
    ShardId((hash % u64::from(shards.max(1))) as u16)
}

#[allow(dead_code)]
type Handed = ClaimedTask;
