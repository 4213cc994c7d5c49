//! Store: checkpoints of all shards and the bodies of their tasks. The only file that names fjall.
//!
//! Invariant: what is stored of a shard is its exact state at one log index, the cut, and the bodies of
//! the tasks in it. A checkpoint is one atomic batch with the cut's index in it, synced: a crash leaves
//! the previous cut or the new one. A body may be newer than its cut, or gone with a task that was
//! removed after it: the log after the cut says the same again.

mod journal;
mod layout;
mod worker;

pub(crate) use worker::{BodiesRequest, Checkpointer, Failure, Job, Report};

use crate::{data_dir::Format, node::StartError, shard_loop::words_of};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable, Snapshot};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use taskyard_machine::{RecordKey, ShardId, TaskId};
use taskyard_replica::eraftpb::ConfState;

/// Version of what is stored under the keys below.
const CUT_VERSION: u8 = 1;
/// In memory per keyspace before it goes into a table. Smaller tables, but journals are freed sooner.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Cached blocks of bodies and tasks: a claim of a spilled task mostly reads its neighbour's block.
const CACHE_BYTES: u64 = 32 << 20;
/// Journals kept at most before the keyspaces that hold them back are flushed.
const JOURNAL_BYTES: u64 = 128 << 20;
/// Below this a keyspace is not worth compacting for its space.
const COMPACT_BYTES_MIN: u64 = 32 << 20;

/// Where a checkpoint stands in its shard's log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    /// The last entry in it.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Voters and learners there.
    pub conf_state: ConfState,
}

/// One change since the previous checkpoint of a shard.
#[derive(Debug)]
pub(crate) enum Change {
    /// A record is this, or gone.
    Record(RecordKey, Option<Box<[u8]>>),
    /// A task's body.
    Body(TaskId, Bytes),
}

/// The store could not do it. The node must stop: its checkpoint may be half done.
#[derive(Debug, thiserror::Error)]
#[error("the checkpoints in {path} can't be {what}: {error}")]
pub(crate) struct StoreError {
    path: PathBuf,
    what: &'static str,
    error: String,
}

/// Checkpoints of all shards.
pub(crate) struct Store {
    path: PathBuf,
    db: Database,
    tasks: Keyspace,
    bodies: Keyspace,
    rest: Keyspace,
    /// Items in `bodies`, `tasks` and `rest` when each was last compacted, or opened.
    compacted: [AtomicU64; 3],
    /// Views that are open: what they see can't be freed.
    views: AtomicUsize,
}

