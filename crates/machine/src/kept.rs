//! Kept: a map of records of one kind, as a part of the state.
//!
//! The map knows which records have changed since the last cut, and when each expires. A record
//! that came and went between two cuts leaves no trace in the later one.

use crate::digest::{Digest, Word};
use crate::image::{Record, RecordKey, rest_key};
use crate::wire::{Reader, Wire, decode, encode};
use crate::{DecodeError, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// A record's value.
pub(crate) trait Keep: for<'a> Wire<'a> + Debug {
    type Key: for<'a> Wire<'a> + Word + Ord + Copy + Debug;

    /// The first byte of its record keys; never given to another kind.
    const KIND: u8;

    /// When the record is due, for most kinds to be forgotten. The default is never.
    fn expires_at(&self) -> Option<Timestamp> {
        None
    }

    /// Bytes that the record takes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

#[derive(Debug)]
pub(crate) struct Kept<V: Keep> {
    map: BTreeMap<V::Key, V>,
    expiries: BTreeSet<(Timestamp, V::Key)>,
    /// Keys changed since the last cut, and whether the last cut has the record.
    dirty: BTreeMap<V::Key, bool>,
    /// Keys of the last cut that are not yet encoded, and whether the cut before has the record.
    frozen: BTreeMap<V::Key, bool>,
    /// Records of the last cut that were encoded early because they were about to change.
    early: Vec<Record>,
    heap_bytes: u64,
    /// The digest of the changes since the last `take_changes`.
    changes: Digest,
}

impl<V: Keep> Kept<V> {
    pub(crate) fn new() -> Kept<V> {
        Kept {
            map: BTreeMap::new(),
            expiries: BTreeSet::new(),
            dirty: BTreeMap::new(),
            frozen: BTreeMap::new(),
            early: Vec::new(),
            heap_bytes: 0,
            changes: Digest::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn get(&self, key: V::Key) -> Option<&V> {
        self.map.get(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (V::Key, &V)> {
        self.map.iter().map(|(&key, value)| (key, value))
    }

    /// The records of a range of keys.
    pub(crate) fn range(
        &self,
        keys: impl std::ops::RangeBounds<V::Key>,
    ) -> impl Iterator<Item = (V::Key, &V)> {
        self.map.range(keys).map(|(&key, value)| (key, value))
    }

    /// Puts a value under a key and replaces an earlier one.
    pub(crate) fn insert(&mut self, key: V::Key, value: V) {
        self.note_change(key);
        self.changes.put(key, value.expires_at());
        self.put(key, value);
    }

    pub(crate) fn remove(&mut self, key: V::Key) -> Option<V> {
        if !self.map.contains_key(&key) {
            return None;
        }
        self.note_change(key);
        if self.dirty.get(&key) == Some(&false) {
            self.dirty.remove(&key);
        }
        self.changes.took(key);
        self.take(key)
    }

    /// Changes the value under a key, which must exist.
    pub(crate) fn update<R>(&mut self, key: V::Key, change: impl FnOnce(&mut V) -> R) -> R {
        self.note_change(key);
        let mut value = self.take(key).unwrap_or_else(|| panic!("no record under {key:?}"));
        let result = change(&mut value);
        self.changes.put(key, value.expires_at());
        self.put(key, value);
        result
    }

    /// The digest of the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Digest {
        std::mem::take(&mut self.changes)
    }

    /// When the first record expires.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.expiries.first().map(|&(at, _)| at)
    }

    /// When the last record expires.
    pub(crate) fn last_due(&self) -> Option<Timestamp> {
        self.expiries.last().map(|&(at, _)| at)
    }

    /// The record that expires first.
    pub(crate) fn first_to_expire(&self) -> Option<(Timestamp, V::Key)> {
        self.expiries.first().copied()
    }

    /// Records that are due, earliest first, with their deadlines.
    pub(crate) fn due(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, &V)> {
        let due = self.expiries.iter().take_while(move |(at, _)| *at <= now);
        due.map(|(at, key)| (*at, &self.map[key]))
    }

    /// Forgets the record that expires first, if it is due.
    pub(crate) fn expire_one(&mut self, now: Timestamp) -> bool {
        if self.next_due().is_none_or(|at| at > now) {
            return false;
        }
        self.forget_first();
        true
    }

    /// Forgets the record that expires first.
    pub(crate) fn forget_first(&mut self) {
        if let Some(&(_, key)) = self.expiries.first() {
            self.remove(key);
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        // Tree nodes are half full to full; two thirds is the average of long runs.
        let record = (size_of::<V::Key>() + size_of::<V>()) * 3 / 2;
        let expiry = size_of::<(Timestamp, V::Key)>() * 3 / 2;
        let trees = self.map.len() * record + self.expiries.len() * expiry;
        trees as u64 + self.heap_bytes
    }

    fn put(&mut self, key: V::Key, value: V) {
        self.take(key);
        if let Some(at) = value.expires_at() {
            self.expiries.insert((at, key));
        }
        self.heap_bytes += value.heap_bytes() as u64;
        self.map.insert(key, value);
    }

    fn take(&mut self, key: V::Key) -> Option<V> {
        let value = self.map.remove(&key)?;
        if let Some(at) = value.expires_at() {
            self.expiries.remove(&(at, key));
        }
        self.heap_bytes -= value.heap_bytes() as u64;
        Some(value)
    }

    /// Must come before every change: encodes the record for the frozen cut, and marks it for the
    /// next.
    fn note_change(&mut self, key: V::Key) {
        if let Some(existed) = self.frozen.remove(&key) {
            let record = self.record(key, existed);
            self.early.extend(record);
        }
        let exists = self.map.contains_key(&key);
        self.dirty.entry(key).or_insert(exists);
    }
}

/// Checkpoints.
impl<V: Keep> Kept<V> {
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    pub(crate) fn freeze(&mut self) {
        assert!(
            self.frozen.is_empty() && self.early.is_empty(),
            "the previous cut was not handed out whole"
        );
        self.frozen = std::mem::take(&mut self.dirty);
    }

    /// The next record of the frozen cut.
    pub(crate) fn next_frozen(&mut self) -> Option<Record> {
        if let Some(record) = self.early.pop() {
            return Some(record);
        }
        while let Some((key, existed)) = self.frozen.pop_first() {
            if let Some(record) = self.record(key, existed) {
                return Some(record);
            }
        }
        None
    }

    /// Loads a record of a checkpoint. The kind of its key was read already.
    pub(crate) fn load(&mut self, mut key: Reader<'_>, value: &[u8]) -> Result<(), DecodeError> {
        let id = key.read()?;
        key.finish()?;
        self.put(id, decode(value)?);
        Ok(())
    }

    /// All records, as of now.
    pub(crate) fn records(&self) -> impl Iterator<Item = (RecordKey, Box<[u8]>)> {
        self.map.iter().map(|(key, value)| (rest_key(V::KIND, key), encode(value)))
    }

    /// The record as of now; `None` if it is gone and the last cut did not have it either.
    fn record(&self, key: V::Key, existed: bool) -> Option<Record> {
        let value = self.map.get(&key).map(encode);
        let worth_telling = existed || value.is_some();
        worth_telling.then(|| Record { key: rest_key(V::KIND, &key), value })
    }

    /// Compares the counters and expiries with the records.
    pub(crate) fn check(&self) -> Result<(), String> {
        let expiries: BTreeSet<_> = self
            .map
            .iter()
            .filter_map(|(&key, value)| value.expires_at().map(|at| (at, key)))
            .collect();
        if expiries != self.expiries {
            return Err(format!("expiries of record kind {} disagree with them", V::KIND));
        }
        let heap_bytes: usize = self.map.values().map(Keep::heap_bytes).sum();
        if heap_bytes as u64 != self.heap_bytes {
            return Err(format!("memory of record kind {} is miscounted", V::KIND));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::wire_struct;

    #[derive(Debug, PartialEq)]
    struct Note {
        text: Box<str>,
        expires_at: Timestamp,
    }

    wire_struct!(Note { text, expires_at });

    impl Keep for Note {
        type Key = u64;
        const KIND: u8 = 200;

        fn expires_at(&self) -> Option<Timestamp> {
            Some(self.expires_at)
        }

        fn heap_bytes(&self) -> usize {
            self.text.len()
        }
    }

    fn note(text: &str, expires_at: u64) -> Note {
        Note { text: text.into(), expires_at: Timestamp(expires_at) }
    }

    /// Returns the frozen cut as pairs of a key and whether the record exists.
    fn cut(kept: &mut Kept<Note>) -> Vec<(u64, bool)> {
        let mut records: Vec<(u64, bool)> = std::iter::from_fn(|| kept.next_frozen())
            .map(|record| match record.key {
                RecordKey::Rest(key) => (u64::from(key[1]), record.value.is_some()),
                RecordKey::Task(_) => panic!("not a task"),
            })
            .collect();
        records.sort_unstable();
        records
    }

    #[test]
    fn a_cut_is_the_state_at_its_moment_despite_later_entries() {
        let mut kept = Kept::new();
        kept.insert(1, note("one", 10));
        kept.insert(2, note("two", 20));
        kept.freeze();
        kept.update(1, |note| note.text = "changed".into());
        kept.remove(2);
        kept.insert(3, note("three", 30));
        let frozen: Vec<Record> = std::iter::from_fn(|| kept.next_frozen()).collect();
        let values: Vec<_> = frozen.into_iter().map(|record| record.value).collect();
        assert!(values.contains(&Some(encode(&note("one", 10)))));
        assert!(values.contains(&Some(encode(&note("two", 20)))));
        assert_eq!(values.len(), 2);
        kept.freeze();
        assert_eq!(cut(&mut kept), [(1, true), (2, false), (3, true)]);
        kept.check().unwrap();
    }

    #[test]
    fn a_value_made_and_removed_between_cuts_leaves_no_record() {
        let mut kept = Kept::new();
        kept.insert(1, note("gone", 10));
        kept.remove(1);
        assert_eq!(kept.dirty(), 0);
        kept.insert(2, note("frozen, then gone", 10));
        kept.freeze();
        kept.remove(2);
        kept.insert(2, note("back", 10));
        kept.remove(2);
        assert_eq!(cut(&mut kept), [(2, true)]);
        kept.freeze();
        assert_eq!(cut(&mut kept), [(2, false)]);
    }

    #[test]
    fn the_first_to_expire_is_forgotten_first() {
        let mut kept = Kept::new();
        kept.insert(1, note("late", 30));
        kept.insert(2, note("early", 10));
        kept.insert(1, note("now earlier", 5));
        assert_eq!(kept.next_due(), Some(Timestamp(5)));
        assert!(!kept.expire_one(Timestamp(4)));
        assert!(kept.expire_one(Timestamp(10)) && kept.expire_one(Timestamp(10)));
        assert_eq!((kept.len(), kept.memory_bytes()), (0, 0));
    }
}
