//! What readers see of a tally.

use crate::wire::{wire_struct, wire_words};
use crate::{Machine, TaskId, Timestamp};

/// How far a task is that follows from a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackState {
    /// Not enqueued.
    Waiting,
    /// Enqueued, and it has not succeeded yet.
    Enqueued,
    /// It has succeeded; or there is none, and all that it would wait for has come.
    Succeeded,
}

/// One tally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TallyView {
    /// Its id.
    pub tally: TaskId,
    /// The tally that waits for it.
    pub parent: Option<TaskId>,
    /// For people.
    pub description: String,
    /// When it was opened.
    pub created_at: Timestamp,
    /// Whether its follow-ups may be enqueued.
    pub committed: bool,
    /// Tasks that were added and made.
    pub total: u64,
    /// Those of them that have not succeeded.
    pub pending: u64,
    /// Those of the pending that have run or ended: failed, lost, dead, cancelled, expired, removed.
    pub failed: u64,
    /// What follows once all have run.
    pub complete: CallbackState,
    /// What follows once all have succeeded.
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
    /// One tally, if it is kept here.
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
