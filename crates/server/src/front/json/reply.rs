//! JSON about tasks: answers.

use super::{
    FlowMember, Moment, ParentError, Parents, Progress, TaskError,
    bytes::{Shown, shown, shown_payload},
    unique::TaskUnique,
};
use crate::{
    broker::{Found, TaskResult, WaitReason},
    shard::HandedTask,
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use taskyard_machine::{
    AfterFailure, AttemptView, Body, ClaimView, Enqueued as MachineEnqueued, SCHEDULE_HEADERS,
    TaskId, TaskStateName,
};
use utoipa::ToSchema;

fn is_false(value: &bool) -> bool {
    !value
}

/// The task that was enqueued.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Enqueued {
    /// Its id.
    id: String,
    /// Its request_id was known, or another task holds its unique key; `id` is the id of that task.
    #[serde(skip_serializing_if = "is_false")]
    duplicate: bool,
}

impl From<MachineEnqueued> for Enqueued {
    fn from(enqueued: MachineEnqueued) -> Enqueued {
        Enqueued { id: enqueued.id.to_string(), duplicate: enqueued.duplicate }
    }
}

/// The tasks of a batch, in its order.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct EnqueuedBatch {
    /// Their ids.
    ids: Vec<String>,
}

impl EnqueuedBatch {
    pub(in crate::front) fn new(enqueued: &[MachineEnqueued]) -> EnqueuedBatch {
        EnqueuedBatch { ids: enqueued.iter().map(|enqueued| enqueued.id.to_string()).collect() }
    }
}

/// The answer to one task or to a batch. Only for the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::front) enum EnqueuedOneOrMany {
    /// For one task.
    One(Enqueued),
    /// For a batch.
    Many(EnqueuedBatch),
}

/// The claimed tasks; empty when nothing was ready in time.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Claimed<'a> {
    /// At most as many as the claim asked for.
    tasks: Vec<ClaimedTask<'a>>,
}

impl<'a> Claimed<'a> {
    pub(in crate::front) fn new(tasks: &'a [HandedTask]) -> Claimed<'a> {
        Claimed { tasks: tasks.iter().map(ClaimedTask::new).collect() }
    }
}

/// A task for its worker.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ClaimedTask<'a> {
    id: String,
    queue: &'a str,
    #[serde(rename = "type")]
    task_type: &'a str,
    /// As it was enqueued, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// As it was enqueued, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// Absent for `application/json`.
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    headers: BTreeMap<&'a str, &'a str>,
    priority: u8,
    /// From 1.
    attempt: u32,
    /// The right to finish this attempt.
    claim_token: u64,
    lease_expires_at: Moment,
    /// The longest run time of this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    /// The state that the previous attempt left, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    resume_state: Option<&'a RawValue>,
    /// The state that the previous attempt left, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    resume_state_base64: Option<String>,
    enqueued_at: Moment,
    /// The flow of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<FlowMember<'a>>,
    /// Results of the tasks that it depends on, by node, if they are JSON.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    parents: BTreeMap<&'a str, &'a RawValue>,
    /// Results of those tasks that are not JSON.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parents_base64: BTreeMap<&'a str, String>,
    /// Parents whose results are too large for this answer, with the tasks to get them from.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parents_omitted: BTreeMap<&'a str, String>,
    /// Parents that did not succeed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parent_errors: BTreeMap<&'a str, ParentError<'a>>,
    /// The fairness key of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    fairness_key: Option<&'a str>,
}

impl<'a> ClaimedTask<'a> {
    fn new(handed: &'a HandedTask) -> ClaimedTask<'a> {
        let task = &handed.task;
        let body = ShownBody::new(&handed.body);
        let resume_state = task.resume_state.as_deref().map(shown).unwrap_or_default();
        let parents = Parents::new(&task.parents);
        ClaimedTask {
            id: task.id.to_string(),
            queue: task.queue.as_str(),
            task_type: &task.task_type,
            payload: body.payload.json,
            payload_base64: body.payload.base64,
            content_type: body.content_type,
            headers: body.headers,
            priority: task.priority,
            attempt: task.attempt,
            claim_token: task.token.0,
            lease_expires_at: task.lease_expires_at.into(),
            timeout_ms: task.timeout_ms,
            resume_state: resume_state.json,
            resume_state_base64: resume_state.base64,
            enqueued_at: task.enqueued_at.into(),
            flow: task.flow.as_ref().map(FlowMember::new),
            parents: parents.json,
            parents_base64: parents.base64,
            parents_omitted: parents.omitted,
            parent_errors: parents.errors,
            fairness_key: task.fairness_key.as_deref(),
        }
    }
}

struct ShownBody<'a> {
    payload: Shown<'a>,
    content_type: &'a str,
    headers: BTreeMap<&'a str, &'a str>,
}

