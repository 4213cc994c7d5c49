//! Queue: a queue's settings, totals and lanes.
//!
//! A task's state gives its lane: one per priority for ready tasks, and one each for blocked,
//! scheduled, retrying, claimed, finished and dead tasks. A ready task with a fairness key is not
//! in a lane, but in the line of its key. Invariant: every other task is in exactly one lane, so
//! that the lengths are exact counts. A lane is a list linked through its tasks, sorted by their
//! `order`; a lane of ready tasks is one such list per type.

use crate::bucket::Bucket;
use crate::life::{Ending, State, Task};
use crate::limits::{
    DEAD_RETENTION_MS_DEFAULT, DEDUP_WINDOW_MS_DEFAULT, PRIORITY_MAX, RETENTION_COUNT_DEFAULT,
    RETENTION_MS_DEFAULT,
};
use crate::rings::Rings;
use crate::slab::{NO_SLOT, Slab, Slot};
use crate::spread::Laid;
use crate::strands::{Strands, Wanted};
use crate::transition::Place;
use crate::wire::wire_struct;
use crate::{ImageError, QueueCounts, QueueName, QueueSettings, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The number of a lane within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId(u8);

impl LaneId {
    pub(crate) const SCHEDULED: LaneId = LaneId(PRIORITY_MAX + 1);
    pub(crate) const CLAIMED: LaneId = LaneId(PRIORITY_MAX + 2);
    /// Finished tasks that the queue's retention removes.
    pub(crate) const FINISHED: LaneId = LaneId(PRIORITY_MAX + 3);
    pub(crate) const DEAD: LaneId = LaneId(PRIORITY_MAX + 4);
    /// Finished tasks whose removal the task's own retention or its flow decides.
    pub(crate) const FINISHED_OWN: LaneId = LaneId(PRIORITY_MAX + 5);
    /// Tasks that wait for parents in a flow.
    pub(crate) const BLOCKED: LaneId = LaneId(PRIORITY_MAX + 6);
    /// Scheduled tasks whose last attempt failed, timed out or was lost.
    pub(crate) const RETRYING: LaneId = LaneId(PRIORITY_MAX + 7);
    /// The number of lanes of ready tasks.
    const READY_COUNT: usize = PRIORITY_MAX as usize + 1;
    /// The number of other lanes.
    const OTHER_COUNT: usize = 7;

    /// Lanes whose tasks the queue's own retention removes.
    pub(crate) const RETAINED: [LaneId; 2] = [LaneId::FINISHED, LaneId::DEAD];

    /// The lane of ready tasks of a priority.
    pub(crate) fn ready_at(priority: u8) -> LaneId {
        LaneId(priority)
    }

    pub(crate) fn is_ready(self) -> bool {
        self.0 <= PRIORITY_MAX
    }

    /// Whether it holds tasks that have ended and are no dead letters.
    pub(crate) fn is_finished(self) -> bool {
        [LaneId::FINISHED, LaneId::FINISHED_OWN].contains(&self)
    }

    /// All lanes but those of ready tasks.
    pub(crate) fn others() -> impl Iterator<Item = LaneId> {
        (LaneId::READY_COUNT..LaneId::READY_COUNT + LaneId::OTHER_COUNT).map(|id| LaneId(id as u8))
    }

    /// The lane in which a task belongs.
    pub(crate) fn of(task: &Task) -> LaneId {
        match task.state {
            State::Ready { .. } => LaneId(task.priority),
            State::Blocked => LaneId::BLOCKED,
            State::Scheduled { .. } if task.is_retrying() => LaneId::RETRYING,
            State::Scheduled { .. } => LaneId::SCHEDULED,
            State::Claimed(_) => LaneId::CLAIMED,
            State::Finished { ending: Ending::Dead, .. } => LaneId::DEAD,
            State::Finished { .. } => {
                let own = task.is_in_flow()
                    || task.terms().is_some_and(|terms| terms.retention_ms.is_some());
                if own { LaneId::FINISHED_OWN } else { LaneId::FINISHED }
            }
        }
    }
}

/// A list linked through its tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) head: Slot,
    pub(crate) tail: Slot,
    pub(crate) length: u32,
}

