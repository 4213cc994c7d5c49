//! JSON about tasks: requests.

use super::{
    Dependency, Moment, Ms, OnFailure,
    bytes::{Plain, decode_base64},
    lists::{list, list_if_any, tasks, texts_if_any},
    retry::Retry,
    unique::Unique,
};
use crate::{Broker, Error, broker::Edit, front::edge};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{borrow::Cow, collections::BTreeMap, fmt};
use taskyard_machine::{
    Body, ClaimToken, Extend, Fail, NewTask as MachineTask, Progress as MachineProgress,
    Snooze as MachineSnooze, TaskError as MachineError, TaskId, limits,
};
use utoipa::ToSchema;

const NULL: &[u8] = b"null";

/// A task to enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct NewTask<'a> {
    /// The queue. Only for follow-ups of an ack and nodes of a flow (default: `default`); elsewhere
    /// the path names it.
    pub(in crate::front) queue: Option<String>,
    /// The name of the function that handles the task.
    #[serde(rename = "type")]
    task_type: String,
    /// Any JSON value; kept verbatim. Default `null`.
    #[serde(borrow)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Plain<'a>>,
    /// The payload, if it is not JSON.
    payload_base64: Option<String>,
    /// The payload's media type. Default `application/json`.
    content_type: Option<String>,
    /// Strings by name, for tracing and routing.
    #[serde(default, deserialize_with = "texts_if_any")]
    headers: Option<BTreeMap<String, String>>,
    /// 0 to 9; 9 is first. Default 5.
    #[schema(minimum = 0, maximum = 9)]
    priority: Option<u64>,
    /// The delay before the first run; or `run_at`.
    delay_ms: Option<Ms>,
    /// The moment of the first run; or `delay_ms`.
    run_at: Option<Moment>,
    /// The task ends as `expired` if it is not claimed by then.
    expires_at: Option<Moment>,
    /// The identity of the request: a repeat gets the same task.
    request_id: Option<String>,
    /// How failures are retried. Default: the queue's.
    retry: Option<Retry>,
    /// The longest run time of one attempt.
    timeout_ms: Option<Ms>,
    /// How long the task is kept after its end. Default: the queue's.
    retention_ms: Option<Ms>,
    /// Words for searches.
    #[serde(default, deserialize_with = "list_if_any")]
    tags: Option<Vec<String>>,
    /// Its unique key: only one task with this key is in the queue at a time.
    unique: Option<Unique>,
    /// Only for nodes of a flow: its name there.
    pub(in crate::front) name: Option<String>,
    /// Only for nodes of a flow: the nodes that must end before it runs.
    #[serde(default, deserialize_with = "list_if_any")]
    pub(in crate::front) depends_on: Option<Vec<Dependency>>,
    /// Only for tasks that are added to a flow: what the task's failure means for the node that
    /// adds it. Default `fail`.
    pub(in crate::front) on_failure: Option<OnFailure>,
    /// The customer of the task: the keys of a queue take turns, and have limits of their own.
    fairness_key: Option<String>,
    /// The bytes of `payload_base64`, once decoded.
    #[serde(skip)]
    decoded: Option<Vec<u8>>,
}

impl NewTask<'_> {
    /// Decodes base64; call this before `task`.
    pub(in crate::front) fn decode(&mut self) -> Result<(), Error> {
        let of_flows = [
            ("name", self.name.is_some()),
            ("depends_on", self.depends_on.is_some()),
            ("on_failure", self.on_failure.is_some()),
        ];
        if let Some((field, _)) = of_flows.iter().find(|(_, given)| *given) {
            let text = format!("{field} is for nodes of a flow alone; leave it out");
            return Err(Error::Invalid(text));
        }
        self.decode_node()
    }

    /// Decodes base64 of a flow's node.
    pub(in crate::front) fn decode_node(&mut self) -> Result<(), Error> {
        if let Some(text) = &self.payload_base64 {
            if self.payload.is_some() {
                let text = "payload and payload_base64 exclude each other; send one";
                return Err(Error::Invalid(text.into()));
            }
            self.decoded = Some(decode_base64("payload_base64", text)?);
        }
        Ok(())
    }

    /// The task, borrowed from this.
    pub(in crate::front) fn task(&self, broker: &Broker) -> Result<MachineTask<'_>, Error> {
        let moment = |moment: Option<Moment>| moment.map(|moment| moment.0);
        let delay_ms = self.delay_ms.map(|ms| ms.0);
        let run_at = edge::when(delay_ms, moment(self.run_at), ["delay_ms", "run_at"])?;
        let json = || self.payload.map_or(NULL, Plain::bytes);
        let body = Body {
            content_type: self.content_type.as_deref().unwrap_or_default(),
            headers: self.headers.as_ref().map(headers).unwrap_or_default(),
            payload: self.decoded.as_deref().unwrap_or_else(json),
        };
        let draft = self.unique.as_ref().map(Unique::draft);
        let bytes_max = broker.payload_bytes_max();
        let unique = draft.map(|draft| draft.unique(&self.task_type, &body, bytes_max));
        Ok(MachineTask {
            task_type: &self.task_type,
            body,
            priority: self.priority.map(edge::priority).transpose()?,
            run_at: run_at.unwrap_or_default(),
            expires_at: moment(self.expires_at),
            request_id: self.request_id.as_deref(),
            retry: self.retry.as_ref().map(Retry::policy).transpose()?,
            timeout_ms: self.timeout_ms.map(|ms| ms.0),
            retention_ms: self.retention_ms.map(|ms| ms.0),
            tags: self.tags.iter().flatten().map(String::as_str).collect(),
            fairness_key: self.fairness_key.as_deref(),
            unique: unique.transpose()?.map(Box::new),
            ..MachineTask::default()
        })
    }
}