impl<'a> ShownBody<'a> {
    fn new(encoded: &'a [u8]) -> ShownBody<'a> {
        let body = Body::decode(encoded).expect("a kept body is one that was encoded");
        ShownBody {
            payload: shown_payload(body.content_type, body.payload),
            content_type: body.content_type,
            headers: body.headers.into_iter().collect(),
        }
    }
}

/// The follow-ups of an ack.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Acked {
    /// Their ids, in order.
    enqueued: Vec<String>,
}

impl Acked {
    pub(in crate::front) fn new(follow_ups: &[TaskId]) -> Acked {
        Acked { enqueued: follow_ups.iter().map(ToString::to_string).collect() }
    }
}

/// The state of a task after a failed attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Failed {
    /// `scheduled`, `dead`, `failed` or `cancelled`.
    state: &'static str,
    /// When the task runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<Moment>,
}

impl From<AfterFailure> for Failed {
    fn from(after: AfterFailure) -> Failed {
        let (state, run_at) = match after {
            AfterFailure::Retry { run_at } => (TaskStateName::Scheduled, Some(run_at.into())),
            AfterFailure::Dead => (TaskStateName::Dead, None),
            AfterFailure::Failed => (TaskStateName::Failed, None),
            AfterFailure::Cancelled => (TaskStateName::Cancelled, None),
        };
        Failed { state: state.as_str(), run_at }
    }
}

/// A renewed lease.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Extended {
    /// The new end of the lease.
    pub(in crate::front) lease_expires_at: Moment,
    /// The worker should stop: the task is cancelled when it yields.
    pub(in crate::front) cancel_requested: bool,
}

/// A snoozed task.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Snoozed {
    /// `scheduled`, or `cancelled` if it was cancelled meanwhile, so that it does not run again.
    pub(in crate::front) state: &'static str,
    /// When it may run again.
    pub(in crate::front) run_at: Moment,
}

/// The state of a task.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct StateReply {
    /// The name of the state.
    pub(in crate::front) state: &'static str,
}

/// One task.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Task<'a> {
    id: String,
    queue: &'a str,
    #[serde(rename = "type")]
    task_type: &'a str,
    /// `blocked`, `scheduled`, `ready`, `claimed`, `succeeded`, `failed`, `dead`, `cancelled` or
    /// `expired`.
    state: &'static str,
    priority: u8,
    /// The current or last attempt; 0 before the first.
    attempt: u32,
    /// The number of the last attempt if all attempts fail from here on.
    max_attempts: u32,
    /// Claims lost so far.
    losses: u32,
    /// As it was enqueued, if it is JSON. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// As it was enqueued, if it is not JSON. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// Absent for `application/json`, and in lists.
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    /// Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<BTreeMap<&'a str, &'a str>>,
    /// The result, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
    /// The result, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    /// The last progress that its worker reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress<'a>>,
    enqueued_at: Moment,
    /// When the task runs next, while it is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    tags: &'a [String],
    /// Its unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<TaskUnique<'a>>,
    /// The fairness key of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    fairness_key: Option<&'a str>,
    /// Its last attempts, oldest first.
    attempts: Vec<Attempt<'a>>,
    /// Why it is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    death_reason: Option<&'static str>,
    /// The current claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<TaskClaim<'a>>,
    /// The flow of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<FlowMember<'a>>,
    /// The schedule that fired the task. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
}

impl<'a> Task<'a> {
    pub(in crate::front) fn new(found: &'a Found) -> Task<'a> {
        let task = &found.task;
        let body = found.body.as_deref().map(ShownBody::new);
        let (payload, content_type, headers) = match body {
            Some(body) => (body.payload, body.content_type, Some(body.headers)),
            None => (Shown::default(), "", None),
        };
        let result = task.result.as_deref().map(shown).unwrap_or_default();
        let progress = |(percent, message): &'a (u8, String)| Progress {
            percent: (*percent).into(),
            message: message.into(),
        };
        Task {
            id: task.id.to_string(),
            queue: task.queue.as_str(),
            task_type: &task.task_type,
            state: task.state.as_str(),
            priority: task.priority,
            attempt: task.attempt,
            max_attempts: task.max_attempts,
            losses: task.losses,
            payload: payload.json,
            payload_base64: payload.base64,
            content_type,
            schedule: headers
                .as_ref()
                .and_then(|headers| headers.get(SCHEDULE_HEADERS[0]).copied()),
            headers,
            result: result.json,
            result_base64: result.base64,
            progress: task.progress.as_ref().map(progress),
            enqueued_at: task.enqueued_at.into(),
            run_at: task.run_at.map(Moment),
            expires_at: task.expires_at.map(Moment),
            finished_at: task.finished_at.map(Moment),
            timeout_ms: task.timeout_ms,
            tags: &task.tags,
            unique: task.unique.as_ref().map(TaskUnique::new),
            fairness_key: task.fairness_key.as_deref(),
            attempts: task.attempts.iter().map(Attempt::new).collect(),
            death_reason: task.death.map(|reason| reason.as_str()),
            claim: task.claim.as_ref().map(TaskClaim::new),
            flow: task.flow.as_ref().map(FlowMember::new),
        }
    }
}

