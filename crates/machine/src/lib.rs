//! Taskyard's machine: the state of one shard, as a pure value.
//!
//! [`Machine::apply`] is the only door of the machine: a log entry goes in, one answer per command
//! comes out, and [`Event`]s report what happened. The machine has no clock, no randomness, no I/O
//! and no logging. Time and seeds come with the entry, ids and tokens come from counters in the
//! state, and [`Payloads`] keeps the bodies of tasks beside the state. A replay therefore gives the
//! same state as the first run.
//!
//! Each command has a file of its own, named after it, and changes tasks only through
//! `transition.rs` and `indexes.rs`, which keep every index in step:
//!
//! ```text
//! machine.rs     the state and its door         turn.rs       one entry at work on the state
//! life.rs        a task                         queue.rs      settings, totals and lanes of a queue
//! fairness.rs    who comes next in a queue: keys.rs, rings.rs, strands.rs (types), bucket.rs;
//!                why.rs explains it
//! deadlines.rs   the time index                 dedup.rs      request ids
//! unique.rs      unique keys                    retry.rs      retry policies
//! flow.rs        graphs of tasks                tally.rs      counts of tasks
//! schedule.rs    schedules; fire.rs fires them  spread.rs     a queue over several shards
//! outbox.rs      messages to other shards       digest.rs     the hash by which replicas compare
//! command.rs, outcome.rs, event.rs, rejection.rs   what goes in and comes out
//! codec.rs, entry.rs, wire.rs                      bytes in the log and between nodes
//! image.rs       records for checkpoints        ask.rs, view.rs, query.rs   what readers see
//! limits.rs      every bound of a shard         check.rs      every invariant between the parts
//! ```
//!
//! Invariants, which [`Machine::check`] verifies:
//!
//! - Two machines fed the same entries are equal, byte for byte ([`Machine::records`]).
//! - A task is in exactly one state, in exactly one lane of its queue, and under at most one claim.
//! - A later claim of a task has a higher token, and only the current token changes the task.
//! - A command is accepted whole or rejected whole; a [`Rejection`] changes nothing but time.
//! - The records of a cut ([`Machine::freeze`]) are the state at the cut, even when they are read
//!   later.
#![warn(missing_docs)]
#![deny(clippy::float_arithmetic)]

mod ack;
pub mod ask;
mod batch;
mod batch_memory;
mod bucket;
mod cancel;
mod check;
mod claim;
mod codec;
mod command;
mod dead;
mod deadlines;
mod dedup;
mod delete;
mod digest;
mod draw;
mod enqueue;
mod entry;
mod event;
mod expire;
mod extend;
mod fail;
mod fairness;
mod fire;
mod flow;
mod flow_command;
mod ids;
mod image;
mod indexes;
mod kept;
mod keys;
mod kill;
mod life;
pub mod limits;
mod lose;
mod machine;
mod names;
mod newest;
mod occurrences;
mod outbox;
mod outcome;
mod pause;
mod payloads;
mod purge;
mod query;
mod queue;
mod queue_name;
mod rejection;
mod release;
mod replay;
mod retry;
mod revive;
mod rings;
mod schedule;
mod schedule_command;
mod session;
mod settings;
mod slab;
mod spread;
mod stage;
mod strands;
mod tally;
mod tally_command;
mod task;
mod task_image;
#[cfg(test)]
mod testing;
mod transition;
mod turn;
mod unique;
mod view;
mod watch;
mod why;
pub mod wire;

pub use ask::{Ask, Found, Query};
pub use bucket::Rate;
pub use command::*;
pub use digest::Attest;
pub use entry::{
    DecodeError, EncodedCommand, Entry, EntryBuilder, RULES_CURRENT, RULES_CURRENT_AGAIN,
};
pub use event::{DeathReason, Event, EventKind, TaskRef};
pub use flow::{FlowFilter, FlowPage, FlowView, NodeView, ParentResult, TaskSketch, check_flow};
pub use flow_command::*;
pub use image::{ImageError, Record, RecordKey};
pub use machine::{Identity, Machine, home_shard};
pub use newest::{NewestAt, NewestPage, NewestSpan};
pub use occurrences::Occurrences;
pub use outbox::{LinkView, Outgoing};
pub use outcome::{AfterFailure, BulkProgress, ClaimedTask, Enqueued, Outcome, Renewal};
pub use payloads::{NoPayloads, Payloads};
pub use purge::{EnqueueCut, PurgeQueue};
pub use query::{
    AttemptOutcome, AttemptView, ClaimView, Claimable, FlowMember, QueueCounts, QueuePage,
    QueueView, TaskPage, TaskView, UniqueView,
};
pub use queue_name::{InvalidQueueName, QueueName};
pub use rejection::{HeldTasks, KeyHolder, Rejection};
pub use retry::{Backoff, RetryPolicy};
pub use schedule::{
    DueSchedule, SCHEDULE_HEADERS, SchedulePage, ScheduleView, check_schedule_name,
};
pub use schedule_command::*;
pub use settings::{PerKey, QueueSettings};
pub use spread::{SpreadView, request_shard, spread_shards};
pub use tally::{CallbackState, TallyView};
pub use tally_command::*;
pub use task::{
    ClaimToken, FlowState, InvalidTaskId, SessionId, ShardId, TaskId, TaskStateName, Timestamp,
};
pub use why::{Reason, ScheduledFor, WhyView};
