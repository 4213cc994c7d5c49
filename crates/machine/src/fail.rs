//! Fail: decides the next state of a task whose attempt failed or ran out of time: retry, dead
//! letter or end.

use crate::life::{Ending, Failure};
use crate::limits::ERROR_BYTES_MAX;
use crate::retry::RetryPolicy;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{
    AfterFailure, AttemptOutcome, ClaimToken, DeathReason, EventKind, Fail, Outcome, Rejection,
    TaskError, TaskId, TaskStateName, Timestamp, When,
};

impl Turn<'_> {
    /// Accepts the current token alone; a repeated failure gets the same answer until the task's
    /// next attempt.
    pub(crate) fn fail(&mut self, fail: &Fail<'_>) -> Result<Outcome, Rejection> {
        if let Some(after) = self.failed_before(fail.task, fail.token) {
            return Ok(Outcome::Failed(after));
        }
        let slot = self.find_held(fail.task, fail.token)?;
        if let Some(retry_at) = fail.retry_at {
            retry_at.check("retry_at", self.now)?;
        }
        let after = self.fail_attempt(
            slot,
            AttemptOutcome::Failed,
            &fail.error,
            fail.retry_at,
            fail.retryable,
        );
        Ok(Outcome::Failed(after))
    }

    fn failed_before(&self, task: TaskId, token: ClaimToken) -> Option<AfterFailure> {
        let task = self.task(self.shard.ids.get(task)?);
        let last = task.last_attempt.as_ref()?;
        let accepted = task.claim().is_none()
            && last.token == token
            && matches!(last.outcome, AttemptOutcome::Failed | AttemptOutcome::Cancelled);
        match (task.state.name(), last.retry_at) {
            _ if !accepted => None,
            (TaskStateName::Scheduled | TaskStateName::Ready, Some(run_at)) => {
                Some(AfterFailure::Retry { run_at })
            }
            (TaskStateName::Dead, _) => Some(AfterFailure::Dead),
            (TaskStateName::Failed, _) => Some(AfterFailure::Failed),
            (TaskStateName::Cancelled, _) => Some(AfterFailure::Cancelled),
            _ => None,
        }
    }

    /// Ends a claimed task's attempt as a failure; the task is retried, becomes a dead letter, or
    /// ends.
    pub(crate) fn fail_attempt(
        &mut self,
        slot: Slot,
        outcome: AttemptOutcome,
        error: &TaskError<'_>,
        retry_at: Option<When>,
        retryable: bool,
    ) -> AfterFailure {
        let error = Some(Box::new(Failure::cut(error, ERROR_BYTES_MAX)));
        if self.cancel_requested(slot) {
            self.end_attempt(slot, AttemptOutcome::Cancelled, error, None);
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
            return AfterFailure::Cancelled;
        }
        let queue = self.task(slot).queue;
        self.shard.edit_queue(queue, |queue| queue.totals.failed += 1);
        self.shard.edit(slot, |task| task.failures = task.failures.saturating_add(1));
        let task = self.task(slot);
        let policy = self.retry_policy(slot);
        let failures = u32::from(task.failures);
        if !retryable || failures >= policy.max_attempts {
            self.end_attempt(slot, outcome, error, None);
            let reason = match retryable {
                true => DeathReason::AttemptsSpent,
                false => DeathReason::NotRetryable,
            };
            return self.die(slot, reason);
        }
        let run_at = match retry_at {
            Some(when) => when.moment(self.now).max(self.now),
            None => self.now.plus_ms(policy.delay_after(failures, task.id)),
        };
        self.end_attempt(slot, outcome, error, Some(run_at));
        self.emit_task(slot, |task| EventKind::TaskRetrying(task, run_at));
        self.schedule(slot, run_at);
        AfterFailure::Retry { run_at }
    }

    /// Ends a task that will not be tried again: as a dead letter, unless its queue keeps none or
    /// its producer asked for none.
    pub(crate) fn die(&mut self, slot: Slot, reason: DeathReason) -> AfterFailure {
        let task = self.task(slot);
        let discarded = match reason {
            DeathReason::AttemptsSpent | DeathReason::NotRetryable => {
                task.terms().is_some_and(|terms| terms.discard_dead)
            }
            // The producer asked for no dead letter after failures, not after these two reasons.
            DeathReason::Quarantined | DeathReason::Killed => false,
        };
        if discarded || !self.shard.queues.get(task.queue).keeps_dead() {
            self.finish(slot, Ending::Failed, EventKind::TaskFailed);
            return AfterFailure::Failed;
        }
        self.shard.edit(slot, |task| task.left_mut().death = Some(reason));
        self.finish(slot, Ending::Dead, |task| EventKind::TaskDied(task, reason));
        AfterFailure::Dead
    }

    /// The task's own policy, else its queue's, else the default.
    fn retry_policy(&self, slot: Slot) -> RetryPolicy {
        let task = self.task(slot);
        let own = task.terms().and_then(|terms| terms.retry.as_deref());
        let queue = &self.shard.queues.get(task.queue).settings.retry;
        own.or(queue.as_ref()).cloned().unwrap_or_default()
    }

    pub(crate) fn cancel_requested(&self, slot: Slot) -> bool {
        self.task(slot).claim().is_some_and(|claim| claim.cancel_requested)
    }

    /// When a claimed task became ready, before its claim.
    pub(crate) fn ready_since(&self, slot: Slot) -> Timestamp {
        self.task(slot).claim().map_or(self.now, |claim| claim.ready_since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LOSSES_MAX;
    use crate::testing::{Yard, fail, new_task, tried};
    use crate::{Backoff, Command, Machine, NewTask, QueueSettings, Snooze};

    #[test]
    fn a_failed_task_waits_by_its_policy_and_dies_when_its_attempts_are_spent() {
        let mut yard = Yard::new();
        let backoff = Backoff::List { delays_ms: [100, 2_000].into() };
        let retry = RetryPolicy { backoff, max_attempts: 3, jitter_thousandths: 0 };
        let task = NewTask { retry: Some(retry), ..new_task() };
        let id = yard.enqueue_task("mail", task).unwrap().id;
        for delay_ms in [100, 2_000] {
            let held = yard.claim_one("mail");
            let run_at = yard.now().plus_ms(delay_ms);
            assert_eq!(yard.fail(&held), Ok(AfterFailure::Retry { run_at }));
            yard.wait_ms(delay_ms - 1);
            assert_eq!(yard.state(id), TaskStateName::Scheduled, "never before its time");
            let counts = yard.counts("mail");
            assert_eq!((counts.scheduled, counts.retrying), (1, 1));
            yard.wait_ms(1);
            assert_eq!(yard.state(id), TaskStateName::Ready);
        }
        let held = yard.claim_one("mail");
        assert_eq!(yard.fail(&held), Ok(AfterFailure::Dead));
        let task = yard.task(id);
        assert_eq!(task.death, Some(DeathReason::AttemptsSpent));
        assert_eq!(task.attempts.len(), 3);
        let counts = yard.counts("mail");
        assert_eq!((counts.dead, counts.dead_total, counts.failed_total), (1, 1, 3));
    }

    #[test]
    fn only_those_that_wait_after_a_failure_or_a_loss_are_counted_as_retrying() {
        let mut yard = Yard::new();
        let later = NewTask { run_at: When::After { ms: 90_000 }, ..new_task() };
        yard.enqueue_task("mail", later).unwrap();
        let id = yard.enqueue("mail");
        let counted = |yard: &Yard| {
            let counts = yard.counts("mail");
            (counts.scheduled, counts.retrying)
        };
        for _ in 0..2 {
            assert_eq!(counted(&yard), (1, 0));
            yard.claim_one("mail");
            yard.wait_ms(30_000);
        }
        assert_eq!(counted(&yard), (2, 1), "the second loss waits");
        let loaded = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
        yard.machine = loaded;
        assert_eq!(counted(&yard), (2, 1));
        yard.retry(id).unwrap();
        assert_eq!(counted(&yard), (1, 0));
        let held = yard.claim_one("mail");
        let (task, token, until) = (held.id, held.token, When::After { ms: 5 });
        yard.send(Command::Snooze(Snooze { task, token, until, push_back_key: false })).unwrap();
        assert_eq!(counted(&yard), (2, 0), "a snooze is no failure");
    }

    #[test]
    fn a_failure_can_name_its_time_or_refuse_a_retry() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let far = Some(When::After { ms: u64::MAX });
        assert!(yard.fail_with(Fail { retry_at: far, ..fail(&held) }).is_err());
        let retry_at = Some(When::After { ms: 7 });
        let run_at = yard.now().plus_ms(7);
        let after = yard.fail_with(Fail { retry_at, ..fail(&held) });
        assert_eq!(after, Ok(AfterFailure::Retry { run_at }));
        yard.wait_ms(7);
        let held = yard.claim_one("mail");
        let after = yard.fail_with(Fail { retryable: false, ..fail(&held) });
        assert_eq!(after, Ok(AfterFailure::Dead));
        assert_eq!(yard.task(id).death, Some(DeathReason::NotRetryable));
    }

    #[test]
    fn a_queue_without_dead_letters_ends_them_as_failed() {
        let mut yard = Yard::new();
        let settings = QueueSettings { dead_retention_count: Some(0), ..QueueSettings::default() };
        yard.set("mail", settings);
        let id = yard.enqueue_task("mail", tried(1)).unwrap().id;
        let held = yard.claim_one("mail");
        assert_eq!(yard.fail(&held), Ok(AfterFailure::Failed));
        assert_eq!(yard.state(id), TaskStateName::Failed);
    }

    #[test]
    fn a_task_that_is_not_worth_a_dead_letter_ends_as_failed_unless_it_is_quarantined() {
        let mut yard = Yard::new();
        let spent = NewTask { discard_dead: true, ..tried(1) };
        let spent = yard.enqueue_task("mail", spent).unwrap().id;
        let held = yard.claim_one("mail");
        assert_eq!(yard.fail(&held), Ok(AfterFailure::Failed));
        assert_eq!(yard.fail(&held), Ok(AfterFailure::Failed), "and again");
        assert_eq!(yard.state(spent), TaskStateName::Failed);
        let discarded = || NewTask { discard_dead: true, ..new_task() };
        let refused = yard.enqueue_task("mail", discarded()).unwrap().id;
        let held = yard.claim_one("mail");
        let for_good = yard.fail_with(Fail { retryable: false, ..fail(&held) });
        assert_eq!(for_good, Ok(AfterFailure::Failed));
        assert_eq!(yard.task(refused).death, None);
        let killer = yard.enqueue_task("mail", discarded()).unwrap().id;
        for _ in 0..LOSSES_MAX {
            yard.claim_one("mail");
            yard.wait_ms(30_000);
            yard.wait_ms(10_000);
        }
        assert_eq!(yard.task(killer).death, Some(DeathReason::Quarantined));
        assert_eq!(yard.counts("mail").dead, 1);
    }

    #[test]
    fn the_same_failure_again_gets_the_same_answer_until_the_next_attempt() {
        let mut yard = Yard::new();
        yard.enqueue_task("mail", tried(2)).unwrap();
        let first = yard.claim_one("mail");
        let answer = yard.fail(&first);
        assert_eq!(yard.fail(&first), answer);
        let second = yard.claim_one("mail");
        assert_eq!(yard.fail(&first), Err(Rejection::ClaimLost { task: first.id }));
        assert_eq!(yard.fail(&second), Ok(AfterFailure::Dead));
        assert_eq!(yard.fail(&second), Ok(AfterFailure::Dead));
        assert_eq!(yard.fail(&first).unwrap_err().code(), "already_finished");
    }
}
