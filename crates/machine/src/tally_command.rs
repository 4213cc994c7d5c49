//! Commands for tallies.

use crate::{FollowUp, TaskId};

/// See [`crate::Command::OpenTally`].
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTally<'a> {
    /// The id of the request: a repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// A description for people; may be empty.
    pub description: &'a str,
    /// The tally above, on the same shard, which then waits for this one too.
    pub parent: Option<TaskId>,
    /// Enqueued once all tasks and all tallies below have succeeded, and the `complete` callback
    /// has.
    pub success: Option<Box<FollowUp<'a>>>,
    /// Enqueued once all tasks have run, and the `complete` callbacks of all tallies below have
    /// succeeded. A callback whose request id or unique key another task has is not made, and so
    /// never succeeds.
    pub complete: Option<Box<FollowUp<'a>>>,
}

/// See [`crate::Command::AddToTally`].
#[derive(Clone, Debug, PartialEq)]
pub struct AddToTally<'a> {
    /// The tally.
    pub tally: TaskId,
    /// The id of the request: a repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// The tasks, each with the shard of its queue.
    pub tasks: Vec<FollowUp<'a>>,
}

/// See [`crate::Command::ReopenTally`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReopenTally {
    /// The tally.
    pub tally: TaskId,
}

/// See [`crate::Command::CommitTally`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTally {
    /// The tally.
    pub tally: TaskId,
}
