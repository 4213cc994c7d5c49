//! The details of a schedule: its rules, its next occurrences, and its history.

use super::{CatchUp, Overlap};
use crate::{
    Error, RetryPolicy, TaskId, Timestamp,
    inspect::{as_json, decode, entry_if_some, is_json, serialize_bytes},
    timestamp::millis,
};
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap};
use std::{collections::BTreeMap, time::Duration};
use taskyard_proto::v1;

/// The details of a schedule. Serialized as on the HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScheduleDetails {
    /// The schedule's name.
    pub name: String,
    /// The cron expression; `None` if the schedule has an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The interval in milliseconds; `None` if the schedule has an expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// The zone of the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The queue of its tasks.
    pub queue: String,
    /// The task of each run.
    pub task: ScheduleTask,
    /// What happens at an occurrence while an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens to occurrences that passed while the broker was down.
    pub catch_up: CatchUp,
    /// How late an occurrence may still fire, in milliseconds; `None` if late ones never fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up_window_ms: Option<u64>,
    /// Each run starts up to this long after its occurrence, in milliseconds.
    pub jitter_ms: u64,
    /// No occurrence is before this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// No occurrence is after this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_at: Option<Timestamp>,
    /// The number of runs before the schedule ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_runs: Option<u64>,
    /// Whether occurrences pass without runs.
    pub paused: bool,
    /// Why the schedule is paused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When the schedule was first set.
    pub created_at: Timestamp,
    /// The next occurrence; `None` while paused and after the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run_at: Option<Timestamp>,
    /// The next occurrences, up to five.
    pub next_runs: Vec<Timestamp>,
    /// The last occurrence that ran, or the last moment at which an operator triggered a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<Timestamp>,
    /// The task of that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_task_id: Option<TaskId>,
    /// Runs that have not ended; empty if runs may overlap.
    pub live_task_ids: Vec<TaskId>,
    /// The occurrence that waits for the end of the live runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffered_at: Option<Timestamp>,
    /// Occurrences that have fired.
    pub fired_total: u64,
    /// Occurrences that did not fire because an earlier run had not ended.
    pub skipped_total: u64,
    /// Occurrences that passed while no leader could fire them.
    pub missed_total: u64,
}

impl ScheduleDetails {
    /// The interval; `None` if the schedule has an expression.
    pub fn every(&self) -> Option<Duration> {
        self.every_ms.map(Duration::from_millis)
    }

    /// How late an occurrence may still fire; `None` if late ones never fire.
    pub fn catch_up_window(&self) -> Option<Duration> {
        self.catch_up_window_ms.map(Duration::from_millis)
    }

    /// Each run starts up to this long after its occurrence.
    pub fn jitter(&self) -> Duration {
        Duration::from_millis(self.jitter_ms)
    }
}

impl From<v1::Schedule> for ScheduleDetails {
    fn from(wire: v1::Schedule) -> ScheduleDetails {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let task = wire.task.unwrap_or_default();
        ScheduleDetails {
            name: wire.name,
            cron: given(wire.cron),
            every_ms: wire.every_ms,
            timezone: given(wire.timezone),
            queue: task.queue.clone(),
            task: task.into(),
            overlap: Overlap::from_wire(&wire.overlap),
            catch_up: CatchUp::from_wire(&wire.catch_up),
            catch_up_window_ms: wire.catch_up_window_ms,
            jitter_ms: wire.jitter_ms,
            start_at: wire.start_at.map(Timestamp::from_millis),
            end_at: wire.end_at.map(Timestamp::from_millis),
            remaining_runs: wire.remaining_runs,
            paused: wire.paused,
            note: wire.note,
            created_at: Timestamp::from_millis(wire.created_at),
            next_run_at: wire.next_run_at.map(Timestamp::from_millis),
            next_runs: wire.next_runs.into_iter().map(Timestamp::from_millis).collect(),
            last_run_at: wire.last_run_at.map(Timestamp::from_millis),
            last_task_id: given(wire.last_task_id).map(TaskId::from),
            live_task_ids: wire.live_task_ids.into_iter().map(TaskId::from).collect(),
            buffered_at: wire.buffered_at.map(Timestamp::from_millis),
            fired_total: wire.fired_total,
            skipped_total: wire.skipped_total,
            missed_total: wire.missed_total,
        }
    }
}

/// The task of a schedule's runs. `None` leaves an option to the queue and the broker.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ScheduleTask {
    /// The task's type: the name of its function.
    pub kind: String,
    /// The payload.
    pub payload: Bytes,
    /// The media type of the payload; empty means JSON.
    pub content_type: String,
    /// The task's headers.
    pub headers: BTreeMap<String, String>,
    /// The priority, 0 to 9, 9 first.
    pub priority: Option<u8>,
    /// The retry policy.
    pub retry: Option<RetryPolicy>,
    /// The longest one attempt may run.
    pub timeout: Option<Duration>,
    /// How long the task can be looked up after it has ended.
    pub retention: Option<Duration>,
    /// Words by which the task can be found.
    pub tags: Vec<String>,
    /// The customer that the task is for.
    pub fairness_key: Option<String>,
}

impl ScheduleTask {
    /// The payload, as the type with which it was set.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(&self.payload, || format!("the payload of {}", self.kind))
    }
}

impl From<v1::NewTask> for ScheduleTask {
    fn from(wire: v1::NewTask) -> ScheduleTask {
        ScheduleTask {
            kind: wire.r#type,
            payload: wire.payload,
            content_type: wire.content_type,
            headers: wire.headers.into_iter().collect(),
            priority: wire.priority.map(|priority| u8::try_from(priority).unwrap_or(u8::MAX)),
            retry: wire.retry.map(RetryPolicy::from),
            timeout: wire.timeout_ms.map(Duration::from_millis),
            retention: wire.retention_ms.map(Duration::from_millis),
            tags: wire.tags,
            fairness_key: wire.fairness_key,
        }
    }
}

impl Serialize for ScheduleTask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.kind)?;
        let json = is_json(&self.content_type).then(|| as_json(&self.payload)).flatten();
        serialize_bytes(&mut map, "payload", "payload_base64", &self.payload, json)?;
        if !self.content_type.is_empty() {
            map.serialize_entry("content_type", &self.content_type)?;
        }
        if !self.headers.is_empty() {
            map.serialize_entry("headers", &self.headers)?;
        }
        entry_if_some(&mut map, "priority", self.priority.as_ref())?;
        entry_if_some(&mut map, "retry", self.retry.as_ref())?;
        entry_if_some(&mut map, "timeout_ms", self.timeout.map(millis).as_ref())?;
        entry_if_some(&mut map, "retention_ms", self.retention.map(millis).as_ref())?;
        if !self.tags.is_empty() {
            map.serialize_entry("tags", &self.tags)?;
        }
        entry_if_some(&mut map, "fairness_key", self.fairness_key.as_ref())?;
        map.end()
    }
}
