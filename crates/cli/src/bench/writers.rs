//! Writers: one for each queue, with one enqueue at a time. The time between two confirmations
//! shows what the loss of a node costs callers.
//!
//! Invariant: every write has a number and a request id, and is repeated with this id until it is
//! confirmed.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use taskyard::Client;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval_at},
};

use super::load::Load;
use crate::book::Book;

/// Writes of each writer before and after a fault, so that the fault happens under load.
const WRITES_AROUND: usize = 5;
/// A queue without a confirmed write for this long is lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// The header with the number of a write.
const NUMBER: &str = "number";

/// The state that all writers and workers of one benchmark share.
pub(super) struct Desk {
    pub(super) load: Load,
    pub(super) book: Mutex<Book>,
    numbers: AtomicU64,
    /// The pause between two writes of a queue.
    every: Duration,
}

impl Desk {
    /// Sets the writes per second of all queues together.
    pub(super) fn new(load: Load, rate: u64) -> Desk {
        let every = Duration::from_secs_f64(load.queues().len() as f64 / rate.max(1) as f64);
        Desk { load, book: Mutex::default(), numbers: AtomicU64::new(0), every }
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a task ran.
    pub(super) fn execute(&self, context: &taskyard::TaskContext) {
        if let Some(number) = context.header(NUMBER).and_then(|number| number.parse().ok()) {
            self.book().execute(number, context.id());
        }
    }

    /// Repeats one enqueue until it is confirmed.
    async fn write(&self, client: &Client, queue: &str) -> Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        loop {
            let task = self.load.task_of(queue).header(NUMBER, number.to_string());
            let request = format!("write-{number}");
            match client.enqueue_new(task.request_id(request)).await {
                Ok(made) => {
                    self.book().confirm(number, made.id().clone());
                    return Ok(());
                }
                Err(error) if error.is_retryable() || error.is_outcome_unknown() => {}
                Err(error) => return Err(error).with_context(|| format!("a write to {queue}")),
            }
        }
    }
}

/// Running writers. Dropping this value ends them at once.
pub(super) struct Writers {
    /// When each write of each queue was confirmed.
    confirmed: Arc<Mutex<Vec<Vec<Instant>>>>,
    changed: watch::Receiver<()>,
    writing: watch::Sender<bool>,
    running: JoinSet<Result<()>>,
}

impl Writers {
    /// Starts a writer for each queue, each with its own client, and waits until all write.
    pub(super) async fn start(desk: &Arc<Desk>, clients: Vec<Client>) -> Result<Writers> {
        let queues = desk.load.queues().len();
        let confirmed = Arc::new(Mutex::new(vec![Vec::new(); queues]));
        let (change, changed) = watch::channel(());
        let (writing, until) = watch::channel(true);
        let mut running = JoinSet::new();
        for (place, client) in clients.into_iter().take(queues).enumerate() {
            let (desk, until) = (Arc::clone(desk), until.clone());
            let (confirmed, change) = (Arc::clone(&confirmed), change.clone());
            // The writers start one after the other, so that their writes are spread.
            let first = desk.every.mul_f64(place as f64 / queues as f64);
            let mut pace = interval_at(tokio::time::Instant::now() + first, desk.every);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            running.spawn(async move {
                while *until.borrow() {
                    pace.tick().await;
                    desk.write(&client, &desk.load.queues()[place]).await?;
                    lock(&confirmed)[place].push(Instant::now());
                    change.send_replace(());
                }
                Ok(())
            });
        }
        let mut writers = Writers { confirmed, changed, writing, running };
        writers.until(|confirmed| confirmed.len() >= WRITES_AROUND).await?;
        Ok(writers)
    }

    /// Waits until every queue has confirmed writes that were made after `moment`.
    pub(super) async fn until_all_write_after(&mut self, moment: Instant) -> Result<()> {
        // The first write that was confirmed later may have been made before. The next one was made
        // later.
        let later = |confirmed: &[Instant]| confirmed.iter().filter(|at| **at > moment).count();
        self.until(|confirmed| later(confirmed) > WRITES_AROUND).await
    }

    async fn until(&mut self, holds: impl Fn(&[Instant]) -> bool) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            self.changed.borrow_and_update();
            let waits = lock(&self.confirmed).iter().position(|confirmed| !holds(confirmed));
            let Some(queue) = waits else { return Ok(()) };
            tokio::select! {
                _ = self.changed.changed() => {}
                Some(ended) = self.running.join_next() => ended??,
                () = tokio::time::sleep_until(deadline) => {
                    bail!("queue {queue} has confirmed no write for {PATIENCE:?}");
                }
            }
        }
    }

    /// Ends the writers, each with a confirmed write.
    pub(super) async fn stop(mut self) -> Result<Pauses> {
        self.writing.send_replace(false);
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(Pauses(std::mem::take(&mut *lock(&self.confirmed))))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When the writes of each queue were confirmed.
pub(super) struct Pauses(Vec<Vec<Instant>>);

impl Pauses {
    /// The longest time without a confirmed write between two moments, for each queue. A pause that
    /// began before or ended after them counts in full.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let longest = |confirmed: &Vec<Instant>| {
            let pairs = confirmed.windows(2).filter(|pair| pair[1] > from && pair[0] < to);
            pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        };
        self.0.iter().map(longest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_where_it_touches_the_time_that_is_asked_for() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let queue = |times: &[u64]| times.iter().map(|ms| at(*ms)).collect::<Vec<_>>();
        let pauses =
            Pauses(vec![queue(&[0, 10, 20, 700, 710, 1_900]), queue(&[0, 500, 510, 520, 2_000])]);
        let between = |from, to| {
            let found = pauses.between(at(from), at(to));
            found.iter().map(Duration::as_millis).collect::<Vec<_>>()
        };
        assert_eq!(between(15, 515), [680, 500]);
        assert_eq!(between(500, 600), [680, 1_480]);
        assert_eq!(between(2_000, 3_000), [0, 0]);
    }
}
