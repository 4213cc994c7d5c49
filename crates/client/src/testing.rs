//! Testing: the real broker in the test's own process, with a clock that the test moves.
//!
//! Only time is simulated: tasks, retries, leases, schedules and dead letters behave as in
//! production, and a retry in an hour runs when the test moves the clock.

use crate::{
    Client, Embedded, Error, QueueDetails, TaskDetails, TaskState, Timestamp, WorkerBuilder,
    WorkerHandle, timestamp::millis,
};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use taskyard_server::{Clock, Config};
use tempfile::TempDir;
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

/// A test's clock starts at 2030-01-01, so that no real moment is in its future by accident.
const START: Timestamp = Timestamp::from_millis(1_893_456_000_000);
/// Tests should meet several shards, and four start quickly.
const SHARDS: u16 = 4;
/// The default patience: how long a test waits before its call fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a waiting test looks at the broker.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A real broker for one test, in the test's process, on a temporary directory, with a clock that
/// the test moves.
///
/// ```
/// use std::time::Duration;
/// use taskyard::{Fail, TaskContext, TaskState, testing::TestBroker};
///
/// async fn flaky(context: TaskContext) -> Result<&'static str, Fail> {
///     match context.attempt() {
///         1 => Err("not yet".into()),
///         _ => Ok("done"),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), taskyard::Error> {
/// let broker = TestBroker::start().await?;
/// let task = broker.client().task("flaky", &()).await?;
///
/// let _worker = broker.run(broker.worker().handler("flaky", flaky))?;
/// broker.settle().await?;
/// assert_eq!(broker.client().get(task.id()).await?.state, TaskState::Scheduled);
///
/// broker.advance(Duration::from_secs(60)).await?;
/// broker.settle().await?;
/// assert_eq!(task.result().await?, "done");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TestBroker {
    clock: Clock,
    embedded: Embedded,
    patience: Duration,
    /// Workers that this broker runs, also those that have not connected yet.
    workers: Mutex<Vec<AbortHandle>>,
    _directory: TempDir,
}

impl TestBroker {
    /// Starts an empty broker.
    pub async fn start() -> Result<TestBroker, Error> {
        let directory = tempfile::tempdir().map_err(|error| {
            Error::unavailable(format!("cannot make a temporary directory: {error}"))
        })?;
        let clock = Clock::manual(START.as_millis());
        let config = Config {
            listen: None,
            shards: Some(SHARDS),
            // A test writes little, and should run on a full disk too.
            disk_reserve_bytes: 0,
            clock: clock.clone(),
            ..Config::new(directory.path())
        };
        let mut embedded = Embedded::start(config).await?;
        embedded.set_patience(PATIENCE);
        let (patience, workers) = (PATIENCE, Mutex::default());
        Ok(TestBroker { clock, embedded, patience, workers, _directory: directory })
    }

    /// Sets how long a call waits before it fails; 30 seconds of real time by default. The bound
    /// applies to [`advance`](TestBroker::advance), [`jump`](TestBroker::jump) and
    /// [`settle`](TestBroker::settle), and to waits for results and flows without a limit of their
    /// own.
    ///
    /// Without a bound a test could hang: the clock stands still until the test moves it, so a
    /// result that depends on a retry may never come.
    pub fn patience(mut self, patience: Duration) -> TestBroker {
        self.patience = patience;
        self.embedded.set_patience(patience);
        self
    }

    /// A client of this broker.
    pub fn client(&self) -> Client {
        self.embedded.client()
    }

    /// Describes a worker of this broker.
    pub fn worker(&self) -> WorkerBuilder {
        self.embedded.worker()
    }

    /// Runs a worker beside the test, until the returned [`TestWorker`] is stopped or dropped.
    pub fn run(&self, worker: WorkerBuilder) -> Result<TestWorker, Error> {
        let worker = worker.build()?;
        let handle = worker.handle();
        let running = tokio::spawn(worker.run());
        self.workers().push(running.abort_handle());
        Ok(TestWorker { handle, running })
    }

