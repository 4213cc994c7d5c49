//! The state as records: for checkpoints, snapshots and comparison.
//!
//! A checkpoint at index C is the exact state at C: `Machine::freeze` marks the cut, and before a
//! later entry changes a frozen record that is not yet encoded, its image at C is encoded first. So
//! a checkpoint is taken in small bites and still is one cut.

use crate::TaskId;

/// Which record of a shard's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// A task. Its body is kept beside it, under the same id.
    Task(TaskId),
    /// Anything else: a queue, a dedup record, a session, the outbox, the counters.
    Rest(Box<[u8]>),
}

/// One change since the previous checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which record.
    pub key: RecordKey,
    /// Its encoding at the cut; `None` if it is gone.
    pub value: Option<Box<[u8]>>,
}

/// The records do not make a state that this build can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint can't be read: {what}")]
pub struct ImageError {
    /// What was found and where.
    pub what: String,
}
