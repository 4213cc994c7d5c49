//! Views of tallies for readers.

use crate::wire::{wire_struct, wire_words};
use crate::{Machine, TaskId, Timestamp};

/// The state of a tally's callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackState {
    /// Not enqueued.
    Waiting,
    /// Enqueued, and it has not succeeded yet.
    Enqueued,
    /// Succeeded; or the step has no callback, and is settled.
    Succeeded,
}

/// A view of one tally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TallyView {
    /// The tally's id.
    pub tally: TaskId,
    /// The tally above, which waits for this one.
    pub parent: Option<TaskId>,
    /// A description for people.
    pub description: String,
    /// When the tally was opened.
    pub created_at: Timestamp,
    /// Whether the callbacks may be enqueued.
    pub committed: bool,
    /// The number of tasks that were added and made.
    pub total: u64,
    /// The number of tasks that have not succeeded.
    pub pending: u64,
    /// The number of pending tasks that have run or ended: failed, lost, dead, cancelled, expired,
    /// removed.
    pub failed: u64,
    /// The callback that runs once all tasks have run.
    pub complete: CallbackState,
    /// The callback that runs once all tasks have succeeded.
    pub success: CallbackState,
}

wire_words!(CallbackState { 1 => Waiting, 2 => Enqueued, 3 => Succeeded });
wire_struct!(TallyView {
    tally,
    parent,
    description,
    created_at,
    committed,
    total,
    pending,
    failed,
    complete,
    success,
});

impl Machine {
    /// A view of one tally, if this shard has it.
    pub fn tally(&self, tally: TaskId) -> Option<TallyView> {
        let found = self.tallies.get(tally)?;
        Some(TallyView {
            tally,
            parent: found.parent,
            description: found.description.to_string(),
            created_at: found.created_at,
            committed: found.is_committed(),
            total: found.counts.total,
            pending: found.counts.pending,
            failed: found.counts.failed,
            complete: found.complete.state,
            success: found.success.state,
        })
    }
}
