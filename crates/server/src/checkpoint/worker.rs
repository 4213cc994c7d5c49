//! The threads beside the shard loop: one writes checkpoints, one reads bodies, one frees space.
//!
//! All work that waits for the checkpoints' disk is done here. The loop never waits for these
//! threads, and a stop does not wait for long, because fjall may wait for ever on a failed disk. A
//! failure is reported and stops the node, because its work may be half done. But a body that can't
//! be read is reported to the caller alone, because nothing else depends on it.

use super::{Change, Cut, SnapshotId, Store, StoreError};
use crate::{clock, data_dir::DataDir, log::Log};
use bytes::Bytes;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Instant,
};
use taskyard_machine::{ShardId, TaskId};

/// Bites of garbage that are removed at once. The number is bounded, because the node's end waits
/// for them.
const SWEEPS_MAX: usize = 100;

/// Called with the store, in order with the checkpoints.
pub(crate) type Look = Box<dyn FnOnce(&Arc<Store>) + Send>;

/// Work for the thread that writes checkpoints, in order.
pub(crate) enum Job {
    /// More changes of an unfinished checkpoint.
    Changes(ShardId, Vec<Change>),
    /// Forget the changes of an unfinished checkpoint: its shard was stopped.
    Abandon(ShardId),
    /// The checkpoint is complete: write it.
    Write(ShardId, Cut),
    /// Look at everything written so far.
    Look(Look),
    /// Make a complete snapshot the state of its shard.
    Switch(ShardId, SnapshotId, Cut),
    /// Give up a snapshot that has arrived.
    Discard(ShardId, SnapshotId),
    /// Forget a shard whose replica was removed from this node, and from the log.
    Remove(ShardId),
    /// Drop something large.
    Drop(Box<dyn Send>),
}

/// A stored body; `None` if there is none, or the reason why it can't be read.
pub(crate) type StoredBody = Result<Option<Bytes>, String>;

/// Bodies that are not in memory.
pub(crate) struct BodiesRequest {
    pub tasks: Vec<TaskId>,
    /// Called with one answer per task.
    pub answer: Box<dyn FnOnce(Vec<StoredBody>) + Send>,
}

/// Messages of these threads to the loop.
pub(crate) enum Report {
    /// A checkpoint is synced.
    Written(ShardId, Cut),
    /// The store has switched to a snapshot, synced; or not, because the snapshot is gone.
    Switched(ShardId, SnapshotId, bool),
    /// The store has nothing of the shard any more.
    Removed(ShardId),
    /// The log's files cannot be freed before these groups have checkpoints.
    Holding(Vec<u64>),
    /// The node must stop.
    Failed(Failure),
}

/// Why the node cannot go on, in words.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub String);

/// The handles of the threads, which end when it is dropped.
pub(crate) struct Checkpointer {
    jobs: mpsc::Sender<Job>,
    reads: mpsc::Sender<BodiesRequest>,
    tidy: mpsc::SyncSender<()>,
    tasks_live: Arc<AtomicU64>,
    /// Disconnected when all threads have ended.
    ended: mpsc::Receiver<()>,
}

impl Checkpointer {
    /// Starts the threads. Each keeps `data`, and so its lock, until it has ended.
    pub(crate) fn start(
        data: &Arc<DataDir>,
        store: &Arc<Store>,
        log: &Arc<Log>,
        report: impl Fn(Report) + Clone + Send + 'static,
    ) -> std::io::Result<Checkpointer> {
        let tasks_live = Arc::new(AtomicU64::new(0));
        let (jobs, jobs_taken) = mpsc::channel();
        let (reads, reads_taken) = mpsc::channel();
        // One request is enough, because a second one before the work begins changes nothing.
        let (tidy, tidy_taken) = mpsc::sync_channel(1);
        let write = {
            let (store, report) = (Arc::clone(store), report.clone());
            move || write_checkpoints(&store, &jobs_taken, &report)
        };
        let read = {
            let store = Arc::clone(store);
            move || read_bodies(&store, &reads_taken)
        };
        let free = {
            let (store, log, report) = (Arc::clone(store), Arc::clone(log), report.clone());
            let tasks_live = Arc::clone(&tasks_live);
            move || free_space(&store, &log, &tidy_taken, &tasks_live, &report)
        };
        let (running, ended) = mpsc::channel();
        let running = (Arc::clone(data), running);
        spawn("checkpoints", write, report.clone(), running.clone())?;
        spawn("bodies", read, report.clone(), running.clone())?;
        spawn("space", free, report, running)?;
        Ok(Checkpointer { jobs, reads, tidy, tasks_live, ended })
    }

    pub(crate) fn job(&self, job: Job) {
        // A thread that is gone has reported why.
        let _ = self.jobs.send(job);
    }

    pub(crate) fn read(&self, request: BodiesRequest) {
        let _ = self.reads.send(request);
    }

