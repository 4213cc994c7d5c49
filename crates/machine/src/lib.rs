//! Taskyard's machine: the state of one shard, as a pure value.
#![warn(missing_docs)]

mod command;
mod entry;
mod event;
mod image;
pub mod limits;
mod machine;
mod outcome;
mod payloads;
mod query;
mod queue_name;
mod rejection;
mod retry;
mod settings;
mod task;

pub use command::*;
pub use entry::{DecodeError, EncodedCommand, Entry, EntryBuilder, RULES_CURRENT};
pub use event::{DeathReason, Event, EventKind, TaskRef};
pub use image::{ImageError, Record, RecordKey};
pub use machine::{Identity, Machine, Outgoing, home_shard};
pub use outcome::{AfterFailure, BulkProgress, ClaimedTask, Enqueued, Outcome, Renewal};
pub use payloads::{NoPayloads, Payloads};
pub use query::{
    AttemptOutcome, AttemptView, ClaimView, Claimable, QueueCounts, QueueView, TaskPage, TaskView,
};
pub use queue_name::{InvalidQueueName, QueueName};
pub use rejection::Rejection;
pub use retry::{Backoff, RetryPolicy};
pub use settings::QueueSettings;
pub use task::{ClaimToken, InvalidTaskId, SessionId, ShardId, TaskId, TaskStateName, Timestamp};
