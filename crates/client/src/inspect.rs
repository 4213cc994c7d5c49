//! Reading and changing single tasks: details, cancel, retry.

use crate::{
    Client, Error, TaskError, TaskId, TaskState, Timestamp, UniqueDetails, connection::Repeat,
    flow::FlowMember, timestamp::millis,
};
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, time::Duration};
use taskyard_proto::v1;

impl Client {
    /// The details of a task, with its payload and result.
    pub async fn get(&self, task: impl Into<TaskId>) -> Result<TaskDetails, Error> {
        let request = v1::GetTaskRequest { id: task.into().into(), without_payload: false };
        let reply =
            self.call(request, Repeat::Read, |mut wire, request| async move {
                wire.get_task(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Cancels a task: at once if no worker runs it, else as soon as its worker yields. Returns the
    /// task's state: `Cancelled`, or `Claimed` until the worker has yielded.
    pub async fn cancel(&self, task: impl Into<TaskId>) -> Result<TaskState, Error> {
        let request = v1::CancelRequest { id: task.into().into() };
        let reply = self
            .call(request, Repeat::IfNotTaken, |mut wire, request| async move {
                wire.cancel(request).await
            })
            .await?;
        Ok(TaskState::from_wire(&reply.state))
    }

    /// Runs a task again: a dead, failed or cancelled one from the start, a scheduled one at once.
    pub async fn retry(&self, task: impl Into<TaskId>) -> Result<TaskState, Error> {
        self.retry_edited(task, None::<Bytes>).await
    }

    /// Runs a task again, with another payload if one is given.
    pub async fn retry_edited(
        &self,
        task: impl Into<TaskId>,
        payload: Option<impl Into<Bytes>>,
    ) -> Result<TaskState, Error> {
        let request = v1::RetryRequest {
            id: task.into().into(),
            payload: payload.map(|payload| payload.into().to_vec()),
            ..v1::RetryRequest::default()
        };
        let reply = self
            .call(request, Repeat::IfNotTaken, |mut wire, request| async move {
                wire.retry(request).await
            })
            .await?;
        Ok(TaskState::from_wire(&reply.state))
    }
}

/// The details of a task. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskDetails {
    /// The task's id.
    pub id: TaskId,
    /// The task's queue.
    pub queue: String,
    /// The task's type: the name of its function.
    pub kind: String,
    /// The task's state.
    pub state: TaskState,
    /// The priority, 0 to 9, 9 first.
    pub priority: u8,
    /// The number of the current or last attempt; 0 before the first.
    pub attempt: u32,
    /// The number of attempts after which the task becomes a dead letter, with those before a retry
    /// by hand.
    pub max_attempts: u32,
    /// The number of claims that were lost.
    pub losses: u32,
    /// The payload, unless a list left it out.
    pub payload: Option<Bytes>,
    /// The media type of the payload.
    pub content_type: String,
    /// The task's headers.
    pub headers: BTreeMap<String, String>,
    /// The handler's result.
    pub result: Option<Bytes>,
    /// The last progress that the handler reported.
    pub progress: Option<Progress>,
    /// When the task was enqueued.
    pub enqueued_at: Timestamp,
    /// When a scheduled task may run.
    pub run_at: Option<Timestamp>,
    /// When the task expires if it has not run.
    pub expires_at: Option<Timestamp>,
    /// When the task ended.
    pub finished_at: Option<Timestamp>,
    /// The longest one attempt may run.
    pub timeout: Option<Duration>,
    /// Words by which the task can be found.
    pub tags: Vec<String>,
    /// The task's unique key.
    pub unique: Option<UniqueDetails>,
    /// The customer that the task is for.
    pub fairness_key: Option<String>,
    /// The last attempts, oldest first.
    pub attempts: Vec<AttemptDetails>,
    /// Why the task is a dead letter; empty if it is none.
    pub death_reason: String,
    /// The current claim.
    pub claim: Option<ClaimDetails>,
    /// The task's place in its flow.
    pub flow: Option<FlowMember>,
    /// The schedule of which the task is a run; lists without payloads leave it out.
    pub schedule: Option<String>,
}

/// The progress of a running task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The percentage, 0 to 100.
    pub percent: u32,
    /// One line of text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AttemptDetails {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The name of the worker.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    /// When the task was claimed.
    pub claimed_at: Timestamp,
    /// When the attempt ended.
    pub ended_at: Timestamp,
    /// How the attempt ended, in one word.
    pub outcome: String,
    /// The error of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
}

/// The current claim of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClaimDetails {
    /// The worker's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    /// When the task was claimed.
    pub claimed_at: Timestamp,
    /// When the claim lapses unless it is renewed.
    pub lease_expires_at: Timestamp,
    /// Whether the worker was asked to stop.
    pub cancel_requested: bool,
}

impl TaskDetails {
    /// The payload, as the type with which it was enqueued.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(self.payload.as_deref().unwrap_or_default(), || {
            format!("the payload of task {}", self.id)
        })
    }

    /// The result, as the type that the handler returned.
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(result_bytes(self.result.as_deref()), || format!("the result of task {}", self.id))
    }
}

