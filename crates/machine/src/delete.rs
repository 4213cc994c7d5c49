//! Deletion of a queue that has no tasks but finished ones.
//!
//! A deletion is one entry: pause, settings, totals and spread are gone at once, and nothing lists
//! the queue any more. Its finished tasks stay for as long as a queue without settings keeps them,
//! under the queue's number. While they do, and while a key of the queue is pushed back, the queue
//! is here as *deleted*; then it is removed, and its number is free. The first task or settings of
//! the name make a deleted queue an ordinary one again.
//!
//! Request ids and the windows of unique keys are remembered by the hash of the name, so that a
//! deletion does not touch them.
//!
//! Invariant: a deleted queue has neither tasks that have not ended nor dead letters.
//!
//! A queue that was spread is first deleted on the shards beside its home, which take no new tasks
//! under its present rules; then they are trimmed, and the home follows. Such a shard keeps the
//! deleted queue as a mark: it refuses tasks from a gateway that still knows the old spread. A mark
//! keeps settings and totals, because the home may still refuse the deletion.

use crate::queue::Totals;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{
    DeleteQueue, EventKind, HeldTasks, Machine, Outcome, QueueSettings, Rejection, home_shard,
    image, spread_shards,
};

wire_struct!(DeleteQueue<'a> { queue, version });

impl Turn<'_> {
    pub(crate) fn delete_queue(&mut self, delete: DeleteQueue<'_>) -> Result<Outcome, Rejection> {
        let number = self.find_queue(delete.queue)?;
        self.check_shard_of_deletion(number, delete)?;
        let queue = self.shard.queues.get(number);
        let (name, held) = (queue.name.clone(), HeldTasks::of(&queue.counts()));
        if !held.is_none() {
            return Err(Rejection::QueueNotEmpty { queue: name, held });
        }
        let here = self.shard.identity;
        let is_home = home_shard(delete.queue, here.shards) == here.shard;
        if let Some(laid) = queue.laid.filter(|_| is_home) {
            let last = &mut self.shard.counters.laid_version;
            *last = laid.version.max(*last);
        }
        // A mark still says that the shard is not in the spread.
        let laid = queue.laid.filter(|_| !is_home);
        self.shard.edit_queue(number, |queue| {
            queue.paused = false;
            if laid.is_none() {
                queue.totals = Totals::default();
            }
            queue.pushed_back_until = None;
            queue.laid = laid;
            queue.deleted = true;
        });
        if laid.is_none() {
            self.apply_settings(number, &QueueSettings::default());
        }
        self.shard.note_shrunk(number);
        self.emit(EventKind::QueueDeleted(name));
        Ok(Outcome::Done)
    }

    /// Whether this shard may decide alone: the home shard when no other may have tasks, another
    /// one when it takes none under the rules that the caller has seen.
    fn check_shard_of_deletion(
        &self,
        number: Slot,
        delete: DeleteQueue<'_>,
    ) -> Result<(), Rejection> {
        let queue = self.shard.queues.get(number);
        let Some(laid) = queue.laid else { return Ok(()) };
        let here = self.shard.identity;
        let mut spread = spread_shards(delete.queue, queue.settings.spread(), here.shards);
        let is_alone = match spread.next() == Some(here.shard) {
            true => laid.reach == 1,
            false => laid.version == delete.version && spread.all(|shard| shard != here.shard),
        };
        match is_alone {
            true => Ok(()),
            false => Err(Rejection::QueueMoved { queue: queue.name.clone() }),
        }
    }

    /// Whether the queue of a task is deleted.
    pub(crate) fn queue_is_deleted(&self, slot: Slot) -> bool {
        self.shard.queues.get(self.task(slot).queue).deleted
    }
}

impl Machine {
    /// Makes a deleted queue an ordinary one again, because somebody uses it.
    pub(crate) fn undelete(&mut self, number: Slot) {
        if self.queues.get(number).deleted {
            self.edit_queue(number, |queue| queue.deleted = false);
        }
    }

    /// Notes that a queue has lost a task or a key; it may have been the last thing that needed a
    /// deleted queue.
    pub(crate) fn note_shrunk(&mut self, number: Slot) {
        if self.queues.get(number).deleted {
            self.shrunk.push(number);
        }
    }

    /// Removes the deleted queues that nothing needs any more. At the end of a command, because
    /// inside one, loops still look at the queues whose tasks they remove.
    pub(crate) fn remove_shrunk(&mut self) {
        while let Some(number) = self.shrunk.pop() {
            if self.queues.has(number) && self.may_remove(number) {
                self.remove_queue(number);
            }
        }
    }

    /// Whether nothing needs a deleted queue: no task, no key, no mark for lagging gateways.
    pub(crate) fn may_remove(&self, number: Slot) -> bool {
        let queue = self.queues.get(number);
        queue.deleted
            && queue.laid.is_none()
            && queue.rings.is_none()
            && queue.counts().finished == 0
    }

    fn remove_queue(&mut self, number: Slot) {
        if self.queues.slab.is_frozen(number) {
            self.cut.early.push(image::queue_record(number, self.queues.get(number)));
            self.queues.slab.thaw(number);
        }
        let queue = self.queues.remove(number);
        if let Some(at) = queue.due_at {
            self.deadlines.queues.remove(&(at, number));
        }
        self.counters.digest.took(u64::from(number));
    }
}

#[cfg(test)]
mod tests;
