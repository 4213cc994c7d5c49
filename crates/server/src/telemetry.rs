//! Telemetry: the counters and gauges of this node, in the Prometheus text format.
//!
//! Counts of tasks come from the state, which has them exactly. The loop counts the rest here
//! (events, disk, memory, syncs), with a few relaxed atomics per turn.

mod cluster;

pub(crate) use cluster::{ClusterGauges, PeerGauges};

use crate::{limits::METRIC_QUEUES_MAX, log::Written};
use std::{
    fmt::{Display, Write},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use taskyard_machine::{Event, EventKind, QueueView};

/// Upper bounds of the histogram's buckets, in microseconds.
const BUCKETS_US: [u64; 13] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];
const KINDS: [&str; 30] = [
    "task_enqueued",
    "task_ready",
    "task_claimed",
    "task_progressed",
    "task_succeeded",
    "task_retrying",
    "task_snoozed",
    "task_failed",
    "task_died",
    "task_lost",
    "task_cancel_requested",
    "task_cancelled",
    "task_expired",
    "task_removed",
    "queue_paused",
    "queue_resumed",
    "queue_set",
    "session_ended",
    "outgoing_queued",
    "queue_opened",
    "task_replaced",
    "flow_submitted",
    "flow_ended",
    "schedule_fired",
    "schedule_skipped",
    "schedule_missed",
    "task_blocked",
    "digest_marked",
    "digest_attested",
    "queue_deleted",
];

/// The node's counters.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    events: [AtomicU64; KINDS.len()],
    log_bytes: AtomicU64,
    log_syncs: Histogram,
    log_writes: Histogram,
    checkpoints: AtomicU64,
    standstills: AtomicU64,
    routed_here: AtomicU64,
    routed_elsewhere: AtomicU64,
    gauges: Gauges,
}

/// Gauges that the loop sets at the end of a turn in which they changed.
#[derive(Debug, Default)]
struct Gauges {
    memory_bytes: AtomicU64,
    memory_bytes_max: AtomicU64,
    in_flight_bytes: AtomicU64,
    memory_full: AtomicU64,
    disk_free_bytes: AtomicU64,
    disk_full: AtomicU64,
    claims_parked: AtomicU64,
    shards_serving: AtomicU64,
    time_ahead_ms: AtomicU64,
    shards_stopped: AtomicU64,
    snapshot_bytes_fetched: AtomicU64,
}

/// The gauges of this node, as the loop sets them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeGauges {
    pub memory_bytes: u64,
    pub memory_bytes_max: u64,
    pub in_flight_bytes: u64,
    pub memory_full: bool,
    pub disk_free_bytes: u64,
    pub disk_full: bool,
    pub claims_parked: u64,
    pub shards_serving: u64,
    pub time_ahead: Duration,
    pub shards_stopped: u64,
    pub snapshot_bytes_fetched: u64,
}

impl Telemetry {
    /// Counts events.
    pub(crate) fn observe(&self, events: &[Event]) {
        for event in events {
            self.events[kind_of(&event.kind)].fetch_add(1, Relaxed);
        }
    }

    /// Counts a write of the log.
    pub(crate) fn note_write(&self, written: &Written) {
        self.log_bytes.fetch_add(written.bytes as u64, Relaxed);
        self.log_syncs.note(written.synced_in);
        self.log_writes.note(written.took);
    }

    /// Counts a checkpoint.
    pub(crate) fn note_checkpoint(&self) {
        self.checkpoints.fetch_add(1, Relaxed);
    }

    /// Counts a pause of the loop, or a jump of the wall clock.
    pub(crate) fn note_standstill(&self) {
        self.standstills.fetch_add(1, Relaxed);
    }