impl Store {
    /// Opens the store in `dir`, which exists; makes it if there is nothing yet. A checkpoint that a
    /// crash tore is dropped; the log still has what was in it.
    pub(crate) fn open(dir: &Path) -> Result<Arc<Store>, StartError> {
        let looked = layout::check(dir).and_then(|()| journal::check(dir));
        // fjall panics on files with names that it did not give.
        let opened = looked.and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| Store::open_sound(dir)))
                .unwrap_or_else(|panic| Err(words_of(panic.as_ref())))
        });
        opened.map(Arc::new).map_err(|error| {
            StartError(format!(
                "the checkpoints in {} can't be opened: {error}; put back what is missing, or restore a backup into a new directory",
                dir.display()
            ))
        })
    }

    fn open_sound(dir: &Path) -> Result<Store, String> {
        let db = Database::builder(dir)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(2)
            .open()
            .map_err(|error| in_words(&error))?;
        let keyspace = |name| {
            let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
            db.keyspace(name, options).map_err(|error| in_words(&error))
        };
        let (tasks, bodies, rest) = (keyspace("tasks")?, keyspace("bodies")?, keyspace("rest")?);
        let compacted = [0, 0, rest.approximate_len() as u64].map(AtomicU64::new);
        let views = AtomicUsize::new(0);
        let path = dir.to_path_buf();
        Ok(Store { path, tasks, bodies, rest, db, compacted, views })
    }

    /// Marks each part of a new store as one of this data directory.
    pub(crate) fn mark(&self, format: Format) -> Result<(), StoreError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for keyspace in [&self.tasks, &self.bodies, &self.rest] {
            batch.insert(keyspace, MARK_KEY, format.to_mark());
        }
        batch.commit().map_err(|error| self.error("written", &error))
    }

    /// Whether this is the store of that data directory, and has no more shards.
    pub(crate) fn check_mark(&self, format: Format) -> Result<(), StartError> {
        let parts = [("tasks", &self.tasks), ("bodies", &self.bodies), ("rest", &self.rest)];
        for (name, keyspace) in parts {
            let failed = |error| StartError(self.error("read", &error).to_string());
            let mark = keyspace.get(MARK_KEY).map_err(failed)?;
            let what = format!("the part {name} of the checkpoints in {}", self.path.display());
            format.check_mark(&what, mark.as_deref())?;
            let beyond = format.shards.to_be_bytes().to_vec()..MARK_KEY.to_vec();
            if let Some(found) = keyspace.range(beyond).next() {
                let key = found.key().map_err(failed)?;
                let shard = key.first_chunk().map_or(u16::MAX, |id| u16::from_be_bytes(*id));
                return Err(format.too_many_shards(&what, shard));
            }
        }
        Ok(())
    }

    /// A consistent view of everything, whatever is written meanwhile.
    pub(crate) fn view(self: &Arc<Store>) -> View {
        self.views.fetch_add(1, Ordering::Relaxed);
        View { store: Arc::clone(self), snapshot: self.db.snapshot() }
    }

    /// Writes a checkpoint as one atomic batch and syncs it.
    pub(crate) fn write(
        &self,
        shard: ShardId,
        cut: &Cut,
        changes: Vec<Change>,
    ) -> Result<(), StoreError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for change in changes {
            match change {
                Change::Body(task, body) => batch.insert(&self.bodies, task_key(shard, task), body),
                Change::Record(RecordKey::Task(task), None) => {
                    batch.remove(&self.tasks, task_key(shard, task));
                    batch.remove(&self.bodies, task_key(shard, task));
                }
                Change::Record(key, value) => {
                    let (keyspace, key) = match key {
                        RecordKey::Task(task) => (&self.tasks, task_key(shard, task).to_vec()),
                        RecordKey::Rest(key) => (&self.rest, rest_key(shard, &key)),
                    };
                    match value {
                        Some(value) => batch.insert(keyspace, key, Bytes::from(value)),
                        None => batch.remove(keyspace, key),
                    }
                }
            }
        }
        batch.insert(&self.rest, cut_key(shard), encode_cut(cut));
        batch.commit().map_err(|error| self.error("written", &error))
    }

    /// The body of one task, if it is stored.
    pub(crate) fn body(&self, task: TaskId) -> Result<Option<Bytes>, StoreError> {
        let body = self.bodies.get(task_key(task.home, task));
        Ok(body.map_err(|error| self.error("read", &error))?.map(Bytes::from))
    }

    /// Gives back the space of what was removed, where more than half of a keyspace is such.
    /// `tasks_live` is how many tasks there are now. For a thread of its own: it may take a while.
    pub(crate) fn reclaim(&self, tasks_live: u64) -> Result<bool, StoreError> {
        // It would be done again and again, for nothing.
        if self.views.load(Ordering::Relaxed) > 0 {
            return Ok(false);
        }
        let [bodies, tasks, rest] = &self.compacted;
        let mut reclaimed = false;
        for (keyspace, compacted, live) in [
            (&self.bodies, bodies, tasks_live),
            (&self.tasks, tasks, tasks_live),
            // How much of the rest is live nobody counts: what was left the last time is.
            (&self.rest, rest, rest.load(Ordering::Relaxed)),
        ] {
            // Counts what was overwritten and removed, and the marks of removal too.
            let held = keyspace.approximate_len() as u64;
            let before = compacted.load(Ordering::Relaxed);
            let has_grown = held > before + before / 4;
            if has_grown && held > 2 * live + 64 && keyspace.disk_space() >= COMPACT_BYTES_MIN {
                self.compact(keyspace)?;
                compacted.store(keyspace.approximate_len() as u64, Ordering::Relaxed);
                reclaimed = true;
            }
        }
        Ok(reclaimed)
    }

    fn compact(&self, keyspace: &Keyspace) -> Result<(), StoreError> {
        self.rotate(keyspace)?;
        keyspace.major_compact().map_err(|error| self.error("compacted", &error))?;
        // The tables that were replaced are deleted with the next rotation.
        self.rotate(keyspace)
    }

    /// Rotates the memtable, and makes sure that there is one to rotate: only then does fjall notice
    /// which views have closed, and a compaction before that keeps what they saw.
    fn rotate(&self, keyspace: &Keyspace) -> Result<(), StoreError> {
        let error = |error| self.error("compacted", &error);
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.remove(keyspace, NO_KEY);
        batch.commit().map_err(error)?;
        keyspace.rotate_memtable_and_wait().map_err(error)
    }

    fn error(&self, what: &'static str, error: &fjall::Error) -> StoreError {
        StoreError { path: self.path.clone(), what, error: in_words(error) }
    }

    fn damaged(&self, found: &str) -> StoreError {
        StoreError { path: self.path.clone(), what: "read", error: found.into() }
    }
}

