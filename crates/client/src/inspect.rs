//! Looking at single tasks and changing them: details, cancel, retry.

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
    /// Everything that is known about a task, its payload and result included.
    pub async fn get(&self, task: impl Into<TaskId>) -> Result<TaskDetails, Error> {
        let request = v1::GetTaskRequest { id: task.into().into(), without_payload: false };
        let reply =
            self.call(request, Repeat::Read, |mut wire, request| async move {
                wire.get_task(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Cancels a task: at once if nobody runs it, else as soon as its worker yields. Returns where
    /// the task is now: `Cancelled`, or `Claimed` until the worker has yielded.
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

/// Everything that is known about a task. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskDetails {
    /// Its id.
    pub id: TaskId,
    /// The queue it is in.
    pub queue: String,
    /// Its type: the name of the function that does it.
    pub kind: String,
    /// Where it is in its life.
    pub state: TaskState,
    /// 0 to 9, 9 first.
    pub priority: u8,
    /// The attempt that runs or ran last; 0 before the first.
    pub attempt: u32,
    /// After this many attempts it is a dead letter. Those before a retry by hand are among them.
    pub max_attempts: u32,
    /// How many of its workers died under it.
    pub losses: u32,
    /// Its payload, unless a list left it out.
    pub payload: Option<Bytes>,
    /// The media type of its payload.
    pub content_type: String,
    /// What travels with it.
    pub headers: BTreeMap<String, String>,
    /// What its handler returned.
    pub result: Option<Bytes>,
    /// How far its handler says it is.
    pub progress: Option<Progress>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it may run, while it waits for its time.
    pub run_at: Option<Timestamp>,
    /// When it is given up, if it has not run.
    pub expires_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The longest one attempt may run.
    pub timeout: Option<Duration>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Its unique key.
    pub unique: Option<UniqueDetails>,
    /// Whom it is for.
    pub fairness_key: Option<String>,
    /// Its last attempts, the oldest first.
    pub attempts: Vec<AttemptDetails>,
    /// Why it is a dead letter; empty if it is none.
    pub death_reason: String,
    /// Who runs it now.
    pub claim: Option<ClaimDetails>,
    /// The flow that it is a task of.
    pub flow: Option<FlowMember>,
    /// The schedule whose run it is; lists without payloads leave it out.
    pub schedule: Option<String>,
}

/// How far a running task is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: u32,
    /// One line for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AttemptDetails {
    /// Its number, from 1.
    pub attempt: u32,
    /// Who ran it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended, in one word.
    pub outcome: String,
    /// What it failed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
}

/// Who runs a task now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClaimDetails {
    /// The worker's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub worker: String,
    /// Since when.
    pub claimed_at: Timestamp,
    /// When the claim lapses unless it is renewed.
    pub lease_expires_at: Timestamp,
    /// The worker was asked to stop.
    pub cancel_requested: bool,
}

impl TaskDetails {
    /// Its payload, as the type it was enqueued with.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(self.payload.as_deref().unwrap_or_default(), || {
            format!("the payload of task {}", self.id)
        })
    }

    /// Its result, as the type its handler returned.
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
        // They come with the payload; without it, no headers would be a claim.
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

/// A handler that returned nothing has no result: that reads as JSON's null.
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

/// Bytes that are JSON which every language reads: not nested without end, no half of a surrogate
/// pair, no number beyond a double. A value can be made of those alone.
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

/// What is not there is left out.
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
