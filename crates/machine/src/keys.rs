//! Keys: the customers that tasks are for, inside their queue. Tasks of different keys take turns.
//!
//! A key's ready tasks stand in lines, one per priority. Each line has a turn: the ring of a queue
//! and a priority is its lines by turn, the next one first. A line has one list per type of its
//! tasks, all with the same turn. The lines of a key that may not run now (at its limit, out of
//! tokens, held back) stand apart, with their turns, so that no claim looks at them.
//!
//! When the turn of a line changes, each of its types moves in the ring: a key costs as much as it
//! has types ready at one priority. Producers have few; a bound on types per key would end the
//! worst case.
//!
//! A key is kept while a task names it, while its bucket is not full, or while it is pushed back.
//! Everything that decides the order of tasks is part of the key's image.

use crate::bucket::Bucket;
use crate::entry::DecodeError;
use crate::life::Task;
use crate::limits::PRIORITY_MAX;
use crate::names::NameId;
use crate::queue::{Lane, LaneId};
use crate::settings::PerKey;
use crate::slab::{Slab, Slot};
use crate::strands::Wanted;
use crate::transition::Place;
use crate::wire::{Reader, Wire, wire_struct};
use crate::{ImageError, Machine, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// The permanent id of a key. Texts with the same hash differ in `tie`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyId {
    pub(crate) queue: Slot,
    pub(crate) hash: u64,
    pub(crate) tie: u32,
}

wire_struct!(KeyId { queue, hash, tie });

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) id: KeyId,
    pub(crate) text: Box<str>,
    /// The number of tasks that name the key, in any state.
    pub(crate) tasks: u32,
    /// The number of its claimed tasks.
    pub(crate) claimed: u32,
    /// The number of its ready tasks that may be claimed, as of the last change of the key.
    pub(crate) counted: u32,
    /// Whether its lines are kept apart from the ring.
    pub(crate) closed: bool,
    /// Its lines that are not empty, by priority; of a line one entry per type.
    pub(crate) lines: Vec<Line>,
    pub(crate) throttle: Option<Box<Throttle>>,
}

/// Ready tasks of one key, priority and type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Its place among the lines of its ring. Unique on the shard, as the orders of tasks are; the
    /// same for all types.
    pub(crate) turn: u64,
    pub(crate) tasks: Lane,
    pub(crate) task_type: NameId,
    /// Tasks taken in the current turn, of all types.
    pub(crate) served: u16,
    pub(crate) priority: u8,
}

/// The limits that time lifts. A key without a throttle has a full bucket and is not pushed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttle {
    pub(crate) bucket: Bucket,
    pub(crate) pushed_back_until: Option<Timestamp>,
    /// When time alone opens the key again, or removes it.
    pub(crate) due_at: Option<Timestamp>,
}

wire_struct!(Throttle { bucket, pushed_back_until, due_at });

/// The judgement of what a key may do now.
#[derive(Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) closed: bool,
    pub(crate) counted: u32,
    pub(crate) throttle: Option<Throttle>,
}

impl Key {
    fn new(id: KeyId, text: &str) -> Key {
        Key {
            id,
            text: text.into(),
            tasks: 0,
            claimed: 0,
            counted: 0,
            closed: false,
            lines: Vec::new(),
            throttle: None,
        }
    }

    /// The line of a priority: its first type. Turn and share are the same for all.
    pub(crate) fn line(&self, priority: u8) -> Option<&Line> {
        self.lines.iter().find(|line| line.priority == priority)
    }