/// What fjall's errors mean; it shows them as its own code.
fn in_words(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => error.to_string(),
        fjall::Error::Poisoned => "an earlier write has failed".into(),
        fjall::Error::Locked => "another process uses them".into(),
        fjall::Error::Unrecoverable | fjall::Error::Storage(LsmError::Unrecoverable) => {
            "a file of theirs is missing or damaged".into()
        }
        fjall::Error::InvalidVersion(_) | fjall::Error::Storage(LsmError::InvalidVersion(_)) => {
            "they are of another version of the store".into()
        }
        fjall::Error::JournalRecovery(_) => "their journal is damaged".into(),
        fjall::Error::Storage(LsmError::ChecksumMismatch { .. }) => {
            "a part of them has another checksum than when it was written".into()
        }
        _ => "a part of them is damaged".into(),
    }
}

/// Everything stored at one moment.
pub(crate) struct View {
    store: Arc<Store>,
    snapshot: Snapshot,
}

impl Drop for View {
    fn drop(&mut self) {
        self.store.views.fetch_sub(1, Ordering::Relaxed);
    }
}

impl View {
    /// Where the last checkpoint of a shard stands; `None` if there is none.
    pub(crate) fn cut(&self, shard: ShardId) -> Result<Option<Cut>, StoreError> {
        let value = self.snapshot.get(&self.store.rest, cut_key(shard));
        let Some(value) = value.map_err(|error| self.store.error("read", &error))? else {
            return Ok(None);
        };
        let damaged = || self.store.damaged("a cut is damaged");
        decode_cut(&value).map(Some).ok_or_else(damaged)
    }

    /// All records of a shard, to build its state from.
    pub(crate) fn records(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>> + '_ {
        let read = move |item: fjall::Guard, skip: usize| {
            let (key, value) =
                item.into_inner().map_err(|error| self.store.error("read", &error))?;
            Ok((Box::<[u8]>::from(&key[skip..]), Box::<[u8]>::from(&value[..])))
        };
        let tasks = self.snapshot.prefix(&self.store.tasks, shard.0.to_be_bytes());
        let tasks = tasks.map(move |item| {
            let (key, value) = read(item, 2)?;
            let damaged = || self.store.damaged("a key is damaged");
            let id = key[..].try_into().map_err(|_| damaged())?;
            Ok((RecordKey::Task(TaskId::from_u128(u128::from_be_bytes(id))), value))
        });
        let rest = self.snapshot.prefix(&self.store.rest, rest_key(shard, &[]));
        let rest = rest.map(move |item| {
            let (key, value) = read(item, 3)?;
            Ok((RecordKey::Rest(key), value))
        });
        tasks.chain(rest)
    }

    /// All bodies of a shard.
    pub(crate) fn bodies(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(TaskId, Bytes), StoreError>> + '_ {
        let bodies = self.snapshot.prefix(&self.store.bodies, shard.0.to_be_bytes());
        bodies.map(|item| {
            let (key, value) =
                item.into_inner().map_err(|error| self.store.error("read", &error))?;
            let damaged = || self.store.damaged("a key is damaged");
            let id = key[2..].try_into().map_err(|_| damaged())?;
            Ok((TaskId::from_u128(u128::from_be_bytes(id)), Bytes::from(value)))
        })
    }
}

