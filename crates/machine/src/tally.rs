//! Tallies: counts of tasks that come one by one, and the tasks that follow once all of them have run,
//! and once all of them have succeeded. A tally lives on the shard that its id names, as do the tallies
//! below it; its tasks live on the shards of their queues, and messages tie them together.
//!
//! Each task has one [`Standing`], and the counts of a tally are the sum of the standings that it was
//! told. A task keeps what it has told last and tells each change once, so that the sum is exact.
//! Invariant: a follow-up that may be enqueued is; it is enqueued once in a tally's life.
//!
//! `open.rs` makes tallies and adds to them, `progress.rs` moves them on, `member.rs` is the side of the
//! tasks, `forget.rs` the end of a tally.

mod forget;
mod member;
mod open;
mod progress;
#[cfg(test)]
mod tests;
mod view;

pub use view::{CallbackState, TallyView};

use crate::kept::Keep;
use crate::limits::{TALLY_KEPT_FOR_MS, TALLY_OPEN_FOR_MS, TALLY_SUCCEEDED_FOR_MS};
use crate::turn::Turn;
use crate::watch::{End, Watch};
use crate::wire::{wire_struct, wire_words};
use crate::{AttemptOutcome, Machine, Rejection, TaskId, TaskStateName, Timestamp};
use std::collections::BTreeMap;

/// One tally.
#[derive(Debug, PartialEq)]
pub(crate) struct Tally {
    description: Box<str>,
    parent: Option<TaskId>,
    /// How many tallies are above it.
    depth: u32,
    created_at: Timestamp,
    stage: Stage,
    counts: Counts,
    /// Tallies below it that are kept.
    children: u32,
    /// Tallies below it that hold its `complete` back.
    children_running: u32,
    /// Tallies below it that hold its `success` back.
    children_unsucceeded: u32,
    complete: Callback,
    success: Callback,
    /// From when on its time to be forgotten counts.
    touched_at: Timestamp,
}

/// Whether what follows from a tally may be enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not yet: it was never said to be whole.
    Open,
    Committed,
    /// Not now: it was committed, and is added to. That does not last for ever.
    Reopened,
}

/// What follows from one step of a tally. It is settled when it has succeeded.
#[derive(Debug, PartialEq)]
struct Callback {
    /// A [`crate::FollowUp`], encoded, while it waits; a step without one is settled by itself.
    follow_up: Option<Box<[u8]>>,
    state: CallbackState,
}

/// The two steps of a tally that something may follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All has run once.
    Complete,
    /// All has succeeded.
    Success,
}

/// How many tasks stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    total: u64,
    /// Not succeeded.
    pending: u64,
    /// Those of them that have run, or ended.
    failed: u64,
    /// Those of them that have not.
    not_run: u64,
}

/// Where one task of a tally stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No attempt of it has ended, nor it itself.
    NotRun,
    /// It has run or ended, and not succeeded. It may still.
    Failed,
    Succeeded,
    /// It was never made: another stands for it.
    NotMade,
}

wire_words!(Stage { 1 => Open, 2 => Committed, 3 => Reopened });
wire_words!(Step { 1 => Complete, 2 => Success });
wire_words!(Standing { 1 => NotRun, 2 => Failed, 3 => Succeeded, 4 => NotMade });
wire_struct!(Counts { total, pending, failed, not_run });
wire_struct!(Callback { follow_up, state });
wire_struct!(Tally {
    description,
    parent,
    depth,
    created_at,
    stage,
    counts,
    children,
    children_running,
    children_unsucceeded,
    complete,
    success,
    touched_at,
});

impl Keep for Tally {
    type Key = TaskId;
    const KIND: u8 = 27;

    fn expires_at(&self) -> Option<Timestamp> {
        let kept_for_ms = match (self.stage, self.success.is_settled()) {
            (Stage::Open | Stage::Reopened, _) => TALLY_OPEN_FOR_MS,
            (Stage::Committed, true) => TALLY_SUCCEEDED_FOR_MS,
            (Stage::Committed, false) => TALLY_KEPT_FOR_MS,
        };
        Some(self.touched_at.plus_ms(kept_for_ms))
    }

    fn heap_bytes(&self) -> usize {
        let bytes =
            |callback: &Callback| callback.follow_up.as_ref().map_or(0, |bytes| bytes.len());
        self.description.len() + bytes(&self.complete) + bytes(&self.success)
    }
}

impl Callback {
    fn is_settled(&self) -> bool {
        self.state == CallbackState::Succeeded
    }
}

impl Standing {
    /// Where a task stands that has ended. One that was taken out of the state has not succeeded.
    pub(crate) fn after(end: End) -> Standing {
        match end {
            End::Succeeded => Standing::Succeeded,
            End::Failed | End::Dead | End::Cancelled | End::Expired | End::Removed => {
                Standing::Failed
            }
        }
    }

