//! Disk: the storage of one node. It has a log of checksummed frames for all groups, one sync for
//! all of them, and one checkpoint per group, which is written whole or not at all.
//!
//! Invariants: synced data survives a crash. Of the other data, a crash keeps any first part,
//! perhaps with a torn frame after it, which recovery finds by its checksum and drops. The disk
//! never forgets which replicas it has had.

use crate::rng::{Rng, hash};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use taskyard_machine::{RecordKey, TaskId};
use taskyard_replica::eraftpb::{ConfState, Entry, EntryType, HardState};
use taskyard_replica::{LogReader, NodeId, SnapshotSource, SnapshotState};

/// A group's state at one index: a shard's with the bodies of its tasks, or the control group's as
/// one record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) conf_state: ConfState,
    pub(crate) records: BTreeMap<RecordKey, Box<[u8]>>,
    pub(crate) bodies: BTreeMap<TaskId, Box<[u8]>>,
}

/// One group's part of a write.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Write {
    pub(crate) group: u64,
    /// The log starts again, because a snapshot has replaced it.
    pub(crate) reset: bool,
    /// Entries up to this index are dropped.
    pub(crate) compact_to: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) hard_state: Option<HardState>,
}

/// One group's log, with synced and other entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GroupLog {
    pub(crate) hard_state: HardState,
    pub(crate) entries: BTreeMap<u64, Entry>,
}

#[derive(Debug, Default)]
struct Content {
    frames: Vec<Vec<u8>>,
    synced: usize,
    logs: BTreeMap<u64, GroupLog>,
    checkpoints: BTreeMap<u64, Arc<Checkpoint>>,
    /// The present replica of each group.
    replicas: BTreeMap<u64, u64>,
    /// The last replica that the disk has had of each group.
    replicas_last: BTreeMap<u64, u64>,
    /// The number of the node in its cluster.
    node: Option<NodeId>,
    lies: bool,
}

/// One node's disk; handles share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

impl Disk {
    /// A disk whose sync reports success without effect.
    pub(crate) fn lying() -> Disk {
        let disk = Disk::default();
        disk.content().lies = true;
        disk
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().expect("one thread runs a simulation")
    }

    /// Appends a frame; its number is for [`Disk::sync`].
    pub(crate) fn write(&self, writes: &[Write]) -> usize {
        let mut content = self.content();
        for write in writes {
            content.logs.entry(write.group).or_default().take(write);
        }
        content.frames.push(encode_frame(writes));
        content.frames.len()
    }

    /// Syncs everything up to frame `number`.
    pub(crate) fn sync(&self, number: usize) {
        let mut content = self.content();
        if !content.lies {
            content.synced = content.synced.max(number.min(content.frames.len()));
        }
    }

    /// Stores a checkpoint whole and synced, in place of the one before.
    pub(crate) fn store_checkpoint(&self, group: u64, checkpoint: Checkpoint) {
        self.content().checkpoints.insert(group, Arc::new(checkpoint));
    }

    pub(crate) fn checkpoint(&self, group: u64) -> Option<Arc<Checkpoint>> {
        self.content().checkpoints.get(&group).cloned()
    }

    /// Records that the disk has a replica of a group from now on.
    pub(crate) fn assign(&self, group: u64, replica: u64) {
        let mut content = self.content();
        content.replicas.insert(group, replica);
        let last = content.replicas_last.entry(group).or_default();
        *last = replica.max(*last);
    }

    /// Whether the disk has had this replica or a later one of its group. Ids only grow.
    pub(crate) fn has_held(&self, group: u64, replica: u64) -> bool {
        self.content().replicas_last.get(&group).is_some_and(|last| *last >= replica)
    }

    /// Records the node's number.
    pub(crate) fn enter(&self, node: NodeId) {
        self.content().node = Some(node);
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        self.content().node
    }

    pub(crate) fn replica(&self, group: u64) -> Option<u64> {
        self.content().replicas.get(&group).copied()
    }

