//! Replay: a session's claim that is sent again gets the tasks that it got before.
//!
//! The broker repeats a claim whose outcome it does not know. Without this, the tasks of the first
//! sending would wait for their lease, held by nobody. Whatever order the sendings come in, the last one
//! alone counts: it takes what they got, and nothing that an earlier one does afterwards, nor a late
//! release of what it got, touches that.

use crate::kept::Keep;
use crate::limits::{CLAIM_REPLAY_KEPT_FOR_MS, CLAIM_REPLAYS_MAX};
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{
    Claim, ClaimNumber, ClaimToken, ClaimedTask, Machine, Rejection, SessionId, TaskId, Timestamp,
};

/// A session's last claims, oldest first.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Replays {
    pub(crate) claims: Vec<Replay>,
    expires_at: Timestamp,
}

/// One numbered claim and what its last sending was given.
#[derive(Debug, PartialEq)]
pub(crate) struct Replay {
    sequence: u64,
    sending: u32,
    given: Box<[(TaskId, ClaimToken)]>,
}

wire_struct!(Replays { claims, expires_at });
wire_struct!(Replay { sequence, sending, given });

impl Keep for Replays {
    type Key = SessionId;
    const KIND: u8 = 4;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }

    fn heap_bytes(&self) -> usize {
        let replay = |replay: &Replay| size_of::<Replay>() + size_of_val(&*replay.given);
        self.claims.iter().map(replay).sum()
    }
}

impl Replay {
    fn new(ClaimNumber { sequence, sending }: ClaimNumber, answer: &[ClaimedTask]) -> Replay {
        let given = answer.iter().map(|task| (task.id, task.token)).collect();
        Replay { sequence, sending, given }
    }
}

impl Machine {
    /// What an earlier sending of this claim got.
    pub(crate) fn decided_before(&self, claim: &Claim<'_>) -> Option<&Replay> {
        let (session, number) = (claim.session?, claim.number?);
        let replays = self.replays.get(session)?;
        replays.claims.iter().find(|replay| replay.sequence == number.sequence)
    }
}

