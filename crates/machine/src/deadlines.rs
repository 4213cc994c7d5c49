//! The shard's time index: the moment at which each task, lane, key and queue is due.
//!
//! Invariant: a task is here exactly once while `Task::due_at` has a value, under that value. A
//! retained lane of a queue is here exactly once while it has a task, and a key or a queue while
//! time alone can open it. Equal moments are ordered by the tasks' order, the queues' numbers and
//! the keys' ids, never by slots, so that a reloaded state passes them in the same order.

use crate::Timestamp;
use crate::keys::KeyId;
use crate::queue::LaneId;
use crate::slab::Slot;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// (due, the task's order): the task.
    pub(crate) tasks: BTreeMap<(Timestamp, u64), Slot>,
    /// (due, the queue's number, lane).
    pub(crate) lanes: BTreeSet<(Timestamp, Slot, LaneId)>,
    /// (due, the key's id): the key.
    pub(crate) keys: BTreeMap<(Timestamp, KeyId), Slot>,
    /// (due, the queue's number).
    pub(crate) queues: BTreeSet<(Timestamp, Slot)>,
}

/// Bytes of memory that one deadline takes.
const DEADLINE_BYTES: usize = size_of::<((Timestamp, u64), Slot)>() * 3 / 2;

impl Deadlines {
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let task = self.tasks.first_key_value().map(|(&(at, _), _)| at);
        let lane = self.lanes.first().map(|&(at, _, _)| at);
        let key = self.keys.first_key_value().map(|(&(at, _), _)| at);
        let queue = self.queues.first().map(|&(at, _)| at);
        task.into_iter().chain(lane).chain(key).chain(queue).min()
    }

    /// The first key that is due at `now`.
    pub(crate) fn due_key(&self, now: Timestamp) -> Option<Slot> {
        let (&(at, _), &key) = self.keys.first_key_value()?;
        (at <= now).then_some(key)
    }

    /// The first queue that is due at `now`.
    pub(crate) fn due_queue(&self, now: Timestamp) -> Option<Slot> {
        let &(at, queue) = self.queues.first()?;
        (at <= now).then_some(queue)
    }

    /// Tasks that are due at `now`, in order.
    pub(crate) fn due_tasks(&self, now: Timestamp, count_max: usize) -> Vec<Slot> {
        let due = self.tasks.range(..=(now, u64::MAX));
        due.take(count_max).map(|(_, &slot)| slot).collect()
    }

    /// The first lane that is due at `now`.
    pub(crate) fn due_lane(&self, now: Timestamp) -> Option<(Slot, LaneId)> {
        let &(at, queue, lane) = self.lanes.first()?;
        (at <= now).then_some((queue, lane))
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let keys = self.keys.len() * (size_of::<((Timestamp, KeyId), Slot)>() * 3 / 2);
        ((self.tasks.len() + self.lanes.len()) * DEADLINE_BYTES + keys) as u64
    }
}