impl Serialize for TaskDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("queue", &self.queue)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("priority", &self.priority)?;
        map.serialize_entry("attempt", &self.attempt)?;
        map.serialize_entry("max_attempts", &self.max_attempts)?;
        map.serialize_entry("losses", &self.losses)?;
        if let Some(payload) = &self.payload {
            let json = is_json(&self.content_type).then(|| as_json(payload)).flatten();
            serialize_bytes(&mut map, "payload", "payload_base64", payload, json)?;
        }
        if !self.content_type.is_empty() {
            map.serialize_entry("content_type", &self.content_type)?;
        }
        // Headers come with the payload; without it, an empty list would be a false claim.
        if self.payload.is_some() {
            map.serialize_entry("headers", &self.headers)?;
        }
        if let Some(result) = &self.result {
            serialize_bytes(&mut map, "result", "result_base64", result, as_json(result))?;
        }
        entry_if_some(&mut map, "progress", self.progress.as_ref())?;
        map.serialize_entry("enqueued_at", &self.enqueued_at)?;
        entry_if_some(&mut map, "run_at", self.run_at.as_ref())?;
        entry_if_some(&mut map, "expires_at", self.expires_at.as_ref())?;
        entry_if_some(&mut map, "finished_at", self.finished_at.as_ref())?;
        entry_if_some(&mut map, "timeout_ms", self.timeout.map(millis).as_ref())?;
        map.serialize_entry("tags", &self.tags)?;
        entry_if_some(&mut map, "unique", self.unique.as_ref())?;
        entry_if_some(&mut map, "fairness_key", self.fairness_key.as_ref())?;
        map.serialize_entry("attempts", &self.attempts)?;
        if !self.death_reason.is_empty() {
            map.serialize_entry("death_reason", &self.death_reason)?;
        }
        entry_if_some(&mut map, "claim", self.claim.as_ref())?;
        entry_if_some(&mut map, "flow", self.flow.as_ref())?;
        entry_if_some(&mut map, "schedule", self.schedule.as_ref())?;
        map.end()
    }
}

impl From<v1::Task> for TaskDetails {
    fn from(wire: v1::Task) -> TaskDetails {
        TaskDetails {
            state: TaskState::from_wire(&wire.state),
            id: wire.id.into(),
            queue: wire.queue,
            kind: wire.r#type,
            priority: u8::try_from(wire.priority).unwrap_or(u8::MAX),
            attempt: wire.attempt,
            max_attempts: wire.max_attempts,
            losses: wire.losses,
            payload: wire.payload.map(Bytes::from),
            content_type: wire.content_type,
            headers: wire.headers.into_iter().collect(),
            result: wire.result.map(Bytes::from),
            progress: wire.progress.map(Progress::from),
            enqueued_at: Timestamp::from_millis(wire.enqueued_at),
            run_at: wire.run_at.map(Timestamp::from_millis),
            expires_at: wire.expires_at.map(Timestamp::from_millis),
            finished_at: wire.finished_at.map(Timestamp::from_millis),
            timeout: wire.timeout_ms.map(Duration::from_millis),
            tags: wire.tags,
            unique: wire.unique.map(UniqueDetails::from),
            fairness_key: wire.fairness_key,
            attempts: wire.attempts.into_iter().map(AttemptDetails::from).collect(),
            death_reason: wire.death_reason,
            claim: wire.claim.map(ClaimDetails::from),
            flow: wire.flow.map(FlowMember::from),
            schedule: Some(wire.schedule).filter(|name| !name.is_empty()),
        }
    }
}

impl From<v1::TaskProgress> for Progress {
    fn from(wire: v1::TaskProgress) -> Progress {
        Progress { percent: wire.percent, message: wire.message }
    }
}