    /// All types of a line.
    pub(crate) fn types(&self, priority: u8) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.priority == priority)
    }

    pub(crate) fn line_of(&self, priority: u8, task_type: NameId) -> Option<&Line> {
        self.types(priority).find(|line| line.task_type == task_type)
    }

    pub(crate) fn line_of_mut(&mut self, priority: u8, task_type: NameId) -> &mut Line {
        let is_it = |line: &&mut Line| line.priority == priority && line.task_type == task_type;
        let line = self.lines.iter_mut().find(is_it);
        line.unwrap_or_else(|| panic!("a key has no line of priority {priority} and that type"))
    }

    pub(crate) fn add_line(&mut self, line: Line) {
        let position = self.lines.partition_point(|other| other.priority <= line.priority);
        // Most keys use one priority and type.
        self.lines.reserve_exact(1);
        self.lines.insert(position, line);
    }

    /// Gives a line another turn.
    pub(crate) fn set_turn(&mut self, priority: u8, turn: u64, served: u16) {
        for line in self.lines.iter_mut().filter(|line| line.priority == priority) {
            (line.turn, line.served) = (turn, served);
        }
    }

    /// How many tasks stand in a line.
    pub(crate) fn length(&self, priority: u8) -> u32 {
        self.types(priority).map(|line| line.tasks.length).sum()
    }

    /// The oldest task of a line, of these types.
    pub(crate) fn first(&self, priority: u8, wanted: &Wanted, tasks: &Slab<Task>) -> Option<Slot> {
        let of_types = self.types(priority).filter(|line| wanted.has(line.task_type));
        let mut heads = of_types.map(|line| line.tasks.head);
        let first = heads.next()?;
        Some(heads.fold(first, |first, head| {
            let is_older = tasks.get(head).order < tasks.get(first).order;
            if is_older { head } else { first }
        }))
    }

    pub(crate) fn ready(&self) -> u32 {
        self.lines.iter().map(|line| line.tasks.length).sum()
    }

    pub(crate) fn bucket(&self) -> Bucket {
        self.throttle.as_ref().map_or(Bucket::FULL, |throttle| throttle.bucket)
    }

    pub(crate) fn pushed_back_until(&self) -> Option<Timestamp> {
        self.throttle.as_ref()?.pushed_back_until
    }

    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        self.throttle.as_ref()?.due_at
    }

    pub(crate) fn throttle_mut(&mut self) -> &mut Throttle {
        let free = Throttle { bucket: Bucket::FULL, pushed_back_until: None, due_at: None };
        self.throttle.get_or_insert_with(|| Box::new(free))
    }

    /// Judges what the key may do at `now` under these limits.
    pub(crate) fn judge(&self, limits: PerKey, now: Timestamp) -> Judgement {
        let pushed_back_until = self.pushed_back_until().filter(|&at| at > now);
        let bucket = limits.rate.map_or(Bucket::FULL, |rate| self.bucket().settled(rate, now));
        let tokens = limits.rate.map_or(u64::MAX, |rate| bucket.tokens(rate, now));
        let slots = limits.concurrency.map_or(u32::MAX, |max| max.saturating_sub(self.claimed));
        let room = if pushed_back_until.is_some() { 0 } else { tokens.min(slots.into()) };
        let ready = self.ready();
        let refilled_at = |full: bool| {
            let rate = limits.rate.filter(|_| bucket != Bucket::FULL)?;
            Some(if full { bucket.full_at(rate) } else { bucket.opens_at(rate) })
        };
        let due_at = if self.tasks == 0 {
            pushed_back_until.max(refilled_at(true))
        } else if ready > 0 && slots > 0 && room == 0 {
            pushed_back_until.max(refilled_at(false).filter(|_| tokens == 0))
        } else {
            None
        };
        let free = pushed_back_until.is_none() && bucket == Bucket::FULL;
        Judgement {
            closed: room == 0,
            counted: u64::from(ready).min(room) as u32,
            throttle: (!free).then_some(Throttle { bucket, pushed_back_until, due_at }),
        }
    }

    /// Bytes that the key takes beside its slot, including its place in the ring.
    pub(crate) fn heap_bytes(&self) -> usize {
        let line = size_of::<Line>() + size_of::<(u64, Slot)>() * 3 / 2;
        let throttle = self.throttle.as_ref().map_or(0, |_| size_of::<Throttle>());
        self.text.len() + self.lines.len() * line + throttle
    }
}

