//! Image: the state as records, for checkpoints, snapshots and comparison.
//!
//! A checkpoint at index C is the exact state at C. `Machine::freeze` marks the cut. Before a later
//! entry changes a frozen record that is not yet encoded, the machine encodes the record as it was
//! at C. A checkpoint is therefore taken in small bites and still is one cut.

use crate::entry::DecodeError;
use crate::kept::{Keep, Kept};
use crate::keys::{Key, KeyId, Keys, encode_key};
use crate::life::Task;
use crate::machine::Counters;
use crate::names::Names;
use crate::queue::{LaneId, Queue};
use crate::slab::Slot;
use crate::task_image::{encode_queue, encode_task, read_queue, read_task};
use crate::transition::Place;
use crate::wire::{Reader, Wire, decode, encode, wire_struct};
use crate::{Identity, Machine, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::Xxh3;

/// The key of one record of a shard's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// A task. Its body is kept beside it, under the same id.
    Task(TaskId),
    /// Any other record: a queue, a dedup record, a flow, an outbox message, the counters.
    Rest(Box<[u8]>),
}

/// One change since the previous checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key of the record.
    pub key: RecordKey,
    /// The encoding of the record at the cut; `None` if it is gone.
    pub value: Option<Box<[u8]>>,
}

/// The error of records that do not make a state that this build can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint can't be read: {what}")]
pub struct ImageError {
    /// What was found, and where.
    pub what: String,
}

impl From<DecodeError> for ImageError {
    fn from(error: DecodeError) -> ImageError {
        ImageError { what: error.what }
    }
}

// The first byte of the other record keys; further ones are the `KIND`s of the types in `Kept`. A
// record whose format changes gets a new byte. 0, 1 and 26 were counters without the digest,
// without the number of records, and without the version of deleted spreads.
const KIND_COUNTERS: u8 = 28;
const KIND_QUEUE: u8 = 2;
const KIND_KEY: u8 = 21;

/// A bite of a frozen cut ends after about this many encoded bytes. Results, resume states and
/// staged parts are large, and the shard loop waits while a bite is taken.
const BITE_BYTES_MAX: usize = 1 << 20;

/// The record that every cut has: the counters, and the number of all other records. Without these
/// numbers, a cut that has lost records would pass for a smaller one.
#[derive(Clone, Copy)]
struct Head {
    counters: Counters,
    tasks: u64,
    /// The number of records that are neither tasks nor this one.
    others: u64,
}

wire_struct!(Head { counters, tasks, others });

/// The parts of an unfinished checkpoint that are not marks on records.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Records of the frozen cut that are already encoded.
    pub(crate) early: Vec<Record>,
    /// Stored tasks that were removed since the last cut.
    pub(crate) removed: Vec<TaskId>,
    /// Removed tasks of the frozen cut.
    frozen_removed: Vec<TaskId>,
}

impl Machine {
    /// The number of records that have changed since the last freeze.
    pub fn dirty_records(&self) -> usize {
        self.cut.removed.len()
            + self.tasks.dirty()
            + self.queues.dirty()
            + self.keys.dirty()
            + self.dedup.dirty()
            + self.resent.dirty()
            + self.batches.dirty()
            + self.staged.dirty()
            + self.outbox.dirty()
            + self.links.dirty()
            + self.windows.dirty()
            + self.flows.dirty()
            + self.nodes.dirty()
            + self.staged_flows.dirty()
            + self.schedules.dirty()
            + self.tallies.dirty()
    }

