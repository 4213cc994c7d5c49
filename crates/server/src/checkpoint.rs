//! Store: checkpoints of all shards and the bodies of their tasks. Only this file and `checkpoint/`
//! name fjall.
//!
//! Invariant: the stored state of a shard is its exact state at one log index, the cut, with the
//! bodies of its tasks. A checkpoint is one atomic, synced batch that includes the cut's index, so
//! that a crash leaves the previous cut or the new one. A body may be newer than its cut, or be
//! gone with a task that was removed later, because the log after the cut repeats these changes. A
//! snapshot may arrive beside the state (`install.rs`); it becomes the state at one moment.
//!
//! ```text
//! keys.rs       the keys of all records         generations.rs   the current state, and garbage
//! parts.rs      a state in pieces               install.rs       the arrival of these pieces
//! worker.rs     the threads beside the loop     journal.rs, layout.rs   checks of fjall's files
//! ```

mod generations;
mod install;
mod journal;
mod keys;
mod layout;
mod parts;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use install::{Arrived, InstallError, SnapshotId};
pub(crate) use parts::{Part, Position, RecordKind};
pub(crate) use worker::{BodiesRequest, Checkpointer, Failure, Job, Report, StoredBody};

use crate::{data_dir::Format, node::StartError, shard_loop::panic_message};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable, Snapshot};
use generations::{Generations, Slot};
use keys::{Generation, MARK_KEY, NO_KEY, full_key, prefix, slot_key, task_key};
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

/// The version of the records under the keys below.
const CUT_VERSION: u8 = 1;
/// Bytes in memory per keyspace before a table is written. Smaller means more tables, but journals
/// are freed sooner.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Cached blocks of bodies and tasks: a claim of a spilled task mostly reads the block of its
/// neighbour.
const CACHE_BYTES: u64 = 32 << 20;
/// The most bytes of journals before the keyspaces that need them are flushed.
const JOURNAL_BYTES: u64 = 128 << 20;
/// A smaller keyspace is not worth a compaction.
const COMPACT_BYTES_MIN: u64 = 32 << 20;

/// The position of a checkpoint in its shard's log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    /// The index of its last entry.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Voters and learners at that entry.
    pub conf_state: ConfState,
}

/// One change since the previous checkpoint of a shard.
#[derive(Debug)]
pub(crate) enum Change {
    /// A record with its value, or `None` if it is gone.
    Record(RecordKey, Option<Box<[u8]>>),
    /// A task's body.
    Body(TaskId, Bytes),
}

/// The error of a failed operation. The node must stop, because its checkpoint may be half done.
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
    generations: Generations,
    /// The items in `bodies`, `tasks` and `rest` at their last compaction, or when the store was
    /// opened.
    compacted: [AtomicU64; 3],
    /// The number of open views, whose data cannot be freed.
    views: AtomicUsize,
    /// A gate at which a test stops switches to snapshots.
    #[cfg(test)]
    pub(crate) gate: install::Gate,
}

