//! By hand: cancel, retry, discard, pause, deletion of a queue, and the end of sessions, in the
//! model.

use super::{Difference, Model, State, Task, expect, expect_code};
use taskyard_machine::{
    DeadAction, EndSession, Outcome, QueueSettings, Rejection, Retry, Selection, SessionEnd,
    TaskId, TaskStateName,
};

impl Task {
    /// Whether it has ended and is no dead letter.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Finished { ending, .. } if ending != TaskStateName::Dead)
    }
}

impl Model {
    pub(super) fn cancel(
        &mut self,
        id: TaskId,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Some(task) = self.find(id) else { return expect_code(Some(self.missing(id)), answer) };
        let state = match task.state_name() {
            TaskStateName::Scheduled | TaskStateName::Ready => {
                self.finish(id, TaskStateName::Cancelled);
                TaskStateName::Cancelled
            }
            TaskStateName::Claimed => {
                self.change(id, |task| {
                    if let State::Claimed(held) = &mut task.state {
                        held.cancel_requested = true;
                    }
                });
                TaskStateName::Claimed
            }
            TaskStateName::Cancelled => TaskStateName::Cancelled,
            _ => return expect_code(Some("already_finished"), answer),
        };
        expect(&Ok(Outcome::CancelRequested { state }), answer)
    }

    pub(super) fn retry(
        &mut self,
        retry: &Retry<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let id = retry.task;
        let Some(task) = self.find(id) else { return expect_code(Some(self.missing(id)), answer) };
        match task.state_name() {
            TaskStateName::Claimed | TaskStateName::Succeeded => {
                return expect_code(Some("conflict"), answer);
            }
            TaskStateName::Ready => {}
            TaskStateName::Scheduled => self.make_ready(id, self.now, false),
            _ if !self.has_queue(&task.queue) => return expect_code(Some("conflict"), answer),
            _ if !self.may_revive(task) => return expect_code(Some("not_unique"), answer),
            _ => self.revive(id),
        }
        if let Some(body) = &retry.body {
            self.change(id, |task| task.payload = body.payload.to_vec());
        }
        expect(&Ok(Outcome::Retried), answer)
    }

    pub(super) fn dead(
        &mut self,
        action: DeadAction,
        selection: &Selection<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let mut chosen: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|task| task.state_name() == TaskStateName::Dead)
            .filter(|task| match selection {
                Selection::Ids(ids) => ids.contains(&task.id),
                Selection::Filter { filter, .. } => {
                    filter.queue.is_none_or(|name| name == task.queue)
                }
            })
            .map(|task| task.id)
            .collect();
        chosen.sort_unstable();
        let mut held = 0;
        for &id in &chosen {
            match action {
                DeadAction::Retry if !self.find(id).is_some_and(|task| self.may_revive(task)) => {
                    held += 1;
                }
                DeadAction::Retry => self.revive(id),
                DeadAction::Discard => self.remove(id),
            }
        }
        let skipped = match selection {
            Selection::Ids(ids) => ids.len() - chosen.len(),
            Selection::Filter { .. } => 0,
        };
        self.expect_bulk(chosen.len() - held, skipped + held, answer)
    }

    pub(super) fn pause(
        &mut self,
        queue: &str,
        paused: bool,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match self.queues.get_mut(queue).filter(|queue| !queue.deleted) {
            None => expect_code(Some("not_found"), answer),
            Some(queue) => {
                queue.paused = paused;
                expect(&Ok(Outcome::Done), answer)
            }
        }
    }

    /// A queue with nothing but finished tasks forgets all but these, and what time alone lifts.
    pub(super) fn delete_queue(
        &mut self,
        queue: &str,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        if !self.has_queue(queue) {
            return expect_code(Some("not_found"), answer);
        }
        if self.tasks.iter().any(|task| task.queue == queue && !task.is_over()) {
            return expect_code(Some("queue_not_empty"), answer);
        }
        self.set_limits(queue, &QueueSettings::default());
        self.lift_hold(queue);
        if let Some(queue) = self.queues.get_mut(queue) {
            (queue.paused, queue.deleted) = (false, true);
        }
        expect(&Ok(Outcome::Done), answer)
    }

    pub(super) fn has_queue(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|queue| !queue.deleted)
    }

    pub(super) fn undelete(&mut self, queue: &str) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.deleted = false;
        }
    }

    pub(super) fn end_session(
        &mut self,
        end: &EndSession,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let mut held: Vec<(i64, TaskId)> = self
            .tasks
            .iter()
            .filter(|task| task.held().is_some_and(|held| held.session == Some(end.session)))
            .filter(|task| !end.keep.contains(&task.id))
            .map(|task| (task.order, task.id))
            .collect();
        // The newest goes first, so that tasks that return to the front keep their order.
        held.sort_unstable_by(|left, right| right.cmp(left));
        for (_, id) in &held {
            if end.reason == SessionEnd::Silence && !end.not_started.contains(id) {
                self.lose(*id, true);
            } else {
                self.give_back(*id);
            }
        }
        self.expect_bulk(held.len(), 0, answer)
    }

    pub(super) fn expect_bulk(
        &self,
        changed: usize,
        skipped: usize,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match answer {
            Ok(Outcome::Bulk(progress)) if progress.next.is_none() => {
                expect(&(changed, skipped), &(progress.changed as usize, progress.skipped as usize))
            }
            other => Err(format!("expected {changed} changed, got {other:?}")),
        }
    }
}
