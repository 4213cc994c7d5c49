//! Retry by hand: makes a task ready that ended without success, or that still waits.

use crate::life::{Ending, State};
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{Outcome, Rejection, Retry, TaskStateName};

impl Turn<'_> {
    pub(crate) fn retry(&mut self, retry: &Retry<'_>) -> Result<Outcome, Rejection> {
        let slot = self.find(retry.task)?;
        let wrong = |state, hint: &str| {
            Err(Rejection::WrongState { task: retry.task, state, hint: hint.into() })
        };
        match self.task(slot).state {
            State::Claimed(_) => {
                return wrong(
                    TaskStateName::Claimed,
                    "let its attempt end or cancel it before retrying it",
                );
            }
            State::Finished { ending: Ending::Succeeded, .. } => {
                return wrong(TaskStateName::Succeeded, "enqueue it again to run it once more");
            }
            State::Blocked => {
                return wrong(TaskStateName::Blocked, "it runs when its parents have ended");
            }
            State::Finished { .. } if self.waits_in_flow(slot) => {
                let state = self.task(slot).state.name();
                return wrong(state, "its parents never let it go; retry its flow");
            }
            State::Finished { .. } if self.queue_is_deleted(slot) => {
                let state = self.task(slot).state.name();
                return wrong(state, "its queue was deleted since; enqueue it again");
            }
            State::Finished { .. } => self.check_revival(slot)?,
            _ => {}
        }
        if let Some(body) = &retry.body {
            body.check()?;
            let (bytes, checksum) = self.put_body(retry.task, body);
            self.shard.edit(slot, |task| {
                (task.body_bytes, task.body_checksum) = (bytes, checksum);
            });
        }
        match self.task(slot).state {
            State::Blocked | State::Ready { .. } | State::Claimed(_) => {}
            State::Scheduled { .. } => self.make_ready(slot, self.now, Place::Back),
            State::Finished { .. } => self.revive(slot),
        }
        Ok(Outcome::Retried)
    }

    /// Makes a finished task ready again with its full number of retries, and informs its flow. The
    /// attempt number keeps counting, so that history and workers can tell old runs from new ones.
    pub(crate) fn revive(&mut self, slot: Slot) {
        self.tell_revived(slot);
        self.revive_task(slot);
    }

    /// Makes a finished task ready again without informing its flow.
    pub(crate) fn revive_task(&mut self, slot: Slot) {
        self.forget_failures(slot);
        self.make_ready(slot, self.now, Place::Back);
    }

    /// Resets the failures and losses of a finished task, so that it has its full number of
    /// retries.
    pub(crate) fn forget_failures(&mut self, slot: Slot) {
        let now = self.now;
        self.shard.edit_deadline(slot, |task| {
            (task.failures, task.losses) = (0, 0);
            let Some(extra) = &mut task.extra else { return };
            if let Some(left) = &mut extra.left {
                (left.death, left.progress) = (None, None);
            }
            if let Some(terms) = &mut extra.terms {
                // A passed expiry is dropped, because the operator wants the task now.
                terms.expires_at = terms.expires_at.filter(|&at| at > now);
            }
        });
    }

    /// Whether the task ended before its flow released it.
    fn waits_in_flow(&self, slot: Slot) -> bool {
        let flow = self.task(slot).extra.as_ref().and_then(|extra| extra.flow.as_ref());
        flow.is_some_and(|flow| !flow.released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, Yard, new_task, tried};
    use crate::{AfterFailure, Body, Command, NewTask, Timestamp, When};

    #[test]
    fn a_dead_letter_starts_again_with_all_its_retries() {
        let mut yard = Yard::new();
        let id = yard.enqueue_task("mail", tried(2)).unwrap().id;
        for attempt in 1..=2 {
            let held = yard.claim_one("mail");
            assert_eq!(held.attempt, attempt);
            yard.fail(&held).unwrap();
        }
        assert_eq!(yard.retry(id), Ok(Outcome::Retried));
        assert_eq!(yard.retry(id), Ok(Outcome::Retried), "a ready task stays ready");
        assert_eq!(yard.task(id).death, None);
        let held = yard.claim_one("mail");
        assert_eq!(held.attempt, 3, "attempts go on counting");
        assert!(matches!(yard.fail(&held), Ok(AfterFailure::Retry { .. })));
    }

    #[test]
    fn a_retry_can_edit_the_body() {
        let mut yard = Yard::new();
        let id = yard.enqueue_task("mail", tried(1)).unwrap().id;
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        let body = Body { payload: b"mended", ..Body::default() };
        yard.send(Command::Retry(Retry { task: id, body: Some(body.clone()) })).unwrap();
        assert_eq!(yard.body(id), Some(body.clone()));
        assert_eq!(yard.task(id).body_bytes as usize, body.encode().len());
    }

    #[test]
    fn cancelled_expired_and_scheduled_tasks_become_ready() {
        let mut yard = Yard::new();
        let cancelled = yard.enqueue("mail");
        yard.cancel(cancelled).unwrap();
        let later = NewTask { run_at: When::After { ms: 60_000 }, ..new_task() };
        let scheduled = yard.enqueue_task("mail", later).unwrap().id;
        let expires_at = Some(Timestamp(START + 5));
        let expired = yard.enqueue_task("mail", NewTask { expires_at, ..new_task() }).unwrap().id;
        yard.wait_ms(5);
        for id in [cancelled, scheduled, expired] {
            assert_eq!(yard.retry(id), Ok(Outcome::Retried));
            assert_eq!(yard.state(id), TaskStateName::Ready);
        }
        assert_eq!(yard.claim("mail", 3).len(), 3, "the old expiry no longer counts");
    }

    #[test]
    fn a_running_or_succeeded_task_can_not_be_retried() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let running = yard.retry(id).unwrap_err();
        assert!(running.to_string().contains("is claimed; let its attempt end"), "{running}");
        yard.ack(&held).unwrap();
        let succeeded = yard.retry(id).unwrap_err();
        assert!(succeeded.to_string().contains("is succeeded; enqueue it again"), "{succeeded}");
    }
}
