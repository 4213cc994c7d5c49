//! ExpireDue: what time alone does, a bounded number per entry.
//!
//! Due tasks first, since somebody waits for them; then what is no longer kept.

use crate::life::{Ending, State};
use crate::limits::EXPIRIES_PER_ENTRY_MAX;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{AttemptOutcome, EventKind, Outcome, TaskError};

impl Turn<'_> {
    pub(crate) fn expire_due(&mut self) -> Outcome {
        let mut count = 0;
        while count < EXPIRIES_PER_ENTRY_MAX && self.pass_deadline() {
            count += 1;
        }
        Outcome::Expired { count: count as u32 }
    }

    /// Does the one thing that is due first; `false` if nothing is.
    fn pass_deadline(&mut self) -> bool {
        let now = self.now;
        if let Some(slot) = self.shard.deadlines.due_task(now) {
            self.task_due(slot);
            return true;
        }
        if let Some((queue, lane)) = self.shard.deadlines.due_lane(now) {
            self.remove_task(self.shard.queues.get(queue).lane(lane).head);
            return true;
        }
        self.shard.staged.expire_one(now)
            || self.shard.batches.expire_one(now)
            || self.shard.replays.expire_one(now)
            || self.shard.dedup.expire_one(now)
    }

    fn task_due(&mut self, slot: Slot) {
        let expired = self.task(slot).expires_at().is_some_and(|at| at <= self.now);
        match self.task(slot).state {
            State::Scheduled { .. } | State::Ready { .. } if expired => {
                self.finish(slot, Ending::Expired, EventKind::TaskExpired);
            }
            State::Scheduled { .. } => self.make_ready(slot, self.now, Place::Back),
            State::Ready { .. } => panic!("task {} has no deadline", self.task(slot).id),
            State::Claimed(_) => self.claim_due(slot),
            State::Finished { .. } => self.remove_task(slot),
        }
    }

    /// Ends a claim that was not renewed, or an attempt that ran too long. A timeout is a failure,
    /// never a loss; and only a worker that had shown to be alive can be lost.
    fn claim_due(&mut self, slot: Slot) {
        let floor = self.shard.counters.lease_floor;
        if self.now < floor {
            self.shard.edit_deadline(slot, |task| {
                task.claim_mut().expect("it is claimed").ends_at = floor;
            });
            return;
        }
        let claim = self.task(slot).claim().expect("it is claimed");
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