/// A task, or several as an atomic batch. Only for the OpenAPI document: arrays are parsed
/// separately, so that errors name the element.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "only its schema is used")]
pub(in crate::front) enum OneOrMany<'a> {
    /// One task.
    One(NewTask<'a>),
    /// All or none.
    Many(Vec<NewTask<'a>>),
}

fn headers(map: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// A claim of ready tasks. It has only its lease: extend it, or it is lost.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Claim {
    /// Names, served in this order. With `{name, weight}` for any, all are drawn by weight.
    #[serde(deserialize_with = "list")]
    pub(in crate::front) queues: Vec<ClaimQueue>,
    /// The types of tasks that the worker can run, up to 256. Default: all types.
    #[serde(default)]
    #[schema(max_items = 256)]
    pub(in crate::front) types: Vec<String>,
    /// The most tasks to claim. Default 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub(in crate::front) max: u32,
    /// The lease of each claim. Default 30,000.
    #[serde(default = "lease")]
    pub(in crate::front) lease_ms: Ms,
    /// How long to wait for the first task, up to 60,000. Default 0.
    #[serde(default = "zero")]
    pub(in crate::front) wait_ms: Ms,
    /// The worker's name, for people.
    #[serde(default)]
    pub(in crate::front) worker: String,
}

fn one() -> u32 {
    1
}

fn lease() -> Ms {
    Ms(limits::LEASE_MS_DEFAULT)
}

fn zero() -> Ms {
    Ms(0)
}

/// A queue to claim from.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "its variants are what the document shows; see Deserialize below")]
pub(in crate::front) enum ClaimQueue {
    /// Its name.
    Name(String),
    /// Its name and weight.
    Weighted(WeightedQueue),
}

/// A queue and its weight.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct WeightedQueue {
    /// Its name.
    pub(in crate::front) name: String,
    /// Its weight, 1 to 1000.
    #[schema(minimum = 1, maximum = 1000)]
    pub(in crate::front) weight: u32,
}

impl<'de> Deserialize<'de> for ClaimQueue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClaimQueue, D::Error> {
        struct QueueVisitor;
        impl<'de> Visitor<'de> for QueueVisitor {
            type Value = ClaimQueue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a queue's name, or {\"name\", \"weight\"}")
            }

            fn visit_str<E>(self, name: &str) -> Result<ClaimQueue, E> {
                Ok(ClaimQueue::Name(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClaimQueue, A::Error> {
                WeightedQueue::deserialize(MapAccessDeserializer::new(map))
                    .map(ClaimQueue::Weighted)
            }
        }
        deserializer.deserialize_any(QueueVisitor)
    }
}

impl Claim {
    /// The queues with their weights; 0 for a queue without one.
    pub(in crate::front) fn queues(&mut self) -> Result<Vec<(String, u32)>, Error> {
        let queue = |queue| match queue {
            ClaimQueue::Name(name) => Ok((name, 0)),
            ClaimQueue::Weighted(WeightedQueue { name, weight: 0 }) => {
                Err(Error::Invalid(format!("weight 0 of queue {name} is not 1 to 1000")))
            }
            ClaimQueue::Weighted(WeightedQueue { name, weight }) => Ok((name, weight)),
        };
        std::mem::take(&mut self.queues).into_iter().map(queue).collect()
    }
}

/// Acks a claimed task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Ack<'a> {
    /// The claim's token.
    pub(in crate::front) claim_token: u64,
    /// Any JSON value; kept verbatim.
    #[serde(borrow)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(in crate::front) result: Option<Plain<'a>>,
    /// Tasks that are enqueued with the ack, or not at all.
    #[serde(borrow, default, deserialize_with = "tasks")]
    pub(in crate::front) enqueue: Vec<NewTask<'a>>,
}

