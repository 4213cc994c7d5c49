//! Ack: ends a task as succeeded, with its result and its follow-up tasks.

use crate::batch::in_batch;
use crate::enqueue::{at_most_bytes, parse_queue};
use crate::life::Ending;
use crate::limits::{FOLLOW_UPS_MAX, RESULT_BYTES_MAX};
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::{Ack, AttemptOutcome, EventKind, FollowUp, Outcome, Rejection, TaskId, TaskStateName};

impl Ack<'_> {
    /// Checks the bounds that need no state, so that a front can refuse the ack before it is
    /// logged.
    pub fn check_bytes(&self) -> Result<(), Rejection> {
        at_most_bytes("result", self.result.map_or(0, <[u8]>::len), RESULT_BYTES_MAX)?;
        let follow_ups = self.follow_ups.len() as u64;
        at_most("the number of follow-ups", follow_ups, FOLLOW_UPS_MAX as u64)
    }
}

impl Turn<'_> {
    /// An ack under the current token wins even over a cancellation, because the work is done. A
    /// repeated ack gets the same answer while the task is kept.
    pub(crate) fn ack(&mut self, ack: &Ack<'_>) -> Result<Outcome, Rejection> {
        if let Some(follow_ups) = self.acked_before(ack) {
            return Ok(Outcome::Acked { follow_ups });
        }
        let slot = self.find_held(ack.task, ack.token)?;
        ack.check_bytes()?;
        self.check_follow_ups(&ack.follow_ups)?;

        // The key is freed first, because a task may be followed by one with the same key.
        self.free_acked_key(slot);
        let follow_ups: Vec<TaskId> =
            ack.follow_ups.iter().map(|follow_up| self.follow_up(follow_up)).collect();
        self.end_attempt(slot, AttemptOutcome::Succeeded, None, None);
        if ack.result.is_some() || !follow_ups.is_empty() {
            self.shard.edit(slot, |task| {
                let left = task.left_mut();
                left.result = ack.result.map(Box::from);
                left.follow_ups = follow_ups.as_slice().into();
            });
        }
        let claimed_at = self.task(slot).claim().map_or(self.now, |claim| claim.claimed_at);
        let ran_for_ms = self.now.ms_since(claimed_at);
        self.finish(slot, Ending::Succeeded, |task| EventKind::TaskSucceeded(task, ran_for_ms));
        Ok(Outcome::Acked { follow_ups })
    }

    /// The follow-ups of this ack, if it was accepted before.
    fn acked_before(&self, ack: &Ack<'_>) -> Option<Vec<TaskId>> {
        let task = self.task(self.shard.ids.get(ack.task)?);
        let accepted = task.state.name() == TaskStateName::Succeeded
            && task.last_attempt.as_ref().is_some_and(|last| last.token == ack.token);
        let follow_ups = || task.left().map_or(Vec::new(), |left| left.follow_ups.to_vec());
        accepted.then(follow_ups)
    }

    fn check_follow_ups(&self, follow_ups: &[FollowUp<'_>]) -> Result<(), Rejection> {
        for (index, follow_up) in (0..).zip(follow_ups) {
            self.check_follow_up(follow_up).map_err(|rejection| in_batch(index, rejection))?;
        }
        Ok(())
    }

    pub(crate) fn check_follow_up(&self, follow_up: &FollowUp<'_>) -> Result<(), Rejection> {
        let shards = self.shard.identity.shards;
        if follow_up.home.0 >= shards {
            return Err(Rejection::invalid(format!(
                "shard {} does not exist; the cluster has {shards}",
                follow_up.home
            )));
        }
        parse_queue(follow_up.enqueue.queue)?;
        follow_up.enqueue.task.check(self.now)
    }

    /// Enqueues the follow-up on this shard, or puts it in the outbox for its home shard. A full
    /// queue does not reject a follow-up, because a bound on producers is no reason to lose work
    /// done.
    fn follow_up(&mut self, follow_up: &FollowUp<'_>) -> TaskId {
        let FollowUp { home, enqueue } = follow_up;
        if *home == self.shard.identity.shard {
            let queue = self.queue_for_accepted(enqueue.queue).expect("its name was checked");
            self.insert_new(queue, &enqueue.task).id
        } else {
            let id = self.next_id(*home);
            self.owe_enqueue(id, enqueue, None);
            id
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SHARD, Yard, new_task};
    use crate::{
        ClaimToken, ClaimedTask, Command, Enqueue, NewTask, OnConflict, QueueSettings, ShardId,
        Unique,
    };

    fn follow_up<'a>(home: ShardId, task: NewTask<'a>) -> FollowUp<'a> {
        FollowUp { home, enqueue: Enqueue { queue: "next", task } }
    }

    fn ack<'a>(held: &ClaimedTask, follow_ups: Vec<FollowUp<'a>>) -> Command<'a> {
        Command::Ack(Ack { task: held.id, token: held.token, result: Some(b"42"), follow_ups })
    }

    #[test]
    fn an_ack_ends_the_task_and_keeps_its_result_and_attempt() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        yard.pass_ms(250);
        assert_eq!(yard.send(ack(&held, vec![])), Ok(Outcome::Acked { follow_ups: vec![] }));
        let task = yard.task(id);
        assert_eq!(task.state, TaskStateName::Succeeded);
        assert_eq!(task.result.as_deref(), Some(&b"42"[..]));
        assert_eq!(task.attempts[0].outcome, AttemptOutcome::Succeeded);
        let succeeded = |event: &EventKind| matches!(event, EventKind::TaskSucceeded(_, 250));
        assert!(yard.events().iter().any(succeeded));
    }

    #[test]
    fn only_the_current_token_is_accepted() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let first = yard.claim_one("mail");
        yard.release(&first).unwrap();
        assert_eq!(yard.ack(&first), Err(Rejection::ClaimLost { task: first.id }), "given back");
        let second = yard.claim_one("mail");
        assert!(second.token > first.token);
        assert_eq!(yard.ack(&first), Err(Rejection::ClaimLost { task: first.id }));
        yard.ack(&second).unwrap();
        let finished =
            Rejection::AlreadyFinished { task: first.id, state: TaskStateName::Succeeded };
        assert_eq!(yard.ack(&first), Err(finished));
    }

    #[test]
    fn the_same_ack_again_gets_the_same_answer_while_the_task_is_kept() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { retention_count: Some(1), ..QueueSettings::default() });
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let command = || ack(&held, vec![follow_up(SHARD, new_task())]);
        let first = yard.send(command());
        assert_eq!(yard.send(command()), first);
        assert_eq!(yard.counts("next").enqueued_total, 1, "its follow-up was made once");
        yard.enqueue("mail");
        let other = yard.claim_one("mail");
        yard.ack(&other).unwrap();
        assert_eq!(yard.send(command()), Err(Rejection::AlreadyRemoved { task: held.id }));
        assert_eq!(yard.ack(&held).unwrap_err().code(), "already_finished");
    }

    #[test]
    fn an_unknown_task_is_not_found() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let unknown = [
            TaskId { sequence: id.sequence + 1, ..id },
            TaskId { incarnation: 8, sequence: 0, ..id },
            TaskId { origin: ShardId(3), ..id },
            TaskId { home: ShardId(2), ..id },
            TaskId { sequence: 0, ..id },
        ];
        for task in unknown {
            let ack = Ack { task, token: ClaimToken(1), result: None, follow_ups: vec![] };
            assert_eq!(yard.send(Command::Ack(ack)), Err(Rejection::TaskNotFound { task }));
        }
    }

    #[test]
    fn a_bad_follow_up_refuses_the_ack_and_is_named() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let bad = NewTask { task_type: "", ..new_task() };
        for (index, bad) in
            [follow_up(SHARD, bad), follow_up(ShardId(4), new_task())].into_iter().enumerate()
        {
            let mut follow_ups = vec![follow_up(SHARD, new_task()); index];
            follow_ups.push(bad);
            let answer = yard.send(ack(&held, follow_ups));
            let Err(Rejection::BatchElement { index: named, .. }) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(named as usize, index);
        }
        assert_eq!(yard.state(id), TaskStateName::Claimed);
    }

    #[test]
    fn a_full_queue_does_not_refuse_a_follow_up() {
        let mut yard = Yard::new();
        yard.set("next", QueueSettings { max_length: Some(0), ..QueueSettings::default() });
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        yard.send(ack(&held, vec![follow_up(SHARD, new_task())])).unwrap();
        assert_eq!(yard.counts("next").ready, 1);
    }

    #[test]
    fn a_task_may_be_followed_by_one_of_its_own_key() {
        let unique = || Unique {
            key: "key".into(),
            until: None,
            window_ms: None,
            on_conflict: OnConflict::Reject,
            debounce_ms: None,
        };
        let keyed = || NewTask { unique: Some(Box::new(unique())), ..new_task() };
        let mut yard = Yard::new();
        let first = yard.enqueue_task("next", keyed()).unwrap().id;
        let held = yard.claim_one("next");
        let follow_ups = vec![follow_up(SHARD, keyed()), follow_up(SHARD, keyed())];
        let ack = Ack { task: held.id, token: held.token, result: None, follow_ups };
        let Ok(Outcome::Acked { follow_ups }) = yard.send(Command::Ack(ack)) else { panic!() };
        assert_ne!(follow_ups[0], first, "it has ended, and with it its right to the key");
        assert_eq!(follow_ups[1], follow_ups[0], "the key is the follow-up's now");
        let holds = |id| yard.task(id).unique.unwrap().held;
        assert_eq!((holds(first), holds(follow_ups[0])), (false, true));
    }
}
