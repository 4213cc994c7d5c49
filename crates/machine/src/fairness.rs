//! Fairness: the next task of a queue, within the limits of the queue and its keys.
//!
//! The highest priority comes first, raised by age if the queue's settings say so. Within a
//! priority the keys take turns of `weight` tasks each, and within a key the oldest task comes
//! first. A claim that names types skips the tasks of other types; priorities, turns and ages stay
//! the same. All of this changes in the entry of its cause, and can be rebuilt from images alone.

use crate::image;
use crate::keys::{Key, Line};
use crate::life::State;
use crate::limits::{EXPIRIES_PER_ENTRY_MAX, PRIORITY_MAX};
use crate::queue::{Lane, LaneId, Queue};
use crate::rings::{OwnTurn, Rings};
use crate::slab::Slot;
use crate::strands::Wanted;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{EventKind, Machine, Timestamp};
use std::cmp::Reverse;

/// The order of tasks.
impl Machine {
    /// The ready task of these types to claim next, within the limits of its key. The caller checks
    /// the limits of the queue.
    pub(crate) fn first_in_turn(&mut self, number: Slot, wanted: &Wanted) -> Option<Slot> {
        let queue = self.queues.get(number);
        if queue.is_plain() {
            return queue.first_ready(wanted, &self.tasks);
        }
        if queue.sweep.is_some() {
            self.close_fronts(number, wanted);
        }
        let queue = self.queues.get(number);
        let mut fronts =
            (0..=PRIORITY_MAX).rev().filter_map(|priority| self.front(queue, priority, wanted));
        match queue.settings.ageing_ms {
            None => fronts.next(),
            Some(ageing_ms) => fronts.max_by_key(|&slot| self.seniority(slot, ageing_ms)),
        }
    }

    /// The first task of these types at a priority.
    fn front(&self, queue: &Queue, priority: u8, wanted: &Wanted) -> Option<Slot> {
        let lane = queue.strands(priority);
        let unkeyed =
            lane.first_of(wanted, &self.tasks).filter(|_| queue.pushed_back_until.is_none());
        let Some(rings) = &queue.rings else { return unkeyed };
        let keyed = rings.ring(priority).open.first(wanted);
        // The turn belongs to the whole lane, not to the wanted types.
        let comes_first =
            |turn| lane.first().is_some_and(|head| self.unkeyed_turn(rings, priority, head) < turn);
        match (unkeyed, keyed) {
            (Some(task), Some((turn, _))) if comes_first(turn) => Some(task),
            (_, Some((_, key))) => self.keys.get(key).first(priority, wanted, &self.tasks),
            (unkeyed, None) => unkeyed,
        }
    }

    /// The turn of a queue's tasks without a key, of which `head` is the first.
    pub(crate) fn unkeyed_turn(&self, rings: &Rings, priority: u8, head: Slot) -> u64 {
        rings.unkeyed[usize::from(priority)].turn.max(self.tasks.get(head).order)
    }

    /// Sorts tasks by their priority, raised by how long they have waited, then by age.
    fn seniority(&self, slot: Slot, ageing_ms: u64) -> (u64, Reverse<Timestamp>, Reverse<u64>) {
        let task = self.tasks.get(slot);
        let State::Ready { since } = task.state else {
            panic!("task {} is in a ready lane and not ready", task.id);
        };
        let waited_ms = self.counters.now.ms_since(since);
        let raised = u64::from(task.priority) + waited_ms / ageing_ms;
        (raised.min(PRIORITY_MAX.into()), Reverse(since), Reverse(task.order))
    }

    /// While new limits have not reached all keys, refreshes the keys that come first.
    fn close_fronts(&mut self, number: Slot, wanted: &Wanted) {
        for priority in 0..=PRIORITY_MAX {
            loop {
                let Some(rings) = &self.queues.get(number).rings else { return };
                let Some((_, key)) = rings.ring(priority).open.first(wanted) else { break };
                self.refresh_key(key);
                if !self.keys.get(key).closed {
                    break;
                }
            }
        }
    }