    /// Counts commands and claims that clients sent to this node, by the leader of their shard.
    pub(crate) fn note_routed(&self, count: usize, is_here: bool) {
        let routed = if is_here { &self.routed_here } else { &self.routed_elsewhere };
        routed.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn set_gauges(&self, node: NodeGauges) {
        let gauges = &self.gauges;
        gauges.memory_bytes.store(node.memory_bytes, Relaxed);
        gauges.memory_bytes_max.store(node.memory_bytes_max, Relaxed);
        gauges.in_flight_bytes.store(node.in_flight_bytes, Relaxed);
        gauges.memory_full.store(node.memory_full.into(), Relaxed);
        gauges.disk_free_bytes.store(node.disk_free_bytes, Relaxed);
        gauges.disk_full.store(node.disk_full.into(), Relaxed);
        gauges.claims_parked.store(node.claims_parked, Relaxed);
        gauges.shards_serving.store(node.shards_serving, Relaxed);
        let ahead_ms = u64::try_from(node.time_ahead.as_millis()).unwrap_or(u64::MAX);
        gauges.time_ahead_ms.store(ahead_ms, Relaxed);
        gauges.shards_stopped.store(node.shards_stopped, Relaxed);
        gauges.snapshot_bytes_fetched.store(node.snapshot_bytes_fetched, Relaxed);
    }

    /// All metrics. `queues` are the queues of all shards that this node leads.
    pub(crate) fn render(&self, queues: &[QueueView], cluster: &ClusterGauges) -> String {
        let mut text = Text::default();
        text.about("taskyard_events_total", "counter", "Events on this node since it started.");
        for (kind, count) in KINDS.iter().zip(&self.events) {
            text.line("taskyard_events_total", &[("kind", kind)], count.load(Relaxed));
        }
        self.render_node(&mut text);
        cluster.render(&mut text, self.gauges.snapshot_bytes_fetched.load(Relaxed));
        render_queues(&mut text, queues);
        text.0
    }

    fn render_node(&self, text: &mut Text) {
        let gauges = &self.gauges;
        for (name, value, about) in [
            ("memory_bytes", &gauges.memory_bytes, "Memory taken by tasks and their bodies."),
            (
                "memory_bytes_max",
                &gauges.memory_bytes_max,
                "The memory budget of tasks and their bodies.",
            ),
            (
                "in_flight_bytes",
                &gauges.in_flight_bytes,
                "Memory taken by requests, answers and commands in flight.",
            ),
            (
                "disk_free_bytes",
                &gauges.disk_free_bytes,
                "Free space of the data directory's disk.",
            ),
            (
                "memory_full",
                &gauges.memory_full,
                "1 while enqueues are refused because the memory budget is used up.",
            ),
            (
                "disk_full",
                &gauges.disk_full,
                "1 while enqueues are refused because the disk is close to full.",
            ),
            ("claims_parked", &gauges.claims_parked, "Claims that wait for tasks."),
            ("shards_serving", &gauges.shards_serving, "Shards that this node serves."),
            (
                "shards_stopped",
                &gauges.shards_stopped,
                "Shards whose replica on this node was stopped because their rules failed.",
            ),
        ] {
            let name = format!("taskyard_{name}");
            text.about(&name, "gauge", about);
            text.line(&name, &[], value.load(Relaxed));
        }
        let name = "taskyard_shard_time_ahead_seconds";
        text.about(
            name,
            "gauge",
            "The most by which the time of a shard that this node leads is ahead of the wall clock: the clock was set back, or the clock of an earlier leader was ahead.",
        );
        text.line(name, &[], Seconds::from_ms(gauges.time_ahead_ms.load(Relaxed)));
        for (name, value, about) in [
            ("log_bytes_total", &self.log_bytes, "Bytes written to the log."),
            ("checkpoints_total", &self.checkpoints, "Checkpoints of shards."),
            (
                "standstills_total",
                &self.standstills,
                "How often this node stood still, or its wall clock jumped ahead, for more than 2 s: workers get that time back.",
            ),
        ] {
            let name = format!("taskyard_{name}");
            text.about(&name, "counter", about);
            text.line(&name, &[], value.load(Relaxed));
        }
        text.about(
            "taskyard_routed_total",
            "counter",
            "Commands and claims that this node was asked for, by the leader of their shard.",
        );
        for (to, count) in
            [("this_node", &self.routed_here), ("another_node", &self.routed_elsewhere)]
        {
            text.line("taskyard_routed_total", &[("to", to)], count.load(Relaxed));
        }
        text.histogram("taskyard_log_sync_seconds", "Syncs of the log.", &self.log_syncs);
        text.histogram(
            "taskyard_log_write_seconds",
            "Writes of the log with their sync.",
            &self.log_writes,
        );
    }
}

fn render_queues(text: &mut Text, queues: &[QueueView]) {
    text.about("taskyard_queues", "gauge", "Queues of this node.");
    text.line("taskyard_queues", &[], queues.len() as u64);
    let mut shown: Vec<&QueueView> = queues.iter().collect();
    shown.sort_by(|a, b| a.name.cmp(&b.name));
    shown.truncate(METRIC_QUEUES_MAX);
    type Count = fn(&QueueView) -> u64;
    let states: [(&str, Count); 6] = [
        ("ready", |queue| queue.counts.ready),
        ("scheduled", |queue| queue.counts.scheduled),
        ("claimed", |queue| queue.counts.claimed),
        ("blocked", |queue| queue.counts.blocked),
        ("dead", |queue| queue.counts.dead),
        ("finished", |queue| queue.counts.finished),
    ];
    text.about("taskyard_queue_tasks", "gauge", "Tasks of a queue by state.");
    for queue in &shown {
        for (state, count) in states {
            let labels = [("queue", queue.name.as_str()), ("state", state)];
            text.line("taskyard_queue_tasks", &labels, count(queue));
        }
    }
    let totals: [(&str, Count, &str); 7] = [
        ("enqueued", |queue| queue.counts.enqueued_total, "Tasks ever accepted."),
        ("succeeded", |queue| queue.counts.succeeded_total, "Tasks that ever succeeded."),
        ("failed", |queue| queue.counts.failed_total, "Attempts that ever failed."),
        ("dead", |queue| queue.counts.dead_total, "Tasks that ever died."),
        ("lost", |queue| queue.counts.lost_total, "Claims that were ever lost."),
        ("expired", |queue| queue.counts.expired_total, "Tasks that ever expired."),
        ("cancelled", |queue| queue.counts.cancelled_total, "Tasks that were ever cancelled."),
    ];
    for (name, count, about) in totals {
        let name = format!("taskyard_queue_{name}_total");
        text.about(&name, "counter", about);
        for queue in &shown {
            text.line(&name, &[("queue", queue.name.as_str())], count(queue));
        }
    }
    let name = "taskyard_queue_oldest_ready_seconds";
    text.about(name, "gauge", "How long the oldest ready task of a queue has been ready.");
    for queue in &shown {
        let age_ms = queue.oldest_ready_for_ms.unwrap_or(0);
        text.line(name, &[("queue", queue.name.as_str())], Seconds::from_ms(age_ms));
    }
}

/// Counts durations.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS_US.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BUCKETS_US.iter().position(|&bound| us <= bound) {
            self.buckets[bucket].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }
}

