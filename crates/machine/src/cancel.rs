//! Cancel: takes a task back. A waiting one ends at once; a claimed one when its worker yields.

use crate::life::{Ending, State};
use crate::turn::Turn;
use crate::{Cancel, EventKind, Outcome, Rejection, TaskStateName};

impl Turn<'_> {
    pub(crate) fn cancel(&mut self, cancel: Cancel) -> Result<Outcome, Rejection> {
        let slot = self.find(cancel.task)?;
        match &self.task(slot).state {
            State::Scheduled { .. } | State::Ready { .. } => {
                self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
                Ok(Outcome::CancelRequested { state: TaskStateName::Cancelled })
            }
            State::Claimed(claim) => {
                if !claim.cancel_requested {
                    self.shard.edit(slot, |task| {
                        task.claim_mut().expect("it is claimed").cancel_requested = true;
                    });
                    self.emit_task(slot, EventKind::TaskCancelRequested);
                }
                Ok(Outcome::CancelRequested { state: TaskStateName::Claimed })
            }
            State::Finished { ending: Ending::Cancelled, .. } => {
                Ok(Outcome::CancelRequested { state: TaskStateName::Cancelled })
            }
            State::Finished { .. } => Err(Rejection::AlreadyFinished {
                task: cancel.task,
                state: self.task(slot).state.name(),
            }),
        }
    }
}