    /// The number of tasks of these types that a queue could hand out at `now`. The number may be
    /// too large for a claim that names types in a queue whose keys have limits, because a key's
    /// room counts for each of its types. It is 0 exactly when there is no such task.
    pub(crate) fn room(&self, number: Slot, now: Timestamp, wanted: &Wanted) -> u64 {
        let queue = self.queues.get(number);
        if queue.paused {
            return 0;
        }
        let unkeyed =
            if queue.pushed_back_until.is_some() { 0 } else { queue.unkeyed_ready(wanted) };
        let keyed = queue.rings.as_ref().map_or(0, |rings| match wanted {
            Wanted::Any => rings.available,
            Wanted::These(_) => rings.open_tasks(wanted).min(rings.available),
        });
        (unkeyed + keyed).min(queue.slots()).min(queue.tokens(now))
    }

    /// Counts a claim against its queue and key, and gives the turn to the next key once this key
    /// has had its share.
    pub(crate) fn serve(&mut self, slot: Slot) {
        let now = self.counters.now;
        let task = self.tasks.get(slot);
        let (number, priority, key) = (task.queue, task.priority, task.key());
        let queue = self.queues.get(number);
        if let Some(rate) = queue.settings.rate {
            self.edit_queue(number, |queue| queue.bucket = queue.bucket.taken(rate, now));
            // The bucket has tokens left, so other waiters may claim as well.
            if self.queues.get(number).tokens(now) > 0 {
                self.opened.push(number);
            }
        }
        match key {
            Some(key) => self.serve_keyed(key, number, priority),
            None => self.serve_unkeyed(number, priority),
        }
    }

    fn serve_keyed(&mut self, slot: Slot, number: Slot, priority: u8) {
        let now = self.counters.now;
        let queue = self.queues.get(number);
        let key = self.keys.get(slot);
        let weight = queue.weight(&key.text);
        let rate = queue.settings.per_key.and_then(|per_key| per_key.rate);
        let line = key.line(priority).expect("a ready task stands in its key's line");
        let (old, served, length) = (line.turn, line.served, key.length(priority));
        let share_used = u32::from(served) + 1 >= weight;
        let moves = share_used && length > 1;
        let turn = if moves { self.next_order(Place::Back) } else { old };
        self.edit_key(slot, |key| {
            key.set_turn(priority, turn, if share_used { 0 } else { served + 1 });
            if let Some(rate) = rate {
                key.throttle_mut().bucket = key.bucket().taken(rate, now);
            }
        });
        if moves {
            self.move_line(slot, priority, old);
        }
    }

    /// Moves a line whose turn has changed to its place in the ring.
    fn move_line(&mut self, slot: Slot, priority: u8, old: u64) {
        let key = self.keys.slab.get(slot);
        let queue = self.queues.slab.get_mut(key.id.queue);
        let rings = queue.rings.as_mut().expect("a queue whose key has a line has rings");
        let side = rings.ring_mut(priority).side(key.closed);
        for line in key.types(priority) {
            side.move_line(line, old);
        }
    }

    fn serve_unkeyed(&mut self, number: Slot, priority: u8) {
        let queue = self.queues.get(number);
        let Some(rings) = &queue.rings else { return };
        if rings.ring(priority).open.is_empty() {
            return;
        }
        let own = rings.unkeyed[usize::from(priority)];
        let next = if u32::from(own.served) + 1 >= queue.weight("") {
            OwnTurn { turn: self.next_order(Place::Back), served: 0 }
        } else {
            OwnTurn { served: own.served + 1, ..own }
        };
        self.set_own_turn(number, priority, next);
    }

    fn set_own_turn(&mut self, number: Slot, priority: u8, turn: OwnTurn) {
        self.edit_queue(number, |queue| {
            let rings = queue.rings.as_mut().expect("a queue whose keys take turns has rings");
            rings.unkeyed[usize::from(priority)] = turn;
        });
    }

