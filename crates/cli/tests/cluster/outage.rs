//! Outage: how long writes stand still. One writer per queue measures this, on healthy nodes only.

use crate::{
    cluster::{
        history::{History, What},
        load::{QUEUES, queue},
        plain::Plain,
    },
    yard::LONG,
};
use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, timeout},
};

const WRITE_EVERY: Duration = Duration::from_millis(10);
/// Writes of each writer before and after a fault, so that the fault comes in the middle of load.
const WRITES_BEFORE: usize = 10;

/// Writers, one for each queue.
pub(crate) struct Writers {
    /// The times of the confirmed writes of each writer.
    confirmed: Arc<Mutex<Vec<Vec<Instant>>>>,
    changed: watch::Receiver<()>,
    running: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts the writers on the given nodes, and waits until each has confirmed writes.
    pub(crate) async fn start(name: &str, urls: &[String], history: &History) -> Writers {
        let confirmed = Arc::new(Mutex::new(vec![Vec::new(); QUEUES]));
        let (change, changed) = watch::channel(());
        let (running, until) = watch::channel(true);
        let mut tasks = Vec::new();
        for writer in 0..QUEUES {
            let node = Plain::to(&urls[writer % urls.len()]);
            let (history, until) = (history.clone(), until.clone());
            let (name, confirmed) = (format!("{name}-{writer}"), confirmed.clone());
            let change = change.clone();
            tasks.push(tokio::spawn(async move {
                let mut pace = tokio::time::interval(WRITE_EVERY);
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for count in 0.. {
                    let request = format!("{name}-{count}");
                    write(&node, writer, &request, &mut pace, &history).await;
                    confirmed.lock().unwrap()[writer].push(Instant::now());
                    change.send_replace(());
                    if !*until.borrow() {
                        return;
                    }
                }
            }));
        }
        let mut writers = Writers { confirmed, changed, running, tasks };
        writers.until(|confirmed| confirmed.len() >= WRITES_BEFORE).await;
        writers
    }

    /// The longest gap between two confirmed writes from `moment` on, for each writer. Waits until
    /// every writer confirms writes again.
    pub(crate) async fn outage_at(mut self, moment: Instant) -> Vec<Duration> {
        // The first write that is confirmed after `moment` may have begun before. The second one
        // began after.
        self.until(|confirmed| {
            confirmed.iter().filter(|confirmed_at| **confirmed_at > moment).count() > WRITES_BEFORE
        })
        .await;
        self.running.send_replace(false);
        for task in self.tasks {
            task.await.unwrap();
        }
        let longest = |confirmed: &Vec<Instant>| {
            let gaps = confirmed.windows(2).filter(|pair| pair[1] > moment);
            gaps.map(|pair| pair[1] - pair[0]).max().unwrap()
        };
        self.confirmed.lock().unwrap().iter().map(longest).collect()
    }

    async fn until(&mut self, holds: impl Fn(&[Instant]) -> bool) {
        let confirmed = self.confirmed.clone();
        let all_hold = async {
            while !confirmed.lock().unwrap().iter().all(|confirmed| holds(confirmed)) {
                self.changed.changed().await.unwrap();
            }
        };
        timeout(LONG, all_hold).await.expect("some queue takes no writes");
    }
}

/// Repeats one request until it is confirmed.
async fn write(
    node: &Plain,
    number: usize,
    request: &str,
    pace: &mut tokio::time::Interval,
    history: &History,
) {
    loop {
        pace.tick().await;
        let begin = history.now();
        let answer = node.enqueue(&queue(number), request).await;
        let is_confirmed = answer.known().is_some();
        history.record(begin, What::Enqueue { request: request.to_owned(), answer });
        if is_confirmed {
            return;
        }
    }
}

/// Many outages, in words.
#[derive(Default)]
pub(crate) struct Outages(pub(crate) Vec<Duration>);

impl Outages {
    pub(crate) fn shortest(&self) -> Duration {
        self.0.iter().min().copied().unwrap_or_default()
    }

    pub(crate) fn longest(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }
}

impl fmt::Display for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: usize| sorted[(sorted.len() - 1) * share / 100].as_millis();
        let count = sorted.len();
        let (least, half, most, longest) = (at(0), at(50), at(90), at(100));
        write!(
            f,
            "{count} outages: least {least} ms, p50 {half} ms, p90 {most} ms, longest {longest} ms"
        )
    }
}
