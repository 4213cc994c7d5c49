//! The load of the demo's cluster, and its measurements: which tasks were confirmed, how often each
//! was executed, and how long enqueues stood still.
//!
//! One producer per queue, with one enqueue at a time, so that the time between two confirmations
//! is the wait of a caller.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use taskyard::{Client, Fail, State, TaskContext, TaskId, Worker};
use tokio::{sync::watch, task::JoinHandle};

use crate::book::Book;

/// Enough queues that every shard has some.
const QUEUES: usize = 16;
const ENQUEUE_EVERY: Duration = Duration::from_millis(25);
const WORK_FOR: Duration = Duration::from_millis(10);
const SLOTS: usize = 64;
const KIND: &str = "greet";

/// The records of the producers and the worker.
#[derive(Default)]
pub(super) struct Seen {
    /// Tasks are identified by the number in their payload.
    pub(super) book: Book,
    /// Enqueues that ended without a confirmation, so that their outcome is unknown.
    pub(super) unconfirmed: u64,
    /// The pauses since the node was killed, or before that since the start.
    pub(super) pauses: Pauses,
}

/// The longest times between two confirmed enqueues.
#[derive(Clone, Copy, Default)]
pub(super) struct Pauses {
    /// The longest pause of any queue.
    pub(super) one: Duration,
    /// The longest time without a confirmation in all queues.
    pub(super) all: Duration,
    last: Option<Instant>,
}

impl Seen {
    /// Returns the pauses so far and begins a new measurement.
    pub(super) fn take_pauses(&mut self) -> Pauses {
        let last = self.pauses.last;
        std::mem::replace(&mut self.pauses, Pauses { last, ..Pauses::default() })
    }

    fn confirm(&mut self, number: u64, task: TaskId, waited: Duration) {
        self.book.confirm(number, task);
        let now = Instant::now();
        let all = self.pauses.last.map_or(Duration::ZERO, |last| now - last);
        self.pauses.one = self.pauses.one.max(waited);
        self.pauses.all = self.pauses.all.max(all);
        self.pauses.last = Some(now);
    }
}

type SharedSeen = Arc<Mutex<Seen>>;

fn lock(seen: &SharedSeen) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Running producers and a worker. Dropping this value stops them at once.
pub(super) struct Load {
    seen: SharedSeen,
    client: Client,
    producing: watch::Sender<bool>,
    producers: Vec<JoinHandle<()>>,
    working: JoinHandle<Result<(), taskyard::Error>>,
}

impl Load {
    /// The worker begins with the node at `place`.
    pub(super) fn start(urls: &[String], place: usize) -> Result<Load> {
        let seen = SharedSeen::default();
        let shared = client(urls, place)?;
        let mut worker = Worker::builder(&shared)
            .name("demo-worker")
            .concurrency(SLOTS)
            .state(Arc::clone(&seen))
            .handler(KIND, greet);
        for number in 0..QUEUES {
            worker = worker.queue(queue(number));
        }
        let working = tokio::spawn(worker.build()?.run());
        let (producing, until) = watch::channel(true);
        let mut producers = Vec::new();
        for number in 0..QUEUES {
            let client = client(urls, number)?;
            let produce = produce(client, number, Arc::clone(&seen), until.clone());
            producers.push(tokio::spawn(produce));
        }
        Ok(Load { seen, client: shared, producing, producers, working })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Asks the producers to end.
    pub(super) fn stop_producing(&self) {
        self.producing.send_replace(false);
    }

    /// Whether all producers have ended.
    pub(super) fn is_produced(&self) -> bool {
        self.producers.iter().all(JoinHandle::is_finished)
    }

    /// Tasks that have not ended on the brokers, and may still run, or run again.
    pub(super) async fn open(&self) -> Result<u64, taskyard::Error> {
        let queues = self.client.queues().await?;
        Ok(queues.iter().map(|q| q.ready + q.claimed + q.scheduled + q.blocked).sum())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.working.abort();
        for producer in &self.producers {
            producer.abort();
        }
    }
}

/// A client that knows all nodes, and begins with the node at this index.
fn client(urls: &[String], place: usize) -> Result<Client> {
    let (before, from) = urls.split_at(place % urls.len());
    Ok(Client::builder(from.iter().chain(before)).build()?)
}

fn queue(number: usize) -> String {
    format!("demo-{number}")
}

async fn produce(client: Client, number: usize, seen: SharedSeen, until: watch::Receiver<bool>) {
    let queue = queue(number);
    let mut confirmed_at = Instant::now();
    let mut task = number as u64;
    while *until.borrow() {
        // The SDK handles a node that does not answer: it repeats the enqueue at another node with
        // the same batch id, so that it makes one task.
        match client.task(KIND, &task).queue(&queue).await {
            Ok(made) => {
                lock(&seen).confirm(task, made.id().clone(), confirmed_at.elapsed());
                confirmed_at = Instant::now();
            }
            Err(_) => lock(&seen).unconfirmed += 1,
        }
        task += QUEUES as u64;
        tokio::time::sleep(ENQUEUE_EVERY).await;
    }
}

async fn greet(
    number: u64,
    State(seen): State<SharedSeen>,
    context: TaskContext,
) -> Result<(), Fail> {
    tokio::time::sleep(WORK_FOR).await;
    lock(&seen).book.execute(number, context.id());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_measured_anew_once_they_are_taken() {
        let mut seen = Seen::default();
        seen.confirm(1, "a".into(), Duration::from_secs(3));
        assert_eq!(seen.take_pauses().one, Duration::from_secs(3));
        seen.confirm(2, "b".into(), Duration::from_secs(1));
        assert_eq!(seen.pauses.one, Duration::from_secs(1));
    }
}