    /// Returns the tokens of a claim whose attempt does not count.
    pub(crate) fn refund(&mut self, slot: Slot) {
        let now = self.counters.now;
        let task = self.tasks.get(slot);
        let (number, key) = (task.queue, task.key());
        let settings = &self.queues.get(number).settings;
        let (rate, key_rate) = (settings.rate, settings.per_key.and_then(|keys| keys.rate));
        if let Some(rate) = rate {
            // The returned task wakes only waiters for its type, but the token serves all types.
            if self.queues.get(number).bucket.was_empty() {
                self.opened.push(number);
            }
            self.edit_queue(number, |queue| queue.bucket = queue.bucket.given(rate, now));
        }
        if let (Some(key), Some(rate)) = (key, key_rate) {
            self.edit_key(key, |key| key.throttle_mut().bucket = key.bucket().given(rate, now));
        }
    }

    /// Pushes back the key of a task until `until`. Without a key, pushes back the unkeyed tasks of
    /// its queue.
    pub(crate) fn push_back(&mut self, slot: Slot, until: Timestamp) {
        let task = self.tasks.get(slot);
        let number = task.queue;
        match task.key() {
            Some(key) => {
                self.edit_key(key, |key| {
                    let throttle = key.throttle_mut();
                    throttle.pushed_back_until = throttle.pushed_back_until.max(Some(until));
                });
                self.refresh_key(key);
            }
            None => {
                self.edit_queue(number, |queue| {
                    queue.pushed_back_until = queue.pushed_back_until.max(Some(until));
                });
                self.refresh_queue_due(number);
            }
        }
    }
}

/// Keeps lines and keys consistent with the tasks.
impl Machine {
    pub(crate) fn rings_mut(&mut self, number: Slot) -> &mut Rings {
        let queue = self.queues.slab.get_mut(number);
        queue.rings.as_mut().unwrap_or_else(|| panic!("queue {} has no keys", queue.name))
    }

    /// Puts a ready task into its key's line. A task that goes to the front takes the turn with it.
    pub(crate) fn push_keyed(&mut self, key: Slot, slot: Slot, place: Place) {
        let task = self.tasks.get(slot);
        let (number, priority, order) = (task.queue, task.priority, task.order);
        let task_type = task.task_type;
        let found = self.keys.get(key);
        let (closed, old) = (found.closed, found.line(priority).copied());
        if let (Some(old), Place::Front) = (old, place) {
            self.edit_key(key, |key| key.set_turn(priority, order, 0));
            self.move_line(key, priority, old.turn);
        }
        if self.keys.get(key).line_of(priority, task_type).is_none() {
            let (turn, served) = match old {
                Some(old) if place == Place::Back => (old.turn, old.served),
                _ => (order, 0),
            };
            let line = Line { turn, tasks: Lane::EMPTY, task_type, served, priority };
            self.edit_key(key, |key| key.add_line(line));
            self.rings_mut(number).ring_mut(priority).side(closed).insert(&line, key);
        }
        let line = self.keys.slab.get_mut(key).line_of_mut(priority, task_type);
        line.tasks.push(&mut self.tasks, slot, place);
        let rings = self.rings_mut(number);
        rings.ring_mut(priority).side(closed).joined(task_type);
        rings.ready += 1;
    }

    /// Puts a ready task without a key into its lane, ahead of all keys if it goes to the front.
    pub(crate) fn pushed_unkeyed(&mut self, number: Slot, priority: u8, place: Place) {
        if place == Place::Front && self.queues.get(number).rings.is_some() {
            self.set_own_turn(number, priority, OwnTurn::default());
        }
    }

    pub(crate) fn unlink_keyed(&mut self, key: Slot, slot: Slot) {
        let task = self.tasks.get(slot);
        let (number, priority, task_type) = (task.queue, task.priority, task.task_type);
        let found = self.keys.slab.get_mut(key);
        let closed = found.closed;
        let line = found.line_of_mut(priority, task_type);
        line.tasks.unlink(&mut self.tasks, slot);
        let line = *line;
        let rings = self.rings_mut(number);
        rings.ready -= 1;
        let side = rings.ring_mut(priority).side(closed);
        side.left(task_type);
        if line.tasks.length == 0 {
            side.remove(&line);
            let is_it = |line: &Line| line.priority == priority && line.task_type == task_type;
            self.edit_key(key, |key| key.lines.retain(|line| !is_it(line)));
        }
    }