    /// Removes everything of a replica that has moved away.
    pub(crate) fn forget(&self, group: u64) {
        let nothing = Some(HardState::default());
        let reset = Write { group, reset: true, hard_state: nothing, ..Write::default() };
        let frame = self.write(&[reset]);
        self.sync(frame);
        let mut content = self.content();
        content.checkpoints.remove(&group);
        content.replicas.remove(&group);
    }

    /// Loses the power: of the data that was not synced, only a first part stays.
    pub(crate) fn crash(&self, rng: &mut Rng) {
        let mut content = self.content();
        let unsynced = content.frames.len() - content.synced;
        if unsynced == 0 {
            return;
        }
        let kept = content.synced + rng.below(unsynced as u64 + 1) as usize;
        let torn = content.frames.get(kept).filter(|_| rng.chance(500)).map(|frame| {
            let cut = rng.below(frame.len() as u64) as usize;
            frame[..cut].to_vec()
        });
        content.frames.truncate(kept);
        content.frames.extend(torn);
    }

    /// Reads the log from its frames again, as a restart does. Returns the number of torn frames
    /// that it dropped.
    pub(crate) fn recover(&self) -> usize {
        let mut content = self.content();
        let mut logs: BTreeMap<u64, GroupLog> = BTreeMap::new();
        let decoded: Vec<Vec<Write>> =
            content.frames.iter().map_while(|frame| decode_frame(frame)).collect();
        for write in decoded.iter().flatten() {
            logs.entry(write.group).or_default().take(write);
        }
        let torn = content.frames.len() - decoded.len();
        content.frames.truncate(decoded.len());
        // The data that was read counts as synced again before anything builds on it.
        content.synced = content.frames.len();
        content.logs = logs;
        torn
    }

    /// One group's log at present.
    pub(crate) fn log(&self, group: u64) -> GroupLog {
        self.content().logs.get(&group).cloned().unwrap_or_default()
    }

    /// Whether a crash now would keep this entry, in the log or covered by a checkpoint.
    pub(crate) fn keeps(&self, group: u64, index: u64, term: u64) -> bool {
        let content = self.content();
        if content.checkpoints.get(&group).is_some_and(|checkpoint| checkpoint.index >= index) {
            return true;
        }
        let readable = content.logs.get(&group).and_then(|log| log.entries.get(&index));
        let mut held = false;
        let mut decided = false;
        // Newest first, because the last frame with the index counts.
        for frame in content.frames[..content.synced].iter().rev() {
            for write in decode_frame(frame).unwrap_or_default().iter().rev() {
                let first = write.entries.first().map_or(u64::MAX, |entry| entry.index);
                if write.group == group && !decided && (first <= index || write.reset) {
                    decided = true;
                    let position = index.checked_sub(first).map(|offset| offset as usize);
                    let entry = position.and_then(|position| write.entries.get(position));
                    held = entry.is_some_and(|entry| entry.term == term);
                }
            }
            if decided {
                break;
            }
        }
        held && readable.is_none_or(|entry| entry.term == term)
    }

    pub(crate) fn reader(&self, group: u64) -> GroupDisk {
        GroupDisk { disk: self.clone(), group }
    }
}

impl GroupLog {
    fn take(&mut self, write: &Write) {
        if write.reset {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.entries.split_off(&first.index);
            self.entries.extend(write.entries.iter().map(|entry| (entry.index, entry.clone())));
        }
        if write.compact_to > 0 {
            self.entries = self.entries.split_off(&(write.compact_to + 1));
        }
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = hard_state.clone();
        }
    }
}

/// A replica's view of its own log and checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct GroupDisk {
    disk: Disk,
    group: u64,
}

