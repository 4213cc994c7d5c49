//! Engine: opens a data directory, recovers its shards and runs their thread.
//!
//! An engine that is dropped without [`Engine::stop`] ends like a crash: acknowledged data is on
//! disk, and nothing more is done.

use super::{
    Handle, Shards,
    inbox::{Inbox, Input},
};
use crate::{
    Config,
    buffers::Buffers,
    checkpoint::Checkpointer,
    clock,
    cluster::{Fetcher, Gate, Routes, Snapshots},
    data_dir::DataDir,
    disk::DiskGuard,
    limits,
    node::StartError,
    shard_loop::{Parts, ShardLoop, panic_message, recover_all},
    telemetry::Telemetry,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, atomic::AtomicU64, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, oneshot, watch};

/// Batches of events that a reader may lag behind before it misses some.
const EVENT_BATCHES: usize = 1024;
/// The longest stop without a deadline.
const STOP_FOR_MAX: Duration = Duration::from_millis(limits::STOP_MS_MAX);

/// The shards of one data directory, running.
#[derive(Debug)]
pub struct Engine {
    shards: Shards,
    failed: watch::Receiver<Option<String>>,
    thread: Option<JoinHandle<()>>,
    #[cfg(test)]
    log: std::sync::Weak<crate::log::Log>,
}

impl Engine {
    /// Opens `config.data` and recovers its replicas. Blocks until every single-replica shard
    /// leads; other shards need their peers, see `Shards::connect`.
    pub fn start(config: &Config) -> Result<Engine, StartError> {
        Engine::drive(open(config)?)
    }

    /// `start` for a node with peers: its replicas take part in their groups once the gate is open.
    pub(crate) fn start_apart(config: &Config) -> Result<Engine, StartError> {
        let opened = open(config)?;
        let handle = &opened.parts.handle;
        let must_ask = handle.starts().is_copy() && !config.newest_copy;
        handle.routes().set_gate(if must_ask { Gate::Copied } else { Gate::Hears });
        Engine::drive(opened)
    }

    fn drive(opened: Opened) -> Result<Engine, StartError> {
        let Opened { parts, data, serves } = opened;
        let (handle, inbox) = (parts.handle.clone(), Arc::clone(&parts.inbox));
        #[cfg(test)]
        let log_seen = Arc::downgrade(&parts.log);
        let (failure, failed) = watch::channel(None);
        let thread = std::thread::Builder::new()
            .name("shards".into())
            .spawn(move || run(parts, &inbox, data, &failure))
            .map_err(|error| thread_failed(&error))?;
        let engine = Engine {
            shards: handle,
            failed,
            thread: Some(thread),
            #[cfg(test)]
            log: log_seen,
        };
        if serves.recv().is_err() {
            let why = engine.failed.borrow().clone();
            return Err(StartError(why.unwrap_or_else(|| "the shards did not start".into())));
        }
        Ok(engine)
    }

    pub fn shards(&self) -> Shards {
        self.shards.clone()
    }

    /// Completes when the engine has failed; says why.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.clone();
        let why = failed.wait_for(Option::is_some).await;
        match why {
            Ok(why) => why.clone().unwrap_or_default(),
            // The engine was stopped in order, and fails no more.
            Err(_) => std::future::pending().await,
        }
    }

    /// Hands over leadership to other nodes, as far as possible by `until`.
    pub(crate) async fn hand_over(&self, until: Instant) {
        let (answer, answered) = oneshot::channel();
        if self.shards.push(Input::HandOver { until, answer }).is_ok() {
            let _ = answered.await;
        }
    }

    /// Ends calls, checkpoints every shard and closes the directory. Blocks until it is closed, for
    /// a minute at most.
    pub fn stop(self) {
        self.stop_by(clock::real_now() + STOP_FOR_MAX);
    }

    /// `stop` with the deadline `until`. Checkpoints only shorten the next start: those that are
    /// not done are dropped, and their entries are replayed.
    pub(crate) fn stop_by(mut self, until: Instant) {
        self.end(Input::Stop { until });
    }

    fn end(&mut self, how: Input) {
        if let Some(thread) = self.thread.take() {
            // A closed inbox belongs to a thread that has ended.
            let _ = self.shards.0.inbox.push(how);
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end(Input::Halt);
    }
}

/// A recovered data directory, before its loop runs.
pub(crate) struct Opened {
    pub(crate) parts: Parts,
    pub(crate) data: Arc<DataDir>,
    /// Signalled once every single-replica shard leads.
    pub(crate) serves: mpsc::Receiver<()>,
}

