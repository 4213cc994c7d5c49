//! The progress of the demo's tasks, for its view.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

/// The most remembered events: more than happen between two updates of the view.
const RECENT_MAX: usize = 20;

/// One event to show.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) kind: &'static str,
    pub(super) what: String,
    pub(super) tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Bad,
    Plain,
}

/// Shared by the producer, the handlers and the view.
pub(super) struct Board {
    started: Instant,
    inner: Mutex<Inner>,
}

/// The state that the view shows.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    pub(super) enqueued: u64,
    pub(super) executed: u64,
    pub(super) retries: u64,
    pub(super) deaths: u64,
    /// Microseconds from the call that enqueues to the end of the handler.
    pub(super) latency: Histogram<u64>,
    /// Executions in each second so far.
    pub(super) per_second: Vec<u64>,
    pub(super) recent: VecDeque<Event>,
    /// The number of all events, by which a plain view finds those that it has not printed yet.
    pub(super) happened: usize,
    /// Percent and message of the long task.
    pub(super) rendering: Option<(u32, String)>,
    /// Finished nodes of the latest flow, and all its nodes.
    pub(super) flow: Option<(u32, u32)>,
    /// Flows that have succeeded.
    pub(super) flows: u64,
    /// The id of a flow, to show at the end.
    pub(super) flow_id: Option<String>,
    /// Runs of the schedule.
    pub(super) scheduled: u64,
    /// Exports that run now, and the most that ran at once.
    pub(super) exporting: u32,
    pub(super) exporting_most: u32,
    /// Tasks and time of the burst at the end.
    pub(super) burst: Option<(u64, Duration)>,
    /// The id of a dead letter, to show at the end.
    pub(super) dead: Option<String>,
}

impl Board {
    pub(super) fn new() -> Board {
        // Values up to a minute with two digits, because more would take a megabyte.
        let latency =
            Histogram::new_with_bounds(1, 60_000_000, 2).expect("the bounds are in order");
        let inner = Inner {
            enqueued: 0,
            executed: 0,
            retries: 0,
            deaths: 0,
            latency,
            per_second: Vec::new(),
            recent: VecDeque::new(),
            happened: 0,
            rendering: None,
            flow: None,
            flows: 0,
            flow_id: None,
            scheduled: 0,
            exporting: 0,
            exporting_most: 0,
            burst: None,
            dead: None,
        };
        Board { started: Instant::now(), inner: Mutex::new(inner) }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a handler succeeded. `sent_us` is the time of the enqueue, if the task could
    /// run at once.
    pub(super) fn executed(&self, sent_us: Option<u64>) {
        let elapsed = self.elapsed();
        self.lock().count_executed(elapsed, sent_us);
    }

    /// Records that a run of the schedule succeeded.
    pub(super) fn ran_by_schedule(&self) {
        let elapsed = self.elapsed();
        let mut inner = self.lock();
        inner.count_executed(elapsed, None);
        inner.enqueued += 1;
        inner.scheduled += 1;
    }

    pub(super) fn tell(&self, kind: &'static str, tone: Tone, what: impl Into<String>) {
        let happening = Event { at: self.elapsed(), kind, what: what.into(), tone };
        let mut inner = self.lock();
        inner.happened += 1;
        inner.recent.push_back(happening);
        if inner.recent.len() > RECENT_MAX {
            inner.recent.pop_front();
        }
    }

    /// The time since the start, as payloads carry it.
    pub(super) fn now_us(&self) -> u64 {
        now_us(self.elapsed())
    }
}

impl Inner {
    fn count_executed(&mut self, elapsed: Duration, sent_us: Option<u64>) {
        let second = usize::try_from(elapsed.as_secs()).unwrap_or(usize::MAX).min(3_600);
        self.executed += 1;
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
        if let Some(sent_us) = sent_us {
            self.latency.saturating_record(now_us(elapsed).saturating_sub(sent_us));
        }
    }
}

fn now_us(elapsed: Duration) -> u64 {
    elapsed.as_micros().try_into().unwrap_or(u64::MAX)
}