impl LogReader for GroupDisk {
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<Entry> {
        let content = self.disk.content();
        let Some(log) = content.logs.get(&self.group) else { return Vec::new() };
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.data.len() as u64;
            bytes <= bytes_max || entry.index == from
        };
        log.entries.range(from..to).map(|(_, entry)| entry).take_while(fits).cloned().collect()
    }

    fn term(&self, index: u64) -> Option<u64> {
        let content = self.disk.content();
        content.logs.get(&self.group)?.entries.get(&index).map(|entry| entry.term)
    }
}

impl SnapshotSource for GroupDisk {
    fn snapshot(&self, index_min: u64, _to: u64) -> Option<SnapshotState> {
        let checkpoint = self.disk.checkpoint(self.group)?;
        (checkpoint.index >= index_min).then(|| SnapshotState {
            index: checkpoint.index,
            term: checkpoint.term,
            conf_state: checkpoint.conf_state.clone(),
            data: checkpoint.encode_state().into(),
        })
    }
}

impl Checkpoint {
    /// Records and bodies as bytes, for a peer.
    fn encode_state(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, self.records.len() as u64);
        for (key, value) in &self.records {
            match key {
                RecordKey::Task(task) => {
                    out.push(0);
                    out.extend(task.to_u128().to_le_bytes());
                }
                RecordKey::Rest(key) => {
                    out.push(1);
                    put_bytes(&mut out, key);
                }
            }
            put_bytes(&mut out, value);
        }
        put_u64(&mut out, self.bodies.len() as u64);
        for (task, body) in &self.bodies {
            out.extend(task.to_u128().to_le_bytes());
            put_bytes(&mut out, body);
        }
        out
    }

    /// Reads the bytes of [`Checkpoint::encode_state`]; `None` if they are damaged.
    pub(crate) fn decode_state(&mut self, bytes: &[u8]) -> Option<()> {
        let mut input = Input(bytes);
        for _ in 0..input.u64()? {
            let key = match input.take(1)? {
                [0] => RecordKey::Task(input.task()?),
                _ => RecordKey::Rest(input.bytes()?.into()),
            };
            self.records.insert(key, input.bytes()?.into());
        }
        for _ in 0..input.u64()? {
            let task = input.task()?;
            self.bodies.insert(task, input.bytes()?.into());
        }
        input.0.is_empty().then_some(())
    }
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend(bytes);
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u64()? as usize;
        self.take(length)
    }

    fn task(&mut self) -> Option<TaskId> {
        Some(TaskId::from_u128(u128::from_le_bytes(self.take(16)?.try_into().ok()?)))
    }
}

fn encode_frame(writes: &[Write]) -> Vec<u8> {
    let mut body = Vec::new();
    put_u64(&mut body, writes.len() as u64);
    for write in writes {
        put_u64(&mut body, write.group);
        put_u64(&mut body, u64::from(write.reset));
        put_u64(&mut body, write.compact_to);
        put_u64(&mut body, write.entries.len() as u64);
        for entry in &write.entries {
            put_u64(&mut body, entry.index);
            put_u64(&mut body, entry.term);
            put_u64(&mut body, u64::from(entry.get_entry_type() == EntryType::EntryConfChangeV2));
            put_bytes(&mut body, &entry.data);
        }
        put_u64(&mut body, u64::from(write.hard_state.is_some()));
        let state = write.hard_state.clone().unwrap_or_default();
        for number in [state.term, state.vote, state.commit] {
            put_u64(&mut body, number);
        }
    }
    let mut frame = Vec::with_capacity(body.len() + 16);
    put_u64(&mut frame, hash(&body));
    put_bytes(&mut frame, &body);
    frame
}

