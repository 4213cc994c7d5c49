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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, new_task};
    use crate::{Command, NewTask, RetryPolicy, When};

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

    #[test]
    fn an_unknown_queue_is_not_found_until_it_is_set() {
        let mut yard = Yard::new();
        let command = QueueCommand { queue: "mail" };
        for command in [
            Command::PauseQueue(command),
            Command::ResumeQueue(command),
            Command::PurgeQueue(command),
        ] {
            assert_eq!(yard.send(command).unwrap_err().code(), "not_found");
        }
        yard.set("mail", QueueSettings::default());
        assert_eq!(yard.send(Command::PauseQueue(command)), Ok(Outcome::Done));
        assert_eq!(yard.send(Command::PauseQueue(command)), Ok(Outcome::Done));
        let paused = yard.events().into_iter().filter(|e| matches!(e, EventKind::QueuePaused(_)));
        assert_eq!(paused.count(), 1, "only a change is told");
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let mut yard = Yard::new();
        let none = QueueSettings::default;
        for settings in [
            QueueSettings { dedup_window_ms: Some(DEDUP_WINDOW_MS_MAX + 1), ..none() },
            QueueSettings { retention_ms: Some(u64::MAX), ..none() },
            QueueSettings { dead_retention_ms: Some(u64::MAX), ..none() },
            QueueSettings { timeout_ms: Some(0), ..none() },
            QueueSettings {
                retry: Some(RetryPolicy { max_attempts: 0, ..RetryPolicy::default() }),
                ..none()
            },
        ] {
            let set = Command::SetQueue(SetQueue { queue: "mail", settings });
            assert_eq!(yard.send(set).unwrap_err().code(), "invalid_argument");
        }
        assert!(yard.machine.queues().is_empty());
    }
}
