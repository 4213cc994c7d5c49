//! Replay: a session's claim that is sent again gets its first answer again.
//!
//! The broker repeats a claim whose outcome it does not know. Without this, the tasks of the first
//! one would wait for their lease, held by nobody.

use crate::kept::Keep;
use crate::limits::{CLAIM_REPLAY_KEPT_FOR_MS, CLAIM_REPLAYS_MAX};
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{Claim, ClaimToken, ClaimedTask, SessionId, TaskId, Timestamp};

/// A session's last claims, oldest first.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Replays {
    pub(crate) claims: Vec<Replay>,
    expires_at: Timestamp,
}

/// One numbered claim and what it was given.
#[derive(Debug, PartialEq)]
pub(crate) struct Replay {
    sequence: u64,
    given: Box<[(TaskId, ClaimToken)]>,
}

wire_struct!(Replays { claims, expires_at });
wire_struct!(Replay { sequence, given });

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

impl Replays {
    pub(crate) fn find(&self, sequence: u64) -> Option<&Replay> {
        self.claims.iter().find(|replay| replay.sequence == sequence)
    }
}

impl Turn<'_> {
    /// The answer that this claim had before, as far as its tasks are still held.
    pub(crate) fn replayed(&self, claim: &Claim<'_>) -> Option<Vec<ClaimedTask>> {
        let replays = self.shard.replays.get(claim.session?)?;
        let replay = replays.find(claim.claim_sequence?)?;
        let held =
            replay.given.iter().filter_map(|&(task, token)| self.find_held(task, token).ok());
        Some(held.map(|slot| self.shard.claimed_task(slot)).collect())
    }

    pub(crate) fn remember_claim(&mut self, claim: &Claim<'_>, answer: &[ClaimedTask]) {
        let (Some(session), Some(sequence)) = (claim.session, claim.claim_sequence) else { return };
        if answer.is_empty() {
            return;
        }
        let replay =
            Replay { sequence, given: answer.iter().map(|task| (task.id, task.token)).collect() };
        let mut replays = self.shard.replays.remove(session).unwrap_or_default();
        if replays.claims.len() >= CLAIM_REPLAYS_MAX {
            replays.claims.remove(0);
        }
        replays.claims.push(replay);
        replays.expires_at = self.now.plus_ms(CLAIM_REPLAY_KEPT_FOR_MS);
        self.shard.replays.insert(session, replays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, claim};
    use crate::{Claimable, Timestamp};

    fn numbered(sequence: u64) -> Claim<'static> {
        Claim {
            session: Some(SessionId(1)),
            claim_sequence: Some(sequence),
            tasks_max: 2,
            ..claim("mail")
        }
    }

    #[test]
    fn a_repeated_claim_gets_the_tasks_it_still_holds() {
        let mut yard = Yard::new();
        for _ in 0..4 {
            yard.enqueue("mail");
        }
        let first = yard.claim_with(numbered(1));
        assert_eq!(yard.claim_with(numbered(1)), first);
        yard.ack(&first[0]).unwrap();
        assert_eq!(yard.claim_with(numbered(1)), first[1..]);
        assert_eq!(yard.counts("mail").ready, 2, "nothing more was handed out");
        assert_ne!(yard.claim_with(numbered(2)), first, "another number is another claim");
    }

    #[test]
    fn a_repeated_claim_is_worth_an_entry_even_when_nothing_is_ready() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let now = Timestamp(0);
        yard.claim_with(numbered(1));
        assert_eq!(yard.machine.claimable(&numbered(1), now), Claimable::Now(1));
        yard.wait_ms(CLAIM_REPLAY_KEPT_FOR_MS);
        yard.claim_one("mail");
        assert_ne!(yard.machine.claimable(&numbered(1), now), Claimable::Now(1), "forgotten");
    }
}
