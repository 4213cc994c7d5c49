//! Changes to tasks and queues that keep everything derived from them in step: the image of the
//! last cut, the memory count, lanes and lines, limits, deadlines, dead letters, the claims of
//! sessions, unique keys.

use crate::image;
use crate::life::{State, Task};
use crate::queue::{LaneId, Queue};
use crate::slab::{NO_SLOT, Slot};
use crate::transition::Place;
use crate::{Machine, Timestamp};

impl Machine {
    /// Changes what a task's image contains, but not its state, order or deadline.
    pub(crate) fn edit<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Task) -> R) -> R {
        self.keep_image(slot);
        self.tasks.mark_dirty(slot);
        let task = self.tasks.get_mut(slot);
        let before = task.heap_bytes() as u64;
        let result = change(task);
        self.task_heap_bytes = self.task_heap_bytes - before + task.heap_bytes() as u64;
        self.counters.digest.task(task);
        result
    }

    /// Changes a task in a way that may move its deadline.
    pub(crate) fn edit_deadline<R>(
        &mut self,
        slot: Slot,
        change: impl FnOnce(&mut Task) -> R,
    ) -> R {
        self.unlink_deadline(slot);
        let result = self.edit(slot, change);
        self.link_deadline(slot);
        result
    }

    /// Changes what a queue's image contains.
    pub(crate) fn edit_queue<R>(
        &mut self,
        number: Slot,
        change: impl FnOnce(&mut Queue) -> R,
    ) -> R {
        if self.queues.slab.is_frozen(number) {
            self.cut.early.push(image::queue_record(number, self.queues.get(number)));
            self.queues.slab.thaw(number);
        }
        self.queues.slab.mark_dirty(number);
        let queue = self.queues.slab.get_mut(number);
        let result = change(queue);
        self.counters.digest.queue(number, queue);
        result
    }

    /// Encodes a task of the frozen cut before the task changes.
    pub(crate) fn keep_image(&mut self, slot: Slot) {
        if self.tasks.is_frozen(slot) {
            self.cut.early.push(image::task_record(self.tasks.get(slot), &self.names, &self.keys));
            self.tasks.thaw(slot);
        }
    }

    pub(crate) fn next_order(&mut self, place: Place) -> u64 {
        let counters = &mut self.counters;
        match place {
            Place::Back => {
                counters.next_back += 1;
                counters.next_back - 1
            }
            Place::Front => {
                counters.next_front -= 1;
                counters.next_front + 1
            }
        }
    }

    /// Puts a task into the lane and the indexes that follow from its state.
    pub(crate) fn link(&mut self, slot: Slot, place: Place) {
        let task = self.tasks.get(slot);
        let (queue, lane, key) = (task.queue, LaneId::of(task), task.key());
        let priority = task.priority;
        self.index(slot);
        if !lane.is_finished() {
            self.undelete(queue);
        }
        match key {
            Some(key) if lane.is_ready() => self.push_keyed(key, slot, place),
            _ => self.queues.slab.get_mut(queue).push(&mut self.tasks, lane, slot, place),
        }
        match key {
            Some(key) => self.linked_keyed(key, lane),
            None if lane.is_ready() => self.pushed_unkeyed(queue, priority, place),
            None => {}
        }
        self.refresh_retention(queue, lane);
        self.refresh_queue_due(queue);
    }

    /// Updates a fairness key after one of its tasks has entered a lane.
    fn linked_keyed(&mut self, key: Slot, lane: LaneId) {
        if lane == LaneId::CLAIMED {
            self.keys.slab.get_mut(key).claimed += 1;
        }
        self.refresh_key(key);
    }

    /// The reverse of `link`. The task's fairness key is judged later, when the task is linked
    /// again or gone.
    pub(crate) fn unlink(&mut self, slot: Slot) {
        self.unlink_deadline(slot);
        let task = self.tasks.get(slot);
        let (queue, lane, key) = (task.queue, LaneId::of(task), task.key());
        if lane == LaneId::DEAD {
            self.dead.remove(&task.id);
            self.died.remove(&task.died());
        }
        if let Some(session) = task.claim().and_then(|claim| claim.session) {
            let held = self.session_claims.get_mut(&session).expect("a session knows its claims");
            held.remove(&task.order);
            if held.is_empty() {
                self.session_claims.remove(&session);
            }
        }
        if let Some(claim) = task.claim_key() {
            self.numbered_claims.remove(&(claim, task.order));
        }
        if let Some(key) = self.held_key(self.tasks.get(slot)) {
            self.unique.remove(&key);
        }
        match key {
            Some(key) if lane.is_ready() => self.unlink_keyed(key, slot),
            _ => self.queues.slab.get_mut(queue).unlink(&mut self.tasks, lane, slot),
        }
        if lane == LaneId::CLAIMED {
            self.claim_ended(queue, key);
        }
        self.refresh_retention(queue, lane);
    }

    fn claim_ended(&mut self, number: Slot, key: Option<Slot>) {
        if let Some(key) = key {
            self.keys.slab.get_mut(key).claimed -= 1;
        }
        let queue = self.queues.get(number);
        let claimed = queue.lane(LaneId::CLAIMED).length;
        if queue.settings.concurrency == Some(claimed + 1) {
            self.opened.push(number);
        }
    }

    /// Enters a task into every index but its lane.
    pub(crate) fn index(&mut self, slot: Slot) {
        self.link_deadline(slot);
        let task = self.tasks.get(slot);
        if LaneId::of(task) == LaneId::DEAD {
            self.dead.insert(task.id, slot);
            self.died.insert(task.died());
        }
        if let Some(session) = task.claim().and_then(|claim| claim.session) {
            self.session_claims.entry(session).or_default().insert(task.order, slot);
        }
        if let Some(claim) = task.claim_key() {
            self.numbered_claims.insert((claim, task.order), slot);
        }
        if let Some(key) = self.held_key(self.tasks.get(slot)) {
            self.unique.insert(key, slot);
        }
    }

    fn link_deadline(&mut self, slot: Slot) {
        let task = self.tasks.get(slot);
        if let Some(at) = task.due_at() {
            self.deadlines.tasks.insert((at, task.order), slot);
        }
    }

    fn unlink_deadline(&mut self, slot: Slot) {
        let task = self.tasks.get(slot);
        if let Some(at) = task.due_at() {
            self.deadlines.tasks.remove(&(at, task.order));
        }
    }

    /// Updates the deadline of a retained lane from its oldest task and its queue's settings.
    pub(crate) fn refresh_retention(&mut self, number: Slot, lane: LaneId) {
        let Some(position) = LaneId::RETAINED.iter().position(|&retained| retained == lane) else {
            return;
        };
        let due = self.retention_due(number, lane);
        let known = &mut self.queues.slab.get_mut(number).retention_due[position];
        if *known == due {
            return;
        }
        if let Some(at) = *known {
            self.deadlines.lanes.remove(&(at, number, lane));
        }
        if let Some(at) = due {
            self.deadlines.lanes.insert((at, number, lane));
        }
        *known = due;
    }

    /// When the oldest task of a retained lane must be removed: at once if there are too many.
    pub(crate) fn retention_due(&self, number: Slot, lane: LaneId) -> Option<Timestamp> {
        let queue = self.queues.get(number);
        let (count_max, kept_for_ms) = queue.retention(lane);
        let list = queue.lane(lane);
        if list.head == NO_SLOT {
            return None;
        }
        if list.length > count_max {
            return Some(Timestamp(0));
        }
        match self.tasks.get(list.head).state {
            State::Finished { at, .. } => Some(at.plus_ms(kept_for_ms)),
            ref other => panic!("a task in lane {lane:?} is {}", other.name()),
        }
    }
}
