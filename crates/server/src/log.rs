//! Log: the Raft log of all shards on disk. Only this file and `log/` name raft-engine.
//!
//! All groups share one file and one sync. Invariant: every write is synced before it returns, and
//! before the next one begins; so a record that can't be read is a torn tail exactly if no sound
//! record follows it (`scan.rs`).

mod files;
mod reset;
mod scan;
#[cfg(test)]
mod tests;

use crate::{
    clock,
    data_dir::{Format, sync_dir},
    node::StartError,
    shard_loop::panic_message,
};
use files::{Files, SyncFailed};
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use taskyard_machine::ShardId;
use taskyard_replica::{CONTROL_GROUP, LogReader, eraftpb};

/// The size of one log file. Larger files are rotated less often and freed later.
const FILE_BYTES: u64 = 64 << 20;
/// Above this size, the groups with the oldest entries are asked for a checkpoint.
pub(crate) const PURGE_BYTES: u64 = 512 << 20;
const HARD_STATE_KEY: &[u8] = b"hard_state";
const CUT_KEY: &[u8] = b"cut";
const MARK_KEY: &[u8] = b"mark";
const REPLICA_KEY: &[u8] = b"replica";
const CONTROL_KEY: &[u8] = b"control";
const GONE_KEY: &[u8] = b"gone";
/// The id of each replica of the node that founds a cluster.
pub(crate) const FIRST_REPLICA: u64 = 1;

/// A shard's Raft group.
pub(crate) fn group_of(shard: ShardId) -> u64 {
    u64::from(shard.0) + 1
}

struct Entries;

impl MessageExt for Entries {
    type Entry = eraftpb::Entry;

    fn index(entry: &eraftpb::Entry) -> u64 {
        entry.index
    }
}

/// The log of all groups.
pub(crate) struct Log {
    /// Not shared, unless a failed sync leaks it.
    engine: Arc<Engine<Files>>,
    file_bytes: u64,
    /// Bytes written since the log was opened, and their number at the last purge.
    written: AtomicU64,
    purged_at: AtomicU64,
    #[cfg(test)]
    faults: Arc<files::SyncFaults>,
}

/// The state of a group's log when it is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GroupState {
    /// Term, vote, commit; `None` if nothing was ever written.
    pub hard_state: Option<eraftpb::HardState>,
    /// Everything up to this index was dropped, because a checkpoint has it.
    pub cut: u64,
    /// First and last index, if there are entries.
    pub entries: Option<(u64, u64)>,
    /// The id of this node's replica; `None` if it has none.
    pub replica: Option<u64>,
    /// The last replica that was removed from this node, or 0. Its id is never used again.
    pub gone: u64,
}

/// The duration of one write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub bytes: usize,
    /// The sync alone.
    pub synced_in: Duration,
    pub took: Duration,
}

/// The log can't be written any more; the failed write must not be acknowledged.
#[derive(Debug, thiserror::Error)]
#[error("{0}; nothing unsynced was acknowledged; check the disk, then start again")]
pub(crate) struct WriteError(String);

impl WriteError {
    fn failed(error: &dyn std::fmt::Display) -> WriteError {
        WriteError(format!("the log can't be written: {error}"))
    }

    fn panicked(panic: &(dyn Any + Send)) -> WriteError {
        match panic.downcast_ref::<SyncFailed>() {
            Some(SyncFailed(error)) => WriteError(format!("fdatasync of the log failed: {error}")),
            None => WriteError::failed(&panic_message(panic)),
        }
    }
}

/// The text of raft-engine's error, without its prefix before an error of the system.
fn in_words(error: &raft_engine::Error) -> String {
    match error {
        raft_engine::Error::Io(error) => error.to_string(),
        raft_engine::Error::Corruption(what) => format!("it is damaged: {what}"),
        other => other.to_string(),
    }
}

/// Changes to be written as one record with one sync. Reused from turn to turn.
#[derive(Default)]
pub(crate) struct Batch(LogBatch);

impl Batch {
    /// Appends entries, which replace the group's entries from the first index on.
    pub(crate) fn append(&mut self, group: u64, entries: &[eraftpb::Entry]) {
        self.0
            .add_entries::<Entries>(group, entries)
            .expect("a turn gathers less than the 2 GiB that one record may hold");
    }

    /// Stores term, vote and commit.
    pub(crate) fn hard_state(&mut self, group: u64, state: &eraftpb::HardState) {
        self.0
            .put_message(group, HARD_STATE_KEY.to_vec(), state)
            .expect("a hard state is a few bytes");
    }

    /// Drops everything up to `index`, which a synced checkpoint has.
    pub(crate) fn cut(&mut self, group: u64, index: u64) {
        self.0.add_command(group, Command::Compact { index: index + 1 });
        self.put(group, CUT_KEY, index.to_le_bytes().to_vec());
    }

