//! Extend and renew: a worker shows that it is alive, and reports its progress.

use crate::claim::check_lease;
use crate::enqueue::at_most_bytes;
use crate::limits::RESUME_STATE_BYTES_MAX;
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{EventKind, Extend, Outcome, Rejection, Renew, Renewal, Timestamp};

impl Extend<'_> {
    /// Checks the bounds that need no state, so that a front can refuse the request before it is
    /// logged.
    pub fn check_bytes(&self) -> Result<(), Rejection> {
        let bytes = self.resume_state.map_or(0, <[u8]>::len);
        at_most_bytes("resume_state", bytes, RESUME_STATE_BYTES_MAX)
    }
}

impl Turn<'_> {
    pub(crate) fn extend(&mut self, extend: &Extend<'_>) -> Result<Outcome, Rejection> {
        let slot = self.find_held(extend.task, extend.token)?;
        if let Some(lease_ms) = extend.lease_ms {
            check_lease(lease_ms)?;
        }
        if let Some(progress) = extend.progress {
            at_most("progress percent", progress.percent.into(), 100)?;
        }
        extend.check_bytes()?;

        let (lease_expires_at, lease_ms) = self.renew_claim(slot, extend.lease_ms);
        if let Some(state) = extend.resume_state {
            self.shard.edit(slot, |task| task.left_mut().resume_state = Some(state.into()));
        }
        if let Some(progress) = extend.progress {
            let kept = (progress.percent, progress.cut().message.into());
            self.shard.edit(slot, |task| task.left_mut().progress = Some(kept));
            self.emit_task(slot, |task| EventKind::TaskProgressed(task, progress.percent));
        }
        let cancel_requested = self.cancel_requested(slot);
        Ok(Outcome::Extended { lease_expires_at, lease_ms, cancel_requested })
    }

    /// Answers each claim by itself, so that one lost claim does not cost the others their lease.
    pub(crate) fn renew(&mut self, renew: &Renew) -> Result<Outcome, Rejection> {
        let mut renewals = Vec::with_capacity(renew.claims.len());
        for &(task, token) in &renew.claims {
            renewals.push(match self.find_held(task, token) {
                Ok(slot) => {
                    let (lease_expires_at, lease_ms) = self.renew_claim(slot, None);
                    let cancel_requested = self.cancel_requested(slot);
                    Renewal::Held { lease_expires_at, lease_ms, cancel_requested }
                }
                Err(_) => Renewal::Lost,
            });
        }
        Ok(Outcome::Renewed(renewals))
    }

    /// Moves the lease's end: `lease_ms` from now, or as long as it was claimed for. Returns both.
    fn renew_claim(&mut self, slot: Slot, lease_ms: Option<u64>) -> (Timestamp, u64) {
        let counters = self.shard.counters;
        self.shard.edit_deadline(slot, |task| {
            let claim = task.claim_mut().expect("only held tasks are renewed");
            claim.engaged = true;
            claim.renew(&counters, lease_ms);
            (claim.lease_expires_at, lease_ms.unwrap_or(claim.lease_ms))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LEASE_FLOOR_MS, TIMEOUT_GRACE_MS};
    use crate::testing::{Yard, extend, new_task};
    use crate::{AttemptOutcome, ClaimToken, Command, NewTask, Progress, PutOff, TaskStateName};

    #[test]
    fn an_extended_lease_runs_from_now() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        yard.pass_ms(29_999);
        for (lease_ms, expected) in [(None, 30_000), (Some(1_000), 1_000), (None, 30_000)] {
            let command = Command::Extend(Extend { lease_ms, ..extend(&held) });
            let lease_expires_at = yard.now().plus_ms(expected);
            let (lease_ms, cancel_requested) = (expected, false);
            let outcome = Outcome::Extended { lease_expires_at, lease_ms, cancel_requested };
            assert_eq!(yard.send(command), Ok(outcome));
        }
        yard.wait_ms(29_999);
        assert_eq!(yard.state(id), TaskStateName::Claimed);
        yard.wait_ms(1);
        assert_eq!(yard.state(id), TaskStateName::Ready);
        assert_eq!(yard.extend(&held), Err(Rejection::ClaimLost { task: id }));
    }

    #[test]
    fn progress_is_shown_and_the_resume_state_reaches_the_next_attempt() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let progress = Some(Progress { percent: 40, message: "page 2" });
        let resume_state = Some(&b"2"[..]);
        yard.send(Command::Extend(Extend { progress, resume_state, ..extend(&held) })).unwrap();
        assert_eq!(yard.task(id).progress, Some((40, "page 2".to_owned())));
        yard.extend(&held).unwrap();
        yard.release(&held).unwrap();
        let next = yard.claim_one("mail");
        assert_eq!(next.resume_state.as_deref(), resume_state, "a plain extend keeps it");
    }

    #[test]
    fn bad_extends_are_refused() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let large = vec![0; RESUME_STATE_BYTES_MAX + 1];
        for bad in [
            Extend { lease_ms: Some(1), ..extend(&held) },
            Extend { progress: Some(Progress { percent: 101, message: "" }), ..extend(&held) },
            Extend { resume_state: Some(&large), ..extend(&held) },
        ] {
            let rejection = yard.send(Command::Extend(bad)).unwrap_err();
            assert_eq!(rejection.code(), "invalid_argument");
        }
    }

    #[test]
    fn a_renewal_answers_each_claim_by_itself() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        yard.enqueue("mail");
        let held = yard.claim("mail", 2);
        yard.cancel(held[1].id).unwrap();
        yard.pass_ms(10_000);
        let claims = vec![
            (held[0].id, held[0].token),
            (held[1].id, held[1].token),
            (held[0].id, ClaimToken(99)),
        ];
        let lease_expires_at = yard.now().plus_ms(30_000);
        let lease_ms = 30_000;
        let renewed =
            |cancel_requested| Renewal::Held { lease_expires_at, lease_ms, cancel_requested };
        let expected = vec![renewed(false), renewed(true), Renewal::Lost];
        assert_eq!(yard.send(Command::Renew(Renew { claims })), Ok(Outcome::Renewed(expected)));
    }

    fn put_off(yard: &mut Yard, claims_ms: u64) {
        yard.pass_ms(claims_ms);
        yard.send(Command::PutOff(PutOff { claims_ms })).unwrap();
    }

    #[test]
    fn a_claim_has_as_much_time_left_after_a_standstill_as_before() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        yard.claim_one("mail");
        yard.pass_ms(10_000);
        put_off(&mut yard, 3_600_000);
        let claim = yard.task(id).claim.unwrap();
        assert_eq!(claim.lease_expires_at, yard.now().plus_ms(20_000));
        yard.wait_ms(19_999);
        assert_eq!(yard.state(id), TaskStateName::Claimed);
        yard.wait_ms(1);
        assert_eq!(yard.state(id), TaskStateName::Ready);
        assert_eq!(yard.task(id).losses, 1);
    }

    #[test]
    fn a_claim_about_to_lapse_gets_the_length_of_the_standstill_up_to_the_floor() {
        for (stood_ms, left_ms) in [(2_500, 2_500), (20_000, LEASE_FLOOR_MS)] {
            let mut yard = Yard::new();
            let id = yard.enqueue("mail");
            yard.claim_one("mail");
            yard.pass_ms(29_999);
            put_off(&mut yard, stood_ms);
            yard.wait_ms(left_ms - 1);
            assert_eq!(yard.state(id), TaskStateName::Claimed, "after {stood_ms} ms");
            yard.wait_ms(1);
            assert_eq!(yard.state(id), TaskStateName::Ready, "after {stood_ms} ms");
        }
    }

    #[test]
    fn a_standstill_does_not_count_as_run_time() {
        let mut yard = Yard::new();
        let task = NewTask { timeout_ms: Some(60_000), ..new_task() };
        let id = yard.enqueue_task("mail", task).unwrap().id;
        let held = yard.claim_one("mail");
        put_off(&mut yard, 3_600_000);
        // Renewed or not, its run time goes on where it was.
        for passed_ms in [20_000, 20_000, 20_000, TIMEOUT_GRACE_MS - 1] {
            yard.extend(&held).unwrap();
            yard.wait_ms(passed_ms);
            assert_eq!(yard.state(id), TaskStateName::Claimed);
        }
        yard.wait_ms(1);
        assert_eq!(yard.task(id).attempts[0].outcome, AttemptOutcome::TimedOut);
    }

    #[test]
    fn a_renewed_lease_runs_from_now_after_a_put_off() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        let held = yard.claim_one("mail");
        put_off(&mut yard, 3_600_000);
        yard.extend(&held).unwrap();
        let later = yard.enqueue("mail");
        yard.claim_one("mail");
        for id in [id, later] {
            let lease_expires_at = yard.task(id).claim.unwrap().lease_expires_at;
            assert_eq!(lease_expires_at, yard.now().plus_ms(30_000));
        }
        yard.wait_ms(30_000);
        assert_eq!(yard.state(id), TaskStateName::Ready);
        assert_eq!(yard.state(later), TaskStateName::Ready);
    }

    #[test]
    fn no_claim_ends_by_itself_soon_after_a_change_of_leader() {
        let mut yard = Yard::new();
        let id = yard.enqueue("mail");
        yard.claim_one("mail");
        yard.pass_ms(40_000);
        yard.send(Command::BeginTerm).unwrap();
        yard.wait_ms(LEASE_FLOOR_MS - 1);
        assert_eq!(yard.state(id), TaskStateName::Claimed);
        yard.wait_ms(1);
        assert_eq!(yard.state(id), TaskStateName::Ready);
    }
}