    /// The key of a text, made if it does not exist.
    pub(crate) fn key_or_new(&mut self, number: Slot, text: &str) -> Slot {
        match self.keys.find(number, text) {
            Ok(slot) => slot,
            Err(id) => {
                if self.queues.get(number).rings.is_none() {
                    self.edit_queue(number, |queue| queue.rings = Some(Box::default()));
                }
                self.rings_mut(number).keys += 1;
                self.keys.add(id, text)
            }
        }
    }

    /// Changes what is part of a key's image.
    pub(crate) fn edit_key<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Key) -> R) -> R {
        self.keep_key_image(slot);
        self.keys.slab.mark_dirty(slot);
        let key = self.keys.slab.get_mut(slot);
        let before = key.heap_bytes() as u64;
        let result = change(key);
        self.keys.heap_bytes = self.keys.heap_bytes - before + key.heap_bytes() as u64;
        self.counters.digest.key(key);
        result
    }

    fn keep_key_image(&mut self, slot: Slot) {
        if self.keys.slab.is_frozen(slot) {
            self.cut.early.push(image::key_record(self.keys.get(slot)));
            self.keys.slab.thaw(slot);
        }
    }

    /// Updates a key after a change of its tasks, its limits or the time: whether its lines are
    /// open, and when time changes that. If this opens closed lines, the queue counts as opened. An
    /// unneeded key is removed.
    pub(crate) fn refresh_key(&mut self, slot: Slot) {
        let now = self.counters.now;
        let key = self.keys.get(slot);
        let (id, was_closed, counted, due_at) = (key.id, key.closed, key.counted, key.due_at());
        let limits = self.queues.get(id.queue).settings.per_key.unwrap_or_default();
        let next = key.judge(limits, now);
        if key.closed != next.closed || key.throttle.as_deref() != next.throttle.as_ref() {
            self.edit_key(slot, |key| {
                key.closed = next.closed;
                key.throttle = next.throttle.map(Box::new);
            });
        }
        let next_due_at = next.throttle.and_then(|throttle| throttle.due_at);
        if due_at != next_due_at {
            due_at.map(|at| self.deadlines.keys.remove(&(at, id)));
            next_due_at.map(|at| self.deadlines.keys.insert((at, id), slot));
        }
        self.keys.slab.get_mut(slot).counted = next.counted;
        let key = self.keys.slab.get(slot);
        let queue = self.queues.slab.get_mut(id.queue);
        let rings =
            queue.rings.as_mut().unwrap_or_else(|| panic!("queue {} has no keys", queue.name));
        if was_closed != next.closed {
            for line in &key.lines {
                let ring = rings.ring_mut(line.priority);
                ring.side(was_closed).remove(line);
                ring.side(next.closed).insert(line, slot);
            }
        }
        rings.available = rings.available - u64::from(counted) + u64::from(next.counted);
        if was_closed && next.counted > 0 {
            self.opened.push(id.queue);
        }
        if key.tasks == 0 && next.throttle.is_none() {
            self.remove_key(slot);
        }
    }

    fn remove_key(&mut self, slot: Slot) {
        let number = self.keys.get(slot).id.queue;
        self.keep_key_image(slot);
        self.keys.remove(slot);
        let rings = self.rings_mut(number);
        rings.keys -= 1;
        if rings.keys == 0 {
            self.edit_queue(number, |queue| queue.rings = None);
        }
        self.note_shrunk(number);
    }

    /// Counts one more task that names a key.
    pub(crate) fn name_key(&mut self, slot: Slot) {
        self.keys.slab.get_mut(slot).tasks += 1;
    }

    /// Counts one task less that names a key.
    pub(crate) fn unname_key(&mut self, slot: Slot) {
        self.keys.slab.get_mut(slot).tasks -= 1;
        self.refresh_key(slot);
    }

    /// Applies new limits to up to `count_max` more keys of a queue; returns their number.
    pub(crate) fn sweep_keys(&mut self, number: Slot, count_max: usize) -> usize {
        let Some(from) = self.queues.get(number).sweep else { return 0 };
        let mut keys = self.keys.of_queue(number, from);
        let slots: Vec<Slot> = keys.by_ref().take(count_max).map(|(_, slot)| slot).collect();
        let next = keys.next().map(|(id, _)| (id.hash, id.tie));
        drop(keys);
        for &slot in &slots {
            self.refresh_key(slot);
        }
        self.edit_queue(number, |queue| queue.sweep = next);
        self.refresh_queue_due(number);
        slots.len()
    }

    /// Updates the queue's deadline in the time index.
    pub(crate) fn refresh_queue_due(&mut self, number: Slot) {
        let queue = self.queues.get(number);
        let (known, due) = (queue.due_at, queue.next_due());
        if known == due {
            return;
        }
        known.map(|at| self.deadlines.queues.remove(&(at, number)));
        due.map(|at| self.deadlines.queues.insert((at, number)));
        self.queues.slab.get_mut(number).due_at = due;
    }
}

