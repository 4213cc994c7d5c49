//! JSON about queues, workers and the node: answers.

use super::Moment;
use crate::{broker::BulkReport, cluster::Workers, sessions::WorkerView};
use serde::{Deserialize, Serialize};
use taskyard_machine::QueueView;
use utoipa::{IntoParams, ToSchema};

/// One queue, with exact counts.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Queue<'a> {
    name: &'a str,
    ready: u64,
    scheduled: u64,
    /// The scheduled tasks that wait because their last attempt failed or was lost.
    retrying: u64,
    claimed: u64,
    blocked: u64,
    dead: u64,
    paused: bool,
    /// How long the oldest ready task has been ready.
    oldest_ready_age_ms: u64,
    enqueued_total: u64,
    succeeded_total: u64,
    /// Attempts that ever failed.
    failed_total: u64,
    dead_total: u64,
    lost_total: u64,
    expired_total: u64,
    cancelled_total: u64,
}

impl<'a> Queue<'a> {
    pub(in crate::front) fn new(view: &'a QueueView) -> Queue<'a> {
        let counts = view.counts;
        Queue {
            name: view.name.as_str(),
            ready: counts.ready,
            scheduled: counts.scheduled,
            retrying: counts.retrying,
            claimed: counts.claimed,
            blocked: counts.blocked,
            dead: counts.dead,
            paused: view.paused,
            oldest_ready_age_ms: view.oldest_ready_for_ms.unwrap_or(0),
            enqueued_total: counts.enqueued_total,
            succeeded_total: counts.succeeded_total,
            failed_total: counts.failed_total,
            dead_total: counts.dead_total,
            lost_total: counts.lost_total,
            expired_total: counts.expired_total,
            cancelled_total: counts.cancelled_total,
        }
    }
}

/// Which page of the queues.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct QueueQuery {
    /// The cursor of the previous page.
    pub(in crate::front) cursor: Option<String>,
    /// Queues at most, up to 1000. Default 50.
    pub(in crate::front) limit: Option<u32>,
}

/// A page of queues, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct QueueList<'a> {
    pub(in crate::front) queues: Vec<Queue<'a>>,
    /// Where to go on; absent at the end. A page may be short, even empty, and still go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::front) cursor: Option<&'a str>,
}

/// Whether a queue is paused.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Paused {
    pub(in crate::front) paused: bool,
}

/// The progress of a bulk operation.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Bulk {
    /// Tasks changed so far.
    changed: u64,
    /// Named tasks that were not fit for the operation.
    skipped: u64,
    /// `false` while the operation goes on by itself; the queue's counts show its progress.
    done: bool,
}

impl From<&BulkReport> for Bulk {
    fn from(report: &BulkReport) -> Bulk {
        let BulkReport { changed, skipped, ended } = report;
        Bulk { changed: *changed, skipped: *skipped, done: ended.is_some() }
    }
}

/// One worker.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Worker {
    id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    queues: Vec<String>,
    /// The types of tasks that the worker takes; absent for all types.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    types: Vec<String>,
    slots: u32,
    busy: u32,
    /// `running`, `quiet`, `stopping` or `lost`.
    state: &'static str,
    /// The node that the worker is or was last connected to.
    node: u64,
    connected_at: Moment,
    beat_at: Moment,
    /// The worker's memory, once it has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rss_bytes: Option<u64>,
}

impl From<WorkerView> for Worker {
    fn from(view: WorkerView) -> Worker {
        let profile = view.profile;
        Worker {
            id: view.id.to_string(),
            name: profile.name,
            host: profile.host,
            pid: Some(profile.pid).filter(|pid| *pid > 0),
            version: profile.version,
            queues: profile.queues,
            types: profile.types.names().to_vec(),
            slots: profile.slots,
            busy: view.busy,
            state: view.state.as_str(),
            node: view.node,
            connected_at: view.connected_at.into(),
            beat_at: view.beat_at.into(),
            rss_bytes: Some(view.rss_bytes).filter(|bytes| *bytes > 0),
        }
    }
}

/// The workers of all nodes: those with a session, and those lost within a day.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct WorkerList {
    workers: Vec<Worker>,
    /// Nodes that did not answer in time, so that their workers are missing. Absent if all
    /// answered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_nodes: Vec<u64>,
}

impl From<Workers> for WorkerList {
    fn from(found: Workers) -> WorkerList {
        let workers = found.workers.into_iter().map(Into::into).collect();
        WorkerList { workers, missing_nodes: found.missing }
    }
}

/// The answer to an order for a worker.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Asked {
    /// `quiet` or `stopping`.
    pub(in crate::front) asked: &'static str,
}

/// The answer to health checks.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Health {
    /// `ok`.
    pub(in crate::front) status: &'static str,
}
