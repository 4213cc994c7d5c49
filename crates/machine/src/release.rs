//! Release and snooze: a worker returns a task, or schedules it for later, without spending an
//! attempt.

use crate::life::Ending;
use crate::limits::PUSH_BACK_MS_MAX;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{AttemptOutcome, EventKind, Outcome, Rejection, Release, Snooze, TaskStateName};

impl Turn<'_> {
    pub(crate) fn release(&mut self, release: Release) -> Result<Outcome, Rejection> {
        let slot = self.find_held(release.task, release.token)?;
        Ok(Outcome::Released { state: self.give_back(slot) })
    }

    pub(crate) fn snooze(&mut self, snooze: Snooze) -> Result<Outcome, Rejection> {
        let slot = self.find_held(snooze.task, snooze.token)?;
        snooze.until.check("until", self.now)?;
        let run_at = snooze.until.moment(self.now).max(self.now);
        if snooze.push_back_key {
            let ahead_ms = run_at.ms_since(self.now);
            if ahead_ms > PUSH_BACK_MS_MAX {
                return Err(Rejection::invalid(format!(
                    "until is {ahead_ms} ms ahead; a key is pushed back for at most {PUSH_BACK_MS_MAX} ms"
                )));
            }
            self.shard.push_back(slot, run_at);
        }
        if self.cancel_requested(slot) {
            let state = self.yield_cancelled(slot);
            return Ok(Outcome::Snoozed { run_at, state });
        }
        self.end_unspent(slot, AttemptOutcome::Snoozed);
        self.emit_task(slot, |task| EventKind::TaskSnoozed(task, run_at));
        self.schedule(slot, run_at);
        Ok(Outcome::Snoozed { run_at, state: TaskStateName::Scheduled })
    }

    /// Returns a claimed task to its place, or ends it if a cancellation was requested.
    pub(crate) fn give_back(&mut self, slot: Slot) -> TaskStateName {
        if self.cancel_requested(slot) {
            return self.yield_cancelled(slot);
        }
        let since = self.ready_since(slot);
        self.shard.refund(slot);
        self.end_unspent(slot, AttemptOutcome::Released);
        self.make_ready(slot, since, Place::Front);
        TaskStateName::Ready
    }

    /// Ends a cancelled task whose worker yields.
    fn yield_cancelled(&mut self, slot: Slot) -> TaskStateName {
        self.end_attempt(slot, AttemptOutcome::Cancelled, None, None);
        self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
        TaskStateName::Cancelled
    }

    fn end_unspent(&mut self, slot: Slot, outcome: AttemptOutcome) {
        self.end_attempt(slot, outcome, None, None);
        self.shard.edit(slot, |task| task.attempt -= 1);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Yard;
    use crate::{AttemptOutcome, Command, Outcome, Snooze, TaskStateName, When};

    #[test]
    fn a_released_task_goes_back_to_the_front_and_spends_nothing() {
        let mut yard = Yard::new();
        let first = yard.enqueue("mail");
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let released = Outcome::Released { state: TaskStateName::Ready };
        assert_eq!(yard.release(&held), Ok(released));
        let task = yard.task(first);
        assert_eq!((task.attempt, task.losses), (0, 0));
        assert_eq!(task.attempts[0].outcome, AttemptOutcome::Released);
        let again = yard.claim_one("mail");
        assert_eq!((again.id, again.attempt), (first, 1));
    }

    #[test]
    fn a_snoozed_task_waits_and_spends_nothing() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let until = When::After { ms: 500 };
        let snooze =
            Command::Snooze(Snooze { task: id, token: held.token, until, push_back_key: false });
        let run_at = yard.now().plus_ms(500);
        let state = TaskStateName::Scheduled;
        assert_eq!(yard.send(snooze), Ok(Outcome::Snoozed { run_at, state }));
        assert_eq!(yard.task(id).run_at, Some(run_at));
        yard.wait_ms(500);
        assert_eq!(yard.claim_one("mail").attempt, 1);
    }
}
