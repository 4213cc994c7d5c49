//! Pause and resume: a paused queue accepts tasks but hands none out.

use crate::enqueue::parse_queue;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{EventKind, Outcome, QueueCommand, QueueName, Rejection};

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
        if self.put_paused(number, paused, fact) {
            self.tell_spread(number);
        }
        Ok(Outcome::Done)
    }

    /// Pauses or resumes a queue; `false` if nothing changed.
    pub(crate) fn put_paused(
        &mut self,
        number: Slot,
        paused: bool,
        fact: impl FnOnce(QueueName) -> EventKind,
    ) -> bool {
        if self.shard.queues.get(number).paused == paused {
            return false;
        }
        self.shard.edit_queue(number, |queue| queue.paused = paused);
        let name = self.shard.queues.get(number).name.clone();
        self.emit(fact(name));
        true
    }

    /// The number of a queue that exists.
    pub(crate) fn find_queue(&self, queue: &str) -> Result<Slot, Rejection> {
        let name = parse_queue(queue)?;
        self.shard.queues.find_live(queue).ok_or(Rejection::QueueNotFound { queue: name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Yard;
    use crate::{Command, PurgeQueue, QueueSettings};

    #[test]
    fn an_unknown_queue_is_not_found_until_it_is_set() {
        let mut yard = Yard::new();
        let command = QueueCommand { queue: "mail" };
        let before = yard.machine.enqueue_cut();
        for command in [
            Command::PauseQueue(command),
            Command::ResumeQueue(command),
            Command::PurgeQueue(PurgeQueue { queue: "mail", before, after: None }),
        ] {
            assert_eq!(yard.send(command).unwrap_err().code(), "not_found");
        }
        yard.set("mail", QueueSettings::default());
        assert_eq!(yard.send(Command::PauseQueue(command)), Ok(Outcome::Done));
        assert_eq!(yard.send(Command::PauseQueue(command)), Ok(Outcome::Done));
        let paused = yard.events().into_iter().filter(|e| matches!(e, EventKind::QueuePaused(_)));
        assert_eq!(paused.count(), 1, "only a change is told");
    }
}
