//! The end of a worker's session: what it held is given back, or lost.

use crate::limits::BULK_PER_ENTRY_MAX;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{BulkProgress, EndSession, EventKind, Outcome, Rejection, SessionEnd, TaskId};
use std::collections::BTreeSet;

impl Turn<'_> {
    /// Ends the session's claims, the newest first: those that go back to the front of their lane
    /// then stand in the order in which they were claimed.
    pub(crate) fn end_session(&mut self, end: &EndSession) -> Result<Outcome, Rejection> {
        let keep: BTreeSet<TaskId> = end.keep.iter().copied().collect();
        let not_started: BTreeSet<TaskId> = end.not_started.iter().copied().collect();
        let Some(held) = self.shard.held.get(&end.session) else {
            self.shard.replays.remove(end.session);
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
            self.shard.replays.remove(end.session);
            self.emit(EventKind::SessionEnded(end.session));
        }
        let changed = slots.len() as u32;
        Ok(Outcome::Bulk(BulkProgress { changed, skipped: 0, next }))
    }
}