/// All keys of a shard.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) slab: Slab<Key>,
    pub(crate) by_id: BTreeMap<KeyId, Slot>,
    pub(crate) heap_bytes: u64,
    /// Stored keys that were removed since the last cut.
    pub(crate) removed: BTreeSet<KeyId>,
    /// Removed keys of the frozen cut.
    pub(crate) frozen_removed: Vec<KeyId>,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        Keys {
            slab: Slab::new(),
            by_id: BTreeMap::new(),
            heap_bytes: 0,
            removed: BTreeSet::new(),
            frozen_removed: Vec::new(),
        }
    }

    pub(crate) fn get(&self, slot: Slot) -> &Key {
        self.slab.get(slot)
    }

    /// Keys of a queue from a position on, in an order that equal states share.
    pub(crate) fn of_queue(
        &self,
        queue: Slot,
        (hash, tie): (u64, u32),
    ) -> impl Iterator<Item = (KeyId, Slot)> {
        let first = KeyId { queue, hash, tie };
        let last = KeyId { queue, hash: u64::MAX, tie: u32::MAX };
        self.by_id.range(first..=last).map(|(&id, &slot)| (id, slot))
    }

    pub(crate) fn find(&self, queue: Slot, text: &str) -> Result<Slot, KeyId> {
        self.find_hashed(queue, xxh3_64(text.as_bytes()), text)
    }

    /// The key of a text, or the id under which it would be added.
    fn find_hashed(&self, queue: Slot, hash: u64, text: &str) -> Result<Slot, KeyId> {
        let id = |tie| KeyId { queue, hash, tie };
        let mut tie = 0;
        for (found, &slot) in self.by_id.range(id(0)..=id(u32::MAX)) {
            if *self.get(slot).text == *text {
                return Ok(slot);
            }
            tie = found.tie + 1;
        }
        Err(id(tie))
    }

    pub(crate) fn add(&mut self, id: KeyId, text: &str) -> Slot {
        let key = Key::new(id, text);
        self.heap_bytes += key.heap_bytes() as u64;
        let slot = if self.removed.remove(&id) {
            // The last cut has the key, so that the next cut must report a change and not a
            // removal.
            let slot = self.slab.insert_stored(key);
            self.slab.mark_dirty(slot);
            slot
        } else {
            self.slab.insert(key)
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// Removes a key that is not frozen.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let (key, stored) = self.slab.remove(slot);
        self.heap_bytes -= key.heap_bytes() as u64;
        self.by_id.remove(&key.id);
        if stored {
            self.removed.insert(key.id);
        }
    }

    pub(crate) fn dirty(&self) -> usize {
        self.slab.dirty() + self.removed.len()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let per_key = Slab::<Key>::VALUE_BYTES + size_of::<(KeyId, Slot)>() * 3 / 2;
        (self.slab.len() * per_key) as u64 + self.heap_bytes
    }

    /// The slot of a key that a task of a checkpoint names; the record of the key may come later.
    pub(crate) fn load_named(&mut self, id: KeyId) -> Slot {
        match self.by_id.get(&id) {
            Some(&slot) => slot,
            None => {
                let slot = self.slab.insert_stored(Key::new(id, ""));
                self.by_id.insert(id, slot);
                slot
            }
        }
    }

    /// Loads the record of a key.
    pub(crate) fn load(&mut self, id: KeyId, image: &[u8]) -> Result<(), DecodeError> {
        let reader = &mut Reader::new(image);
        let text: &str = reader.read()?;
        let closed = reader.read()?;
        let turns: Vec<TurnImage> = reader.read()?;
        let throttle = reader.read()?;
        reader.finish()?;
        let slot = self.load_named(id);
        let key = self.slab.get_mut(slot);
        (key.text, key.closed, key.throttle) = (text.into(), closed, throttle);
        for TurnImage { priority, turn, served } in turns {
            if priority > PRIORITY_MAX || key.line(priority).is_some() {
                return Err(reader.error(format_args!("a line of priority {priority}")));
            }
            // Its tasks say of which types it is.
            let (tasks, task_type) = (Lane::EMPTY, NameId::FIRST);
            key.add_line(Line { turn, tasks, task_type, served, priority });
        }
        self.heap_bytes += self.get(slot).heap_bytes() as u64;
        Ok(())
    }
}

/// The place of a line in its ring, as encoded.
struct TurnImage {
    priority: u8,
    turn: u64,
    served: u16,
}

wire_struct!(TurnImage { priority, turn, served });

pub(crate) fn encode_key(key: &Key) -> Box<[u8]> {
    let mut out = Vec::new();
    key.text.write(&mut out);
    key.closed.write(&mut out);
    let turn = |line: &Line| {
        let Line { turn, served, priority, .. } = *line;
        TurnImage { priority, turn, served }
    };
    let mut turns: Vec<TurnImage> = key.lines.iter().map(turn).collect();
    turns.dedup_by_key(|turn| turn.priority);
    turns.write(&mut out);
    key.throttle.as_deref().copied().write(&mut out);
    out.into_boxed_slice()
}

/// Reload.
impl Machine {
    /// Gives queues their keys; lines come into the rings with their first tasks.
    pub(crate) fn rebuild_rings(&mut self) -> Result<(), ImageError> {
        for (slot, key) in self.keys.slab.iter() {
            let damaged = |what: &str| ImageError { what: format!("key {:?}: {what}", key.id) };
            if !self.queues.has(key.id.queue) {
                return Err(damaged("its queue is missing"));
            }
            let queue = self.queues.slab.get_mut(key.id.queue);
            let rings = queue.rings.as_mut().ok_or_else(|| damaged("its queue has no rings"))?;
            rings.keys += 1;
            if let Some(at) = key.due_at() {
                self.deadlines.keys.insert((at, key.id), slot);
            }
        }
        Ok(())
    }

