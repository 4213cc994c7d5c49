//! Testing: the real broker in the test's own process, with a clock that the test moves.
//!
//! Nothing is simulated but time: tasks, retries, leases, schedules and dead letters behave as in
//! production, and a retry that is an hour away comes when the test says so.

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

/// When a test's clock starts: 2030-01-01, so that no real moment is in its future by accident.
const START: Timestamp = Timestamp::from_millis(1_893_456_000_000);
/// Enough to have several, few enough to start at once.
const SHARDS: u16 = 4;
/// How long a test waits for the broker before it is told what hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A broker for one test: real, in process, on a temporary directory, its clock in the test's
/// hands.
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
    /// Workers that were started here, to know those that are about to connect.
    workers: Mutex<Vec<AbortHandle>>,
    _directory: TempDir,
}

impl TestBroker {
    /// Starts a broker with nothing in it.
    pub async fn start() -> Result<TestBroker, Error> {
        let directory = tempfile::tempdir().map_err(|error| {
            Error::unavailable(format!("cannot make a temporary directory: {error}"))
        })?;
        let clock = Clock::manual(START.as_millis());
        let config = Config {
            listen: None,
            shards: Some(SHARDS),
            // A test writes next to nothing and should run on a full disk too.
            disk_reserve_bytes: 0,
            clock: clock.clone(),
            ..Config::new(directory.path())
        };
        let mut embedded = Embedded::start(config).await?;
        embedded.set_patience(PATIENCE);
        let (patience, workers) = (PATIENCE, Mutex::default());
        Ok(TestBroker { clock, embedded, patience, workers, _directory: directory })
    }

    /// How long a test waits for something that may never come before it is told: for what is due
    /// to be done, and for results and flows without a limit of their own. 30 seconds of real time,
    /// if not said.
    ///
    /// The clock stands until the test moves it, so that a result may depend on a retry which is
    /// never due.
    pub fn patience(mut self, patience: Duration) -> TestBroker {
        self.patience = patience;
        self.embedded.set_patience(patience);
        self
    }

    /// A client of this broker.
    pub fn client(&self) -> Client {
        self.embedded.client()
    }

    /// Starts to describe a worker of this broker.
    pub fn worker(&self) -> WorkerBuilder {
        self.embedded.worker()
    }

    /// Runs a worker beside the test until what is returned is stopped or dropped.
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

    /// Lets time pass: moves the clock forward from one due moment to the next, and waits until the
    /// broker has done what is due. Each delayed or retried task is ready in its time, and a task
    /// that fails in its retry waits for the next one; each occurrence of a schedule fires in its
    /// time.
    ///
    /// At each such moment the clock waits for workers to end what they have, as if they took no
    /// time; a handler that waits for the test holds it up, and [`jump`](TestBroker::jump) does
    /// not. Without workers nothing is waited for. What runs when the clock arrives is left
    /// running: [`settle`](TestBroker::settle) waits for it.
    ///
    /// Leases go by this clock too: let handlers finish first ([`settle`](TestBroker::settle)), or
    /// the move looks to the broker as if their worker had died.
    pub async fn advance(&self, by: Duration) -> Result<(), Error> {
        let until = Timestamp::from_millis(self.now().as_millis() + millis(by));
        while let Some(next) = self.next_due().await?.filter(|at| *at < until) {
            self.jump(next.since(self.now())).await?;
            let idle = async || self.is_idle().await;
            self.until("workers to end what they have before the clock goes on", idle).await?;
        }
        self.jump(until.since(self.now())).await
    }

    /// Moves the clock forward at once, as if the broker had been down for that time: of the
    /// occurrences that passed, schedules fire what their [catch-up](crate::schedule::CatchUp)
    /// policy says. Waits until the broker has done what is due by then.
    pub async fn jump(&self, by: Duration) -> Result<(), Error> {
        self.clock.advance(by);
        self.until("what was due to be done", async || {
            let now = self.now();
            if self.next_occurrence().await?.is_some_and(|at| at <= now) {
                return Ok(false);
            }
            // What has fired may be on its way to its queue.
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

    /// Whether workers have nothing to do at this time: nothing runs, and what is ready is held up
    /// by something else, if only that no worker listens.
    async fn is_idle(&self) -> Result<bool, Error> {
        let client = self.client();
        if !self.embedded.is_settled().await? {
            return Ok(false);
        }
        let started = self.workers().iter().filter(|worker| !worker.is_finished()).count();
        let connected = client.workers().await?.workers;
        let connected = connected.iter().filter(|worker| worker.state != "lost").count();
        if started == 0 && connected == 0 {
            // What is claimed is in the hands of the test itself.
            return Ok(true);
        }
        let queues = client.queues().await?;
        if connected < started || queues.iter().any(|queue| queue.claimed > 0) {
            return Ok(false);
        }
        for queue in queues.iter().filter(|queue| queue.ready > 0) {
            // Workers may take some types and not others: the first task of each is looked at.
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

    /// When the next task or schedule is due that waits for its time.
    async fn next_due(&self) -> Result<Option<Timestamp>, Error> {
        let mut next = self.next_occurrence().await?;
        let mut waiting = self.client().tasks().state(TaskState::Scheduled);
        while let Some(task) = waiting.next().await? {
            next = next.into_iter().chain(task.run_at).min();
        }
        Ok(next)
    }

    /// Waits until nothing is ready and nothing runs. Paused queues may keep what they have.
    pub async fn settle(&self) -> Result<(), Error> {
        let busy = |queue: &QueueDetails| queue.claimed > 0 || (queue.ready > 0 && !queue.paused);
        let idle = async || Ok::<_, Error>(!self.client().queues().await?.iter().any(busy));
        // The end of one task may be what another one waits for, on another shard.
        let settled =
            async || Ok(idle().await? && self.embedded.is_settled().await? && idle().await?);
        self.until("all ready tasks to be run", settled).await
    }

    /// Stops the broker in good order.
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
                let message = format!("waited {patience:?} in vain for {what}; queues: {queues:?}");
                return Err(Error::Invalid(message));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// A worker that runs beside the test. Dropping it stops it at once.
#[derive(Debug)]
pub struct TestWorker {
    handle: WorkerHandle,
    running: JoinHandle<Result<(), Error>>,
}

impl TestWorker {
    /// A way to quiet it.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Stops it gracefully and waits for its end.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.handle.stop();
        match (&mut self.running).await {
            Ok(result) => result,
            Err(error) => {
                Err(Error::Invalid(format!("the worker was not run to its end: {error}")))
            }
        }
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.running.abort();
    }
}
