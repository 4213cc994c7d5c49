//! Release and snooze: a worker gives a task back, or puts it off, and nothing is spent.

use crate::life::Ending;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{AttemptOutcome, EventKind, Outcome, Rejection, Release, Snooze, TaskStateName};

impl Turn<'_> {
    pub(crate) fn release(&mut self, release: Release) -> Result<Outcome, Rejection> {
        let slot = self.held(release.task, release.token)?;
        Ok(Outcome::Released { state: self.give_back(slot) })
    }

    pub(crate) fn snooze(&mut self, snooze: Snooze) -> Result<Outcome, Rejection> {
        let slot = self.held(snooze.task, snooze.token)?;
        snooze.until.check("until", self.now)?;
        let run_at = snooze.until.from(self.now).max(self.now);
        self.end_unspent(slot, AttemptOutcome::Snoozed);
        if self.cancel_requested(slot) {
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
        } else {
            self.emit_task(slot, |task| EventKind::TaskSnoozed(task, run_at));
            self.schedule(slot, run_at);
        }
        Ok(Outcome::Snoozed { run_at })
    }

    /// Puts a claimed task back where it was, or ends it if it was cancelled meanwhile.
    pub(crate) fn give_back(&mut self, slot: Slot) -> TaskStateName {
        let since = self.ready_since(slot);
        self.end_unspent(slot, AttemptOutcome::Released);
        if self.cancel_requested(slot) {
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
            return TaskStateName::Cancelled;
        }
        self.make_ready(slot, since, Place::Front);
        TaskStateName::Ready
    }

    fn end_unspent(&mut self, slot: Slot, outcome: AttemptOutcome) {
        self.end_attempt(slot, outcome, None, None);
        self.shard.edit(slot, |task| task.attempt -= 1);
    }
}
