//! Tallies: counts of tasks that are added one by one, and up to two callbacks: one when all tasks
//! have run, one when all have succeeded. A tally and the tallies below it are on the shard that
//! its id names. Its tasks are on the shards of their queues; messages between the shards connect
//! them.
//!
//! Each task has one [`Standing`], and the counts of a tally are the sum of the standings that it
//! has received. A task remembers the last standing that it sent and sends each change once, so
//! that the sum is exact. Invariant: a callback is enqueued as soon as it may be, and once in a
//! tally's life.
//!
//! `open.rs` creates tallies and adds tasks, `progress.rs` counts and enqueues callbacks,
//! `member.rs` is the side of the tasks, and `forget.rs` removes old tallies.

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

/// The record of one tally.
#[derive(Debug, PartialEq)]
pub(crate) struct Tally {
    description: Box<str>,
    parent: Option<TaskId>,
    /// The number of tallies above this one.
    depth: u32,
    created_at: Timestamp,
    stage: Stage,
    counts: Counts,
    /// The number of tallies below this one that are kept.
    children: u32,
    /// The number of tallies below this one that delay its `complete`.
    children_running: u32,
    /// The number of tallies below this one that delay its `success`.
    children_unsucceeded: u32,
    complete: Callback,
    success: Callback,
    /// The moment from which the time until removal counts.
    touched_at: Timestamp,
}

/// Whether the callbacks of a tally may be enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not yet: the tally was never committed.
    Open,
    Committed,
    /// Not now: the tally was committed and reopened. A reopened tally is committed again after a
    /// time.
    Reopened,
}

/// The callback of one step of a tally. The step is settled once the callback has succeeded.
#[derive(Debug, PartialEq)]
struct Callback {
    /// A [`crate::FollowUp`], encoded, while it waits. A step without one is settled when it is
    /// reached.
    follow_up: Option<Box<[u8]>>,
    state: CallbackState,
}

/// The two steps of a tally that may have a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All tasks have run once.
    Complete,
    /// All tasks have succeeded.
    Success,
}

/// The numbers of tasks by standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    total: u64,
    /// Tasks that have not succeeded.
    pending: u64,
    /// Pending tasks that have run or ended.
    failed: u64,
    /// Pending tasks that have not run.
    not_run: u64,
}

/// The standing of one task of a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Neither an attempt nor the task itself has ended.
    NotRun,
    /// The task has run or ended without success. A retry may still succeed.
    Failed,
    Succeeded,
    /// The task was never made, because another task took its request id or its unique key.
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
    /// The standing of an ended task. A task that was removed before its end has not succeeded.
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

    /// The number of tallies below this one that delay a step.
    fn children_before(&mut self, step: Step) -> &mut u32 {
        match step {
            Step::Complete => &mut self.children_running,
            Step::Success => &mut self.children_unsucceeded,
        }
    }

    /// Whether the step is reached now and was not before.
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
    /// Compares the counts of tallies with each other and with the tasks of this shard.
    pub(crate) fn check_tallies(&self) -> Result<(), String> {
        self.tallies.check()?;
        let reported = self.check_members()?;
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
            let here = reported.get(&id).copied().unwrap_or_default();
            if here.not_run > not_run || here.failed > failed || here.total > total {
                return Err(format!("tally {id} knows too few of its tasks: {:?}", tally.counts));
            }
            let [children, running, unsucceeded] = below.get(&id).copied().unwrap_or_default();
            // A parent keeps waiting for a committed child that was forgotten before it was
            // settled.
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

    /// The standings that this shard's tasks have sent, each compared with the task itself.
    fn check_members(&self) -> Result<BTreeMap<TaskId, Counts>, String> {
        let mut sums: BTreeMap<TaskId, Counts> = BTreeMap::new();
        for (_, task) in self.tasks.iter() {
            let Some(Watch::Tally { tally, reported }) = task.watch() else { continue };
            let state = task.state.name();
            let lost = AttemptOutcome::Lost;
            let mut outcomes = task.attempts().map(|attempt| attempt.outcome);
            let failed = outcomes.any(|outcome| outcome.has_failed() && outcome != lost);
            let has_run = failed || task.losses > 0;
            let fits = match reported {
                Standing::NotRun => !has_run && !state.is_finished(),
                Standing::Failed => state != TaskStateName::Succeeded,
                Standing::Succeeded => state == TaskStateName::Succeeded,
                Standing::NotMade => false,
            };
            if !fits {
                return Err(format!("task {} is {state} and has reported {reported:?}", task.id));
            }
            sums.entry(tally).or_default().add(reported.counts());
        }
        Ok(sums)
    }
}
