//! Purge: removes the tasks that waited in a queue when the purge was requested, a bounded number
//! per entry.
//!
//! A purge visits the shard's tasks in id order. Moves between lanes do not change this order, so
//! that a task that becomes due or is released during a purge is still visited once.

use crate::life::Task;
use crate::limits::{BULK_PER_ENTRY_MAX, SCAN_TASKS_MAX};
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{BulkProgress, Identity, Outcome, Rejection, TaskId, TaskStateName, Timestamp};

/// The border between the tasks that a shard has and those that come later; see
/// `Machine::enqueue_cut`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnqueueCut {
    /// Of the tasks whose ids this shard made, those with a lower sequence are before the cut.
    pub next_sequence: u64,
    /// Of the tasks from other shards, those enqueued at or before this moment are before the cut.
    pub now: Timestamp,
}

/// See [`crate::Command::PurgeQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeQueue<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The cut: only tasks before it are removed, so that a purge spares tasks that come while it
    /// runs.
    pub before: EnqueueCut,
    /// The id at which the previous entry of this operation stopped.
    pub after: Option<TaskId>,
}

impl EnqueueCut {
    /// Whether a task of the shard was enqueued before this cut.
    fn covers(self, task: &Task, shard: Identity) -> bool {
        let made_here = (task.id.incarnation, task.id.origin) == (shard.incarnation, shard.shard);
        if made_here { task.id.sequence < self.next_sequence } else { task.enqueued_at <= self.now }
    }
}

impl Turn<'_> {
    /// Removes waiting tasks from before the cut. Claimed and finished tasks stay.
    pub(crate) fn purge_queue(&mut self, command: PurgeQueue<'_>) -> Result<Outcome, Rejection> {
        let number = self.find_queue(command.queue)?;
        let (ids, mut next) = self.to_purge(number, command);
        let mut changed = 0;
        for id in ids {
            // The removal of one task of a flow may have ended or released another.
            let slot = self.shard.ids.get(id).filter(|&slot| self.waits(slot));
            if let Some(slot) = slot {
                self.remove_task(slot);
                changed += 1;
            }
        }
        if self.shard.queues.get(number).waiting() == 0 {
            next = None;
        }
        Ok(Outcome::Bulk(BulkProgress { changed, skipped: 0, next }))
    }

    fn waits(&self, slot: Slot) -> bool {
        use TaskStateName::{Blocked, Ready, Scheduled};
        matches!(self.task(slot).state.name(), Ready | Scheduled | Blocked)
    }

    /// The next tasks to remove, and the id after which the next entry goes on.
    fn to_purge(&self, number: Slot, command: PurgeQueue<'_>) -> (Vec<TaskId>, Option<TaskId>) {
        let mut found = Vec::new();
        let mut last = None;
        for (looked_at, (id, slot)) in self.shard.ids.iter_after(command.after).enumerate() {
            if looked_at == SCAN_TASKS_MAX || found.len() == BULK_PER_ENTRY_MAX {
                return (found, last);
            }
            let task = self.task(slot);
            let covered = command.before.covers(task, self.shard.identity);
            if task.queue == number && self.waits(slot) && covered {
                found.push(id);
            }
            last = Some(id);
        }
        (found, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, new_task};
    use crate::{Command, NewTask, When};

    fn purge(yard: &mut Yard, before: EnqueueCut, after: Option<TaskId>) -> BulkProgress {
        match yard.send(Command::PurgeQueue(PurgeQueue { queue: "mail", before, after })) {
            Ok(Outcome::Bulk(progress)) => progress,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn purge_removes_waiting_tasks_a_bounded_number_per_entry() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        for _ in 0..BULK_PER_ENTRY_MAX {
            yard.enqueue_unchecked("mail", new_task());
        }
        let later = NewTask { run_at: When::After { ms: 5 }, ..new_task() };
        yard.enqueue_task("mail", later).unwrap();
        let other = yard.enqueue("video");
        let cut = yard.machine.enqueue_cut();
        let first = purge(&mut yard, cut, None);
        assert_eq!(first.changed as usize, BULK_PER_ENTRY_MAX);
        assert!(first.next.is_some());
        let rest = BulkProgress { changed: 1, skipped: 0, next: None };
        assert_eq!(purge(&mut yard, cut, first.next), rest);
        let counts = yard.counts("mail");
        assert_eq!((counts.ready, counts.scheduled, counts.claimed), (0, 0, 1));
        yard.ack(&held).unwrap();
        assert!(yard.machine.task(other).is_some());
    }

    #[test]
    fn purge_spares_tasks_enqueued_after_its_cut_even_in_the_same_millisecond() {
        let mut yard = Yard::new();
        let due_soon = NewTask { run_at: When::After { ms: 5 }, ..new_task() };
        let old = [yard.enqueue("mail"), yard.enqueue_task("mail", due_soon).unwrap().id];
        let cut = yard.machine.enqueue_cut();
        let first_to_run = NewTask { priority: Some(9), ..new_task() };
        let new = yard.enqueue_task("mail", first_to_run).unwrap().id;
        yard.wait_ms(5);
        let done = BulkProgress { changed: 2, skipped: 0, next: None };
        assert_eq!(purge(&mut yard, cut, None), done, "also what became due since");
        assert!(old.iter().all(|&id| yard.machine.task(id).is_none()));
        assert!(yard.machine.task(new).is_some());
    }
}