    /// Puts a task with a key into its lane or line.
    pub(crate) fn load_keyed(
        &mut self,
        key: Slot,
        lane: LaneId,
        slot: Slot,
    ) -> Result<(), ImageError> {
        let task = self.tasks.get(slot);
        let (queue, priority, task_type) = (task.queue, task.priority, task.task_type);
        let found = self.keys.slab.get_mut(key);
        found.tasks += 1;
        if lane == LaneId::CLAIMED {
            found.claimed += 1;
        }
        if !lane.is_ready() {
            let queue = self.queues.slab.get_mut(queue);
            queue.push(&mut self.tasks, lane, slot, Place::Back);
            return Ok(());
        }
        let Some(&line) = found.line(priority) else {
            let id = self.tasks.get(slot).id;
            return Err(ImageError { what: format!("the line of task {id} is missing") });
        };
        let is_empty = line.tasks.length == 0;
        let is_new = is_empty || found.line_of(priority, task_type).is_none();
        if is_empty {
            found.lines.retain(|line| line.priority != priority);
        }
        if is_new {
            let before = found.heap_bytes() as u64;
            found.add_line(Line { task_type, tasks: Lane::EMPTY, ..line });
            let added = found.heap_bytes() as u64 - before;
            self.keys.heap_bytes += if is_empty { 0 } else { added };
        }
        let (closed, id) = (found.closed, found.id);
        found.line_of_mut(priority, task_type).tasks.push_back(&mut self.tasks, slot);
        let rings = self.rings_mut(queue);
        rings.ready += 1;
        let side = rings.ring_mut(priority).side(closed);
        match is_new {
            false => side.joined(task_type),
            true => {
                let line = Line { task_type, tasks: Lane { length: 1, ..Lane::EMPTY }, ..line };
                if side.insert(&line, key).is_some_and(|other| other != key) {
                    return Err(ImageError { what: format!("key {id:?}: another has its turn") });
                }
            }
        }
        Ok(())
    }

    /// Counts what each key may do; of it only whether it is closed is part of an image. Time or
    /// new limits may have changed the rest since the key was last looked at, but an open key with
    /// ready tasks counts until then.
    pub(crate) fn count_keys(&mut self) -> Result<(), ImageError> {
        for slot in self.keys.by_id.values().copied().collect::<Vec<_>>() {
            let key = self.keys.get(slot);
            let number = key.id.queue;
            if key.lines.iter().any(|line| line.tasks.length == 0) {
                return Err(ImageError { what: format!("key {:?} has an empty line", key.id) });
            }
            let limits = self.queues.get(number).settings.per_key.unwrap_or_default();
            let judged = key.judge(limits, self.counters.now);
            let counted = if key.closed { 0 } else { judged.counted.max(key.ready().min(1)) };
            self.keys.slab.get_mut(slot).counted = counted;
            self.rings_mut(number).available += u64::from(counted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_share_a_hash_are_different_keys() {
        let mut keys = Keys::new();
        let add = |keys: &mut Keys, text| {
            let id = keys.find_hashed(3, 7, text).expect_err("it is new");
            keys.add(id, text)
        };
        let [a, b, c] = ["a", "b", "c"].map(|text| add(&mut keys, text));
        assert_eq!(keys.find_hashed(3, 7, "b"), Ok(b));
        keys.remove(b);
        assert_eq!(keys.find_hashed(3, 7, "c"), Ok(c), "behind a gap");
        assert_eq!(keys.find_hashed(3, 7, "a"), Ok(a));
        assert!(keys.find_hashed(4, 7, "a").is_err(), "keys belong to their queue");
        let again = add(&mut keys, "b");
        assert_eq!(keys.get(again).id, KeyId { queue: 3, hash: 7, tie: 3 });
    }

    #[test]
    fn a_key_is_small() {
        assert_eq!(Slab::<Key>::VALUE_BYTES, 80);
        let mut keys = Keys::new();
        let id = keys.find(0, "tenant-1").expect_err("it is new");
        let slot = keys.add(id, "tenant-1");
        keys.heap_bytes -= keys.get(slot).heap_bytes() as u64;
        let (tasks, task_type) = (Lane::EMPTY, NameId::FIRST);
        let line = Line { turn: 1, tasks, task_type, served: 0, priority: 5 };
        keys.slab.get_mut(slot).add_line(line);
        keys.heap_bytes += keys.get(slot).heap_bytes() as u64;
        assert!(keys.memory_bytes() <= 180, "{}", keys.memory_bytes());
    }
}
