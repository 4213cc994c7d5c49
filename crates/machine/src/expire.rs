//! ExpireDue: makes the changes that are due, a bounded number per entry.
//!
//! Due tasks and keys come first, because workers wait for them; removals come after.

use crate::life::{Ending, State};
use crate::limits::EXPIRIES_PER_ENTRY_MAX;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{AttemptOutcome, EventKind, Outcome, TaskError};

impl Turn<'_> {
    pub(crate) fn expire_due(&mut self) -> Outcome {
        let due = self.shard.deadlines.due_tasks(self.now, EXPIRIES_PER_ENTRY_MAX);
        let mut count = due.len();
        let (claims, others): (Vec<Slot>, Vec<Slot>) =
            due.into_iter().partition(|&slot| self.task(slot).claim().is_some());
        // The last claim goes first, so that tasks that return to the front keep the order of their
        // claims.
        for &slot in claims.iter().rev().chain(&others) {
            self.task_due(slot);
        }
        while count < EXPIRIES_PER_ENTRY_MAX {
            match self.open_one() {
                0 => break,
                done => count += done,
            }
        }
        while count < EXPIRIES_PER_ENTRY_MAX && self.forget_one() {
            count += 1;
        }
        count += self.forget_flows(EXPIRIES_PER_ENTRY_MAX - count);
        Outcome::Expired { count: count as u32 }
    }

    /// Removes one task or record whose retention is over; `false` if there is none.
    fn forget_one(&mut self) -> bool {
        let now = self.now;
        if let Some((queue, lane)) = self.shard.deadlines.due_lane(now) {
            self.remove_task(self.shard.queues.get(queue).lane(lane).head);
            return true;
        }
        self.shard.staged.expire_one(now)
            || self.shard.staged_flows.expire_one(now)
            || self.shard.batches.expire_one(now)
            || self.shard.resent.expire_one(now)
            || self.shard.dedup.expire_one(now)
            || self.shard.windows.expire_one(now)
            || self.tally_due()
    }

    /// Makes the change that is due for a task. The change touches no other task that has a
    /// deadline, so that the caller can gather many due tasks first.
    fn task_due(&mut self, slot: Slot) {
        let expired = self.task(slot).expires_at().is_some_and(|at| at <= self.now);
        match self.task(slot).state {
            State::Blocked | State::Scheduled { .. } | State::Ready { .. } if expired => {
                self.finish(slot, Ending::Expired, EventKind::TaskExpired);
            }
            State::Scheduled { .. } => self.make_ready(slot, self.now, Place::Back),
            State::Blocked | State::Ready { .. } => {
                panic!("task {} has no deadline", self.task(slot).id)
            }
            State::Claimed(_) => self.claim_due(slot),
            State::Finished { .. } => self.remove_task(slot),
        }
    }

    /// Ends a claim that was not renewed, or an attempt that ran too long. A timeout is a failure,
    /// never a loss; a lapse is a loss only if the worker had begun.
    fn claim_due(&mut self, slot: Slot) {
        let counters = self.shard.counters;
        let claim = self.task(slot).claim().expect("it is claimed");
        if self.now < counters.lease_floor || claim.put_off_ms < counters.put_off_ms {
            self.shard.edit_deadline(slot, |task| {
                task.claim_mut().expect("it is claimed").catch_up(&counters);
            });
            return;
        }
        if claim.timeout_at.is_none_or(|at| at > self.now) {
            let engaged = claim.engaged;
            self.lose(slot, engaged);
            return;
        }
        let ran_for_ms = self.now.ms_since(claim.claimed_at);
        let message = format!("ended by the broker after {ran_for_ms} ms");
        let error = TaskError { error_type: "timeout", message: &message, backtrace: "" };
        self.fail_attempt(slot, AttemptOutcome::TimedOut, &error, None, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{RETENTION_MS_DEFAULT, TIMEOUT_GRACE_MS};
    use crate::testing::{START, Yard, new_task, tried};
    use crate::{NewTask, QueueSettings, TaskId, TaskStateName, Timestamp, When};

    #[test]
    fn due_tasks_become_ready_in_the_order_of_their_time() {
        let mut yard = Yard::new();
        let mut later = |ms| {
            let run_at = When::After { ms };
            yard.enqueue_task("mail", NewTask { run_at, ..new_task() }).unwrap().id
        };
        let [third, first, second] = [30, 10, 20].map(&mut later);
        assert_eq!(yard.machine.next_due(), Some(Timestamp(START + 10)));
        yard.wait_ms(30);
        let order: Vec<TaskId> = yard.claim("mail", 3).iter().map(|task| task.id).collect();
        assert_eq!(order, [first, second, third]);
    }

    #[test]
    fn lapsed_claims_go_back_in_the_order_in_which_they_were_made() {
        let mut yard = Yard::new();
        let ids = [(); 3].map(|()| yard.enqueue("mail"));
        yard.claim("mail", 3);
        yard.enqueue("mail");
        yard.wait_ms(30_000);
        let order: Vec<TaskId> = yard.claim("mail", 3).iter().map(|task| task.id).collect();
        assert_eq!(order, ids);
    }

    #[test]
    fn one_entry_does_a_bounded_number() {
        let mut yard = Yard::new();
        for _ in 0..EXPIRIES_PER_ENTRY_MAX + 3 {
            yard.enqueue_unchecked("mail", NewTask { run_at: When::After { ms: 5 }, ..new_task() });
        }
        yard.pass_ms(5);
        assert_eq!(yard.expire() as usize, EXPIRIES_PER_ENTRY_MAX);
        assert!(yard.machine.next_due().is_some_and(|at| at <= yard.now()));
        assert_eq!(yard.expire(), 3);
        assert_eq!(yard.machine.next_due(), None);
    }

    #[test]
    fn a_waiting_task_expires_even_while_it_waits_for_a_retry() {
        let mut yard = Yard::new();
        let expires_at = Some(Timestamp(START + 1_000));
        let ready = yard.enqueue_task("mail", NewTask { expires_at, ..new_task() }).unwrap().id;
        let held = yard.claim_one("mail");
        let waiting = yard.enqueue_task("mail", NewTask { expires_at, ..new_task() }).unwrap().id;
        yard.fail(&held).unwrap();
        assert_eq!(yard.state(ready), TaskStateName::Scheduled, "it retries after 30 s");
        yard.wait_ms(999);
        assert_eq!(yard.counts("mail").expired_total, 0);
        yard.wait_ms(1);
        assert_eq!(yard.state(ready), TaskStateName::Expired);
        assert_eq!(yard.state(waiting), TaskStateName::Expired);
    }

    #[test]
    fn a_timeout_is_a_failure_never_a_loss() {
        let mut yard = Yard::new();
        let task = NewTask { timeout_ms: Some(1_000), ..tried(2) };
        let id = yard.enqueue_task("mail", task).unwrap().id;
        let held = yard.claim_one("mail");
        yard.extend(&held).unwrap();
        yard.wait_ms(1_000 + TIMEOUT_GRACE_MS - 1);
        assert_eq!(yard.state(id), TaskStateName::Claimed, "its own worker comes first");
        yard.wait_ms(1);
        let task = yard.task(id);
        assert_eq!((task.state, task.losses), (TaskStateName::Ready, 0));
        assert_eq!(task.attempts[0].outcome, AttemptOutcome::TimedOut);
        let error = task.attempts[0].error.as_ref().unwrap();
        assert_eq!(
            (error[0].as_str(), error[1].as_str()),
            ("timeout", "ended by the broker after 6000 ms")
        );
        assert_eq!(yard.counts("mail").failed_total, 1);
    }

    fn finish_one(yard: &mut Yard, task: NewTask<'_>) -> TaskId {
        let id = yard.enqueue_task("mail", task).unwrap().id;
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        id
    }

    #[test]
    fn finished_tasks_are_kept_by_number_and_age() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { retention_count: Some(2), ..QueueSettings::default() });
        let ids = [(); 3].map(|()| finish_one(&mut yard, new_task()));
        let own = NewTask { retention_ms: Some(5), ..new_task() };
        let own = finish_one(&mut yard, own);
        let kept = |yard: &Yard, id| yard.machine.task(id).is_some();
        assert_eq!(ids.map(|id| kept(&yard, id)), [false, true, true], "the oldest goes");
        assert!(kept(&yard, own), "its own retention does not count against the number");
        yard.wait_ms(5);
        assert!(!kept(&yard, own));
        yard.wait_ms(RETENTION_MS_DEFAULT - 6);
        assert!(kept(&yard, ids[1]));
        yard.wait_ms(1);
        assert_eq!(yard.machine.task_count(), 0);
        assert_eq!(yard.counts("mail").succeeded_total, 4);
    }

    #[test]
    fn shrunk_settings_apply_to_finished_tasks() {
        let mut yard = Yard::new();
        for _ in 0..5 {
            finish_one(&mut yard, new_task());
        }
        yard.set("mail", QueueSettings { retention_count: Some(1), ..QueueSettings::default() });
        yard.expire();
        assert_eq!(yard.counts("mail").finished, 1);
        yard.set("mail", QueueSettings { retention_ms: Some(10), ..QueueSettings::default() });
        yard.wait_ms(10);
        assert_eq!(yard.counts("mail").finished, 0);
    }

    #[test]
    fn dead_letters_have_their_own_retention() {
        let mut yard = Yard::new();
        let settings = QueueSettings {
            retention_count: Some(0),
            dead_retention_count: Some(2),
            dead_retention_ms: Some(50),
            ..QueueSettings::default()
        };
        yard.set("mail", settings);
        for _ in 0..3 {
            yard.bury_unchecked("mail");
        }
        assert_eq!((yard.counts("mail").dead, yard.counts("mail").dead_total), (2, 3));
        yard.wait_ms(50);
        assert_eq!(yard.machine.task_count(), 0);
    }
}
