//! Log: raft's view of its log: a cache of recent entries over the driver's disk.
//!
//! Invariants: entries after `start` and up to `last` are readable, from the cache or through the
//! driver's [`LogReader`]. The cache has every entry that is not both persisted and applied, so
//! that no read from disk can overtake a write.

use crate::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::collections::VecDeque;

/// Reads entries that the cache no longer has, for a lagging peer or after a restart.
pub trait LogReader: Send {
    /// Entries `[from, to)` up to `bytes_max`, but at least one.
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<Entry>;
    /// The term of one entry.
    fn term(&self, index: u64) -> Option<u64>;
}

/// A checkpoint for a peer that is behind the start of the log.
#[derive(Clone, Debug)]
pub struct SnapshotState {
    /// The checkpoint's index.
    pub index: u64,
    /// The term of the entry at that index.
    pub term: u64,
    /// Voters and learners at that index.
    pub conf_state: ConfState,
    /// The driver's own data: the state itself, or where the receiver fetches it.
    pub data: bytes::Bytes,
}

/// Offers the last synced checkpoint to peers that are behind the start of the log.
pub trait SnapshotSource: Send {
    /// A checkpoint at `index_min` or later for replica `to`; `None` while there is none, and raft
    /// then asks again. The checkpoint must name `to` as a member, so that the driver takes a new
    /// checkpoint after a member is added.
    fn snapshot(&self, index_min: u64, to: u64) -> Option<SnapshotState>;
}

/// Estimated bytes of an entry beside its data.
const ENTRY_OVERHEAD_BYTES: usize = 64;

pub(crate) struct Log {
    hard_state: HardState,
    conf_state: ConfState,
    /// Index and term just before the first readable entry.
    start: (u64, u64),
    last: u64,
    /// The newest entries, without gaps, up to `last`.
    cache: VecDeque<Entry>,
    cache_bytes: usize,
    reader: Box<dyn LogReader>,
    snapshots: Option<Box<dyn SnapshotSource>>,
}

impl Log {
    pub(crate) fn new(
        hard_state: HardState,
        conf_state: ConfState,
        start: (u64, u64),
        last: u64,
        reader: Box<dyn LogReader>,
    ) -> Log {
        Log {
            hard_state,
            conf_state,
            start,
            last,
            cache: VecDeque::new(),
            cache_bytes: 0,
            reader,
            snapshots: None,
        }
    }

    pub(crate) fn set_snapshots(&mut self, source: Box<dyn SnapshotSource>) {
        self.snapshots = Some(source);
    }

    pub(crate) fn first(&self) -> u64 {
        self.start.0 + 1
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// Adds entries that the driver is about to write. They replace cached entries from the index
    /// of the first one on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.start.0 && first.index <= self.last + 1,
            "entry {} does not follow the log, which holds ({}, {}]",
            first.index,
            self.start.0,
            self.last
        );
        while self.cache.back().is_some_and(|entry| entry.index >= first.index) {
            let replaced = self.cache.pop_back().expect("the loop has just looked at it");
            self.cache_bytes -= entry_bytes(&replaced);
        }
        self.cache_bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.cache.extend(entries.iter().cloned());
        self.last = entries.last().map_or(self.last, |entry| entry.index);
    }

    /// Starts again after a snapshot.
    pub(crate) fn restart_at(&mut self, index: u64, term: u64) {
        self.start = (index, term);
        self.last = index;
        self.cache.clear();
        self.cache_bytes = 0;
    }

    /// Forgets entries up to `index`, which are then no longer readable.
    pub(crate) fn compact(&mut self, index: u64, term: u64) {
        self.start = (index, term);
        while self.cache.front().is_some_and(|entry| entry.index <= index) {
            self.evict_front();
        }
    }

    /// Drops cached entries up to `index`, oldest first, until `bytes_max` are left.
    pub(crate) fn evict(&mut self, index: u64, bytes_max: usize) {
        while self.cache_bytes > bytes_max
            && self.cache.front().is_some_and(|entry| entry.index <= index)
        {
            self.evict_front();
        }
    }

    fn evict_front(&mut self) {
        if let Some(entry) = self.cache.pop_front() {
            self.cache_bytes -= entry_bytes(&entry);
        }
    }

    /// The index of the first cached entry; the index after `last` if the cache is empty.
    fn cache_first(&self) -> u64 {
        self.cache.front().map_or(self.last + 1, |entry| entry.index)
    }

    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
        let cache_first = self.cache_first();
        let mut entries = Vec::new();
        let mut bytes_left = bytes_max;
        if low < cache_first {
            entries = self.reader.entries(low, high.min(cache_first), bytes_max);
            let contiguous = entries.iter().zip(low..).all(|(entry, index)| entry.index == index);
            assert!(
                !entries.is_empty() && contiguous,
                "the log lost entries: asked for [{low}, {}), got {:?}",
                high.min(cache_first),
                entries.iter().map(|entry| entry.index).collect::<Vec<_>>()
            );
            let bytes: u64 = entries.iter().map(|entry| entry_bytes(entry) as u64).sum();
            bytes_left = bytes_left.saturating_sub(bytes);
        }
        let mut next = low + entries.len() as u64;
        if next >= cache_first {
            for entry in self.cache.range((next - cache_first) as usize..) {
                let bytes = entry_bytes(entry) as u64;
                if next >= high || (bytes > bytes_left && !entries.is_empty()) {
                    break;
                }
                bytes_left = bytes_left.saturating_sub(bytes);
                entries.push(entry.clone());
                next += 1;
            }
        }
        entries
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.start.0 {
            return Err(StorageError::Compacted.into());
        }
        assert!(high <= self.last + 1, "entries up to {high} asked for, last is {}", self.last);
        if low >= high {
            return Ok(Vec::new());
        }
        Ok(self.read(low, high, max_size.into().unwrap_or(u64::MAX)))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.start.0 {
            return Ok(self.start.1);
        }
        if index < self.start.0 {
            return Err(StorageError::Compacted.into());
        }
        if index > self.last {
            return Err(StorageError::Unavailable.into());
        }
        let cache_first = self.cache_first();
        let term = if index >= cache_first {
            self.cache.get((index - cache_first) as usize).map(|entry| entry.term)
        } else {
            self.reader.term(index)
        };
        term.ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // A snapshot older than the log's start would leave a gap.
        let index_min = request_index.max(self.start.0);
        let Some(state) = self
            .snapshots
            .as_ref()
            .and_then(|source| source.snapshot(index_min, to))
            .filter(|state| state.index >= index_min && is_member(&state.conf_state, to))
        else {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        };
        let mut snapshot = Snapshot { data: state.data, ..Default::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = state.index;
        metadata.term = state.term;
        metadata.set_conf_state(state.conf_state);
        Ok(snapshot)
    }
}