impl Turn<'_> {
    /// The tasks that this claim got when it was sent before, as far as they are still held. Each gets
    /// a new token: whoever gives back what the earlier sending got, late, must not take it from who
    /// has it now.
    pub(crate) fn repeated(
        &mut self,
        claim: &Claim<'_>,
    ) -> Result<Option<Vec<ClaimedTask>>, Rejection> {
        let (Some(session), Some(number)) = (claim.session, claim.number) else { return Ok(None) };
        let Some(replay) = self.shard.decided_before(claim) else { return Ok(None) };
        if replay.sending >= number.sending {
            return Err(Rejection::invalid(format!(
                "sending {} of this claim comes after sending {} of it; only the last one counts",
                number.sending, replay.sending
            )));
        }
        let find = |&(task, token)| self.find_held(task, token).ok();
        let held: Vec<Slot> = replay.given.iter().filter_map(find).collect();
        let answer: Vec<ClaimedTask> = held.into_iter().map(|slot| self.take_over(slot)).collect();
        let expires_at = self.now.plus_ms(CLAIM_REPLAY_KEPT_FOR_MS);
        self.shard.replays.update(session, |replays| {
            replays.claims.retain(|replay| replay.sequence != number.sequence);
            replays.claims.push(Replay::new(number, &answer));
            replays.expires_at = expires_at;
        });
        Ok(Some(answer))
    }

    /// Lets a claim begin anew, for its worker gets it only now.
    fn take_over(&mut self, slot: Slot) -> ClaimedTask {
        let token = self.next_token();
        let timeout_ms = self.shard.timeout_ms(slot);
        let counters = self.shard.counters;
        self.shard.edit_deadline(slot, |task| {
            let claim = task.claim_mut().expect("only what is held is taken over");
            claim.token = token;
            claim.begin(&counters, timeout_ms);
        });
        self.shard.claimed_task(slot)
    }

    pub(crate) fn remember_claim(&mut self, claim: &Claim<'_>, answer: &[ClaimedTask]) {
        let (Some(session), Some(number)) = (claim.session, claim.number) else { return };
        if answer.is_empty() {
            return;
        }
        let mut replays = self.shard.replays.remove(session).unwrap_or_default();
        if replays.claims.len() >= CLAIM_REPLAYS_MAX {
            replays.claims.remove(0);
        }
        replays.claims.push(Replay::new(number, answer));
        replays.expires_at = self.now.plus_ms(CLAIM_REPLAY_KEPT_FOR_MS);
        self.shard.replays.insert(session, replays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, Yard, claim};
    use crate::{Claimable, Command, Outcome};

    fn numbered(sequence: u64, sending: u32) -> Claim<'static> {
        Claim {
            session: Some(SessionId(1)),
            number: Some(ClaimNumber { sequence, sending }),
            tasks_max: 2,
            ..claim("mail")
        }
    }

    fn ids(tasks: &[ClaimedTask]) -> Vec<TaskId> {
        tasks.iter().map(|task| task.id).collect()
    }

    #[test]
    fn a_repeated_claim_gets_the_tasks_it_still_holds() {
        let mut yard = Yard::new();
        for _ in 0..4 {
            yard.enqueue("mail");
        }
        let first = yard.claim_with(numbered(1, 0));
        let second = yard.claim_with(numbered(1, 1));
        assert_eq!(ids(&second), ids(&first));
        assert!(second.iter().all(|task| task.attempt == 1), "nothing is spent");
        yard.ack(&second[0]).unwrap();
        assert_eq!(ids(&yard.claim_with(numbered(1, 2))), ids(&second[1..]));
        assert_eq!(yard.counts("mail").ready, 2, "nothing more was handed out");
        assert_ne!(ids(&yard.claim_with(numbered(2, 0))), ids(&first), "that is another claim");
    }

    #[test]
    fn what_an_earlier_sending_got_is_not_given_back_once_a_later_one_has_it() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let first = yard.claim_with(numbered(1, 0));
        let second = yard.claim_with(numbered(1, 1));
        assert!(second[0].token > first[0].token);
        let task = first[0].id;
        assert_eq!(yard.release(&first[0]), Err(Rejection::ClaimLost { task }));
        assert!(yard.ack(&second[0]).is_ok());
    }

    #[test]
    fn a_sending_that_comes_after_a_later_one_gets_nothing() {
        let mut yard = Yard::new();
        for _ in 0..4 {
            yard.enqueue("mail");
        }
        let held = yard.claim_with(numbered(1, 1));
        for late in [0, 1] {
            let answer = yard.send(Command::Claim(numbered(1, late)));
            assert_eq!(answer.unwrap_err().code(), "invalid_argument", "sending {late}");
        }
        assert_eq!(yard.counts("mail").ready, 2);
        assert!(held.iter().all(|task| yard.ack(task).is_ok()), "its worker has it");
    }

    #[test]
    fn a_claim_that_is_taken_over_has_its_whole_time() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        yard.claim_with(numbered(1, 0));
        yard.pass_ms(20_000);
        let held = yard.claim_with(numbered(1, 1));
        assert_eq!(held[0].lease_expires_at, Timestamp(START + 50_000));
        yard.wait_ms(29_999);
        assert!(matches!(yard.extend(&held[0]), Ok(Outcome::Extended { .. })));
    }

    #[test]
    fn a_repeated_claim_is_worth_an_entry_even_when_nothing_is_ready() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let now = Timestamp(0);
        yard.claim_with(numbered(1, 0));
        assert_eq!(yard.machine.claimable(&numbered(1, 1), now), Claimable::Now(1));
        yard.wait_ms(CLAIM_REPLAY_KEPT_FOR_MS);
        yard.claim_one("mail");
        assert_ne!(yard.machine.claimable(&numbered(1, 1), now), Claimable::Now(1), "forgotten");
    }
}