/// Opens `config.data` and recovers its replicas.
pub(crate) fn open(config: &Config) -> Result<Opened, StartError> {
    let data = Arc::new(DataDir::open(&config.data, config.shards)?);
    let format = data.format();
    let unreadable = |error| how_to_rebuild(error, config, format.node);
    let (store, log) = data.contents().map_err(unreadable)?;
    data.seal()?;
    let starts = data.begin_start()?;
    let seen = data.seen()?;
    let recovered = recover_all(format, &store, &log).map_err(unreadable)?;
    let buffers = Buffers::new(config.memory_bytes_max);
    let inbox = Arc::new(Inbox::new(&buffers));
    let report = {
        let inbox = Arc::clone(&inbox);
        move |report| drop(inbox.push(Input::Report(report)))
    };
    let checkpointer =
        Checkpointer::start(&data, &store, &log, report).map_err(|error| thread_failed(&error))?;
    let events = broadcast::Sender::new(EVENT_BATCHES);
    let telemetry = Arc::new(Telemetry::default());
    let looking = Arc::downgrade(&inbox);
    config.clock.on_move(move || {
        let _ = looking.upgrade().map(|inbox| inbox.push(Input::Look));
    });
    let routes = Arc::new(Routes::new(format.node, format.shards));
    let network = Arc::new(OnceLock::new());
    let (up, serves) = mpsc::sync_channel(1);
    let snapshots = Snapshots::new(format.node, &store);
    let fetcher = Fetcher::new(&data, &store, &network, &inbox);
    let handle = Shards(Arc::new(Handle {
        inbox: Arc::clone(&inbox),
        format,
        tickets: AtomicU64::new(1),
        events: events.clone(),
        telemetry: Arc::clone(&telemetry),
        routes: Arc::clone(&routes),
        network: Arc::clone(&network),
        snapshots: Arc::clone(&snapshots),
        gateway: OnceLock::new(),
        starts,
        seen,
        buffers,
    }));
    let parts = Parts {
        format,
        recovered,
        handle,
        runtime: tokio::runtime::Handle::try_current().ok(),
        inbox,
        log,
        snapshots,
        fetcher,
        checkpointer,
        clock: config.clock.clone(),
        disk: DiskGuard::new(data.path(), config.disk_reserve_bytes),
        memory_bytes_max: config.memory_bytes_max,
        events,
        telemetry,
        routes,
        network,
        up,
    };
    Ok(Opened { parts, data, serves })
}

fn thread_failed(error: &std::io::Error) -> StartError {
    StartError(format!("a thread can't be started: {error}"))
}

/// Runs the shards until they end. Every call gets an answer, whatever ends them.
fn run(parts: Parts, inbox: &Inbox, data: Arc<DataDir>, failure: &watch::Sender<Option<String>>) {
    let mut shards = ShardLoop::new(parts);
    let ended = catch_unwind(AssertUnwindSafe(|| shards.run()));
    let why = match ended {
        Ok(Ok(())) => None,
        Ok(Err(failed)) => Some(failed.0),
        Err(panic) => Some(panic_message(panic.as_ref())),
    };
    if let Some(why) = &why {
        tracing::error!("the shards have stopped: {why}");
    }
    inbox.close(why.as_deref().unwrap_or("this node has stopped"));
    // Before anything is closed, because a close may wait for a disk that never answers.
    failure.send_if_modified(|told| {
        *told = why;
        told.is_some()
    });
    let is_closed = catch_unwind(AssertUnwindSafe(|| shards.close())).unwrap_or(false);
    if !is_closed {
        tracing::warn!(
            "a write to the disk is not done yet; this process ends without waiting for it"
        );
    }
    // The lock is released last, so that the next process finds everything closed.
    drop(data);
}