    /// Marks the cut of a checkpoint; `frozen_bite` then returns all changes since the previous
    /// cut.
    ///
    /// # Panics
    /// If `frozen_bite` has not returned all of the previous cut.
    pub fn freeze(&mut self) {
        assert!(
            self.cut.early.is_empty()
                && self.cut.frozen_removed.is_empty()
                && self.queues.frozen_removed.is_empty()
                && self.keys.frozen_removed.is_empty(),
            "the previous cut was not handed out whole"
        );
        self.cut.frozen_removed = std::mem::take(&mut self.cut.removed);
        // Every entry changes the counters, so that they are encoded at once.
        let head = Record { key: counters_key(), value: Some(self.encode_head()) };
        self.cut.early.push(head);
        self.tasks.freeze();
        self.queues.slab.freeze();
        self.queues.frozen_removed = std::mem::take(&mut self.queues.removed).into_iter().collect();
        self.keys.slab.freeze();
        self.keys.frozen_removed = std::mem::take(&mut self.keys.removed).into_iter().collect();
        self.dedup.freeze();
        self.resent.freeze();
        self.batches.freeze();
        self.staged.freeze();
        self.outbox.freeze();
        self.links.freeze();
        self.windows.freeze();
        self.flows.freeze();
        self.nodes.freeze();
        self.staged_flows.freeze();
        self.schedules.freeze();
        self.tallies.freeze();
    }

    /// Encodes up to `records_max` records of the frozen cut, or fewer if they are large; an empty
    /// bite means that the cut is complete.
    pub fn frozen_bite(&mut self, records_max: usize) -> Vec<Record> {
        let mut bite = Vec::new();
        let mut bytes = 0;
        while bite.len() < records_max
            && bytes < BITE_BYTES_MAX
            && let Some(record) = self.next_frozen()
        {
            bytes += record.value.as_ref().map_or(0, |value| value.len());
            bite.push(record);
        }
        bite
    }

    fn next_frozen(&mut self) -> Option<Record> {
        if let Some(record) = self.cut.early.pop() {
            return Some(record);
        }
        if let Some(id) = self.cut.frozen_removed.pop() {
            return Some(Record { key: RecordKey::Task(id), value: None });
        }
        if let Some(slot) = self.tasks.next_frozen() {
            self.tasks.thaw(slot);
            return Some(task_record(self.tasks.get(slot), &self.names, &self.keys));
        }
        if let Some(number) = self.queues.frozen_removed.pop() {
            return Some(Record { key: queue_key(number), value: None });
        }
        if let Some(number) = self.queues.slab.next_frozen() {
            self.queues.slab.thaw(number);
            return Some(queue_record(number, self.queues.get(number)));
        }
        if let Some(id) = self.keys.frozen_removed.pop() {
            return Some(Record { key: key_key(id), value: None });
        }
        if let Some(slot) = self.keys.slab.next_frozen() {
            self.keys.slab.thaw(slot);
            return Some(key_record(self.keys.get(slot)));
        }
        (self.dedup.next_frozen())
            .or_else(|| self.resent.next_frozen())
            .or_else(|| self.batches.next_frozen())
            .or_else(|| self.staged.next_frozen())
            .or_else(|| self.outbox.next_frozen())
            .or_else(|| self.links.next_frozen())
            .or_else(|| self.windows.next_frozen())
            .or_else(|| self.flows.next_frozen())
            .or_else(|| self.nodes.next_frozen())
            .or_else(|| self.staged_flows.next_frozen())
            .or_else(|| self.schedules.next_frozen())
            .or_else(|| self.tallies.next_frozen())
    }

    /// Every record of the state, sorted by key: equal for equal states.
    pub fn records(&self) -> Vec<(RecordKey, Box<[u8]>)> {
        let mut records: Vec<_> = self.all_records().collect();
        records.sort_unstable();
        records
    }

