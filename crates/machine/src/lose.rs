//! Losses: decides the next state of a task whose worker died or went silent.
//!
//! A loss counts as an attempt but spends no retry. Losses are counted and delayed apart from
//! failures, and a task that keeps killing its workers is quarantined.

use crate::life::Ending;
use crate::limits::{LOSS_DELAYS_MS, LOSSES_MAX};
use crate::slab::Slot;
use crate::tally::Standing;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{AttemptOutcome, DeathReason, EventKind};

impl Turn<'_> {
    /// Ends a claim whose worker died, went silent or never answered. Counted losses are delayed,
    /// so that a killer task and the tasks that shared its worker separate. In the end the killer
    /// is quarantined.
    pub(crate) fn lose(&mut self, slot: Slot, counted: bool) {
        let since = self.ready_since(slot);
        let queue = self.task(slot).queue;
        self.shard.edit_queue(queue, |queue| queue.totals.lost += 1);
        self.end_attempt(slot, AttemptOutcome::Lost, None, None);
        self.emit_task(slot, EventKind::TaskLost);
        if self.cancel_requested(slot) {
            self.finish(slot, Ending::Cancelled, EventKind::TaskCancelled);
            return;
        }
        if !counted {
            self.make_ready(slot, since, Place::Front);
            return;
        }
        let losses = self.shard.edit(slot, |task| {
            task.losses += 1;
            task.losses
        });
        self.notify_tally(slot, Standing::Failed);
        if u32::from(losses) >= LOSSES_MAX {
            self.die(slot, DeathReason::Quarantined);
            return;
        }
        match LOSS_DELAYS_MS[usize::from(losses) - 1] {
            0 => self.make_ready(slot, since, Place::Front),
            delay_ms => self.schedule(slot, self.now.plus_ms(delay_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Yard, claim};
    use crate::{Claim, DeathReason, Rejection, SessionId, TaskStateName};

    #[test]
    fn a_lapse_in_a_session_counts_only_when_the_worker_had_shown_to_be_alive() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let in_session = || Claim { session: Some(SessionId(1)), ..claim("mail") };
        for _ in 0..5 {
            yard.claim_with(in_session());
            yard.wait_ms(30_000);
            assert_eq!(yard.state(id), TaskStateName::Ready);
        }
        let task = yard.task(id);
        assert_eq!((task.losses, task.attempt), (0, 5));
        let held = yard.claim_with(in_session()).remove(0);
        yard.extend(&held).unwrap();
        yard.wait_ms(30_000);
        assert_eq!(yard.task(id).losses, 1);
        assert_eq!(yard.ack(&held), Err(Rejection::ClaimLost { task: id }), "too late");
    }

    #[test]
    fn a_lapsed_claim_that_counts_as_begun_is_a_loss_in_a_session_too() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        for losses in 1..=3 {
            let session = Some(SessionId(1));
            assert_eq!(yard.claim_with(Claim { session, begun: true, ..claim("mail") }).len(), 1);
            yard.wait_ms(30_000);
            assert_eq!(yard.task(id).losses, losses);
            yard.wait_ms(60_000);
        }
        assert_eq!(yard.state(id), TaskStateName::Dead);
    }

    #[test]
    fn losses_are_spaced_and_the_third_quarantines_also_without_a_session() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        for delay_ms in [0, 10_000] {
            yard.claim_one("mail");
            yard.wait_ms(30_000);
            let task = yard.task(id);
            let run_at = (delay_ms > 0).then(|| yard.now().plus_ms(delay_ms));
            assert_eq!(task.run_at, run_at);
            yard.wait_ms(delay_ms);
        }
        yard.claim_one("mail");
        yard.wait_ms(30_000);
        let task = yard.task(id);
        assert_eq!((task.state, task.death), (TaskStateName::Dead, Some(DeathReason::Quarantined)));
        assert_eq!(yard.counts("mail").failed_total, 0, "a loss is no failure");
        assert_eq!(yard.counts("mail").lost_total, 3);
    }

    #[test]
    fn a_lost_task_goes_back_to_the_front() {
        let mut yard = Yard::new();
        let first = yard.enqueue("mail");
        yard.enqueue("mail");
        yard.claim_with(Claim { session: Some(SessionId(1)), ..claim("mail") });
        yard.wait_ms(30_000);
        assert_eq!(yard.claim_one("mail").id, first);
    }
}