impl Store {
    /// Opens the store in the existing folder `dir`, and creates it if the folder is empty. A
    /// checkpoint that a crash tore is dropped, because the log still has its entries.
    pub(crate) fn open(dir: &Path) -> Result<Arc<Store>, StartError> {
        let looked = layout::check(dir).and_then(|()| journal::check(dir));
        // fjall panics on file names that it did not give.
        let opened = looked.and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| Store::open_sound(dir)))
                .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
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
        let generations = Generations::default();
        let store = Store {
            path,
            tasks,
            bodies,
            rest,
            db,
            generations,
            compacted,
            views,
            #[cfg(test)]
            gate: install::Gate::default(),
        };
        store.find_generations().map_err(|error| error.error)?;
        Ok(store)
    }

    /// Writes the mark of this data directory into each part of a new store.
    pub(crate) fn mark(&self, format: Format) -> Result<(), StoreError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for keyspace in [&self.tasks, &self.bodies, &self.rest] {
            batch.insert(keyspace, MARK_KEY, format.to_mark());
        }
        batch.commit().map_err(|error| self.error("written", &error))
    }

    /// Checks that the store belongs to this data directory and has no more shards than it.
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

    /// A consistent view of everything; later writes do not change it.
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
        let generation = match self.current(shard) {
            Some(generation) => generation,
            None => self.first_generation(shard)?,
        };
        let task_key = |task| task_key(shard, generation, task);
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for change in changes {
            match change {
                Change::Body(task, body) => batch.insert(&self.bodies, task_key(task), body),
                Change::Record(RecordKey::Task(task), None) => {
                    batch.remove(&self.tasks, task_key(task));
                    batch.remove(&self.bodies, task_key(task));
                }
                Change::Record(key, value) => {
                    let (keyspace, key) = match key {
                        RecordKey::Task(task) => (&self.tasks, task_key(task).to_vec()),
                        RecordKey::Rest(key) => (&self.rest, full_key(shard, generation, &key)),
                    };
                    match value {
                        Some(value) => batch.insert(keyspace, key, Bytes::from(value)),
                        None => batch.remove(keyspace, key),
                    }
                }
            }
        }
        let slot = Slot { generation, cut: cut.clone(), is_installed: false };
        batch.insert(&self.rest, slot_key(shard), slot.encode());
        batch.commit().map_err(|error| self.error("written", &error))?;
        self.discard_overtaken(shard, cut.index);
        Ok(())
    }

    /// The body of one task, if it is stored.
    pub(crate) fn body(&self, task: TaskId) -> Result<Option<Bytes>, StoreError> {
        let Some(generation) = self.current(task.home) else { return Ok(None) };
        let body = self.bodies.get(task_key(task.home, generation, task));
        Ok(body.map_err(|error| self.error("read", &error))?.map(Bytes::from))
    }

    /// Frees the space of removed records, if they make up more than half of a keyspace.
    /// `tasks_live` is the present number of tasks. This may take a while, so that it belongs on a
    /// thread of its own.
    pub(crate) fn reclaim(&self, tasks_live: u64) -> Result<bool, StoreError> {
        // An open view would keep all data, and the compaction would be repeated for nothing.
        if self.views.load(Ordering::Relaxed) > 0 {
            return Ok(false);
        }
        let [bodies, tasks, rest] = &self.compacted;
        let tasks_live = tasks_live + self.records_arrived();
        let mut reclaimed = false;
        for (keyspace, compacted, live) in [
            (&self.bodies, bodies, tasks_live),
            (&self.tasks, tasks, tasks_live),
            // The number of live records in `rest` is unknown; the items after the last compaction
            // stand for it.
            (&self.rest, rest, rest.load(Ordering::Relaxed)),
        ] {
            // The count includes overwritten and removed records, and the marks of removals.
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
        // The next rotation deletes the replaced tables.
        self.rotate(keyspace)
    }

    /// Rotates the memtable, with a record in it if it is empty. fjall notices closed views only at
    /// a rotation, and a compaction before it would keep the data of these views.
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

/// The meaning of fjall's errors, because fjall prints them as its own code.
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

fn split<T>(found: Result<Option<T>, StoreError>) -> (Option<T>, Option<StoreError>) {
    match found {
        Ok(found) => (found, None),
        Err(error) => (None, Some(error)),
    }
}

/// A view of all stored data at one moment.
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
    /// The cut of a shard's last checkpoint; `None` if there is none.
    pub(crate) fn cut(&self, shard: ShardId) -> Result<Option<Cut>, StoreError> {
        Ok(self.slot(shard)?.map(|slot| slot.cut))
    }

    /// All records of a shard, for rebuilding its state.
    pub(crate) fn records(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>> + '_ {
        self.records_of(shard, self.generation(shard))
    }

    fn records_of(
        &self,
        shard: ShardId,
        generation: Result<Option<Generation>, StoreError>,
    ) -> impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>> + '_ {
        let (generation, failed) = split(generation);
        let tasks = self.items(&self.store.tasks, shard, generation).map(move |item| {
            let (key, value) = item?;
            Ok((RecordKey::Task(self.task_id(&key)?), Box::from(&value[..])))
        });
        let rest = self.items(&self.store.rest, shard, generation).map(move |item| {
            let (key, value) = item?;
            Ok((RecordKey::Rest(key), Box::from(&value[..])))
        });
        failed.map(Err).into_iter().chain(tasks).chain(rest)
    }

    /// All bodies of a shard.
    #[cfg(test)]
    pub(crate) fn bodies(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(TaskId, Bytes), StoreError>> + '_ {
        let (generation, failed) = split(self.generation(shard));
        let bodies = self.items(&self.store.bodies, shard, generation).map(move |item| {
            let (key, value) = item?;
            Ok((self.task_id(&key)?, Bytes::from(value)))
        });
        failed.map(Err).into_iter().chain(bodies)
    }

    /// The items of a generation in one keyspace, without the prefix of their keys.
    fn items(
        &self,
        keyspace: &Keyspace,
        shard: ShardId,
        generation: Option<Generation>,
    ) -> impl Iterator<Item = Result<(Box<[u8]>, fjall::Slice), StoreError>> + use<'_> {
        let items = generation.map(|generation| {
            let prefix = prefix(shard, generation);
            self.snapshot.prefix(keyspace, prefix).map(move |item| {
                let (key, value) =
                    item.into_inner().map_err(|error| self.store.error("read", &error))?;
                Ok((Box::from(&key[prefix.len()..]), value))
            })
        });
        items.into_iter().flatten()
    }

    fn task_id(&self, key: &[u8]) -> Result<TaskId, StoreError> {
        let id = key.try_into().map_err(|_| self.store.damaged("a key is damaged"))?;
        Ok(TaskId::from_u128(u128::from_be_bytes(id)))
    }
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