    /// Ends the threads after their present work. Returns `false` if that takes longer than
    /// `until`, and then leaves them running.
    pub(crate) fn finish(self, until: Instant) -> bool {
        let Checkpointer { jobs, reads, tidy, ended, .. } = self;
        drop((jobs, reads, tidy));
        let wait = until.saturating_duration_since(clock::real_now());
        ended.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Frees unneeded space soon. `tasks_live` is the present number of tasks.
    pub(crate) fn tidy(&self, tasks_live: u64) {
        self.tasks_live.store(tasks_live, Ordering::Relaxed);
        let _ = self.tidy.try_send(());
    }
}

fn spawn(
    name: &str,
    work: impl FnOnce() -> Result<(), String> + Send + 'static,
    report: impl Fn(Report) + Send + 'static,
    running: (Arc<DataDir>, mpsc::Sender<()>),
) -> std::io::Result<()> {
    let run = move || {
        // All data of `work` is dropped by now, above all the store.
        let ended = catch_unwind(AssertUnwindSafe(work));
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(panic) => Some(crate::shard_loop::panic_message(panic.as_ref())),
        };
        if let Some(failure) = failure {
            report(Report::Failed(Failure(failure)));
        }
        drop(running);
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

fn stopped(error: &StoreError) -> String {
    format!("{error}; check the disk, then start again")
}

fn write_checkpoints(
    store: &Arc<Store>,
    jobs: &mpsc::Receiver<Job>,
    report: &impl Fn(Report),
) -> Result<(), String> {
    let mut gathered: HashMap<ShardId, Vec<Change>> = HashMap::new();
    for job in jobs {
        match job {
            Job::Changes(shard, changes) => gathered.entry(shard).or_default().extend(changes),
            Job::Abandon(shard) => drop(gathered.remove(&shard)),
            Job::Write(shard, cut) => {
                let changes = gathered.remove(&shard).unwrap_or_default();
                store.write(shard, &cut, changes).map_err(|error| stopped(&error))?;
                report(Report::Written(shard, cut));
            }
            Job::Look(look) => look(store),
            Job::Switch(shard, id, cut) => {
                let switched = store.switch(shard, id, &cut).map_err(|error| stopped(&error))?;
                report(Report::Switched(shard, id, switched));
            }
            Job::Discard(shard, id) => store.discard_install(shard, id),
            Job::Remove(shard) => {
                gathered.remove(&shard);
                store.remove(shard).map_err(|error| stopped(&error))?;
                report(Report::Removed(shard));
            }
            Job::Drop(large) => drop(large),
        }
    }
    Ok(())
}

fn read_bodies(store: &Store, requests: &mpsc::Receiver<BodiesRequest>) -> Result<(), String> {
    for BodiesRequest { tasks, answer } in requests {
        let read = |&task: &TaskId| store.body(task).map_err(|error| error.to_string());
        answer(tasks.iter().map(read).collect());
    }
    Ok(())
}

fn free_space(
    store: &Store,
    log: &Log,
    asked: &mpsc::Receiver<()>,
    tasks_live: &AtomicU64,
    report: &impl Fn(Report),
) -> Result<(), String> {
    for () in asked {
        let holding = log.purge().map_err(|error| error.to_string())?;
        if !holding.is_empty() {
            report(Report::Holding(holding));
        }
        sweep(store).map_err(|error| stopped(&error))?;
        store.reclaim(tasks_live.load(Ordering::Relaxed)).map_err(|error| stopped(&error))?;
    }
    Ok(())
}

/// Removes garbage of replaced states, up to a bound; later calls remove the rest.
fn sweep(store: &Store) -> Result<(), StoreError> {
    for _ in 0..SWEEPS_MAX {
        if !store.sweep()? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// They stayed in memory until the node ended.
    #[test]
    fn what_was_gathered_of_a_checkpoint_that_is_abandoned_is_dropped() {
        struct Owned(#[expect(dead_code, reason = "it tells when it is dropped")] mpsc::Sender<()>);
        impl AsRef<[u8]> for Owned {
            fn as_ref(&self) -> &[u8] {
                b"body"
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(dir.path(), None).unwrap());
        let store = Store::open(&data.state()).unwrap();
        let log = Arc::new(Log::open(&data.log()).unwrap());
        let checkpointer = Checkpointer::start(&data, &store, &log, |_| ()).unwrap();
        let task = TaskId { incarnation: 1, home: ShardId(3), origin: ShardId(3), sequence: 1 };
        let (kept, is_kept) = mpsc::channel();
        let body = Bytes::from_owner(Owned(kept));
        checkpointer.job(Job::Changes(ShardId(3), vec![Change::Body(task, body)]));
        checkpointer.job(Job::Abandon(ShardId(4)));
        let until_there = || {
            let (look, looked) = mpsc::channel();
            checkpointer.job(Job::Look(Box::new(move |_| look.send(()).unwrap())));
            looked.recv().unwrap();
        };
        until_there();
        assert_eq!(is_kept.try_recv(), Err(mpsc::TryRecvError::Empty), "another shard's is kept");
        checkpointer.job(Job::Abandon(ShardId(3)));
        until_there();
        assert_eq!(is_kept.try_recv(), Err(mpsc::TryRecvError::Disconnected), "it is kept");
        assert!(checkpointer.finish(clock::real_now() + Duration::from_secs(20)));
    }

    #[test]
    fn a_thread_that_hangs_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(dir.path(), None).unwrap());
        let store = Store::open(&data.state()).unwrap();
        let log = Arc::new(Log::open(&data.log()).unwrap());
        let (release, released) = mpsc::channel::<()>();
        let hanging = Checkpointer::start(&data, &store, &log, |_| ()).unwrap();
        hanging.job(Job::Look(Box::new(move |_| {
            let _ = released.recv();
        })));
        assert!(!hanging.finish(clock::real_now() + Duration::from_millis(20)));
        let sound = Checkpointer::start(&data, &store, &log, |_| ()).unwrap();
        assert!(sound.finish(clock::real_now() + Duration::from_secs(20)));
        drop((data, store, log));
        assert!(DataDir::open(dir.path(), None).is_err(), "the hanging thread holds the lock");
        drop(release);
    }
}
