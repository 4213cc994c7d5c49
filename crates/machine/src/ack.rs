//! Ack: the end of a task that went well, with its result and the tasks that follow from it.

use crate::batch::in_batch;
use crate::enqueue::{at_most_bytes, parse_queue};
use crate::life::Ending;
use crate::limits::{FOLLOW_UPS_MAX, RESULT_BYTES_MAX};
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::{Ack, AttemptOutcome, EventKind, FollowUp, Outcome, Rejection, TaskId, TaskStateName};

impl Turn<'_> {
    /// The work is done: an ack under the current token wins even over a cancellation. The same ack
    /// again gets the same answer while the task is kept.
    pub(crate) fn ack(&mut self, ack: &Ack<'_>) -> Result<Outcome, Rejection> {
        if let Some(follow_ups) = self.acked_before(ack) {
            return Ok(Outcome::Acked { follow_ups });
        }
        let slot = self.held(ack.task, ack.token)?;
        at_most_bytes("result", ack.result.map_or(0, <[u8]>::len), RESULT_BYTES_MAX)?;
        self.check_follow_ups(&ack.follow_ups)?;

        let follow_ups: Vec<TaskId> =
            ack.follow_ups.iter().map(|follow_up| self.follow_up(follow_up)).collect();
        self.end_attempt(slot, AttemptOutcome::Succeeded, None, None);
        if ack.result.is_some() || !follow_ups.is_empty() {
            self.shard.edit(slot, |task| {
                let extra = task.extra_mut();
                extra.result = ack.result.map(Box::from);
                extra.follow_ups = follow_ups.as_slice().into();
            });
        }
        let claimed_at = self.task(slot).claim().map_or(self.now, |claim| claim.claimed_at);
        let ran_for_ms = self.now.ms_since(claimed_at);
        self.finish(slot, Ending::Succeeded, |task| EventKind::TaskSucceeded(task, ran_for_ms));
        Ok(Outcome::Acked { follow_ups })
    }

    /// The follow-ups of this very ack, if it was accepted before.
    fn acked_before(&self, ack: &Ack<'_>) -> Option<Vec<TaskId>> {
        let task = self.task(self.shard.ids.get(ack.task)?);
        let accepted = task.state.name() == TaskStateName::Succeeded
            && task.last_attempt.as_ref().is_some_and(|last| last.token == ack.token);
        let follow_ups =
            || task.extra.as_ref().map_or(Vec::new(), |extra| extra.follow_ups.to_vec());
        accepted.then(follow_ups)
    }

    fn check_follow_ups(&self, follow_ups: &[FollowUp<'_>]) -> Result<(), Rejection> {
        at_most("the number of follow-ups", follow_ups.len() as u64, FOLLOW_UPS_MAX as u64)?;
        for (index, follow_up) in (0..).zip(follow_ups) {
            self.check_follow_up(follow_up).map_err(|rejection| in_batch(index, rejection))?;
        }
        Ok(())
    }

    fn check_follow_up(&self, follow_up: &FollowUp<'_>) -> Result<(), Rejection> {
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

    /// Enqueues here, or owes it to the shard where it lives. Both ways it is accepted with the ack,
    /// so that a full queue does not refuse it: a bound on producers is no reason to lose work done.
    fn follow_up(&mut self, follow_up: &FollowUp<'_>) -> TaskId {
        let FollowUp { home, enqueue } = follow_up;
        if *home == self.shard.identity.shard {
            let queue = self.queue_for_accepted(enqueue.queue);
            self.insert_new(queue, &enqueue.task).id
        } else {
            let id = self.next_id(*home);
            self.owe_enqueue(id, enqueue);
            id
        }
    }
}