/// Shorter than any key, so that nothing is ever stored under it.
const NO_KEY: &[u8] = &[0];
/// Of the data directory's mark: after the keys of all shards.
const MARK_KEY: &[u8] = &[0xff];

fn task_key(shard: ShardId, task: TaskId) -> [u8; 18] {
    let mut key = [0; 18];
    key[..2].copy_from_slice(&shard.0.to_be_bytes());
    key[2..].copy_from_slice(&task.to_u128().to_be_bytes());
    key
}

fn cut_key(shard: ShardId) -> [u8; 3] {
    let [high, low] = shard.0.to_be_bytes();
    [high, low, 0]
}

fn rest_key(shard: ShardId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(3 + key.len());
    full.extend_from_slice(&shard.0.to_be_bytes());
    full.push(1);
    full.extend_from_slice(key);
    full
}

pub(crate) fn encode_cut(cut: &Cut) -> Vec<u8> {
    let mut bytes = vec![CUT_VERSION];
    bytes.extend_from_slice(&cut.index.to_le_bytes());
    bytes.extend_from_slice(&cut.term.to_le_bytes());
    bytes.push(u8::from(cut.conf_state.auto_leave));
    let members = &cut.conf_state;
    for list in
        [&members.voters, &members.learners, &members.voters_outgoing, &members.learners_next]
    {
        bytes.extend_from_slice(&(list.len() as u32).to_le_bytes());
        for id in list {
            bytes.extend_from_slice(&id.to_le_bytes());
        }
    }
    bytes
}