impl Lane {
    pub(crate) const EMPTY: Lane = Lane { head: NO_SLOT, tail: NO_SLOT, length: 0 };

    pub(crate) fn first(&self) -> Option<Slot> {
        (self.head != NO_SLOT).then_some(self.head)
    }

    pub(crate) fn push(&mut self, tasks: &mut Slab<Task>, slot: Slot, place: Place) {
        match place {
            Place::Front => self.push_front(tasks, slot),
            Place::Back => self.push_back(tasks, slot),
        }
    }

    pub(crate) fn push_back(&mut self, tasks: &mut Slab<Task>, slot: Slot) {
        let task = tasks.get_mut(slot);
        (task.previous, task.next) = (self.tail, NO_SLOT);
        match self.tail {
            NO_SLOT => self.head = slot,
            tail => tasks.get_mut(tail).next = slot,
        }
        self.tail = slot;
        self.length += 1;
    }

    fn push_front(&mut self, tasks: &mut Slab<Task>, slot: Slot) {
        let task = tasks.get_mut(slot);
        (task.previous, task.next) = (NO_SLOT, self.head);
        match self.head {
            NO_SLOT => self.tail = slot,
            head => tasks.get_mut(head).previous = slot,
        }
        self.head = slot;
        self.length += 1;
    }

    pub(crate) fn unlink(&mut self, tasks: &mut Slab<Task>, slot: Slot) {
        let task = tasks.get_mut(slot);
        let (previous, next) = (task.previous, task.next);
        (task.previous, task.next) = (NO_SLOT, NO_SLOT);
        match previous {
            NO_SLOT => self.head = next,
            previous => tasks.get_mut(previous).next = next,
        }
        match next {
            NO_SLOT => self.tail = previous,
            next => tasks.get_mut(next).previous = previous,
        }
        self.length -= 1;
    }
}

/// The counts since the queue was made. Part of its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) enqueued: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
    pub(crate) lost: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}

impl Totals {
    /// Counts the end of a task. `Failed` adds nothing, because each failure was counted before.
    pub(crate) fn count(&mut self, ending: Ending) {
        match ending {
            Ending::Succeeded => self.succeeded += 1,
            Ending::Failed => {}
            Ending::Dead => self.dead += 1,
            Ending::Cancelled => self.cancelled += 1,
            Ending::Expired => self.expired += 1,
        }
    }
}

wire_struct!(Totals { enqueued, succeeded, failed, dead, lost, expired, cancelled });

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: QueueName,
    pub(crate) paused: bool,
    pub(crate) settings: QueueSettings,
    pub(crate) totals: Totals,
    /// Ready tasks without a key, by priority.
    ready: [Strands; LaneId::READY_COUNT],
    others: [Lane; LaneId::OTHER_COUNT],
    /// The deadline of each of `LaneId::RETAINED` in the time index.
    pub(crate) retention_due: [Option<Timestamp>; 2],
    /// The tokens left of `settings.rate`.
    pub(crate) bucket: Bucket,
    /// The end of a push-back of the tasks without a key.
    pub(crate) pushed_back_until: Option<Timestamp>,
    /// The next key to which changed limits are applied: hash and tie of its id.
    pub(crate) sweep: Option<(u64, u32)>,
    /// Present while the queue has keys.
    pub(crate) rings: Option<Box<Rings>>,
    /// The deadline of the queue itself in the time index.
    pub(crate) due_at: Option<Timestamp>,
    /// Present once the queue was spread over several shards.
    pub(crate) laid: Option<Laid>,
    /// Whether the queue is deleted and here only for its finished tasks and its keys; see
    /// `delete.rs`.
    pub(crate) deleted: bool,
}

impl Queue {
    pub(crate) fn new(name: QueueName) -> Queue {
        Queue {
            name,
            paused: false,
            settings: QueueSettings::default(),
            totals: Totals::default(),
            ready: [const { Strands::EMPTY }; LaneId::READY_COUNT],
            others: [Lane::EMPTY; LaneId::OTHER_COUNT],
            retention_due: [None; 2],
            bucket: Bucket::FULL,
            pushed_back_until: None,
            sweep: None,
            rings: None,
            due_at: None,
            laid: None,
            deleted: false,
        }
    }

