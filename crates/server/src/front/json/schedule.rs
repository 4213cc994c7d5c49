//! JSON about schedules: requests and answers.

use super::{Moment, MomentSince1970, Ms, bytes::shown_payload, request::NewTask, retry::Retry};
use crate::{
    Broker, Error,
    broker::{FoundSchedule, QUEUE_DEFAULT},
    front::edge,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use taskyard_machine::{
    CatchUp as MachineCatchUp, Enqueue, NewTask as MachineTask, Overlap as MachineOverlap, Rhythm,
    ScheduleSpec, ShardId,
};
use utoipa::{IntoParams, ToSchema};

/// What happens at an occurrence while an earlier run has not ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::front) enum Overlap {
    /// The occurrence is skipped.
    #[default]
    Skip,
    /// The newest occurrence waits for the end of the run.
    BufferOne,
    /// The occurrence runs beside the others.
    Allow,
    /// The run is cancelled, and the newest occurrence waits for its end.
    CancelOther,
}

/// What happens to occurrences that passed while no leader could fire them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::front) enum CatchUp {
    /// They are missed.
    None,
    /// The last one fires, unless it is older than the window.
    #[default]
    Last,
    /// All fire that are not older than the window.
    All,
}

/// A schedule to set: `cron` or `every_ms`, and the task of its runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct ScheduleBody<'a> {
    /// Five or six fields (seconds first), or a macro such as `@daily`.
    cron: Option<String>,
    /// The interval, counted from `start_at`, or from 1970 without it.
    every_ms: Option<Ms>,
    /// The IANA zone of `cron`. Default `UTC`.
    timezone: Option<String>,
    /// The queue of its tasks. Default `default`.
    queue: Option<String>,
    /// The task of each run, without `run_at`, `delay_ms`, `expires_at`, `request_id` and `unique`.
    #[serde(borrow)]
    task: NewTask<'a>,
    /// Default `skip`.
    #[serde(default)]
    overlap: Overlap,
    /// Default `last`.
    #[serde(default)]
    catch_up: CatchUp,
    /// The greatest age of an occurrence that is caught up. Default one hour. An occurrence up to
    /// 10 s late is on time even with a shorter window. Not allowed with `catch_up: none`.
    catch_up_window_ms: Option<Ms>,
    /// Each run starts with a random delay of up to this. Default 0.
    jitter_ms: Option<Ms>,
    /// No occurrence is before this.
    start_at: Option<MomentSince1970>,
    /// No occurrence is after this.
    end_at: Option<MomentSince1970>,
    /// The number of occurrences that fire before the schedule ends; no bound by default.
    remaining_runs: Option<u64>,
}

impl ScheduleBody<'_> {
    /// Decodes base64; call this before `spec`.
    pub(in crate::front) fn decode(&mut self) -> Result<(), Error> {
        self.task.decode()
    }

    /// The rules, borrowed from this.
    pub(in crate::front) fn spec(&self, broker: &Broker) -> Result<ScheduleSpec<'_>, Error> {
        let every_ms = self.every_ms.map(|ms| ms.0);
        let queue = match (&self.queue, &self.task.queue) {
            (Some(queue), Some(other)) if queue != other => {
                let text = format!("task.queue {other:?} is not the schedule's queue {queue:?}");
                return Err(Error::Invalid(text));
            }
            (queue, other) => queue.as_deref().or(other.as_deref()).unwrap_or(QUEUE_DEFAULT),
        };
        let catch_up = match self.catch_up {
            CatchUp::None => MachineCatchUp::None,
            CatchUp::Last => MachineCatchUp::Last,
            CatchUp::All => MachineCatchUp::All,
        };
        let window_ms = self.catch_up_window_ms.map(|ms| ms.0);
        Ok(ScheduleSpec {
            rhythm: edge::rhythm(self.cron.as_deref(), every_ms, self.timezone.as_deref())?,
            home: ShardId(0),
            enqueue: Enqueue { queue, task: self.task.task(broker)? },
            overlap: match self.overlap {
                Overlap::Skip => MachineOverlap::Skip,
                Overlap::BufferOne => MachineOverlap::BufferOne,
                Overlap::Allow => MachineOverlap::Allow,
                Overlap::CancelOther => MachineOverlap::CancelOther,
            },
            catch_up,
            catch_up_window_ms: edge::catch_up_window(catch_up, window_ms)?,
            jitter_ms: self.jitter_ms.map_or(0, |ms| ms.0),
            start_at: self.start_at.map(|at| at.0),
            end_at: self.end_at.map(|at| at.0),
            remaining_runs: self.remaining_runs,
        })
    }
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Schedule<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'a str>,
    queue: &'a str,
    task: ScheduleTask<'a>,
    overlap: Overlap,
    catch_up: CatchUp,
    /// Absent with `catch_up: none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up_window_ms: Option<u64>,
    jitter_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_at: Option<Moment>,
    /// The number of occurrences that are still to fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_runs: Option<u64>,
    paused: bool,
    /// Why it is paused.
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
    created_at: Moment,
    /// Absent while the schedule is paused, and after its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_run_at: Option<Moment>,
    /// The next occurrences, up to five.
    next_runs: Vec<Moment>,
    /// The occurrence of the last run, or the moment of the last trigger.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run_at: Option<Moment>,
    /// The task of that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_task_id: Option<String>,
    /// Runs that have not ended; unknown with `overlap: allow`.
    live_task_ids: Vec<String>,
    /// The occurrence that waits for their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffered_at: Option<Moment>,
    /// The number of occurrences that ever fired.
    fired_total: u64,
    /// The number of occurrences that did not fire because an earlier run had not ended.
    skipped_total: u64,
    /// The number of occurrences that passed while no leader could fire them.
    missed_total: u64,
}