/// Microseconds, shown as seconds without rounding.
struct Seconds(u64);

impl Seconds {
    fn from_ms(ms: u64) -> Seconds {
        Seconds(ms.saturating_mul(1000))
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The exposition text under construction. Queue names need no escaping, because they can't contain
/// quotes.
#[derive(Default)]
struct Text(String);

impl Text {
    fn about(&mut self, name: &str, kind: &str, about: &str) {
        let _ = writeln!(self.0, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (position, (label, text)) in labels.iter().enumerate() {
            let open = if position == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    fn histogram(&mut self, name: &str, about: &str, histogram: &Histogram) {
        self.about(name, "histogram", about);
        let mut below = 0;
        for (bound, bucket) in BUCKETS_US.iter().zip(&histogram.buckets) {
            below += bucket.load(Relaxed);
            let bound = Seconds(*bound).to_string();
            self.line(&format!("{name}_bucket"), &[("le", &bound)], below);
        }
        let count = histogram.count.load(Relaxed).max(below);
        self.line(&format!("{name}_bucket"), &[("le", "+Inf")], count);
        self.line(&format!("{name}_sum"), &[], Seconds(histogram.sum_us.load(Relaxed)));
        self.line(&format!("{name}_count"), &[], count);
    }
}

/// The index of an event's kind in `KINDS`.
fn kind_of(event: &EventKind) -> usize {
    match event {
        EventKind::TaskEnqueued(_) => 0,
        EventKind::TaskReady(_) => 1,
        EventKind::TaskClaimed(..) => 2,
        EventKind::TaskProgressed(..) => 3,
        EventKind::TaskSucceeded(..) => 4,
        EventKind::TaskRetrying(..) => 5,
        EventKind::TaskSnoozed(..) => 6,
        EventKind::TaskFailed(_) => 7,
        EventKind::TaskDied(..) => 8,
        EventKind::TaskLost(_) => 9,
        EventKind::TaskCancelRequested(_) => 10,
        EventKind::TaskCancelled(_) => 11,
        EventKind::TaskExpired(_) => 12,
        EventKind::TaskRemoved(_) => 13,
        EventKind::QueuePaused(_) => 14,
        EventKind::QueueResumed(_) => 15,
        EventKind::QueueSet(_) => 16,
        EventKind::SessionEnded(_) => 17,
        EventKind::OutgoingQueued(_) => 18,
        EventKind::QueueOpened(_) => 19,
        EventKind::TaskReplaced(..) => 20,
        EventKind::FlowSubmitted(_) => 21,
        EventKind::FlowEnded(..) => 22,
        EventKind::ScheduleFired { .. } => 23,
        EventKind::ScheduleSkipped(..) => 24,
        EventKind::ScheduleMissed(..) => 25,
        EventKind::TaskBlocked(_) => 26,
        EventKind::DigestMarked { .. } => 27,
        EventKind::DigestAttested { .. } => 28,
        EventKind::QueueDeleted(_) => 29,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::{QueueCounts, QueueName, SessionId, Timestamp};

    #[test]
    fn metrics_are_plain_exposition_text() {
        let telemetry = Telemetry::default();
        let kind = EventKind::SessionEnded(SessionId(1));
        telemetry.observe(&[Event { at: Timestamp(5), kind }]);
        for (synced, took) in [(90, 150), (700, 900), (3_000_000, 3_000_001)] {
            let (synced_in, took) = (Duration::from_micros(synced), Duration::from_micros(took));
            telemetry.note_write(&Written { bytes: 100, synced_in, took });
        }
        telemetry.note_routed(3, true);
        telemetry.note_routed(2, false);
        let queue = QueueView {
            name: QueueName::parse("mail").unwrap(),
            paused: false,
            counts: QueueCounts { ready: 3, enqueued_total: 7, ..QueueCounts::default() },
            oldest_ready_for_ms: Some(2_500),
        };
        let peer = PeerGauges {
            node: 2,
            connected: true,
            clock_skew_ms: Some(-1_250),
            round_trip_us: Some(340),
            ..PeerGauges::default()
        };
        let cluster = ClusterGauges {
            shards_without_leader: 4,
            lags: [(2, 70)].into(),
            peers: vec![peer, PeerGauges { node: 3, heard: true, ..PeerGauges::default() }],
            snapshot_bytes_sent: 9,
            ..ClusterGauges::default()
        };
        let text = telemetry.render(&[queue], &cluster);
        for line in [
            "taskyard_events_total{kind=\"session_ended\"} 1",
            "taskyard_log_bytes_total 300",
            "taskyard_routed_total{to=\"this_node\"} 3",
            "taskyard_routed_total{to=\"another_node\"} 2",
            "taskyard_log_sync_seconds_bucket{le=\"0.000100\"} 1",
            "taskyard_log_sync_seconds_bucket{le=\"0.001000\"} 2",
            "taskyard_log_sync_seconds_bucket{le=\"+Inf\"} 3",
            "taskyard_log_sync_seconds_sum 3.000790",
            "taskyard_log_sync_seconds_count 3",
            "taskyard_shards_without_leader 4",
            "taskyard_replica_lag_entries{node=\"2\"} 70",
            "taskyard_peer_connected{node=\"2\"} 1",
            "taskyard_peer_connected{node=\"3\"} 0",
            "taskyard_peer_heard{node=\"3\"} 1",
            "taskyard_peer_clock_skew_seconds{node=\"2\"} -1.250000",
            "taskyard_peer_round_trip_seconds{node=\"2\"} 0.000340",
            "taskyard_snapshot_bytes_total{way=\"sent\"} 9",
            "taskyard_queue_tasks{queue=\"mail\",state=\"ready\"} 3",
            "taskyard_queue_enqueued_total{queue=\"mail\"} 7",
            "taskyard_queue_oldest_ready_seconds{queue=\"mail\"} 2.500000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("taskyard_") && value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
