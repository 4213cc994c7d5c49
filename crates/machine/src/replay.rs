//! Replay: a session's claim that is sent again gets the same tasks again.
//!
//! The broker repeats a claim whose outcome it does not know. Without replay, the tasks of the
//! first sending would wait for the end of their lease, although no worker has them. A claimed task
//! remembers the claim that got it, so that every claim with unfinished tasks can be repeated,
//! regardless of how many claims the session sent. Only the last sending counts, in whatever order
//! the sendings arrive: it takes over the tasks of the earlier ones. An earlier sending that
//! arrives late, or a late release of its tasks, changes nothing.

use crate::digest::Word;
use crate::kept::Keep;
use crate::limits::CLAIM_RESENT_KEPT_FOR_MS;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{Claim, ClaimedTask, Machine, Rejection, SessionId, Timestamp};

/// The name of one claim of a session, the same for all its sendings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimKey {
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
}

/// A claim that was sent more than once. Rare: only after an answer was lost.
#[derive(Debug, PartialEq)]
pub(crate) struct Resent {
    /// The number of the last sending.
    sending: u32,
    expires_at: Timestamp,
}

wire_struct!(ClaimKey { session, sequence });
wire_struct!(Resent { sending, expires_at });

impl Word for ClaimKey {
    fn word(self) -> u64 {
        self.session.word() ^ self.sequence
    }
}

impl Keep for Resent {
    type Key = ClaimKey;
    const KIND: u8 = 4;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }
}

impl Claim<'_> {
    fn key(&self) -> Option<ClaimKey> {
        Some(ClaimKey { session: self.session?, sequence: self.number?.sequence })
    }
}

impl Machine {
    /// The tasks that an earlier sending of a claim got and that are still claimed, in the order in
    /// which it got them.
    fn got_before(&self, claim: ClaimKey) -> impl Iterator<Item = Slot> {
        self.numbered_claims.range((claim, 0)..=(claim, u64::MAX)).map(|(_, &slot)| slot)
    }

    /// The number of the last known sending of a claim.
    fn last_sending(&self, claim: ClaimKey) -> Option<u32> {
        let first = || self.got_before(claim).next().map(|_| 0);
        self.resent.get(claim).map(|resent| resent.sending).or_else(first)
    }

    pub(crate) fn was_sent_before(&self, claim: &Claim<'_>) -> bool {
        claim.key().is_some_and(|key| self.last_sending(key).is_some())
    }
}

impl Turn<'_> {
    /// The tasks that an earlier sending of this claim got, as far as they are still claimed;
    /// `None` if there was none. Each task gets a new token, so that a late release under the old
    /// token does not take the task from its worker.
    pub(crate) fn repeated(
        &mut self,
        claim: &Claim<'_>,
    ) -> Result<Option<Vec<ClaimedTask>>, Rejection> {
        let (Some(key), Some(number)) = (claim.key(), claim.number) else { return Ok(None) };
        let last = self.shard.last_sending(key);
        if let Some(last) = last.filter(|last| *last >= number.sending) {
            return Err(Rejection::invalid(format!(
                "sending {} of this claim comes after sending {last} of it; only the last one counts",
                number.sending
            )));
        }
        if number.sending > 0 {
            let expires_at = self.now.plus_ms(CLAIM_RESENT_KEPT_FOR_MS);
            let resent = Resent { sending: number.sending, expires_at };
            self.shard.resent.insert(key, resent);
        }
        let held: Vec<Slot> = self.shard.got_before(key).collect();
        let answer: Vec<ClaimedTask> = held.into_iter().map(|slot| self.take_over(slot)).collect();
        Ok(Some(answer).filter(|answer| !answer.is_empty()))
    }

    /// Starts the claim anew, because its worker gets the task only now.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, Yard, claim};
    use crate::{ClaimNumber, Claimable, Command, Outcome, TaskId};

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

    /// Every connection of a worker may have a fetch in flight when the leader is lost.
    #[test]
    fn all_claims_of_a_session_can_be_repeated_at_once_however_many() {
        const CLAIMS: u64 = 100;
        let mut yard = Yard::new();
        let one = |sequence, sending| Claim { tasks_max: 1, ..numbered(sequence, sending) };
        let mut first = Vec::new();
        for sequence in 0..CLAIMS {
            yard.enqueue("mail");
            first.push(ids(&yard.claim_with(one(sequence, 0))));
        }
        // A reload in between stands for a move of the state to another node.
        let loaded = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
        yard.machine = loaded;
        yard.enqueue("mail");
        for sequence in (0..CLAIMS).rev() {
            let again = ids(&yard.claim_with(one(sequence, 1)));
            assert_eq!(again, first[sequence as usize], "claim {sequence}");
        }
        assert_eq!(yard.counts("mail").ready, 1, "nothing more was handed out");
    }

    #[test]
    fn an_earlier_sending_that_arrives_last_gets_nothing() {
        let mut yard = Yard::new();
        for _ in 0..2 {
            yard.enqueue("mail");
        }
        for task in yard.claim_with(Claim { tasks_max: 1, ..numbered(1, 1) }) {
            yard.ack(&task).unwrap();
        }
        let late = yard.send(Command::Claim(numbered(1, 0)));
        assert_eq!(late.unwrap_err().code(), "invalid_argument");
        assert_eq!(yard.counts("mail").ready, 1);
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
    fn a_task_taken_over_by_a_later_sending_is_not_released_by_the_earlier_one() {
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
        yard.wait_ms(CLAIM_RESENT_KEPT_FOR_MS);
        yard.claim_one("mail");
        assert_ne!(yard.machine.claimable(&numbered(1, 1), now), Claimable::Now(1), "forgotten");
    }
}
