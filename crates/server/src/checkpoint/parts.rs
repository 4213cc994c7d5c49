//! Parts: a shard's checkpoint as a sequence of pieces, for a node that needs all of it.
//!
//! A position names the next record, and has the number and the hash of all records before it. The
//! position travels in both directions with each part. The serving node therefore keeps no state,
//! and a part that was lost, repeated or damaged on the way does not fit its position.

use super::{
    Store, StoreError, View,
    keys::{Generation, full_key, prefix, prefix_end},
};
use fjall::{Keyspace, Readable};
use std::ops::Bound;
use taskyard_machine::{
    DecodeError, ShardId,
    wire::{Reader, Wire, wire_struct},
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The number of keyspaces, in the order in which their records are sent.
const PLACES: u8 = 3;
const PLACE_REST: u8 = 1;
const TASK_ID_BYTES: usize = 16;

/// A position in the sequence of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The keyspace.
    place: u8,
    /// The last key that was sent, without its prefix; empty if there is none.
    after: Vec<u8>,
    /// The number of records so far.
    pub records: u64,
    /// The hash of these records, part by part.
    hash: u64,
}

wire_struct!(Position { place, after, records, hash });

impl Position {
    /// Whether all records are before this position.
    pub(crate) fn is_end(&self) -> bool {
        self.place >= PLACES
    }
}

/// Some records of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The records, each as its keyspace, key and value.
    pub records: Vec<u8>,
    /// The position of the next part.
    pub next: Position,
    /// The checksum of the two fields above.
    checksum: u64,
}

wire_struct!(Part { records, next, checksum });

/// The kind of a record in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A task, under its id.
    Task,
    /// Another record of the state.
    Rest,
    /// The body of a task, under its id.
    Body,
}

/// One record of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRecord<'a> {
    pub(super) place: u8,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> PartRecord<'a> {
    pub(crate) fn kind(&self) -> RecordKind {
        match self.place {
            0 => RecordKind::Task,
            PLACE_REST => RecordKind::Rest,
            _ => RecordKind::Body,
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<PartRecord<'a>, DecodeError> {
        let record =
            PartRecord { place: reader.read()?, key: reader.read()?, value: reader.read()? };
        let is_task = record.place != PLACE_REST;
        let key_fits =
            if is_task { record.key.len() == TASK_ID_BYTES } else { !record.key.is_empty() };
        if record.place >= PLACES || !key_fits {
            return Err(reader.error("a record that no checkpoint has"));
        }
        Ok(record)
    }
}

impl Part {
    fn new(records: Vec<u8>, next: Position) -> Part {
        let checksum = checksum(&records, &next);
        Part { records, next, checksum }
    }

    /// The records of a whole part at position `from`; the error says what is wrong.
    pub(crate) fn records_at(&self, from: &Position) -> Result<Vec<PartRecord<'_>>, String> {
        if checksum(&self.records, &self.next) != self.checksum {
            return Err("its checksum does not fit".into());
        }
        let mut reader = Reader::foreign(&self.records);
        let mut records = Vec::new();
        while !reader.is_empty() {
            records.push(PartRecord::read(&mut reader).map_err(|error| error.what)?);
        }
        let hash = xxh3_64_with_seed(&self.records, from.hash);
        let is_ahead = (self.next.place, &self.next.after) > (from.place, &from.after);
        let count = from.records + records.len() as u64;
        if self.next.records != count || self.next.hash != hash || !is_ahead {
            return Err("it does not follow the part before it".into());
        }
        Ok(records)
    }
}

fn checksum(records: &[u8], next: &Position) -> u64 {
    let mut end = Vec::new();
    next.write(&mut end);
    xxh3_64_with_seed(&end, xxh3_64(records))
}

impl Store {
    /// The keyspace at a place in the sequence of parts.
    pub(super) fn keyspace_at(&self, place: u8) -> &Keyspace {
        match place {
            0 => &self.tasks,
            PLACE_REST => &self.rest,
            _ => &self.bodies,
        }
    }

    /// All keyspaces, in the order of the parts.
    pub(super) fn keyspaces(&self) -> [&Keyspace; PLACES as usize] {
        [&self.tasks, &self.rest, &self.bodies]
    }
}

impl View {
    /// The records from `from` on, up to about `bytes_max`, but at least one if any is left.
    pub(crate) fn part(
        &self,
        shard: ShardId,
        from: &Position,
        bytes_max: usize,
    ) -> Result<Part, StoreError> {
        let (mut records, mut next) = (Vec::new(), from.clone());
        let Some(generation) = self.generation(shard)? else {
            return Err(self.store.damaged("a checkpoint that is to be sent is gone"));
        };
        while !next.is_end() {
            if self.add_records(shard, generation, &mut next, &mut records, bytes_max)? {
                break;
            }
            next.place += 1;
            next.after.clear();
        }
        next.hash = xxh3_64_with_seed(&records, from.hash);
        Ok(Part::new(records, next))
    }

    /// Adds records of one keyspace; returns whether the part is full.
    fn add_records(
        &self,
        shard: ShardId,
        generation: Generation,
        next: &mut Position,
        records: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<bool, StoreError> {
        let after = full_key(shard, generation, &next.after);
        let end = prefix_end(shard, generation);
        let range = (Bound::Excluded(after), Bound::Excluded(end));
        for item in self.snapshot.range(self.store.keyspace_at(next.place), range) {
            let (key, value) =
                item.into_inner().map_err(|error| self.store.error("read", &error))?;
            let key = &key[prefix(shard, generation).len()..];
            // The bytes of the place and of both lengths.
            let bytes = 1 + 10 + key.len() + value.len();
            if !records.is_empty() && records.len() + bytes > bytes_max {
                return Ok(true);
            }
            next.place.write(records);
            key.write(records);
            (&value[..]).write(records);
            next.records += 1;
            next.after = key.to_vec();
        }
        Ok(false)
    }
}
