//! Kill: makes a waiting task a dead letter without a failure.

use crate::life::State;
use crate::turn::Turn;
use crate::{AfterFailure, DeathReason, Kill, Outcome, Rejection, TaskStateName};

impl Turn<'_> {
    /// The operator asks for a dead letter, so that `discard_dead` does not apply. A queue that
    /// keeps no dead letters still keeps none.
    pub(crate) fn kill(&mut self, kill: Kill) -> Result<Outcome, Rejection> {
        let task = kill.task;
        let slot = self.find(task)?;
        let state = self.task(slot).state.name();
        let wrong = |hint: &str| Err(Rejection::WrongState { task, state, hint: hint.into() });
        match self.task(slot).state {
            State::Scheduled { .. } | State::Ready { .. } => {}
            State::Claimed(_) => return wrong("let its attempt end or cancel it"),
            State::Blocked => return wrong("cancel it or its flow"),
            State::Finished { .. } => return Err(Rejection::AlreadyFinished { task, state }),
        }
        let state = match self.die(slot, DeathReason::Killed) {
            AfterFailure::Dead => TaskStateName::Dead,
            _ => TaskStateName::Failed,
        };
        Ok(Outcome::Killed { state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, new_task};
    use crate::{Command, EventKind, NewTask, QueueSettings, TaskId, When};

    fn kill(yard: &mut Yard, task: TaskId) -> Result<Outcome, Rejection> {
        yard.send(Command::Kill(Kill { task }))
    }

    #[test]
    fn a_waiting_task_becomes_a_dead_letter_that_can_be_retried() {
        let mut yard = Yard::new();
        let run_at = When::After { ms: 5_000 };
        let later = NewTask { run_at, discard_dead: true, ..new_task() };
        for task in [new_task(), later] {
            let id = yard.enqueue_task("mail", task).unwrap().id;
            assert_eq!(kill(&mut yard, id), Ok(Outcome::Killed { state: TaskStateName::Dead }));
            assert_eq!(yard.task(id).death, Some(DeathReason::Killed));
            let died = |kind: &EventKind| matches!(kind, EventKind::TaskDied(_, reason) if reason.as_str() == "killed");
            assert!(yard.events().iter().any(died));
            assert_eq!(kill(&mut yard, id).unwrap_err().code(), "already_finished");
            yard.retry(id).unwrap();
            let held = yard.claim_one("mail");
            assert_eq!(held.id, id);
            yard.ack(&held).unwrap();
        }
        assert_eq!(yard.counts("mail").dead_total, 2);
        assert_eq!(yard.counts("mail").failed_total, 0, "no attempt has failed");
    }

    #[test]
    fn only_waiting_tasks_are_killed() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        assert_eq!(kill(&mut yard, id).unwrap_err().code(), "conflict");
        yard.ack(&held).unwrap();
        assert_eq!(kill(&mut yard, id).unwrap_err().code(), "already_finished");
        let unknown = TaskId { sequence: 1 << 40, ..id };
        assert_eq!(kill(&mut yard, unknown).unwrap_err().code(), "not_found");
    }

    #[test]
    fn a_queue_without_dead_letters_ends_it_as_failed() {
        let mut yard = Yard::new();
        let settings = QueueSettings { dead_retention_count: Some(0), ..QueueSettings::default() };
        yard.set("mail", settings);
        let id = yard.enqueue("mail");
        assert_eq!(kill(&mut yard, id), Ok(Outcome::Killed { state: TaskStateName::Failed }));
        assert_eq!(yard.state(id), TaskStateName::Failed);
    }
}
