//! The load of the demo's cluster, and the book that is kept of it: which tasks were confirmed, how
//! often each was executed, and how long enqueues stood still.
//!
//! One producer per queue, one enqueue at a time: the time between two confirmations is what a caller
//! feels.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use taskyard::{Client, Fail, State, Worker};
use tokio::{sync::watch, task::JoinHandle};

/// Enough that every shard has some.
const QUEUES: usize = 16;
const ENQUEUE_EVERY: Duration = Duration::from_millis(25);
const WORK_FOR: Duration = Duration::from_millis(10);
const SLOTS: usize = 64;
const KIND: &str = "greet";

/// What the producers and the worker have seen. Tasks are known by the number in their payload.
#[derive(Default)]
pub(super) struct Book {
    confirmed: HashSet<u64>,
    /// Enqueues that ended without a confirmation: they may have happened or not.
    pub(super) unconfirmed: u64,
    executions: HashMap<u64, u32>,
    /// Since the node was killed, or from the start until then.
    pub(super) pauses: Pauses,
}

/// The longest times between two confirmed enqueues.
#[derive(Clone, Copy, Default)]
pub(super) struct Pauses {
    /// In the queue that stood still the longest.
    pub(super) one: Duration,
    /// In all queues together.
    pub(super) all: Duration,
    last: Option<Instant>,
}

/// What a book comes to.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) confirmed: u64,
    pub(super) executed: u64,
    /// Confirmed and not executed, so far.
    pub(super) missing: u64,
    /// Tasks that were executed more than once.
    pub(super) repeated: u64,
}

impl Book {
    pub(super) fn counts(&self) -> Counts {
        let missing = self.confirmed.iter().filter(|task| !self.executions.contains_key(task));
        Counts {
            confirmed: self.confirmed.len() as u64,
            executed: self.executions.len() as u64,
            missing: missing.count() as u64,
            repeated: self.executions.values().filter(|&&times| times > 1).count() as u64,
        }
    }

    /// The pauses so far; later ones are measured anew.
    pub(super) fn take_pauses(&mut self) -> Pauses {
        let last = self.pauses.last;
        std::mem::replace(&mut self.pauses, Pauses { last, ..Pauses::default() })
    }

    fn confirm(&mut self, task: u64, waited: Duration) {
        self.confirmed.insert(task);
        let now = Instant::now();
        let all = self.pauses.last.map_or(Duration::ZERO, |last| now - last);
        self.pauses.one = self.pauses.one.max(waited);
        self.pauses.all = self.pauses.all.max(all);
        self.pauses.last = Some(now);
    }
}

type SharedBook = Arc<Mutex<Book>>;

fn lock(book: &SharedBook) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Producers and a worker, while they run. Dropping it stops them at once.
pub(super) struct Load {
    book: SharedBook,
    client: Client,
    producing: watch::Sender<bool>,
    producers: Vec<JoinHandle<()>>,
    working: JoinHandle<Result<(), taskyard::Error>>,
}

impl Load {
    /// The worker begins with the node at `place`.
    pub(super) fn start(urls: &[String], place: usize) -> Result<Load> {
        let book = SharedBook::default();
        let shared = client(urls, place)?;
        let mut worker = Worker::builder(&shared)
            .name("demo-worker")
            .concurrency(SLOTS)
            .state(Arc::clone(&book))
            .handler(KIND, greet);
        for number in 0..QUEUES {
            worker = worker.queue(queue(number));
        }
        let working = tokio::spawn(worker.build()?.run());
        let (producing, until) = watch::channel(true);
        let mut producers = Vec::new();
        for number in 0..QUEUES {
            let client = client(urls, number)?;
            let produce = produce(client, number, Arc::clone(&book), until.clone());
            producers.push(tokio::spawn(produce));
        }
        Ok(Load { book, client: shared, producing, producers, working })
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Asks the producers to end.
    pub(super) fn stop_producing(&self) {
        self.producing.send_replace(false);
    }

    /// Whether all producers have ended.
    pub(super) fn is_produced(&self) -> bool {
        self.producers.iter().all(JoinHandle::is_finished)
    }

    /// Tasks that the brokers have not seen the end of, which may yet run, once more even.
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

/// A client that knows all nodes, and begins with the one at this place.
fn client(urls: &[String], place: usize) -> Result<Client> {
    let (before, from) = urls.split_at(place % urls.len());
    Ok(Client::builder(from.iter().chain(before)).build()?)
}

fn queue(number: usize) -> String {
    format!("demo-{number}")
}

async fn produce(client: Client, number: usize, book: SharedBook, until: watch::Receiver<bool>) {
    let queue = queue(number);
    let mut confirmed_at = Instant::now();
    let mut task = number as u64;
    while *until.borrow() {
        // A node that does not answer is the SDK's to deal with: it asks another one, under the same
        // identity, so that the task is made once.
        match client.task(KIND, &task).queue(&queue).await {
            Ok(_) => {
                lock(&book).confirm(task, confirmed_at.elapsed());
                confirmed_at = Instant::now();
            }
            Err(_) => lock(&book).unconfirmed += 1,
        }
        task += QUEUES as u64;
        tokio::time::sleep(ENQUEUE_EVERY).await;
    }
}

async fn greet(task: u64, State(book): State<SharedBook>) -> Result<(), Fail> {
    tokio::time::sleep(WORK_FOR).await;
    *lock(&book).executions.entry(task).or_default() += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_confirmed_and_not_executed_is_missing() {
        let mut book = Book::default();
        for task in [1, 2, 3] {
            book.confirm(task, Duration::from_millis(task));
        }
        // The last one was made though nobody confirmed it.
        book.executions.extend([(1, 1), (2, 2), (4, 1)]);
        let Counts { confirmed, executed, missing, repeated } = book.counts();
        assert_eq!((confirmed, executed, missing, repeated), (3, 3, 1, 1));
    }

    #[test]
    fn pauses_are_measured_anew_once_they_are_taken() {
        let mut book = Book::default();
        book.confirm(1, Duration::from_secs(3));
        assert_eq!(book.take_pauses().one, Duration::from_secs(3));
        book.confirm(2, Duration::from_secs(1));
        assert_eq!(book.pauses.one, Duration::from_secs(1));
    }
}