    /// The broker's time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.wall_ms())
    }

    /// Lets time pass: moves the clock from one due moment to the next, and waits at each until the
    /// broker has done the due work. Each delayed or retried task becomes ready in its time, and
    /// each occurrence of a schedule fires in its time.
    ///
    /// At each due moment the clock also waits until workers have finished their tasks, as if tasks
    /// took no time. A handler that waits for the test therefore blocks this call; use
    /// [`jump`](TestBroker::jump) for such a test. The call does not wait for tasks that become
    /// ready at its last moment: [`settle`](TestBroker::settle) does.
    ///
    /// Leases follow this clock too. Let handlers finish first ([`settle`](TestBroker::settle)), or
    /// the broker takes their worker for dead.
    pub async fn advance(&self, by: Duration) -> Result<(), Error> {
        let until = Timestamp::from_millis(self.now().as_millis() + millis(by));
        while let Some(next) = self.next_due().await?.filter(|at| *at < until) {
            self.jump(next.since(self.now())).await?;
            let idle = async || self.is_idle().await;
            self.until("workers to finish before the clock moves on", idle).await?;
        }
        self.jump(until.since(self.now())).await
    }

    /// Moves the clock forward in one step, as if the broker had been down for that time, and waits
    /// until the broker has done all due work. Schedules fire missed occurrences by their
    /// [catch-up](crate::schedule::CatchUp) policy.
    pub async fn jump(&self, by: Duration) -> Result<(), Error> {
        self.clock.advance(by);
        self.until("the due work to be done", async || {
            let now = self.now();
            if self.next_occurrence().await?.is_some_and(|at| at <= now) {
                return Ok(false);
            }
            // The task of a fired occurrence may still be on its way to its queue.
            if !self.embedded.is_settled().await? {
                return Ok(false);
            }
            let due = |task: &TaskDetails| {
                let lease = task.claim.as_ref().map(|claim| claim.lease_expires_at);
                task.run_at.or(lease).is_some_and(|at| at <= now)
            };
            for state in [TaskState::Scheduled, TaskState::Claimed] {
                let mut tasks = self.client().tasks().state(state);
                while let Some(task) = tasks.next().await? {
                    if due(&task) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
        .await
    }

    fn workers(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether workers have nothing to do now: no task runs, and each ready task waits for
    /// something other than a free worker.
    async fn is_idle(&self) -> Result<bool, Error> {
        let client = self.client();
        if !self.embedded.is_settled().await? {
            return Ok(false);
        }
        let started = self.workers().iter().filter(|worker| !worker.is_finished()).count();
        let connected = client.workers().await?.workers;
        let connected = connected.iter().filter(|worker| worker.state != "lost").count();
        if started == 0 && connected == 0 {
            // Without workers, only the test itself has claimed tasks.
            return Ok(true);
        }
        let queues = client.queues().await?;
        if connected < started || queues.iter().any(|queue| queue.claimed > 0) {
            return Ok(false);
        }
        for queue in queues.iter().filter(|queue| queue.ready > 0) {
            // Workers may not run all types, so that this looks at the first task of each type.
            let mut looked_at = BTreeSet::new();
            let mut ready = client.tasks().queue(&queue.name).state(TaskState::Ready);
            while let Some(task) = ready.next().await? {
                if !looked_at.insert(task.kind) {
                    continue;
                }
                let reasons = client.why(task.id).await?;
                let first = reasons.first().map_or("", |reason| reason.code.as_str());
                if matches!(first, "" | "ahead" | "running" | "finished") {
                    return Ok(false);
                }
            }
            if looked_at.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// When a schedule fires next.
    async fn next_occurrence(&self) -> Result<Option<Timestamp>, Error> {
        let mut schedules = self.client().schedules();
        let mut next: Option<Timestamp> = None;
        while let Some(schedule) = schedules.next().await? {
            next = next.into_iter().chain(schedule.next_run_at).min();
        }
        Ok(next)
    }

    /// When the next scheduled task or occurrence is due.
    async fn next_due(&self) -> Result<Option<Timestamp>, Error> {
        let mut next = self.next_occurrence().await?;
        let mut waiting = self.client().tasks().state(TaskState::Scheduled);
        while let Some(task) = waiting.next().await? {
            next = next.into_iter().chain(task.run_at).min();
        }
        Ok(next)
    }

    /// Waits until no task is ready or running, except for ready tasks in paused queues.
    pub async fn settle(&self) -> Result<(), Error> {
        let busy = |queue: &QueueDetails| queue.claimed > 0 || (queue.ready > 0 && !queue.paused);
        let idle = async || Ok::<_, Error>(!self.client().queues().await?.iter().any(busy));
        // The end of one task may release another task on another shard.
        let settled =
            async || Ok(idle().await? && self.embedded.is_settled().await? && idle().await?);
        self.until("ready tasks to be run", settled).await
    }

    /// Stops the broker gracefully.
    pub async fn stop(self) {
        self.embedded.close().await;
    }

    async fn until(
        &self,
        what: &str,
        done: impl AsyncFn() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        while !done().await? {
            if Instant::now() >= deadline {
                let queues = self.client().queues().await?;
                let patience = self.patience;
                let message =
                    format!("gave up after {patience:?} of waiting for {what}; queues: {queues:?}");
                return Err(Error::Invalid(message));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// A worker that runs beside the test. Dropping this value stops the worker at once.
#[derive(Debug)]
pub struct TestWorker {
    handle: WorkerHandle,
    running: JoinHandle<Result<(), Error>>,
}

impl TestWorker {
    /// A handle to quiet the worker.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Stops the worker gracefully and waits for its end.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.handle.stop();
        match (&mut self.running).await {
            Ok(result) => result,
            Err(error) => Err(Error::Invalid(format!("the worker ended unexpectedly: {error}"))),
        }
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.running.abort();
    }
}