    /// A lane of tasks that are not ready.
    pub(crate) fn lane(&self, id: LaneId) -> &Lane {
        &self.others[id.0 as usize - LaneId::READY_COUNT]
    }

    /// Ready tasks of a priority that have no key.
    pub(crate) fn strands(&self, priority: u8) -> &Strands {
        &self.ready[usize::from(priority)]
    }

    /// Puts a task into its lane. A ready task with a key goes to its key's line instead.
    pub(crate) fn push(&mut self, tasks: &mut Slab<Task>, lane: LaneId, slot: Slot, place: Place) {
        match lane.is_ready() {
            true => self.ready[usize::from(lane.0)].push(tasks, slot, place),
            false => self.others[lane.0 as usize - LaneId::READY_COUNT].push(tasks, slot, place),
        }
    }

    /// The reverse of `push`.
    pub(crate) fn unlink(&mut self, tasks: &mut Slab<Task>, lane: LaneId, slot: Slot) {
        match lane.is_ready() {
            true => self.ready[usize::from(lane.0)].unlink(tasks, slot),
            false => self.others[lane.0 as usize - LaneId::READY_COUNT].unlink(tasks, slot),
        }
    }

    /// The task without a key to claim next, of these types.
    pub(crate) fn first_ready(&self, wanted: &Wanted, tasks: &Slab<Task>) -> Option<Slot> {
        self.ready.iter().rev().find_map(|strands| strands.first_of(wanted, tasks))
    }

    pub(crate) fn ready(&self) -> u64 {
        self.unkeyed_ready(&Wanted::Any) + self.rings.as_ref().map_or(0, |rings| rings.ready)
    }

    /// Ready tasks of these types that have no key.
    pub(crate) fn unkeyed_ready(&self, wanted: &Wanted) -> u64 {
        self.ready.iter().map(|strands| u64::from(strands.length_of(wanted))).sum()
    }

    /// Tasks that wait for a moment: a delay, a retry or a snooze.
    fn scheduled(&self) -> u64 {
        [LaneId::SCHEDULED, LaneId::RETRYING].map(|id| u64::from(self.lane(id).length)).iter().sum()
    }

    /// Tasks that count against `max_length`.
    pub(crate) fn waiting(&self) -> u64 {
        let length = |id| u64::from(self.lane(id).length);
        self.ready() + self.scheduled() + length(LaneId::BLOCKED)
    }

    /// Whether time alone can make one of its tasks claimable.
    pub(crate) fn has_timed(&self) -> bool {
        self.scheduled() > 0
            || self.lane(LaneId::CLAIMED).length > 0
            || self.due_at.is_some()
            || self.rings.as_ref().is_some_and(|rings| rings.ready > rings.available)
    }

    /// How long a request is remembered. The settings allow no less than `DEDUP_WINDOW_MS_MIN`, so
    /// that a producer that lost an answer has time to retry.
    pub(crate) fn dedup_window_ms(&self) -> u64 {
        self.settings.dedup_window_ms.unwrap_or(DEDUP_WINDOW_MS_DEFAULT)
    }

    /// How many tasks of a retained lane are kept, and for how long.
    pub(crate) fn retention(&self, lane: LaneId) -> (u32, u64) {
        let settings = &self.settings;
        if lane == LaneId::DEAD {
            let count = settings.dead_retention_count.unwrap_or(u32::MAX);
            (count, settings.dead_retention_ms.unwrap_or(DEAD_RETENTION_MS_DEFAULT))
        } else {
            let count = settings.retention_count.unwrap_or(RETENTION_COUNT_DEFAULT);
            (count, settings.retention_ms.unwrap_or(RETENTION_MS_DEFAULT))
        }
    }