/// Advises to rebuild a node of a cluster from its peers, because they have all of its data.
fn how_to_rebuild(error: StartError, config: &Config, node: u64) -> StartError {
    let StartError(words) = error;
    StartError(match config.peer {
        None => words,
        Some(_) => format!(
            "{words}; if the rest of its cluster works, rebuild this node from it instead: run \
             `taskyard cluster remove {node} --force` on another node, then start this node with a new \
             data directory and --join"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkpoint::{Change, Store},
        log::{FIRST_REPLICA, group_of},
        shard::{ClaimRequest, Sought},
    };
    use taskyard_machine::{
        Body, Command, EncodedCommand, Enqueue, NewTask, Outcome, QueueCommand, RULES_CURRENT,
        RecordKey, ShardId, TaskId, TaskStateName, ask,
    };
    use taskyard_replica::{ControlCommand, Node};

    fn config(dir: &std::path::Path) -> Config {
        let mut config = Config::new(dir);
        (config.shards, config.disk_reserve_bytes) = (Some(2), 0);
        config
    }

    /// raft-engine panics when a sync fails. All callers must learn of it, and nothing may go on.
    #[tokio::test]
    async fn a_failed_sync_stops_everything() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let parked = shards.claimable(
            ShardId(0),
            Sought::of_any_type(vec!["mail".into()]),
            Duration::from_secs(60),
        );
        let mut parked = Box::pin(parked);
        tokio::select! {
            biased;
            _ = &mut parked => panic!("there is nothing to claim"),
            status = shards.status() => assert_eq!(status.unwrap().len(), 2),
        }
        engine.log.upgrade().unwrap().fail_sync_after(0);
        let pause = EncodedCommand::new(&Command::PauseQueue(QueueCommand { queue: "mail" }));
        let error = shards.propose(ShardId(0), pause.clone(), false).await.unwrap_err();
        assert_eq!(error.code(), "outcome_unknown");
        assert_eq!(parked.await.unwrap_err().code(), "unavailable");
        let why = engine.failed().await;
        assert_eq!(
            why,
            "fdatasync of the log failed: Input/output error (os error 5); \
             nothing unsynced was acknowledged; check the disk, then start again"
        );
        let error = shards.propose(ShardId(1), pause, false).await.unwrap_err();
        assert_eq!(error.code(), "unavailable");
        assert_eq!(error.to_string(), why);
    }

    /// A start finishes the removal of a replica that the log no longer has. A replica that is
    /// still in the log, without its checkpoint, would be refused as damaged.
    #[tokio::test]
    async fn a_replica_leaves_the_log_before_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(&config(dir.path())).unwrap();
        let home = engine.shards().home("mail");
        let task = NewTask { task_type: "test", ..NewTask::default() };
        let enqueue = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
        engine.shards().propose(home, enqueue, true).await.unwrap();
        engine.stop();

        let engine = Engine::start(&config(dir.path())).unwrap();
        let (shards, group, other) = (engine.shards(), group_of(home), 2);
        let node = Node { rules_max: RULES_CURRENT, ..Node::default() };
        for command in [
            ControlCommand::SetNode { id: other, node },
            ControlCommand::Assign { group, node: other },
            ControlCommand::SetTarget { group, nodes: vec![other] },
        ] {
            shards.control(command).await.unwrap();
        }
        // The next sync commits the order to remove the replica; the one after is the removal.
        engine.log.upgrade().unwrap().fail_sync_after(1);
        let replica = FIRST_REPLICA;
        shards.control(ControlCommand::Unassign { group, replica }).await.unwrap();
        assert!(engine.failed().await.contains("fdatasync of the log failed"));
        drop(engine);
        let store = Store::open(&dir.path().join("state")).unwrap();
        assert!(store.view().cut(home).unwrap().is_some(), "it was removed too early");
    }

    /// Removes the bodies of tasks from the checkpoint, as a damaged disk would.
    fn lose_bodies(dir: &std::path::Path, tasks: &[TaskId]) {
        let store = Store::open(&dir.join("state")).unwrap();
        for &task in tasks {
            let view = store.view();
            let cut = view.cut(task.home).unwrap().unwrap();
            let key = RecordKey::Task(task);
            let mut records = view.records(task.home).map(Result::unwrap);
            let (_, record) = records.find(|(found, _)| *found == key).unwrap();
            // A deleted record takes its body with it; then the record is written again.
            for value in [None, Some(record)] {
                let change = Change::Record(key.clone(), value);
                store.write(task.home, &cut, vec![change]).unwrap();
            }
        }
    }

    /// A lost body costs its own task, not the node.
    #[tokio::test]
    async fn a_task_without_a_body_becomes_a_dead_letter_and_the_rest_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let home = shards.home("mail");
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let body = Body { payload: b"letter", ..Body::default() };
            let task = NewTask { task_type: "test", body, ..NewTask::default() };
            let command = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
            match shards.propose(home, command, true).await.unwrap() {
                Outcome::Enqueued(enqueued) => tasks.push(enqueued.id),
                other => panic!("an enqueue was answered with {other:?}"),
            }
        }
        engine.stop();
        lose_bodies(dir.path(), &tasks[..2]);
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let request = ClaimRequest::of_queue("mail", 1);
        let claimed = shards.claim(home, request, Duration::from_secs(20)).await.unwrap();
        assert_eq!(claimed.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), tasks[2..]);
        for &task in &tasks[..2] {
            let view = shards.ask(home, ask::Task { task }).await.unwrap();
            assert_eq!(view.unwrap().state, TaskStateName::Dead);
        }
    }

    /// A final checkpoint only shortens the next start.
    #[tokio::test]
    async fn a_stop_without_time_for_checkpoints_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let home = shards.home("mail");
        let task = || NewTask { task_type: "test", ..NewTask::default() };
        let enqueue = Command::Enqueue(Enqueue { queue: "mail", task: task() });
        let enqueues = vec![(home, EncodedCommand::new(&enqueue)); 2_000];
        for outcome in shards.propose_all(enqueues, true).await {
            outcome.unwrap();
        }
        engine.stop_by(clock::real_now());
        // The threads beside the loop hold the lock until they have ended.
        let deadline = clock::real_now() + Duration::from_secs(20);
        while DataDir::open(dir.path(), None).is_err() {
            assert!(clock::real_now() < deadline, "the directory is never closed");
            std::thread::yield_now();
        }
        let store = Store::open(&dir.path().join("state")).unwrap();
        assert_eq!(store.view().cut(home).unwrap(), None, "there was no time");
        drop(store);
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let count = shards.read(home, |machine| machine.task_count()).await;
        assert_eq!(count.unwrap(), 2_000);
    }

    #[tokio::test]
    async fn a_read_that_panics_ends_alone() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(&config(dir.path())).unwrap();
        let shards = engine.shards();
        let read = shards.read(ShardId(0), |_| -> u64 { panic!("a mistake in a query") });
        assert_eq!(read.await.unwrap_err().code(), "unavailable");
        assert_eq!(shards.read(ShardId(0), |machine| machine.task_count()).await.unwrap(), 0);
    }
}