/// One past attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Attempt<'a> {
    /// From 1.
    attempt: u32,
    /// The worker that ran it, if the claim named one.
    #[serde(skip_serializing_if = "str::is_empty")]
    worker: &'a str,
    claimed_at: Moment,
    ended_at: Moment,
    /// `succeeded`, `failed`, `lost`, `released`, `snoozed`, `cancelled` or `timed_out`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TaskError<'a>>,
}

impl<'a> Attempt<'a> {
    fn new(attempt: &'a AttemptView) -> Attempt<'a> {
        Attempt {
            attempt: attempt.attempt,
            worker: &attempt.worker,
            claimed_at: attempt.claimed_at.into(),
            ended_at: attempt.ended_at.into(),
            outcome: attempt.outcome.as_str(),
            error: attempt.error.as_ref().and_then(task_error),
        }
    }
}

/// The error, unless all its parts are empty.
fn task_error(error: &[String; 3]) -> Option<TaskError<'_>> {
    let [error_type, message, backtrace] = error.each_ref().map(|part| part.into());
    let said_nothing = error.iter().all(String::is_empty);
    (!said_nothing).then_some(TaskError { error_type, message, backtrace })
}

/// The current claim of a task.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct TaskClaim<'a> {
    /// The worker that holds it, if the claim named one.
    #[serde(skip_serializing_if = "str::is_empty")]
    worker: &'a str,
    claimed_at: Moment,
    lease_expires_at: Moment,
    /// Whether the worker is asked to stop.
    cancel_requested: bool,
}

impl<'a> TaskClaim<'a> {
    fn new(claim: &'a ClaimView) -> TaskClaim<'a> {
        TaskClaim {
            worker: &claim.worker,
            claimed_at: claim.claimed_at.into(),
            lease_expires_at: claim.lease_expires_at.into(),
            cancel_requested: claim.cancel_requested,
        }
    }
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct TaskList<'a> {
    /// In the order asked for, without payloads.
    pub(in crate::front) tasks: Vec<Task<'a>>,
    /// Where to continue; absent at the end. A page may be short, even empty, and still have a
    /// cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::front) cursor: Option<&'a str>,
}

/// The result of a task. Until the task has ended, there is only its state.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ResultReply<'a> {
    /// The state of the task; `succeeded` comes with the result.
    state: &'static str,
    /// The result, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
    /// The result, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    /// The error of its last failed attempt, unless it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TaskError<'a>>,
}

impl<'a> ResultReply<'a> {
    pub(in crate::front) fn new(result: &'a TaskResult) -> ResultReply<'a> {
        let shown = result.result.as_deref().map(shown).unwrap_or_default();
        ResultReply {
            state: result.state.as_str(),
            result: shown.json,
            result_base64: shown.base64,
            error: result.error.as_ref().and_then(task_error),
        }
    }
}

/// Why a task waits.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Why<'a> {
    /// The reason to solve first comes first.
    reasons: Vec<Reason<'a>>,
}

impl<'a> Why<'a> {
    pub(in crate::front) fn new(reasons: &'a [WaitReason]) -> Why<'a> {
        Why { reasons: reasons.iter().map(Reason::new).collect() }
    }
}

/// One reason why a task waits.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Reason<'a> {
    /// `parents`, `queue_paused`, `scheduled`, `queue_concurrency`, `queue_rate`,
    /// `key_concurrency`, `key_rate`, `key_held`, `no_worker`, `no_worker_for_type`, `ahead`,
    /// `running` or `finished`.
    code: &'static str,
    /// For people.
    message: &'a str,
    /// The fairness key that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// When the reason ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Moment>,
    /// The number of running tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed: Option<u32>,
    /// The most tasks that may run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// The number of tasks that come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// The worker that runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    /// Nodes of its flow that it waits for; the first of many.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    parents: &'a [String],
}

impl<'a> Reason<'a> {
    fn new(reason: &'a WaitReason) -> Reason<'a> {
        Reason {
            code: reason.code,
            message: &reason.message,
            key: reason.key.as_deref(),
            until: reason.until.map(Moment),
            claimed: reason.claimed,
            limit: reason.limit,
            ahead: reason.ahead,
            worker: reason.worker.as_deref(),
            parents: &reason.parents,
        }
    }
}