impl From<v1::Attempt> for AttemptDetails {
    fn from(wire: v1::Attempt) -> AttemptDetails {
        AttemptDetails {
            attempt: wire.attempt,
            worker: wire.worker,
            claimed_at: Timestamp::from_millis(wire.claimed_at),
            ended_at: Timestamp::from_millis(wire.ended_at),
            outcome: wire.outcome,
            error: wire.error.map(TaskError::from).filter(|error| *error != TaskError::default()),
        }
    }
}

impl From<v1::TaskClaim> for ClaimDetails {
    fn from(wire: v1::TaskClaim) -> ClaimDetails {
        ClaimDetails {
            worker: wire.worker,
            claimed_at: Timestamp::from_millis(wire.claimed_at),
            lease_expires_at: Timestamp::from_millis(wire.lease_expires_at),
            cancel_requested: wire.cancel_requested,
        }
    }
}

/// The result's bytes. A handler without a result counts as JSON's null.
pub(crate) fn result_bytes(result: Option<&[u8]>) -> &[u8] {
    match result {
        None | Some([]) => b"null",
        Some(result) => result,
    }
}

pub(crate) fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    what: impl Fn() -> String,
) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Decode { what: what(), problem: error.to_string() })
}

pub(crate) fn is_json(content_type: &str) -> bool {
    content_type.is_empty() || content_type.starts_with("application/json")
}

/// The bytes as JSON, if every language can read them: limited nesting, no half of a surrogate
/// pair, no number beyond a double. Only then can they become a value.
pub(crate) fn as_json(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice::<serde_json::Value>(bytes).ok()?;
    serde_json::from_slice(bytes).ok()
}

pub(crate) fn serialize_bytes<M: SerializeMap>(
    map: &mut M,
    json_key: &str,
    base64_key: &str,
    bytes: &[u8],
    json: Option<&RawValue>,
) -> Result<(), M::Error> {
    match json {
        Some(json) => map.serialize_entry(json_key, json),
        None => map.serialize_entry(base64_key, &base64(bytes)),
    }
}

/// Leaves out an entry without a value.
pub(crate) fn entry_if_some<M: SerializeMap>(
    map: &mut M,
    key: &str,
    value: Option<&impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, value))
}

/// Standard base64 with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_what_is_not_a_multiple_of_three() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn a_task_is_shown_as_on_the_http_front() {
        let wire = v1::Task {
            id: "t1".into(),
            r#type: "resize".into(),
            state: "dead".into(),
            payload: Some(b"{\"width\": 12345678901234567890}".to_vec()),
            result: Some(vec![0xff]),
            timeout_ms: Some(1_500),
            enqueued_at: 1,
            ..v1::Task::default()
        };
        let json = serde_json::to_string(&TaskDetails::from(wire)).unwrap();
        assert!(json.contains(r#""type":"resize","state":"dead""#), "{json}");
        assert!(json.contains(r#""payload":{"width": 12345678901234567890}"#), "{json}");
        assert!(json.contains(r#""result_base64":"/w==""#), "{json}");
        assert!(json.contains(r#""timeout_ms":1500"#), "{json}");
        assert!(json.contains(r#""enqueued_at":"1970-01-01T00:00:00.001Z""#), "{json}");
        for absent in ["null", "content_type", "run_at", "progress", "claim"] {
            assert!(!json.contains(absent), "{absent} in {json}");
        }
    }

    #[test]
    fn a_payload_that_is_no_json_is_shown_as_base64() {
        for (content_type, payload, key) in [
            ("", "{}", "\"payload\":"),
            ("application/json", "{}", "\"payload\":"),
            ("application/json", "{", "\"payload_base64\":"),
            ("text/plain", "{}", "\"payload_base64\":"),
        ] {
            let wire = v1::Task {
                payload: Some(payload.into()),
                content_type: content_type.into(),
                ..v1::Task::default()
            };
            let json = serde_json::to_string(&TaskDetails::from(wire)).unwrap();
            assert!(json.contains(key), "{json}");
        }
    }

    #[test]
    fn no_result_reads_as_nothing() {
        let details = TaskDetails::from(v1::Task::default());
        details.result_as::<()>().unwrap();
        assert_eq!(details.result_as::<Option<u32>>().unwrap(), None);
        assert_eq!(details.result_as::<u32>().unwrap_err().code(), "decode");
    }
}