    /// Whether tasks that can't be retried become dead letters.
    pub(crate) fn keeps_dead(&self) -> bool {
        self.settings.dead_retention_count != Some(0)
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        let length = |id| u64::from(self.lane(id).length);
        QueueCounts {
            blocked: length(LaneId::BLOCKED),
            scheduled: self.scheduled(),
            retrying: length(LaneId::RETRYING),
            ready: self.ready(),
            claimed: length(LaneId::CLAIMED),
            dead: length(LaneId::DEAD),
            finished: length(LaneId::FINISHED) + length(LaneId::FINISHED_OWN),
            enqueued_total: self.totals.enqueued,
            succeeded_total: self.totals.succeeded,
            failed_total: self.totals.failed,
            dead_total: self.totals.dead,
            lost_total: self.totals.lost,
            expired_total: self.totals.expired,
            cancelled_total: self.totals.cancelled,
        }
    }
}

/// All queues of a shard. A task's image names its queue by number. A new queue gets the lowest
/// number that no queue has, so that the numbers follow from the state alone.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) slab: Slab<Queue>,
    pub(crate) by_name: BTreeMap<QueueName, Slot>,
    /// Numbers of removed queues. No number from `end` on was ever used.
    vacant: BTreeSet<Slot>,
    /// Stored queues that were removed since the last cut.
    pub(crate) removed: BTreeSet<Slot>,
    /// Removed queues of the frozen cut.
    pub(crate) frozen_removed: Vec<Slot>,
}

impl Queues {
    /// A higher number is a damaged record: no shard ever had so many queues at once.
    const NUMBERS_MAX: Slot = 1 << 24;

    pub(crate) fn new() -> Queues {
        Queues {
            slab: Slab::new(),
            by_name: BTreeMap::new(),
            vacant: BTreeSet::new(),
            removed: BTreeSet::new(),
            frozen_removed: Vec::new(),
        }
    }

    /// The first number that was never used.
    fn end(&self) -> Slot {
        (self.by_name.len() + self.vacant.len()) as Slot
    }

    /// Whether a queue has this number.
    pub(crate) fn has(&self, number: Slot) -> bool {
        number < self.end() && !self.vacant.contains(&number)
    }

    /// The numbers of all queues, lowest first.
    pub(crate) fn numbers(&self) -> Vec<Slot> {
        self.slab.iter().map(|(number, _)| number).collect()
    }

    pub(crate) fn dirty(&self) -> usize {
        self.slab.dirty() + self.removed.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// The number of a queue that is not deleted.
    pub(crate) fn find_live(&self, name: &str) -> Option<Slot> {
        self.find(name).filter(|&number| !self.get(number).deleted)
    }

    pub(crate) fn get(&self, number: Slot) -> &Queue {
        self.slab.get(number)
    }

    pub(crate) fn add(&mut self, name: QueueName) -> Slot {
        let number = self.vacant.pop_first().unwrap_or_else(|| self.end());
        let queue = Queue::new(name.clone());
        if self.removed.remove(&number) {
            // The last cut has a queue of this number, so that the next cut must report a change
            // and not a removal.
            self.slab.insert_stored_at(number, queue);
            self.slab.mark_dirty(number);
        } else {
            self.slab.insert_at(number, queue);
        }
        self.by_name.insert(name, number);
        number
    }

    /// Adds a queue of a checkpoint; queues come in the order of their numbers.
    pub(crate) fn load(&mut self, number: Slot, queue: Queue) -> Result<(), ImageError> {
        if number >= Queues::NUMBERS_MAX {
            return Err(ImageError { what: format!("queue {} has number {number}", queue.name) });
        }
        let end = self.end();
        if self.by_name.insert(queue.name.clone(), number).is_some() {
            return Err(ImageError { what: format!("queue {} is twice", queue.name) });
        }
        self.vacant.extend(end..number);
        self.slab.insert_stored_at(number, queue);
        Ok(())
    }

    /// Removes a queue that has no task and is not frozen.
    pub(crate) fn remove(&mut self, number: Slot) -> Queue {
        let (queue, stored) = self.slab.remove(number);
        self.by_name.remove(&queue.name);
        self.vacant.insert(number);
        if stored {
            self.removed.insert(number);
        }
        queue
    }
}
