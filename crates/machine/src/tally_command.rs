//! Commands for tallies.

use crate::{FollowUp, TaskId};

/// See [`crate::Command::OpenTally`].
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTally<'a> {
    /// Identity of the request: its repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// For people; may be empty.
    pub description: &'a str,
    /// The tally, on this very shard, that waits for this one too.
    pub parent: Option<TaskId>,
    /// Enqueued once all its tasks have succeeded, all tallies below it have, and what follows from its
    /// `complete` has.
    pub success: Option<Box<FollowUp<'a>>>,
    /// Enqueued once all its tasks have run, and what follows from the `complete` of all tallies below it
    /// has succeeded. One that is not made, since another has its request or its unique key, never does.
    pub complete: Option<Box<FollowUp<'a>>>,
}

/// See [`crate::Command::AddToTally`].
#[derive(Clone, Debug, PartialEq)]
pub struct AddToTally<'a> {
    /// The tally.
    pub tally: TaskId,
    /// Identity of the request: its repetition within 10 minutes gets the first answer.
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