fn is_member(conf_state: &ConfState, id: u64) -> bool {
    let groups = [&conf_state.voters, &conf_state.learners, &conf_state.voters_outgoing];
    groups.iter().any(|ids| ids.contains(&id))
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with entries `1..=last`, each of term `index / 10 + 1`.
    struct Disk {
        last: u64,
    }

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: vec![0; 100].into(), ..Default::default() }
    }

    impl LogReader for Disk {
        fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<Entry> {
            assert!(to <= self.last + 1, "entry {} is not on disk", to - 1);
            let fit = (bytes_max / entry_bytes(&entry(1, 1)) as u64).max(1);
            (from..to).take(fit as usize).map(|index| entry(index, index / 10 + 1)).collect()
        }

        fn term(&self, index: u64) -> Option<u64> {
            (index <= self.last).then_some(index / 10 + 1)
        }
    }

    fn log(start: u64, last: u64) -> Log {
        let disk = Box::new(Disk { last });
        Log::new(HardState::default(), ConfState::default(), (start, start / 10 + 1), last, disk)
    }

    fn indexes(log: &Log, low: u64, high: u64, bytes_max: Option<u64>) -> Vec<u64> {
        let entries = log.entries(low, high, bytes_max, GetEntriesContext::empty(false));
        entries.unwrap().iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn reads_span_disk_and_cache() {
        let mut log = log(5, 20);
        log.append(&[entry(21, 3), entry(22, 3)]);
        assert_eq!(indexes(&log, 19, 23, None), [19, 20, 21, 22]);
        assert_eq!(indexes(&log, 21, 23, None), [21, 22]);
        assert_eq!(indexes(&log, 6, 8, None), [6, 7]);
        assert_eq!(log.term(20), Ok(3));
        assert_eq!(log.term(22), Ok(3));
    }

    #[test]
    fn a_read_is_bounded_by_bytes_but_never_empty() {
        let mut log = log(5, 20);
        log.append(&[entry(21, 3), entry(22, 3)]);
        let one = entry_bytes(&entry(1, 1)) as u64;
        for (low, bytes, expected) in [
            (19, 1, vec![19]),
            (19, 3 * one, vec![19, 20, 21]),
            (21, 1, vec![21]),
            (20, one, vec![20]),
        ] {
            assert_eq!(indexes(&log, low, 23, Some(bytes)), expected, "{bytes} bytes from {low}");
        }
    }

    #[test]
    fn a_conflicting_tail_is_replaced_even_where_it_is_on_disk() {
        let mut log = log(5, 20);
        log.append(&[entry(21, 3)]);
        log.append(&[entry(18, 9), entry(19, 9)]);
        assert_eq!(log.last_index(), Ok(19));
        assert_eq!(log.term(18), Ok(9), "the cache must win over the disk");
        assert_eq!(log.term(17), Ok(2));
        assert!(log.term(20).is_err());
        assert_eq!(indexes(&log, 16, 20, None), [16, 17, 18, 19]);
    }

    #[test]
    fn eviction_keeps_what_is_not_applied_and_compaction_ends_reading() {
        let mut log = log(5, 5);
        log.append(&(6..=9).map(|index| entry(index, 1)).collect::<Vec<_>>());
        log.reader = Box::new(Disk { last: 9 });
        log.evict(7, 0);
        assert_eq!(log.cache.iter().map(|entry| entry.index).collect::<Vec<_>>(), [8, 9]);
        assert_eq!(log.cache_bytes(), 2 * entry_bytes(&entry(8, 1)));
        assert_eq!(indexes(&log, 6, 10, None), [6, 7, 8, 9]);
        log.compact(8, 1);
        assert_eq!(log.first_index(), Ok(9));
        assert!(log.entries(8, 10, None, GetEntriesContext::empty(false)).is_err());
        assert_eq!(log.term(8), Ok(1), "the term just before the start is kept for matching");
        assert_eq!(log.cache_bytes(), entry_bytes(&entry(9, 1)));
    }
}
