//! Cancel: ends a waiting task at once, and a claimed task when its worker yields.

use crate::life::{Ending, State};
use crate::turn::Turn;
use crate::{Cancel, EventKind, Outcome, Rejection, TaskStateName};

impl Turn<'_> {
    pub(crate) fn cancel(&mut self, cancel: Cancel) -> Result<Outcome, Rejection> {
        let slot = self.find(cancel.task)?;
        match &self.task(slot).state {
            State::Blocked | State::Scheduled { .. } | State::Ready { .. } => {
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

#[cfg(test)]
mod tests {
    use crate::testing::{Yard, fail, new_task};
    use crate::{
        AfterFailure, AttemptOutcome, Command, NewTask, Outcome, Snooze, TaskStateName, When,
    };

    const CANCELLED: Outcome = Outcome::CancelRequested { state: TaskStateName::Cancelled };
    const REQUESTED: Outcome = Outcome::CancelRequested { state: TaskStateName::Claimed };

    #[test]
    fn a_waiting_task_is_cancelled_at_once_and_again_is_no_error() {
        let mut yard = Yard::new();
        let ready = yard.enqueue("mail");
        let later = NewTask { run_at: When::After { ms: 5 }, ..new_task() };
        let scheduled = yard.enqueue_task("mail", later).unwrap().id;
        for id in [ready, scheduled] {
            assert_eq!(yard.cancel(id), Ok(CANCELLED));
            assert_eq!(yard.cancel(id), Ok(CANCELLED));
            assert_eq!(yard.state(id), TaskStateName::Cancelled);
        }
        assert_eq!(yard.counts("mail").cancelled_total, 2);
    }

    #[test]
    fn a_claimed_task_is_cancelled_when_its_worker_yields() {
        let mut yard = Yard::new();
        let yields: [fn(&mut Yard, &crate::ClaimedTask); 4] = [
            |yard, held| drop(yard.release(held).unwrap()),
            |yard, held| assert_eq!(yard.fail_with(fail(held)), Ok(AfterFailure::Cancelled)),
            |yard, held| {
                let until = When::After { ms: 9 };
                let snooze =
                    Snooze { task: held.id, token: held.token, until, push_back_key: false };
                let snoozed = yard.send(Command::Snooze(snooze));
                let (run_at, state) = (yard.now().plus_ms(9), TaskStateName::Cancelled);
                assert_eq!(snoozed, Ok(Outcome::Snoozed { run_at, state }));
            },
            |yard, _| yard.wait_ms(30_000),
        ];
        for yields in yields {
            let id = yard.enqueue("mail");
            let held = yard.claim_one("mail");
            assert_eq!(yard.cancel(id), Ok(REQUESTED));
            assert_eq!(yard.cancel(id), Ok(REQUESTED));
            let extended = yard.extend(&held).unwrap();
            assert!(matches!(extended, Outcome::Extended { cancel_requested: true, .. }));
            yields(&mut yard, &held);
            assert_eq!(yard.state(id), TaskStateName::Cancelled);
        }
        assert_eq!(yard.counts("mail").failed_total, 0);
    }

    #[test]
    fn work_that_is_done_wins_over_a_cancellation() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        yard.cancel(id).unwrap();
        yard.ack(&held).unwrap();
        let task = yard.task(id);
        assert_eq!(task.state, TaskStateName::Succeeded);
        assert_eq!(task.attempts[0].outcome, AttemptOutcome::Succeeded);
        assert_eq!(yard.cancel(id).unwrap_err().code(), "already_finished");
    }
}