impl Turn<'_> {
    /// Handles the first due deadline of a key or a queue; returns the number of keys and queues
    /// handled, 0 if none is due.
    pub(crate) fn open_one(&mut self) -> usize {
        let now = self.now;
        if let Some(key) = self.shard.deadlines.due_key(now) {
            self.shard.refresh_key(key);
            return 1;
        }
        let Some(number) = self.shard.deadlines.due_queue(now) else { return 0 };
        if self.shard.queues.get(number).sweep.is_some() {
            return self.shard.sweep_keys(number, EXPIRIES_PER_ENTRY_MAX).max(1);
        }
        self.shard.edit_queue(number, |queue| {
            queue.pushed_back_until = queue.pushed_back_until.filter(|&at| at > now);
            if let Some(rate) = queue.settings.rate {
                queue.bucket = queue.bucket.looked_at(rate, now);
            }
        });
        self.shard.refresh_queue_due(number);
        self.shard.opened.push(number);
        1
    }

    /// Emits an event for each queue whose limits let ready tasks through again.
    pub(crate) fn emit_opened(&mut self) {
        if self.shard.opened.is_empty() {
            return;
        }
        let mut opened = std::mem::take(&mut self.shard.opened);
        opened.sort_unstable();
        opened.dedup();
        for &number in &opened {
            if self.shard.room(number, self.now, &Wanted::Any) > 0 {
                let name = self.shard.queues.get(number).name.clone();
                self.emit(EventKind::QueueOpened(name));
            }
        }
    }
}

impl Queue {
    /// Whether claims simply take from its lanes, the highest priority first.
    fn is_plain(&self) -> bool {
        self.rings.is_none()
            && self.pushed_back_until.is_none()
            && self.settings.ageing_ms.is_none()
    }

    /// The number of tasks that a key may take per turn.
    pub(crate) fn weight(&self, key: &str) -> u32 {
        self.settings.weights.get(key).copied().unwrap_or(1)
    }

    /// The number of claims that its concurrency limit leaves room for.
    pub(crate) fn slots(&self) -> u64 {
        let claimed = self.lane(LaneId::CLAIMED).length;
        self.settings.concurrency.map_or(u64::MAX, |max| max.saturating_sub(claimed).into())
    }

    /// The number of claims that its rate limit leaves room for.
    pub(crate) fn tokens(&self, now: Timestamp) -> u64 {
        self.settings.rate.map_or(u64::MAX, |rate| self.bucket.tokens(rate, now))
    }

    /// When time alone changes the queue: at once while new limits are being applied to its keys,
    /// at the end of a push-back, or when its bucket gets a token again.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        if self.sweep.is_some() {
            return Some(Timestamp(0));
        }
        let refilled_at = self
            .settings
            .rate
            .filter(|_| self.bucket.was_empty() && self.ready() > 0)
            .map(|rate| self.bucket.opens_at(rate));
        self.pushed_back_until.into_iter().chain(refilled_at).min()
    }
}

#[cfg(test)]
mod tests;
