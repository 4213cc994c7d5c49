//! Purge: removes what waits in a queue, a bounded number per entry.

use crate::limits::BULK_PER_ENTRY_MAX;
use crate::queue::LaneId;
use crate::slab::{NO_SLOT, Slot};
use crate::turn::Turn;
use crate::{BulkProgress, Outcome, QueueCommand, Rejection};

impl Turn<'_> {
    /// Removes what waits, the first to run first, tasks without a key before the others, blocked
    /// tasks of flows last. Claimed and finished tasks stay.
    pub(crate) fn purge_queue(&mut self, command: QueueCommand<'_>) -> Result<Outcome, Rejection> {
        let number = self.find_queue(command.queue)?;
        let mut progress = BulkProgress::default();
        while let Some(slot) = self.first_waiting(number) {
            if progress.changed as usize == BULK_PER_ENTRY_MAX {
                progress.next = Some(self.task(slot).id);
                break;
            }
            self.remove_task(slot);
            progress.changed += 1;
        }
        Ok(Outcome::Bulk(progress))
    }

    fn first_waiting(&self, number: Slot) -> Option<Slot> {
        let queue = self.shard.queues.get(number);
        let others = [LaneId::SCHEDULED, LaneId::BLOCKED].map(|lane| queue.lane(lane).head);
        self.shard.any_ready(number).or(others.into_iter().find(|&head| head != NO_SLOT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, new_task};
    use crate::{Command, NewTask, When};

    #[test]
    fn purge_removes_what_waits_a_bounded_number_per_entry() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        for _ in 0..BULK_PER_ENTRY_MAX {
            yard.enqueue_unchecked("mail", new_task());
        }
        let later = NewTask { run_at: When::After { ms: 5 }, ..new_task() };
        let scheduled = yard.enqueue_task("mail", later).unwrap().id;
        let other = yard.enqueue("video");
        let purge = || Command::PurgeQueue(QueueCommand { queue: "mail" });
        let changed = BULK_PER_ENTRY_MAX as u32;
        let first = BulkProgress { changed, skipped: 0, next: Some(scheduled) };
        assert_eq!(yard.send(purge()), Ok(Outcome::Bulk(first)));
        let rest = BulkProgress { changed: 1, skipped: 0, next: None };
        assert_eq!(yard.send(purge()), Ok(Outcome::Bulk(rest)));
        let counts = yard.counts("mail");
        assert_eq!((counts.ready, counts.scheduled, counts.claimed), (0, 0, 1));
        yard.ack(&held).unwrap();
        assert!(yard.machine.task(other).is_some());
    }
}