/// Decodes a frame; `None` if it is torn.
fn decode_frame(frame: &[u8]) -> Option<Vec<Write>> {
    let mut input = Input(frame);
    let checksum = input.u64()?;
    let body = input.bytes()?;
    if hash(body) != checksum {
        return None;
    }
    let mut input = Input(body);
    let mut writes = Vec::new();
    for _ in 0..input.u64()? {
        let mut write = Write { group: input.u64()?, ..Write::default() };
        write.reset = input.u64()? == 1;
        write.compact_to = input.u64()?;
        for _ in 0..input.u64()? {
            let mut entry = Entry { index: input.u64()?, term: input.u64()?, ..Entry::default() };
            if input.u64()? == 1 {
                entry.set_entry_type(EntryType::EntryConfChangeV2);
            }
            entry.data = input.bytes()?.to_vec().into();
            write.entries.push(entry);
        }
        let stated = input.u64()? == 1;
        let (term, vote, commit) = (input.u64()?, input.u64()?, input.u64()?);
        write.hard_state = stated.then(|| HardState { term, vote, commit, ..HardState::default() });
        writes.push(write);
    }
    Some(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(first: u64, count: u64, term: u64) -> Write {
        let entry = |index| Entry { index, term, data: vec![7; 20].into(), ..Entry::default() };
        Write {
            group: 1,
            entries: (first..first + count).map(entry).collect(),
            hard_state: Some(HardState { term, vote: 2, commit: first, ..HardState::default() }),
            ..Write::default()
        }
    }

    #[test]
    fn synced_data_survives_and_torn_frames_are_dropped() {
        let mut torn = 0;
        for seed in 0..100 {
            let disk = Disk::default();
            let synced = disk.write(&[write(2, 3, 1)]);
            disk.sync(synced);
            disk.write(&[write(5, 3, 1)]);
            disk.write(&[write(8, 3, 2)]);
            assert!(disk.keeps(1, 4, 1));
            assert!(!disk.keeps(1, 5, 1), "not synced");
            let before = disk.log(1);
            disk.crash(&mut Rng::new(seed));
            torn += disk.recover();
            let after = disk.log(1);
            assert!(
                [3, 6, 9].contains(&after.entries.len()),
                "a frame is kept whole or not at all"
            );
            for (index, entry) in &after.entries {
                assert_eq!(Some(entry), before.entries.get(index));
            }
        }
        assert!(torn > 0, "some crashes tear a frame");
    }

    #[test]
    fn later_frames_replace_reset_and_compact() {
        let disk = Disk::default();
        disk.write(&[write(2, 5, 1)]);
        disk.write(&[write(4, 1, 2)]);
        let number = disk.write(&[Write { group: 1, compact_to: 2, ..Write::default() }]);
        disk.sync(number);
        let terms: Vec<_> =
            disk.log(1).entries.values().map(|entry| (entry.index, entry.term)).collect();
        assert_eq!(terms, [(3, 1), (4, 2)]);
        assert!(disk.keeps(1, 4, 2) && !disk.keeps(1, 4, 1) && !disk.keeps(1, 5, 1));
        let number = disk.write(&[Write { group: 1, reset: true, ..Write::default() }]);
        disk.sync(number);
        assert!(!disk.keeps(1, 4, 2));
        assert_eq!(disk.log(1).entries.len(), 0);
        assert_eq!(disk.log(1).hard_state.term, 2);
        disk.recover();
        assert_eq!(disk.log(1).entries.len(), 0);
    }

    #[test]
    fn a_checkpoint_survives_the_wire() {
        let task = TaskId::from_u128(77);
        let checkpoint = Checkpoint {
            records: BTreeMap::from([
                (RecordKey::Task(task), b"task"[..].into()),
                (RecordKey::Rest(b"queue"[..].into()), b""[..].into()),
            ]),
            bodies: BTreeMap::from([(task, b"body"[..].into())]),
            ..Checkpoint::default()
        };
        let bytes = checkpoint.encode_state();
        let mut decoded = Checkpoint::default();
        assert_eq!(decoded.decode_state(&bytes), Some(()));
        assert_eq!(decoded, checkpoint);
        assert_eq!(Checkpoint::default().decode_state(&bytes[..bytes.len() - 1]), None);
    }
}