pub(crate) fn decode_cut(mut bytes: &[u8]) -> Option<Cut> {
    let take = &mut bytes;
    if take.split_off_first()? != &CUT_VERSION {
        return None;
    }
    let u64 = |take: &mut &[u8]| Some(u64::from_le_bytes(*take.split_off(..8)?.first_chunk()?));
    let (index, term) = (u64(take)?, u64(take)?);
    let auto_leave = *take.split_off_first()? != 0;
    let list = |take: &mut &[u8]| {
        let length = u32::from_le_bytes(*take.split_off(..4)?.first_chunk()?);
        (0..length).map(|_| u64(take)).collect::<Option<Vec<u64>>>()
    };
    let conf_state = ConfState {
        voters: list(take)?,
        learners: list(take)?,
        voters_outgoing: list(take)?,
        learners_next: list(take)?,
        auto_leave,
        ..ConfState::default()
    };
    take.is_empty().then_some(Cut { index, term, conf_state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, fs};

    fn task(sequence: u64) -> TaskId {
        TaskId { incarnation: 1, home: ShardId(2), origin: ShardId(2), sequence }
    }

    fn cut(index: u64) -> Cut {
        let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
        Cut { index, term: 3, conf_state }
    }

    fn put(sequence: u64, value: &[u8]) -> Change {
        Change::Record(RecordKey::Task(task(sequence)), Some(value.into()))
    }

    fn records(store: &Arc<Store>, shard: u16) -> BTreeMap<RecordKey, Box<[u8]>> {
        store.view().records(ShardId(shard)).map(Result::unwrap).collect()
    }

    fn bytes_in(dir: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
        let sizes = entries.map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_in(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        });
        sizes.sum()
    }

    #[test]
    fn cuts_survive_their_encoding() {
        let conf_state = ConfState {
            voters: vec![1, 2, 3],
            learners: vec![u64::MAX],
            voters_outgoing: vec![7],
            learners_next: vec![8, 9],
            auto_leave: true,
            ..ConfState::default()
        };
        let cut = Cut { index: u64::MAX - 1, term: 77, conf_state };
        let bytes = encode_cut(&cut);
        assert_eq!(decode_cut(&bytes), Some(cut));
        for length in 0..bytes.len() {
            assert_eq!(decode_cut(&bytes[..length]), None, "cut to {length} bytes");
        }
    }

    #[test]
    fn a_checkpoint_is_there_after_a_restart_and_shards_are_apart() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.view().cut(ShardId(2)).unwrap(), None);
        let rest = RecordKey::Rest(Box::from(*b"queue"));
        let changes = vec![
            put(1, b"one"),
            put(2, b"two"),
            Change::Body(task(1), Bytes::from_static(b"body")),
            Change::Record(rest.clone(), Some(Box::from(*b"mail"))),
        ];
        store.write(ShardId(2), &cut(10), changes).unwrap();
        store.write(ShardId(3), &cut(4), vec![]).unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.view().cut(ShardId(2)).unwrap(), Some(cut(10)));
        assert_eq!(records(&store, 2).len(), 3);
        assert_eq!(records(&store, 2)[&rest], Box::from(*b"mail"));
        assert!(records(&store, 3).is_empty());
        assert_eq!(store.body(task(1)).unwrap().as_deref(), Some(&b"body"[..]));
        let gone = Change::Record(RecordKey::Task(task(1)), None);
        store.write(ShardId(2), &cut(11), vec![gone]).unwrap();
        assert_eq!(store.body(task(1)).unwrap(), None, "a body goes with its task");
        assert_eq!(records(&store, 2).len(), 2);
    }

    #[test]
    fn a_view_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.write(ShardId(2), &cut(1), vec![put(1, b"old")]).unwrap();
        let view = store.view();
        store.write(ShardId(2), &cut(2), vec![put(1, b"new"), put(2, b"new")]).unwrap();
        assert_eq!(view.cut(ShardId(2)).unwrap(), Some(cut(1)));
        assert_eq!(view.records(ShardId(2)).count(), 1);
    }

    /// Records of request ids and batches come and go like tasks, and nobody counts them.
    #[test]
    fn space_returns_when_other_records_are_removed_and_no_view_needs_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let change = |id: u64, value: Option<&[u8]>| {
            let key = RecordKey::Rest(Box::from(id.to_be_bytes()));
            Change::Record(key, value.map(Box::from))
        };
        let mut cycle = 0;
        let mut churn = || {
            let ids = cycle * 10_000..(cycle + 1) * 10_000;
            cycle += 1;
            let new = ids.clone().map(|id| change(id, Some(&id.to_le_bytes().repeat(128))));
            store.write(ShardId(2), &cut(cycle), new.collect()).unwrap();
            let gone = ids.map(|id| change(id, None));
            store.write(ShardId(2), &cut(cycle), gone.collect()).unwrap();
        };
        let view = store.view();
        for _ in 0..10 {
            churn();
            assert!(!store.reclaim(0).unwrap(), "a view is open");
        }
        // So that nothing is left to write which would tell fjall by the way that the view is gone.
        store.rest.rotate_memtable_and_wait().unwrap();
        drop(view);
        assert!(store.reclaim(0).unwrap());
        assert!(!store.reclaim(0).unwrap(), "nothing has grown since");
        assert!(store.rest.disk_space() < 8 << 20, "{}", store.rest.disk_space());
        assert_eq!(store.view().cut(ShardId(2)).unwrap(), Some(cut(10)));
    }

    /// Writes and removes ten times what stays. The directory must not keep what was removed.
    #[test]
    fn space_returns_when_tasks_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let per_cycle = 20_000;
        let mut largest = 0;
        for cycle in 0..8u64 {
            let ids = |cycle: u64| cycle * per_cycle..(cycle + 1) * per_cycle;
            for part in 0..4 {
                let part = ids(cycle).skip(part * 5_000).take(5_000);
                let new = part.flat_map(|id| {
                    let body = Bytes::from(id.to_le_bytes().repeat(128));
                    [put(id, &[1; 100]), Change::Body(task(id), body)]
                });
                store.write(ShardId(2), &cut(cycle + 1), new.collect()).unwrap();
            }
            let gone = ids(cycle).map(|id| Change::Record(RecordKey::Task(task(id)), None));
            store.write(ShardId(2), &cut(cycle + 1), gone.collect()).unwrap();
            store.reclaim(0).unwrap();
            largest = largest.max(bytes_in(dir.path()));
        }
        store.compact(&store.bodies).unwrap();
        let left = bytes_in(dir.path());
        println!("largest {} MiB, left {} MiB", largest >> 20, left >> 20);
        // One cycle is 22 MiB of live data, written once to the journal and once to tables.
        assert!(largest < 256 << 20, "{} MiB", largest >> 20);
        assert!(left < 160 << 20, "{} MiB", left >> 20);
    }
}