    /// Stores the id of this node's replica, before or together with the replica's first write.
    pub(crate) fn replica(&mut self, group: u64, id: u64) {
        self.put(group, REPLICA_KEY, id.to_le_bytes().to_vec());
    }

    /// Stores the control group's checkpoint.
    pub(crate) fn control(&mut self, checkpoint: Vec<u8>) {
        self.put(CONTROL_GROUP, CONTROL_KEY, checkpoint);
    }

    /// Marks the log as part of a data directory.
    pub(crate) fn mark(&mut self, format: Format) {
        self.put(CONTROL_GROUP, MARK_KEY, format.to_mark());
    }

    fn put(&mut self, group: u64, key: &[u8], value: Vec<u8>) {
        self.0.put(group, key.to_vec(), value).expect("the key is not one of raft-engine's own");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Log {
    /// Opens the log in the existing directory `dir`. A torn last write is cut off; other
    /// unreadable data is an error.
    pub(crate) fn open(dir: &Path) -> Result<Log, StartError> {
        Log::open_sized(dir, FILE_BYTES, PURGE_BYTES)
    }

    fn open_sized(dir: &Path, file_bytes: u64, purge_bytes: u64) -> Result<Log, StartError> {
        let damaged = |what: String| {
            StartError(format!(
                "{what}; restore a backup into a new directory, or start a copy of this one on another disk"
            ))
        };
        scan::check(dir).map_err(damaged)?;
        let config = Config {
            dir: dir.to_string_lossy().into_owned(),
            recovery_mode: RecoveryMode::TolerateTailCorruption,
            batch_compression_threshold: ReadableSize(0),
            target_file_size: ReadableSize(file_bytes),
            purge_threshold: ReadableSize(purge_bytes),
            ..Config::default()
        };
        let files = Files::default();
        #[cfg(test)]
        let faults = Arc::clone(&files.faults);
        let opened = catch_unwind(|| Engine::open_with_file_system(config, Arc::new(files)));
        let engine = match opened {
            Ok(opened) => opened.map_err(|error| {
                let error = in_words(&error);
                damaged(format!("the log in {} can't be opened: {error}", dir.display()))
            })?,
            Err(panic) => return Err(StartError(WriteError::panicked(panic.as_ref()).to_string())),
        };
        // raft-engine syncs its files, but not the directory for the first file.
        sync_dir(dir).map_err(|error| {
            StartError(format!("{} can't be synced: {error}; check the disk", dir.display()))
        })?;
        let log = Log {
            engine: Arc::new(engine),
            file_bytes,
            written: AtomicU64::new(0),
            purged_at: AtomicU64::new(0),
            #[cfg(test)]
            faults,
        };
        log.cut_again()?;
        Ok(log)
    }

    /// Makes a sync fail after `syncs` that succeed.
    #[cfg(test)]
    pub(crate) fn fail_sync_after(&self, syncs: u64) {
        self.faults.fail_after(syncs);
    }

    /// Repeats the cut of every group. raft-engine keeps the command that drops entries in the file
    /// it was written to. When that file is freed, dropped entries that were moved to the rewrite
    /// queue come back. They are older than the checkpoint, and the next append would leave a gap.
    fn cut_again(&self) -> Result<(), StartError> {
        let mut batch = Batch::default();
        for group in self.engine.raft_groups() {
            let GroupState { cut, entries, .. } = self.group(group)?;
            if entries.is_some_and(|(first, _)| first <= cut) {
                batch.cut(group, cut);
            }
        }
        if !batch.is_empty() {
            self.write(&mut batch).map_err(|error| StartError(error.to_string()))?;
        }
        Ok(())
    }

    /// Marks a new log as part of this data directory. The founding node has a replica of every
    /// group from the start.
    pub(crate) fn mark(&self, format: Format) -> Result<(), WriteError> {
        let mut batch = Batch::default();
        batch.mark(format);
        if format.founds() {
            let groups = CONTROL_GROUP..=u64::from(format.shards);
            groups.for_each(|group| batch.replica(group, FIRST_REPLICA));
        }
        self.write(&mut batch).map(drop)
    }

    /// Checks that this is the log of that data directory, and has no more shards.
    pub(crate) fn check_mark(&self, dir: &Path, format: Format) -> Result<(), StartError> {
        let what = format!("the log in {}", dir.display());
        let mark = self.engine.get(CONTROL_GROUP, MARK_KEY);
        format.check_mark(&what, mark.as_deref())?;
        let groups = self.engine.raft_groups().into_iter();
        let beyond = groups.filter(|&group| group > u64::from(format.shards)).max();
        match beyond {
            Some(group) => {
                let shard = u16::try_from(group - 1).unwrap_or(u16::MAX);
                Err(format.too_many_shards(&what, shard))
            }
            None => Ok(()),
        }
    }

    /// The stored state of one group.
    pub(crate) fn group(&self, group: u64) -> Result<GroupState, StartError> {
        let unreadable = |what: String| {
            StartError(format!("the log of group {group} can't be read: {what}; restore a backup"))
        };
        let hard_state = self
            .engine
            .get_message::<eraftpb::HardState>(group, HARD_STATE_KEY)
            .map_err(|error| unreadable(in_words(&error)))?;
        let number = |key, what: &str| match self.engine.get(group, key) {
            None => Ok(None),
            Some(bytes) => match bytes.try_into() {
                Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes))),
                Err(_) => Err(unreadable(format!("{what} is damaged"))),
            },
        };
        let cut = number(CUT_KEY, "its cut")?.unwrap_or(0);
        let replica = number(REPLICA_KEY, "the number of its replica")?;
        let gone = number(GONE_KEY, "the number of its last replica")?.unwrap_or(0);
        let entries = self.engine.first_index(group).zip(self.engine.last_index(group));
        Ok(GroupState { hard_state, cut, entries, replica, gone })
    }

    /// The last checkpoint of the control group; `None` if there is none.
    pub(crate) fn control(&self) -> Option<Vec<u8>> {
        self.engine.get(CONTROL_GROUP, CONTROL_KEY)
    }

    /// Writes and syncs the batch, and empties it. After an error nothing may be written any more.
    pub(crate) fn write(&self, batch: &mut Batch) -> Result<Written, WriteError> {
        let begun = clock::real_now();
        raft_engine::set_perf_context(raft_engine::PerfContext::default());
        let bytes = self.guarded(|| self.engine.write(&mut batch.0, true))?;
        let synced_in = raft_engine::get_perf_context().log_sync_duration;
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Written { bytes, synced_in, took: begun.elapsed() })
    }

    pub(crate) fn reader(self: &Arc<Log>, group: u64) -> GroupReader {
        GroupReader { log: Arc::clone(self), group }
    }

    /// Bytes written since the log was opened.
    pub(crate) fn position(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Frees files that no group needs any more. Returns the groups whose old entries keep files
    /// from being freed: they should be checkpointed. Call it on a thread of its own, because it
    /// may take a while.
    ///
    /// Does nothing until a file's worth was written since the last purge: after several requests
    /// for a group raft-engine copies the group's entries, which the checkpoint under way is about
    /// to free.
    pub(crate) fn purge(&self) -> Result<Vec<u64>, WriteError> {
        let position = self.position();
        let purged_at = self.purged_at.load(Ordering::Relaxed);
        if purged_at > 0 && position < purged_at + self.file_bytes {
            return Ok(Vec::new());
        }
        self.purged_at.store(position, Ordering::Relaxed);
        self.guarded(|| self.engine.purge_expired_files())
    }

    /// Runs a write. After a failure the state of the disk is unknown, so the engine is never
    /// closed: a close syncs once more, which may hang, fail, or succeed although data was lost.
    fn guarded<T>(
        &self,
        write: impl FnOnce() -> Result<T, raft_engine::Error>,
    ) -> Result<T, WriteError> {
        let failure = match catch_unwind(AssertUnwindSafe(write)) {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => WriteError::failed(&in_words(&error)),
            Err(panic) => WriteError::panicked(panic.as_ref()),
        };
        std::mem::forget(Arc::clone(&self.engine));
        Err(failure)
    }
}

pub(crate) struct GroupReader {
    log: Arc<Log>,
    group: u64,
}

impl LogReader for GroupReader {
    /// # Panics
    /// If the entries can't be read back: they were synced, so the disk has lost them.
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<eraftpb::Entry> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        // One by one, because raft-engine keeps a group's index locked only while it reads one
        // entry. For several entries it looks up all positions first, and a purge may remove a file
        // before they are read.
        for index in from..to {
            let found = self.log.engine.get_entry::<Entries>(self.group, index);
            let entry = match found {
                Ok(Some(entry)) => entry,
                Ok(None) => self.unreadable(index, "it is not there"),
                Err(error) => self.unreadable(index, &in_words(&error)),
            };
            bytes += entry.data.len() as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        entries
    }

    fn term(&self, index: u64) -> Option<u64> {
        let entry = self.log.engine.get_entry::<Entries>(self.group, index);
        match entry {
            Ok(entry) => entry.map(|entry| entry.term),
            Err(error) => self.unreadable(index, &in_words(&error)),
        }
    }
}

impl GroupReader {
    fn unreadable(&self, index: u64, why: &str) -> ! {
        let group = self.group;
        panic!("entry {index} of group {group} can't be read back from the log: {why}")
    }
}
