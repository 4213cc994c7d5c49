//! Fail: what becomes of a task whose attempt failed, was lost, or ran out of time.
//!
//! Failures count against the retry policy. Losses (the worker died or went silent) do not: they are
//! spaced and counted apart, and a task that keeps killing its workers is quarantined.

use crate::life::{Ending, Failure};
use crate::limits::{ERROR_BYTES_MAX, LOSS_DELAYS_MS, LOSSES_MAX};
use crate::retry::RetryPolicy;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{
    AfterFailure, AttemptOutcome, ClaimToken, DeathReason, EventKind, Fail, Outcome, Rejection,
    TaskError, TaskId, TaskStateName, Timestamp, When,
};

impl Turn<'_> {
    /// Accepted for the current token alone; the same failure again gets the same answer until the
    /// task's next attempt.
    pub(crate) fn fail(&mut self, fail: &Fail<'_>) -> Result<Outcome, Rejection> {
        if let Some(after) = self.failed_before(fail.task, fail.token) {
            return Ok(Outcome::Failed(after));
        }
        let slot = self.held(fail.task, fail.token)?;
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

    /// Ends a claimed task's attempt as a failure: retry, dead letter or end.
    pub(crate) fn fail_attempt(
        &mut self,
        slot: Slot,
        outcome: AttemptOutcome,
        error: &TaskError<'_>,
        retry_at: Option<When>,
        retryable: bool,
    ) -> AfterFailure {
        let error = Some(Box::new(Failure::cut(error, ERROR_BYTES_MAX)));
        let queue = self.task(slot).queue;
        self.shard.edit_queue(queue, |queue| queue.totals.failed += 1);
        if self.cancel_requested(slot) {
            self.end_attempt(slot, outcome, error, None);
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
            return AfterFailure::Cancelled;
        }
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
            Some(when) => when.from(self.now).max(self.now),
            None => self.now.plus_ms(policy.delay_after(failures, task.id)),
        };
        self.end_attempt(slot, outcome, error, Some(run_at));
        self.emit_task(slot, |task| EventKind::TaskRetrying(task, run_at));
        self.schedule(slot, run_at);
        AfterFailure::Retry { run_at }
    }

    /// Ends a claim whose worker died, went silent or never answered. Losses that count are spaced,
    /// so that a killer and its companions part, and in the end quarantine the task.
    pub(crate) fn lose(&mut self, slot: Slot, counted: bool) {
        let since = self.ready_since(slot);
        let queue = self.task(slot).queue;
        self.shard.edit_queue(queue, |queue| queue.totals.lost += 1);
        self.end_attempt(slot, AttemptOutcome::Lost, None, None);
        self.emit_task(slot, EventKind::TaskLost);
        if self.cancel_requested(slot) {
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
            return;
        }
        if !counted {
            self.make_ready(slot, since, Place::Front);
            return;
        }
        let losses = self.shard.edit(slot, |task| {
            task.losses += 1;
            task.losses
        });
        if u32::from(losses) >= LOSSES_MAX {
            self.die(slot, DeathReason::Quarantined);
            return;
        }
        match LOSS_DELAYS_MS[usize::from(losses) - 1] {
            0 => self.make_ready(slot, since, Place::Front),
            delay_ms => self.schedule(slot, self.now.plus_ms(delay_ms)),
        }
    }

    /// Ends a task that will not be tried again: a dead letter, unless its queue keeps none.
    fn die(&mut self, slot: Slot, reason: DeathReason) -> AfterFailure {
        if !self.shard.queues.get(self.task(slot).queue).keeps_dead() {
            self.finish(slot, Ending::Failed, EventKind::TaskFailed);
            return AfterFailure::Failed;
        }
        self.shard.edit(slot, |task| task.extra_mut().death = Some(reason));
        self.finish(slot, Ending::Dead, |task| EventKind::TaskDied(task, reason));
        AfterFailure::Dead
    }

    /// The task's own policy, or its queue's, or the default.
    fn retry_policy(&self, slot: Slot) -> RetryPolicy {
        let task = self.task(slot);
        let own = task.extra.as_ref().and_then(|extra| extra.retry.as_deref());
        let queue = &self.shard.queues.get(task.queue).settings.retry;
        own.or(queue.as_ref()).cloned().unwrap_or_default()
    }

    pub(crate) fn cancel_requested(&self, slot: Slot) -> bool {
        self.task(slot).claim().is_some_and(|claim| claim.cancel_requested)
    }

    /// Since when a claimed task had been ready.
    pub(crate) fn ready_since(&self, slot: Slot) -> Timestamp {
        self.task(slot).claim().map_or(self.now, |claim| claim.ready_since)
    }
}