/// The task of a schedule's runs.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ScheduleTask<'a> {
    #[serde(rename = "type")]
    task_type: String,
    /// The payload, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// The payload, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fairness_key: Option<&'a str>,
}

impl<'a> From<MachineTask<'a>> for ScheduleTask<'a> {
    fn from(task: MachineTask<'a>) -> ScheduleTask<'a> {
        let payload = shown_payload(task.body.content_type, task.body.payload);
        ScheduleTask {
            task_type: task.task_type.into(),
            payload: payload.json,
            payload_base64: payload.base64,
            content_type: task.body.content_type,
            headers: task.body.headers.into_iter().collect(),
            priority: task.priority,
            retry: task.retry.as_ref().map(Retry::from),
            timeout_ms: task.timeout_ms,
            retention_ms: task.retention_ms,
            tags: task.tags,
            fairness_key: task.fairness_key,
        }
    }
}

impl<'a> Schedule<'a> {
    pub(in crate::front) fn new(found: &'a FoundSchedule) -> Schedule<'a> {
        let FoundSchedule { view, next_runs } = found;
        let spec = view.spec();
        let (cron, timezone, every_ms) = match spec.rhythm {
            Rhythm::Cron { expression, timezone } => (Some(expression), Some(timezone), None),
            Rhythm::Every { ms } => (None, None, Some(ms)),
        };
        Schedule {
            name: &view.name,
            cron,
            every_ms,
            timezone,
            queue: spec.enqueue.queue,
            task: spec.enqueue.task.into(),
            overlap: match spec.overlap {
                MachineOverlap::Skip => Overlap::Skip,
                MachineOverlap::BufferOne => Overlap::BufferOne,
                MachineOverlap::Allow => Overlap::Allow,
                MachineOverlap::CancelOther => Overlap::CancelOther,
            },
            catch_up: match spec.catch_up {
                MachineCatchUp::None => CatchUp::None,
                MachineCatchUp::Last => CatchUp::Last,
                MachineCatchUp::All => CatchUp::All,
            },
            catch_up_window_ms: edge::shown_window(spec.catch_up, spec.catch_up_window_ms),
            jitter_ms: spec.jitter_ms,
            start_at: spec.start_at.map(Moment),
            end_at: spec.end_at.map(Moment),
            remaining_runs: view.remaining_runs,
            paused: view.paused,
            note: &view.note,
            created_at: view.created_at.into(),
            next_run_at: view.next_run_at.map(Moment),
            next_runs: next_runs.iter().copied().map(Moment).collect(),
            last_run_at: view.last_run_at.map(Moment),
            last_task_id: view.last_task.map(|task| task.to_string()),
            live_task_ids: view.live.iter().map(ToString::to_string).collect(),
            buffered_at: view.buffered.map(Moment),
            fired_total: view.fired,
            skipped_total: view.skipped,
            missed_total: view.missed,
        }
    }
}

/// A page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ScheduleList<'a> {
    /// By name.
    pub(in crate::front) schedules: Vec<Schedule<'a>>,
    /// Where to continue; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::front) cursor: Option<&'a str>,
}

/// The page of schedules that is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct ScheduleQuery {
    /// The cursor of the previous page.
    pub(in crate::front) cursor: Option<String>,
    /// The most schedules on the page, up to 1000. Default 50.
    pub(in crate::front) limit: Option<u32>,
}

/// Why a schedule is paused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct PauseBody {
    /// For people.
    #[serde(default)]
    pub(in crate::front) note: String,
}

/// A past range, both ends included.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct BackfillBody {
    pub(in crate::front) from: MomentSince1970,
    pub(in crate::front) to: MomentSince1970,
}

/// The result of a backfill.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Backfilled {
    /// The number of tasks that it enqueued.
    pub(in crate::front) enqueued: u64,
}
