//! Commands about a queue as a whole: pause, resume, settings, purge.

use crate::enqueue::{check_timeout, parse_queue};
use crate::limits::{BULK_PER_ENTRY_MAX, DEDUP_WINDOW_MS_MAX, HORIZON_MS_MAX};
use crate::queue::LaneId;
use crate::rejection::at_most;
use crate::slab::{NO_SLOT, Slot};
use crate::turn::Turn;
use crate::{
    BulkProgress, EventKind, Outcome, QueueCommand, QueueName, QueueSettings, Rejection, SetQueue,
};

impl Turn<'_> {
    pub(crate) fn pause_queue(&mut self, command: QueueCommand<'_>) -> Result<Outcome, Rejection> {
        self.set_paused(command.queue, true, EventKind::QueuePaused)
    }

    pub(crate) fn resume_queue(&mut self, command: QueueCommand<'_>) -> Result<Outcome, Rejection> {
        self.set_paused(command.queue, false, EventKind::QueueResumed)
    }

    fn set_paused(
        &mut self,
        queue: &str,
        paused: bool,
        fact: impl FnOnce(QueueName) -> EventKind,
    ) -> Result<Outcome, Rejection> {
        let number = self.find_queue(queue)?;
        if self.shard.queues.get(number).paused != paused {
            self.shard.edit_queue(number, |queue| queue.paused = paused);
            let name = self.shard.queues.get(number).name.clone();
            self.emit(fact(name));
        }
        Ok(Outcome::Done)
    }

    pub(crate) fn set_queue(&mut self, set: &SetQueue<'_>) -> Result<Outcome, Rejection> {
        set.settings.check()?;
        let number = self.queue_or_new(set.queue)?;
        self.shard.edit_queue(number, |queue| queue.settings = set.settings.clone());
        for lane in LaneId::RETAINED {
            self.shard.refresh_retention(number, lane);
        }
        let name = self.shard.queues.get(number).name.clone();
        self.emit(EventKind::QueueSet(name));
        Ok(Outcome::Done)
    }

    /// Removes what waits, the first to run first. Claimed and finished tasks stay.
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
        let scheduled = queue.lane(LaneId::SCHEDULED).head;
        queue.first_ready().or((scheduled != NO_SLOT).then_some(scheduled))
    }

    fn find_queue(&self, queue: &str) -> Result<Slot, Rejection> {
        let name = parse_queue(queue)?;
        self.shard.queues.find(queue).ok_or(Rejection::QueueNotFound { queue: name })
    }
}

impl QueueSettings {
    fn check(&self) -> Result<(), Rejection> {
        at_most("dedup_window_ms", self.dedup_window_ms.unwrap_or(0), DEDUP_WINDOW_MS_MAX)?;
        at_most("retention_ms", self.retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        at_most("dead_retention_ms", self.dead_retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        check_timeout(self.timeout_ms)?;
        self.retry.as_ref().map_or(Ok(()), |retry| retry.check())
    }
}