/// The error of an attempt.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::front) struct TaskError<'a> {
    /// Its class, for grouping.
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    pub(in crate::front) error_type: Cow<'a, str>,
    /// Its message.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(in crate::front) message: Cow<'a, str>,
    /// Where it happened.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(in crate::front) backtrace: Cow<'a, str>,
}

/// Fails an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct FailBody {
    /// The claim's token.
    claim_token: u64,
    /// The error.
    #[serde(default)]
    error: TaskError<'static>,
    /// When to retry. Overrides the policy's delay, not its number of attempts.
    retry_at: Option<Moment>,
    /// The delay before the retry, instead of `retry_at`.
    retry_after_ms: Option<Ms>,
    /// With `false` the task becomes a dead letter now. Default `true`.
    #[serde(default = "yes")]
    retryable: bool,
}

fn yes() -> bool {
    true
}

impl FailBody {
    pub(in crate::front) fn fail(&self, task: TaskId) -> Result<Fail<'_>, Error> {
        let (after_ms, at) = (self.retry_after_ms.map(|ms| ms.0), self.retry_at.map(|at| at.0));
        Ok(Fail {
            task,
            token: ClaimToken(self.claim_token),
            error: MachineError {
                error_type: &self.error.error_type,
                message: &self.error.message,
                backtrace: &self.error.backtrace,
            },
            retry_at: edge::when(after_ms, at, ["retry_after_ms", "retry_at"])?,
            retryable: self.retryable,
        })
    }
}

/// The progress of a running task.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Progress<'a> {
    /// 0 to 100.
    #[schema(minimum = 0, maximum = 100)]
    pub(in crate::front) percent: u64,
    /// One line for people.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub(in crate::front) message: Cow<'a, str>,
}

/// Renews a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct ExtendBody<'a> {
    /// The claim's token.
    claim_token: u64,
    /// The new lease, from now. Default: the lease of the claim.
    lease_ms: Option<Ms>,
    /// The progress of the task.
    progress: Option<Progress<'static>>,
    /// The state for the next attempt; kept verbatim.
    #[serde(borrow)]
    #[schema(value_type = Option<serde_json::Value>)]
    resume_state: Option<Plain<'a>>,
}

impl ExtendBody<'_> {
    pub(in crate::front) fn extend(&self, task: TaskId) -> Result<Extend<'_>, Error> {
        let progress = |progress: &'_ Progress<'static>| edge::percent(progress.percent);
        let percent = self.progress.as_ref().map(progress).transpose()?;
        let message = self.progress.as_ref().map_or("", |progress| &progress.message);
        Ok(Extend {
            task,
            token: ClaimToken(self.claim_token),
            lease_ms: self.lease_ms.map(|ms| ms.0),
            progress: percent.map(|percent| MachineProgress { percent, message }),
            resume_state: self.resume_state.map(Plain::bytes),
        })
    }
}

/// Snoozes a claimed task without spending an attempt: `delay_ms` or `run_at`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct SnoozeBody {
    /// The claim's token.
    claim_token: u64,
    /// The delay before it may run again.
    delay_ms: Option<Ms>,
    /// The moment from which it may run again.
    run_at: Option<Moment>,
    /// Also pauses all tasks of its fairness key until then, for at most 24 h. For a task without a
    /// key, pauses all tasks of the queue without a key.
    #[serde(default)]
    hold_key: bool,
}

impl SnoozeBody {
    pub(in crate::front) fn snooze(&self, task: TaskId) -> Result<MachineSnooze, Error> {
        let (delay_ms, run_at) = (self.delay_ms.map(|ms| ms.0), self.run_at.map(|at| at.0));
        let until = edge::until(delay_ms, run_at)?;
        Ok(MachineSnooze {
            task,
            token: ClaimToken(self.claim_token),
            until,
            push_back_key: self.hold_key,
        })
    }
}

/// Releases a claimed task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct ReleaseBody {
    /// The claim's token.
    pub(in crate::front) claim_token: u64,
}

/// An object without fields, or no body.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct NoFields {}

/// The changes of a retry; absent fields stay.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct RetryBody<'a> {
    /// Replaces the payload.
    #[serde(borrow)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Plain<'a>>,
    /// Replaces all headers.
    #[serde(default, deserialize_with = "texts_if_any")]
    headers: Option<BTreeMap<String, String>>,
}

impl RetryBody<'_> {
    pub(in crate::front) fn edit(&self) -> Option<Edit<'_>> {
        let payload = self.payload.map(|json| (json.bytes(), ""));
        let headers = self.headers.as_ref().map(headers);
        (payload.is_some() || headers.is_some()).then_some(Edit { payload, headers })
    }
}
