//! The load: enqueues in a closed loop, executions of waiting tasks, and both at a fixed rate.
//!
//! At a fixed rate each enqueue is timed from the moment at which it was due. Timed from its
//! sending, a load that waits for a slow broker would hide the wait.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use taskyard::{Client, NewTask, RawPayload, TaskContext, Worker};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
};

use crate::args::BenchArgs;

/// Fixed-rate enqueues that may wait for an answer; more means that the broker can't keep up.
const IN_FLIGHT_MAX: usize = 50_000;
/// Workers, with one connection each. There is at least one per client.
const WORKERS: usize = 2;
const KIND: &str = "bench";

/// The clients that enqueue and execute.
pub(super) struct Load {
    /// The queues, which take turns.
    clients: Vec<Client>,
    payload: Vec<u8>,
    in_flight: usize,
    slots: u32,
    queues: Vec<String>,
}

impl Load {
    pub(super) fn new(clients: Vec<Client>, args: &BenchArgs) -> Load {
        // A JSON text of the requested size.
        let filling = usize::try_from(args.payload).unwrap_or(0).saturating_sub(2);
        Load {
            clients,
            payload: format!("\"{}\"", "x".repeat(filling)).into_bytes(),
            in_flight: args.clients.max(1),
            slots: args.slots.max(1),
            queues: (0..args.queues()).map(|number| format!("bench-{number}")).collect(),
        }
    }

    pub(super) fn queues(&self) -> &[String] {
        &self.queues
    }

    fn client(&self, number: usize) -> &Client {
        &self.clients[number % self.clients.len()]
    }

    fn task(&self, number: u64) -> NewTask {
        self.task_of(&self.queues[place(number, self.queues.len())])
    }

    /// A task of a queue.
    pub(super) fn task_of(&self, queue: &str) -> NewTask {
        NewTask::raw(KIND, self.payload.clone()).queue(queue)
    }

    pub(super) async fn purge(&self) -> Result<()> {
        for queue in &self.queues {
            self.clients[0].queue(queue).purge().await?;
        }
        Ok(())
    }
}

/// Takes turns among this many places.
fn place(number: u64, places: usize) -> usize {
    usize::try_from(number % places as u64).unwrap_or(0)
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, 3).expect("the bounds are in order")
}

pub(super) fn micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Enqueues up to `tasks` within `limit`, each client one after the other.
pub(super) async fn enqueue(
    load: &Arc<Load>,
    tasks: u64,
    limit: Duration,
) -> Result<(u64, Histogram<u64>, Duration)> {
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..load.in_flight {
        let (load, next) = (Arc::clone(load), Arc::clone(&next));
        clients.spawn(async move {
            let client = load.client(number);
            let mut latency = histogram();
            while started.elapsed() < limit {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= tasks {
                    break;
                }
                let sent = Instant::now();
                client.enqueue_new(load.task(number)).await?;
                latency.saturating_record(micros(sent.elapsed()));
            }
            Ok::<_, taskyard::Error>(latency)
        });
    }
    let mut latency = histogram();
    while let Some(one) = clients.join_next().await {
        latency.add(one??)?;
    }
    Ok((latency.len(), latency, started.elapsed()))
}

/// Executes up to `tasks` within `limit`.
pub(super) async fn execute(
    load: &Arc<Load>,
    tasks: u64,
    limit: Duration,
) -> Result<(u64, Duration)> {
    let board = Arc::new(Board::new());
    let workers = Workers::start(load, &board.watch())?;
    let started = Instant::now();
    board.wait_for(tasks, limit).await;
    let executed = board.executed.load(Ordering::Relaxed);
    let took = started.elapsed();
    workers.stop().await?;
    Ok((executed, took))
}

/// The latencies of a load at a fixed rate.
pub(super) struct Steady {
    pub(super) executed: u64,
    pub(super) took: Duration,
    /// From the due moment to the acknowledgement.
    pub(super) acknowledged: Histogram<u64>,
    /// From the due moment to the execution.
    pub(super) end: Histogram<u64>,
}

