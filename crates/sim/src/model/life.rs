//! The life of the model's tasks: their order, ends, retries, losses and removals.

use super::{LastEnd, Model, State, Task};
use taskyard_machine::limits::{
    DEAD_RETENTION_MS_DEFAULT, LOSS_DELAYS_MS, LOSSES_MAX, RETENTION_COUNT_DEFAULT,
    RETENTION_MS_DEFAULT,
};
use taskyard_machine::{AfterFailure, TaskId, TaskStateName, Timestamp};

impl Model {
    pub(super) fn next_order(&mut self, front: bool) -> i64 {
        if front {
            self.order_front -= 1;
            self.order_front
        } else {
            self.order_back += 1;
            self.order_back
        }
    }

    pub(super) fn set_state(&mut self, id: TaskId, state: State, front: bool) {
        let order = self.next_order(front);
        let was_finished = self.is_task_finished(id);
        if !matches!(state, State::Finished { .. })
            && let Some(queue) = self.find(id).map(|task| task.queue.clone())
        {
            self.undelete(&queue);
        }
        self.change(id, |task| {
            task.order = order;
            task.state = state;
        });
        self.settle_key(id, was_finished);
        self.leave_lines();
        self.join_line(id, front);
    }

    pub(super) fn make_ready(&mut self, id: TaskId, since: u64, front: bool) {
        self.set_state(id, State::Ready { since }, front);
    }

    /// Makes a task ready at its place before the claim.
    fn make_ready_again(&mut self, id: TaskId) {
        let since = self.find(id).and_then(Task::held).map_or(self.now, |held| held.since);
        self.make_ready(id, since, true);
    }

    pub(super) fn remove(&mut self, id: TaskId) {
        if let Some(waiting) = self.find(id).filter(|task| task.is_waiting()).cloned() {
            self.keep_window(&waiting);
        }
        self.tasks.retain(|task| task.id != id);
        self.leave_lines();
    }

    pub(super) fn schedule(&mut self, id: TaskId, run_at: u64) {
        if run_at > self.now {
            self.set_state(id, State::Scheduled { run_at }, false);
        } else {
            self.make_ready(id, self.now, false);
        }
    }

    pub(super) fn end_attempt(&mut self, id: TaskId, how: LastEnd) {
        self.change(id, |task| {
            let token = task.held().map_or(0, |held| held.token);
            task.last = Some((token, how));
        });
    }

    /// Ends a task. If its queue then has too many finished tasks, the two oldest go at once.
    pub(super) fn finish(&mut self, id: TaskId, ending: TaskStateName) {
        let at = self.now;
        self.set_state(id, State::Finished { ending, at }, false);
        let Some(task) = self.find(id) else { return };
        let (queue, Some(dead)) = (task.queue.clone(), task.retained_as_dead()) else { return };
        for _ in 0..2 {
            if let Some(oldest) = self.oldest_too_many(&queue, dead) {
                self.remove(oldest);
            }
        }
    }

    pub(super) fn kept(&self, queue: &str, dead: bool) -> (u64, u64) {
        let settings =
            self.queues.get(queue).map(|queue| queue.settings.clone()).unwrap_or_default();
        if dead {
            let count = settings.dead_retention_count.map_or(u64::MAX, u64::from);
            (count, settings.dead_retention_ms.unwrap_or(DEAD_RETENTION_MS_DEFAULT))
        } else {
            let count = settings.retention_count.unwrap_or(RETENTION_COUNT_DEFAULT);
            (u64::from(count), settings.retention_ms.unwrap_or(RETENTION_MS_DEFAULT))
        }
    }

    fn retained(&self, queue: &str, dead: bool) -> Vec<&Task> {
        let here = |task: &&Task| task.queue == queue && task.retained_as_dead() == Some(dead);
        let mut tasks: Vec<&Task> = self.tasks.iter().filter(here).collect();
        tasks.sort_by_key(|task| task.order);
        tasks
    }

    fn oldest_too_many(&self, queue: &str, dead: bool) -> Option<TaskId> {
        let tasks = self.retained(queue, dead);
        let too_many = tasks.len() as u64 > self.kept(queue, dead).0;
        tasks.first().filter(|_| too_many).map(|task| task.id)
    }

