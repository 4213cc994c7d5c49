//! Retry by hand: a task that ended without success, or still waits, becomes ready now.

use crate::life::{Ending, State};
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{Outcome, Rejection, Retry, TaskStateName};

impl Turn<'_> {
    pub(crate) fn retry(&mut self, retry: &Retry<'_>) -> Result<Outcome, Rejection> {
        let slot = self.find(retry.task)?;
        let wrong = |state, hint| Err(Rejection::WrongState { task: retry.task, state, hint });
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
            _ => {}
        }
        if let Some(body) = &retry.body {
            body.check()?;
            let (bytes, checksum) = self.put_body(retry.task, body);
            self.shard.edit(slot, |task| {
                (task.body_bytes, task.body_checksum) = (bytes, checksum);
            });
        }
        if !matches!(self.task(slot).state, State::Ready { .. }) {
            self.revive(slot);
        }
        Ok(Outcome::Retried)
    }

    /// Makes a task ready with all its retries before it. Attempts go on counting, for tokens,
    /// history and workers must tell old runs from new ones.
    pub(crate) fn revive(&mut self, slot: Slot) {
        let now = self.now;
        self.shard.edit_deadline(slot, |task| {
            (task.failures, task.losses) = (0, 0);
            if let Some(extra) = &mut task.extra {
                (extra.death, extra.progress) = (None, None);
                // It is wanted now, whatever its expiry was.
                extra.expires_at = extra.expires_at.filter(|&at| at > now);
            }
        });
        self.make_ready(slot, now, Place::Back);
    }
}