/// Enqueues `per_second` while workers execute.
pub(super) async fn steady(
    load: &Arc<Load>,
    per_second: u64,
    tasks: u64,
    limit: Duration,
) -> Result<Steady> {
    let board = Arc::new(Board::new());
    let workers = Workers::start(load, &board.watch())?;
    let started = board.started;
    let mut acknowledged = histogram();
    let mut sending: JoinSet<Result<u64, taskyard::Error>> = JoinSet::new();
    let mut sent = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while sent < tasks && started.elapsed() < limit {
        tick.tick().await;
        let due_by_now = u128::from(per_second) * started.elapsed().as_micros() / 1_000_000;
        while u128::from(sent) < due_by_now && sent < tasks {
            let due_us = sent.saturating_mul(1_000_000) / per_second;
            let task = load.task(sent).header("due", due_us.to_string());
            let enqueue = load.client(place(sent, load.clients.len())).enqueue_new(task);
            sending.spawn(async move {
                enqueue.await?;
                Ok(micros(started.elapsed()).saturating_sub(due_us))
            });
            sent += 1;
        }
        anyhow::ensure!(
            sending.len() < IN_FLIGHT_MAX,
            "the broker does not keep up with {per_second} tasks per second: {IN_FLIGHT_MAX} wait \
             for an answer; try a lower --rate"
        );
        while let Some(answer) = sending.try_join_next() {
            acknowledged.saturating_record(answer??);
        }
    }
    while let Some(answer) = sending.join_next().await {
        acknowledged.saturating_record(answer??);
    }
    board.wait_for(sent, limit).await;
    let took = started.elapsed();
    workers.stop().await?;
    let end = board.latency.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Steady { executed: board.executed.load(Ordering::Relaxed), took, acknowledged, end })
}

/// The reports of handlers.
struct Board {
    started: Instant,
    executed: AtomicU64,
    wanted: AtomicU64,
    reached: Notify,
    latency: Mutex<Histogram<u64>>,
}

impl Board {
    fn new() -> Board {
        Board {
            started: Instant::now(),
            executed: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
            latency: Mutex::new(histogram()),
        }
    }

    /// The handler of workers, which counts each task here.
    fn watch(self: &Arc<Board>) -> Watch {
        let board = Arc::clone(self);
        Arc::new(move |context| {
            board.execute(context.header("due").and_then(|due| due.parse().ok()));
        })
    }

    fn execute(&self, due_us: Option<u64>) {
        if let Some(due_us) = due_us {
            let late = micros(self.started.elapsed()).saturating_sub(due_us);
            let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
            latency.saturating_record(late);
        }
        let executed = self.executed.fetch_add(1, Ordering::SeqCst) + 1;
        if executed >= self.wanted.load(Ordering::SeqCst) {
            self.reached.notify_one();
        }
    }

    async fn wait_for(&self, tasks: u64, limit: Duration) {
        self.wanted.store(tasks, Ordering::SeqCst);
        if self.executed.load(Ordering::SeqCst) < tasks {
            let _ = tokio::time::timeout(limit, self.reached.notified()).await;
        }
    }
}

/// The function that workers call for every task.
pub(super) type Watch = Arc<dyn Fn(&TaskContext) + Send + Sync>;

/// Workers that only count their tasks. Dropping this value ends them at once.
pub(super) struct Workers {
    running: JoinSet<Result<(), taskyard::Error>>,
    stops: Vec<oneshot::Sender<()>>,
}

impl Workers {
    pub(super) fn start(load: &Load, watch: &Watch) -> Result<Workers> {
        let mut workers = Workers { running: JoinSet::new(), stops: Vec::new() };
        let count = load.clients.len().max(WORKERS);
        for number in 0..count {
            let watch = Arc::clone(watch);
            let handler = move |_: RawPayload, context: TaskContext| {
                watch(&context);
                async { Ok::<(), taskyard::Fail>(()) }
            };
            let mut builder = Worker::builder(load.client(number))
                .name(KIND)
                .concurrency((load.slots as usize).div_ceil(count))
                .handler(KIND, handler);
            for queue in &load.queues {
                // With weights, because otherwise the first queue would be emptied before the next
                // one is used.
                builder = builder.queue_weighted(queue, 1);
            }
            let (stop, stopped) = oneshot::channel::<()>();
            workers.running.spawn(builder.build()?.run_until(stopped));
            workers.stops.push(stop);
        }
        Ok(workers)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.stops.clear();
        while let Some(ended) = self.running.join_next().await {
            ended?.context("a worker of the load")?;
        }
        Ok(())
    }
}
