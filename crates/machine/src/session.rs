//! The end of a worker's session: its claims are released, or count as losses.

use crate::limits::BULK_PER_ENTRY_MAX;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{BulkProgress, EndSession, EventKind, Outcome, Rejection, SessionEnd, TaskId};
use std::collections::BTreeSet;

impl Turn<'_> {
    /// Ends the session's claims, newest first. Tasks that return to the front of their lane then
    /// keep the order of their claims.
    pub(crate) fn end_session(&mut self, end: &EndSession) -> Result<Outcome, Rejection> {
        let keep: BTreeSet<TaskId> = end.keep.iter().copied().collect();
        let not_started: BTreeSet<TaskId> = end.not_started.iter().copied().collect();
        let Some(held) = self.shard.session_claims.get(&end.session) else {
            return Ok(Outcome::Bulk(BulkProgress::default()));
        };
        let mut ending = held.values().rev().copied().filter(|&slot| {
            let id = self.shard.tasks.get(slot).id;
            !keep.contains(&id)
        });
        let slots: Vec<Slot> = ending.by_ref().take(BULK_PER_ENTRY_MAX).collect();
        let next = ending.next().map(|slot| self.shard.tasks.get(slot).id);
        for &slot in &slots {
            let started = !not_started.contains(&self.task(slot).id);
            if end.reason == SessionEnd::Silence && started {
                self.lose(slot, true);
            } else {
                self.give_back(slot);
            }
        }
        if keep.is_empty() && next.is_none() {
            self.emit(EventKind::SessionEnded(end.session));
        }
        let changed = slots.len() as u32;
        Ok(Outcome::Bulk(BulkProgress { changed, skipped: 0, next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, claim, new_task};
    use crate::{Claim, Command, SessionId, TaskStateName};

    const SESSION: SessionId = SessionId(1);

    fn hold(yard: &mut Yard, count: u32) -> Vec<TaskId> {
        let ids: Vec<TaskId> = (0..count).map(|_| yard.enqueue("mail")).collect();
        yard.claim_with(Claim { session: Some(SESSION), tasks_max: count, ..claim("mail") });
        ids
    }

    fn end(yard: &mut Yard, end: EndSession) -> BulkProgress {
        match yard.send(Command::EndSession(end)) {
            Ok(Outcome::Bulk(progress)) => progress,
            other => panic!("{other:?}"),
        }
    }

    fn silence() -> EndSession {
        let reason = SessionEnd::Silence;
        EndSession { session: SESSION, reason, not_started: vec![], keep: vec![] }
    }

    #[test]
    fn a_goodbye_gives_everything_back_in_order() {
        let mut yard = Yard::new();
        let ids = hold(&mut yard, 3);
        yard.enqueue("mail");
        let goodbye = EndSession { reason: SessionEnd::Goodbye, ..silence() };
        assert_eq!(end(&mut yard, goodbye).changed, 3);
        let taken: Vec<TaskId> = yard.claim("mail", 3).iter().map(|task| task.id).collect();
        assert_eq!(taken, ids);
        assert_eq!((yard.task(ids[0]).losses, yard.task(ids[0]).attempt), (0, 1));
        assert!(yard.machine.sessions().is_empty());
    }

    #[test]
    fn silence_is_a_loss_except_for_tasks_never_started() {
        let mut yard = Yard::new();
        let ids = hold(&mut yard, 2);
        let not_started = vec![ids[1]];
        assert_eq!(end(&mut yard, EndSession { not_started, ..silence() }).changed, 2);
        assert_eq!((yard.task(ids[0]).losses, yard.task(ids[0]).attempt), (1, 1));
        assert_eq!((yard.task(ids[1]).losses, yard.task(ids[1]).attempt), (0, 0));
        assert!(yard.events().contains(&EventKind::SessionEnded(SESSION)));
    }

    #[test]
    fn a_resumed_session_keeps_the_claims_that_it_lists() {
        let mut yard = Yard::new();
        let ids = hold(&mut yard, 2);
        let resumed = EndSession { reason: SessionEnd::Goodbye, keep: vec![ids[0]], ..silence() };
        assert_eq!(end(&mut yard, resumed).changed, 1);
        assert_eq!(yard.state(ids[0]), TaskStateName::Claimed);
        assert_eq!(yard.state(ids[1]), TaskStateName::Ready);
        assert_eq!(yard.machine.sessions(), [SESSION]);
        assert!(!yard.events().contains(&EventKind::SessionEnded(SESSION)));
    }

    #[test]
    fn a_large_session_ends_in_bounded_steps() {
        let mut yard = Yard::new();
        for _ in 0..=BULK_PER_ENTRY_MAX {
            yard.enqueue_unchecked("mail", new_task());
        }
        for tasks_max in [BULK_PER_ENTRY_MAX as u32, 1] {
            yard.claim_with(Claim { session: Some(SESSION), tasks_max, ..claim("mail") });
        }
        let first = end(&mut yard, silence());
        assert_eq!(first.changed as usize, BULK_PER_ENTRY_MAX);
        assert!(first.next.is_some());
        let second = end(&mut yard, silence());
        assert_eq!((second.changed, second.next), (1, None));
        assert_eq!(end(&mut yard, silence()), BulkProgress::default(), "an ended one again");
    }
}