    /// A hash of the whole state, for comparing replicas.
    pub fn state_hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (key, value) in self.all_records() {
            match key {
                RecordKey::Task(id) => hash.update(&id.to_u128().to_be_bytes()),
                RecordKey::Rest(key) => hash.update(&key),
            }
            hash.update(&(value.len() as u64).to_le_bytes());
            hash.update(&value);
        }
        hash.digest()
    }

    /// Every record, in an order that equal states share.
    fn all_records(&self) -> impl Iterator<Item = (RecordKey, Box<[u8]>)> {
        let head = (counters_key(), self.encode_head());
        let tasks = self.ids.iter_after(None).map(|(id, slot)| {
            (RecordKey::Task(id), encode_task(self.tasks.get(slot), &self.names, &self.keys))
        });
        let keys = self.keys.by_id.iter();
        let keys = keys.map(|(&id, &slot)| (key_key(id), encode_key(self.keys.get(slot))));
        let queues = self.queues.slab.iter();
        let queues = queues.map(|(number, queue)| (queue_key(number), encode_queue(queue)));
        std::iter::once(head)
            .chain(tasks)
            .chain(queues)
            .chain(keys)
            .chain(self.dedup.records())
            .chain(self.resent.records())
            .chain(self.batches.records())
            .chain(self.staged.records())
            .chain(self.outbox.records())
            .chain(self.links.records())
            .chain(self.windows.records())
            .chain(self.flows.records())
            .chain(self.nodes.records())
            .chain(self.staged_flows.records())
            .chain(self.schedules.records())
            .chain(self.tallies.records())
    }

    fn encode_head(&self) -> Box<[u8]> {
        let (tasks, others) = (self.task_count(), self.other_records());
        encode(&Head { counters: self.counters, tasks, others })
    }

    /// The number of records beside the tasks and the counters.
    pub(crate) fn other_records(&self) -> u64 {
        let others = self.queues.by_name.len()
            + self.keys.by_id.len()
            + self.dedup.len()
            + self.resent.len()
            + self.batches.len()
            + self.staged.len()
            + self.outbox.len()
            + self.links.len()
            + self.windows.len()
            + self.flows.len()
            + self.nodes.len()
            + self.staged_flows.len()
            + self.schedules.len()
            + self.tallies.len();
        others as u64
    }

    /// Checks that the head of the next cut would count the records of that cut.
    pub(crate) fn check_head(&self) -> Result<(), String> {
        let records = self.all_records().count() as u64;
        let counted = 1 + self.task_count() + self.other_records();
        if records == counted {
            Ok(())
        } else {
            Err(format!("{records} records are counted as {counted}"))
        }
    }

    /// Rebuilds the state from all records of a checkpoint, in any order. Fails if any record is
    /// missing.
    pub fn load<I>(identity: Identity, records: I) -> Result<Machine, ImageError>
    where
        I: IntoIterator<Item = (RecordKey, Box<[u8]>)>,
    {
        let mut machine = Machine::new(identity);
        let mut queues = BTreeMap::new();
        let mut keys = BTreeSet::new();
        let mut head = None;
        for (key, value) in records {
            match key {
                RecordKey::Task(id) => machine.load_task(id, &value)?,
                key if key == counters_key() => head = Some(decode::<Head>(&value)?),
                RecordKey::Rest(key) if key.first() == Some(&KIND_KEY) => {
                    let mut key = Reader::new(&key[1..]);
                    let id = key.read()?;
                    key.finish()?;
                    if !keys.insert(id) {
                        return Err(ImageError { what: format!("key {id:?} is twice") });
                    }
                    machine.keys.load(id, &value)?;
                }
                RecordKey::Rest(key) => machine.load_rest(&key, &value, &mut queues)?,
            }
        }
        if let Some(id) = machine.keys.by_id.keys().find(|id| !keys.contains(*id)) {
            return Err(ImageError { what: format!("key {id:?} of a task is missing") });
        }
        machine.load_queues(queues)?;
        machine.load_head(head)?;
        machine.rebuild_indexes()?;
        machine.index_flows()?;
        Ok(machine)
    }

    /// Checks the numbers of records. Comes last, because all other records must be loaded.
    fn load_head(&mut self, head: Option<Head>) -> Result<(), ImageError> {
        let Some(Head { counters, tasks, others }) = head else {
            return Err(ImageError { what: "its counters are missing".into() });
        };
        let found = (self.task_count(), self.other_records());
        if found != (tasks, others) {
            return Err(ImageError {
                what: format!(
                    "it was written with {tasks} tasks and {others} other records, and {} and {} are there",
                    found.0, found.1
                ),
            });
        }
        self.counters = counters;
        Ok(())
    }

    fn load_task(&mut self, id: TaskId, value: &[u8]) -> Result<(), ImageError> {
        if id.home != self.identity.shard || self.ids.get(id).is_some() {
            return Err(ImageError { what: format!("task {id} is twice or of another shard") });
        }
        let task = read_task(id, value, &mut self.names, &mut self.keys)?;
        self.task_heap_bytes += task.heap_bytes() as u64;
        let slot = self.tasks.insert_stored(task);
        self.ids.insert(id, slot);
        Ok(())
    }

    fn load_rest(
        &mut self,
        key: &[u8],
        value: &[u8],
        queues: &mut BTreeMap<Slot, Queue>,
    ) -> Result<(), ImageError> {
        let mut key = Reader::new(key);
        match key.byte()? {
            KIND_QUEUE => {
                queues.insert(key.read()?, read_queue(value)?);
            }
            kind if kind == kind_of(&self.dedup) => self.dedup.load(key, value)?,
            kind if kind == kind_of(&self.resent) => self.resent.load(key, value)?,
            kind if kind == kind_of(&self.batches) => self.batches.load(key, value)?,
            kind if kind == kind_of(&self.staged) => self.staged.load(key, value)?,
            kind if kind == kind_of(&self.outbox) => self.outbox.load(key, value)?,
            kind if kind == kind_of(&self.links) => self.links.load(key, value)?,
            kind if kind == kind_of(&self.windows) => self.windows.load(key, value)?,
            kind if kind == kind_of(&self.flows) => self.flows.load(key, value)?,
            kind if kind == kind_of(&self.nodes) => self.nodes.load(key, value)?,
            kind if kind == kind_of(&self.staged_flows) => self.staged_flows.load(key, value)?,
            kind if kind == kind_of(&self.schedules) => self.schedules.load(key, value)?,
            kind if kind == kind_of(&self.tallies) => self.tallies.load(key, value)?,
            other => return Err(ImageError { what: format!("unknown kind of record {other}") }),
        }
        Ok(())
    }

    fn load_queues(&mut self, queues: BTreeMap<Slot, Queue>) -> Result<(), ImageError> {
        queues.into_iter().try_for_each(|(number, queue)| self.queues.load(number, queue))
    }

    /// Puts every task into its lane or line, in order, and into the indexes.
    fn rebuild_indexes(&mut self) -> Result<(), ImageError> {
        self.rebuild_rings()?;
        let mut places: Vec<(Slot, LaneId, u64, Slot)> = self
            .tasks
            .iter()
            .map(|(slot, task)| (task.queue, LaneId::of(task), task.order, slot))
            .collect();
        places.sort_unstable();
        for (queue, lane, _, slot) in places {
            if !self.queues.has(queue) {
                let id = self.tasks.get(slot).id;
                return Err(ImageError { what: format!("queue {queue} of task {id} is missing") });
            }
            match self.tasks.get(slot).key() {
                Some(key) => self.load_keyed(key, lane, slot)?,
                None => {
                    let queue = self.queues.slab.get_mut(queue);
                    queue.push(&mut self.tasks, lane, slot, Place::Back);
                }
            }
            self.index(slot);
        }
        self.count_keys()?;
        for number in self.queues.numbers() {
            for lane in LaneId::RETAINED {
                self.refresh_retention(number, lane);
            }
            self.refresh_queue_due(number);
        }
        Ok(())
    }
}

fn kind_of<V: Keep>(_: &Kept<V>) -> u8 {
    V::KIND
}

pub(crate) fn task_record(task: &Task, names: &Names, keys: &Keys) -> Record {
    Record { key: RecordKey::Task(task.id), value: Some(encode_task(task, names, keys)) }
}

pub(crate) fn key_record(key: &Key) -> Record {
    Record { key: key_key(key.id), value: Some(encode_key(key)) }
}

pub(crate) fn queue_record(number: Slot, queue: &Queue) -> Record {
    Record { key: queue_key(number), value: Some(encode_queue(queue)) }
}

/// The key of a record other than a task.
pub(crate) fn rest_key<'a>(kind: u8, key: &impl Wire<'a>) -> RecordKey {
    let mut out = vec![kind];
    key.write(&mut out);
    RecordKey::Rest(out.into_boxed_slice())
}

pub(crate) fn counters_key() -> RecordKey {
    RecordKey::Rest([KIND_COUNTERS].into())
}

fn key_key(id: KeyId) -> RecordKey {
    rest_key(KIND_KEY, &id)
}

fn queue_key(number: Slot) -> RecordKey {
    rest_key(KIND_QUEUE, &number)
}

#[cfg(test)]
mod tests;