    /// Ends an attempt as a failure, reported by its worker (`by_worker`) or by a timeout.
    pub(super) fn fail_attempt(
        &mut self,
        id: TaskId,
        retry_at: Option<u64>,
        retryable: bool,
        by_worker: bool,
    ) -> AfterFailure {
        let ended =
            |retry_at| if by_worker { LastEnd::Failed { retry_at } } else { LastEnd::Other };
        if self.cancel_requested(id) {
            self.end_attempt(id, LastEnd::Failed { retry_at: None });
            self.finish(id, TaskStateName::Cancelled);
            return AfterFailure::Cancelled;
        }
        let now = self.now;
        let (failures, policy) = self.change(id, |task| {
            task.failures += 1;
            (task.failures, task.retry.clone())
        });
        if !retryable || failures >= policy.max_attempts {
            self.end_attempt(id, ended(None));
            return self.die(id);
        }
        let run_at = retry_at.unwrap_or_else(|| now + policy.delay_after(failures, id)).max(now);
        self.end_attempt(id, ended(Some(run_at)));
        self.schedule(id, run_at);
        AfterFailure::Retry { run_at: Timestamp(run_at) }
    }

    fn die(&mut self, id: TaskId) -> AfterFailure {
        let queue = self.find(id).map(|task| task.queue.clone()).unwrap_or_default();
        if self.kept(&queue, true).0 == 0 {
            self.finish(id, TaskStateName::Failed);
            return AfterFailure::Failed;
        }
        self.finish(id, TaskStateName::Dead);
        AfterFailure::Dead
    }

    pub(super) fn lose(&mut self, id: TaskId, counted: bool) {
        let cancelled = self.cancel_requested(id);
        self.end_attempt(id, LastEnd::Other);
        if cancelled {
            self.finish(id, TaskStateName::Cancelled);
            return;
        }
        if !counted {
            self.make_ready_again(id);
            return;
        }
        let losses = self.change(id, |task| {
            task.losses += 1;
            task.losses
        });
        if losses >= LOSSES_MAX {
            self.die(id);
            return;
        }
        match LOSS_DELAYS_MS[losses as usize - 1] {
            0 => self.make_ready_again(id),
            delay_ms => self.schedule(id, self.now + delay_ms),
        }
    }

    pub(super) fn renew(&mut self, id: TaskId, lease_ms: Option<u64>) -> (u64, bool) {
        let (now, floor, put_off_ms) = (self.now, self.lease_floor, self.put_off_ms);
        self.change(id, |task| match &mut task.state {
            State::Claimed(held) => {
                held.started = true;
                held.catch_up(put_off_ms, floor);
                held.lease_ends_at = now + lease_ms.unwrap_or(held.lease_ms);
                held.set_end(floor);
                (held.lease_ends_at, held.cancel_requested)
            }
            _ => (0, false),
        })
    }

    pub(super) fn give_back(&mut self, id: TaskId) -> TaskStateName {
        if self.cancel_requested(id) {
            // A repeated failure is then answered by the cancellation.
            self.end_attempt(id, LastEnd::Failed { retry_at: None });
            self.finish(id, TaskStateName::Cancelled);
            return TaskStateName::Cancelled;
        }
        self.refund(id);
        self.end_attempt(id, LastEnd::Other);
        self.change(id, |task| task.attempt -= 1);
        self.make_ready_again(id);
        TaskStateName::Ready
    }

    pub(super) fn revive(&mut self, id: TaskId) {
        let now = self.now;
        self.change(id, |task| {
            (task.failures, task.losses) = (0, 0);
            task.expires_at = task.expires_at.filter(|at| *at > now);
        });
        self.make_ready(id, self.now, false);
    }

    pub(super) fn oldest_to_go(&self, queue: &str, dead: bool) -> Option<TaskId> {
        let (_, kept_for_ms) = self.kept(queue, dead);
        let past = |task: &&Task| match task.state {
            State::Finished { at, .. } => at + kept_for_ms <= self.now,
            _ => false,
        };
        let oldest = self.retained(queue, dead).first().copied().filter(past).map(|task| task.id);
        oldest.or_else(|| self.oldest_too_many(queue, dead))
    }

    pub(super) fn pass_deadline(&mut self, id: TaskId) {
        let Some(task) = self.find(id).cloned() else { return };
        match task.state {
            State::Scheduled { .. } | State::Ready { .. }
                if task.expires_at.is_some_and(|at| at <= self.now) =>
            {
                self.finish(id, TaskStateName::Expired);
            }
            State::Scheduled { .. } | State::Ready { .. } => self.make_ready(id, self.now, false),
            State::Claimed(held)
                if self.now < self.lease_floor || held.put_off_ms < self.put_off_ms =>
            {
                let (put_off_ms, floor) = (self.put_off_ms, self.lease_floor);
                self.change(id, |task| {
                    if let State::Claimed(held) = &mut task.state {
                        held.catch_up(put_off_ms, floor);
                    }
                });
            }
            State::Claimed(held) if held.timeout_at.is_some_and(|at| at <= self.now) => {
                self.fail_attempt(id, None, true, false);
            }
            State::Claimed(held) => self.lose(id, held.started),
            State::Finished { .. } => self.remove(id),
        }
    }
}