    fn counts(self) -> Counts {
        let counts = Counts { total: 1, pending: 1, ..Counts::default() };
        match self {
            Standing::NotRun => Counts { not_run: 1, ..counts },
            Standing::Failed => Counts { failed: 1, ..counts },
            Standing::Succeeded => Counts { pending: 0, ..counts },
            Standing::NotMade => Counts::default(),
        }
    }
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.total += other.total;
        self.pending += other.pending;
        self.failed += other.failed;
        self.not_run += other.not_run;
    }

    fn take_out(&mut self, other: Counts) {
        self.total -= other.total;
        self.pending -= other.pending;
        self.failed -= other.failed;
        self.not_run -= other.not_run;
    }
}

impl Tally {
    fn callback(&self, step: Step) -> &Callback {
        match step {
            Step::Complete => &self.complete,
            Step::Success => &self.success,
        }
    }

    fn callback_mut(&mut self, step: Step) -> &mut Callback {
        match step {
            Step::Complete => &mut self.complete,
            Step::Success => &mut self.success,
        }
    }

    fn is_committed(&self) -> bool {
        self.stage == Stage::Committed
    }

    /// Tallies below it that hold a step back.
    fn children_before(&mut self, step: Step) -> &mut u32 {
        match step {
            Step::Complete => &mut self.children_running,
            Step::Success => &mut self.children_unsucceeded,
        }
    }

    /// Whether a step is reached that was not before.
    fn reaches(&self, step: Step) -> bool {
        let reached = match step {
            Step::Complete => self.counts.not_run == 0 && self.children_running == 0,
            Step::Success => {
                let all = self.counts.pending == 0 && self.children_unsucceeded == 0;
                all && self.complete.is_settled()
            }
        };
        self.is_committed() && reached && self.callback(step).state == CallbackState::Waiting
    }
}

impl Turn<'_> {
    fn tally(&self, tally: TaskId) -> Result<&Tally, Rejection> {
        self.shard.tallies.get(tally).ok_or(Rejection::TallyNotFound { tally })
    }

    fn edit_tally<R>(&mut self, tally: TaskId, change: impl FnOnce(&mut Tally) -> R) -> R {
        self.shard.tallies.update(tally, change)
    }
}

/// Checks.
impl Machine {
    /// Compares what is counted of tallies with each other and with their tasks, as far as both are here.
    pub(crate) fn check_tallies(&self) -> Result<(), String> {
        self.tallies.check()?;
        let told = self.check_members()?;
        let mut below: BTreeMap<TaskId, [u32; 3]> = BTreeMap::new();
        for (_, tally) in self.tallies.iter() {
            let Some(parent) = tally.parent else { continue };
            if self.tallies.get(parent).is_none() {
                return Err(format!("tally {parent} is gone before those below it"));
            }
            let open = [&tally.complete, &tally.success].map(|step| u32::from(!step.is_settled()));
            let known = below.entry(parent).or_default();
            known.iter_mut().zip([1, open[0], open[1]]).for_each(|(sum, one)| *sum += one);
        }
        for (id, tally) in self.tallies.iter() {
            let Counts { total, pending, failed, not_run } = tally.counts;
            if pending > total || failed + not_run != pending {
                return Err(format!("tally {id} is miscounted: {:?}", tally.counts));
            }
            let here = told.get(&id).copied().unwrap_or_default();
            if here.not_run > not_run || here.failed > failed || here.total > total {
                return Err(format!("tally {id} knows too few of its tasks: {:?}", tally.counts));
            }
            let [children, running, unsucceeded] = below.get(&id).copied().unwrap_or_default();
            // Of those that were forgotten before they were settled it goes on to wait.
            let held =
                running <= tally.children_running && unsucceeded <= tally.children_unsucceeded;
            if children != tally.children || !held {
                return Err(format!("tally {id} miscounts what is below it"));
            }
            for step in [Step::Complete, Step::Success] {
                let callback = tally.callback(step);
                let left = callback.state != CallbackState::Waiting && callback.follow_up.is_some();
                if left || tally.reaches(step) {
                    return Err(format!("tally {id} is past {step:?}, which has not followed"));
                }
            }
        }
        Ok(())
    }

    /// What the tasks of this shard have told their tallies, which must fit what they are.
    fn check_members(&self) -> Result<BTreeMap<TaskId, Counts>, String> {
        let mut sums: BTreeMap<TaskId, Counts> = BTreeMap::new();
        for (_, task) in self.tasks.iter() {
            let Some(Watch::Tally { tally, told }) = task.watch() else { continue };
            let state = task.state.name();
            let lost = AttemptOutcome::Lost;
            let mut outcomes = task.attempts().map(|attempt| attempt.outcome);
            let failed = outcomes.any(|outcome| outcome.has_failed() && outcome != lost);
            let has_run = failed || task.losses > 0;
            let fits = match told {
                Standing::NotRun => !has_run && !state.is_finished(),
                Standing::Failed => state != TaskStateName::Succeeded,
                Standing::Succeeded => state == TaskStateName::Succeeded,
                Standing::NotMade => false,
            };
            if !fits {
                return Err(format!("task {} is {state} and has told {told:?}", task.id));
            }
            sums.entry(tally).or_default().add(told.counts());
        }
        Ok(sums)
    }
}
