//! Conversions between `taskyard.v1` and the machine's types. Decoding borrows from the message,
//! encoding shares the body's bytes.

use super::{flow, schedule, unique};
use crate::{
    Broker, Error,
    broker::{BulkReport, DeadSelection, Found, QUEUE_DEFAULT, WaitReason},
    front::edge::{self, Growth, RateDraft, RetryDraft},
    sessions::{Activity, Beat, Hello, Orders, Profile, SECRET_BYTES, SessionSecret, WorkerView},
    shard::{HandedTask, TaskTypes},
};
use std::collections::HashMap;
use taskyard_machine::{
    AfterFailure, AttemptView, Body, ClaimToken, Enqueue, Enqueued, Extend, Fail, NewTask, PerKey,
    Progress, QueueSettings, QueueView, Rate, Release, RetryPolicy, Snooze, TaskError, TaskId,
    TaskStateName, Timestamp, limits,
};
use taskyard_proto::v1;
use tonic::Status;

// ---- enqueue

/// The queue that a message means.
pub(super) fn queue_or_default(queue: &str) -> &str {
    if queue.is_empty() { QUEUE_DEFAULT } else { queue }
}

pub(super) fn enqueue<'a>(broker: &Broker, task: &'a v1::NewTask) -> Result<Enqueue<'a>, Error> {
    Ok(Enqueue { queue: queue_or_default(&task.queue), task: new_task(broker, task)? })
}

/// A task of a batch, whose queue is the batch's.
pub(super) fn batch_task<'a>(
    broker: &Broker,
    queue: &str,
    index: usize,
    task: &'a v1::NewTask,
) -> Result<NewTask<'a>, Error> {
    let checked = if !task.queue.is_empty() && task.queue != queue {
        Err(Error::Invalid(format!("queue {:?} is not the batch's queue {queue}", task.queue)))
    } else {
        new_task(broker, task)
    };
    checked.map_err(|error| Error::Element { index, error: Box::new(error) })
}

pub(super) fn new_task<'a>(broker: &Broker, task: &'a v1::NewTask) -> Result<NewTask<'a>, Error> {
    let run_at = edge::when(task.delay_ms, task.run_at.map(Timestamp), ["delay_ms", "run_at"])?;
    let body = Body {
        content_type: &task.content_type,
        headers: headers(&task.headers),
        payload: &task.payload,
    };
    let draft = task.unique.as_ref().map(unique::draft).transpose()?;
    let unique = draft.map(|draft| draft.unique(&task.r#type, &body, broker.payload_bytes_max()));
    Ok(NewTask {
        unique: unique.transpose()?.map(Box::new),
        task_type: &task.r#type,
        body,
        priority: task.priority.map(|value| edge::priority(value.into())).transpose()?,
        run_at: run_at.unwrap_or_default(),
        expires_at: task.expires_at.map(Timestamp),
        request_id: task.request_id.as_deref(),
        retry: task.retry.as_ref().map(retry_policy).transpose()?,
        timeout_ms: task.timeout_ms,
        retention_ms: task.retention_ms,
        tags: task.tags.iter().map(String::as_str).collect(),
        fairness_key: task.fairness_key.as_deref(),
        ..NewTask::default()
    })
}

/// Headers in one order, whatever the map's.
pub(super) fn headers(map: &HashMap<String, String>) -> Vec<(&str, &str)> {
    let mut headers: Vec<_> =
        map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    headers.sort_unstable();
    headers
}

fn retry_policy(retry: &v1::RetryPolicy) -> Result<RetryPolicy, Error> {
    use v1::retry_policy::Kind;
    let kind = Kind::try_from(retry.policy)
        .map_err(|_| Error::Invalid(format!("retry.policy {} is not known", retry.policy)))?;
    let draft = RetryDraft {
        growth: match kind {
            Kind::Exponential => Growth::Exponential,
            Kind::Fixed => Growth::Fixed,
            Kind::Linear => Growth::Linear,
            Kind::Polynomial => Growth::Polynomial,
            Kind::List => Growth::List,
        },
        max_attempts: retry.max_attempts,
        delay_ms: retry.delay_ms,
        factor: retry.factor,
        delay_max_ms: retry.delay_max_ms,
        jitter: retry.jitter,
        delays_ms: retry.delays_ms.clone(),
    };
    draft.policy()
}

pub(super) fn retry_reply(policy: &RetryPolicy) -> v1::RetryPolicy {
    use v1::retry_policy::Kind;
    let draft = RetryDraft::from(policy);
    let kind = match draft.growth {
        Growth::Exponential => Kind::Exponential,
        Growth::Fixed => Kind::Fixed,
        Growth::Linear => Kind::Linear,
        Growth::Polynomial => Kind::Polynomial,
        Growth::List => Kind::List,
    };
    v1::RetryPolicy {
        policy: kind.into(),
        max_attempts: draft.max_attempts,
        delay_ms: draft.delay_ms,
        factor: draft.factor,
        delay_max_ms: draft.delay_max_ms,
        jitter: draft.jitter,
        delays_ms: draft.delays_ms,
    }
}

pub(super) fn enqueue_reply(enqueued: Enqueued) -> v1::EnqueueReply {
    v1::EnqueueReply { id: enqueued.id.to_string(), duplicate: enqueued.duplicate }
}

pub(super) fn enqueue_result(result: &Result<Enqueued, Error>) -> v1::EnqueueResult {
    match result {
        Ok(enqueued) => v1::EnqueueResult {
            id: enqueued.id.to_string(),
            duplicate: enqueued.duplicate,
            error: None,
        },
        Err(error) => v1::EnqueueResult { error: Some(error.into()), ..Default::default() },
    }
}

// ---- claim and after

pub(super) fn queue_weights(queues: Vec<v1::QueueWeight>) -> Vec<(String, u32)> {
    queues.into_iter().map(|queue| (queue.name, queue.weight)).collect()
}

/// A claim's lease, 0 being the default.
pub(super) fn lease_ms(lease_ms: u64) -> u64 {
    if lease_ms == 0 { limits::LEASE_MS_DEFAULT } else { lease_ms }
}

pub(super) fn claimed_task(handed: HandedTask) -> v1::ClaimedTask {
    let HandedTask { task, body: encoded } = handed;
    let body = body(&encoded);
    v1::ClaimedTask {
        id: task.id.to_string(),
        queue: task.queue.as_str().to_owned(),
        r#type: task.task_type.as_ref().to_owned(),
        payload: encoded.slice_ref(body.payload),
        content_type: body.content_type.to_owned(),
        headers: owned_headers(&body),
        priority: task.priority.into(),
        attempt: task.attempt,
        claim_token: task.token.0,
        lease_expires_at: task.lease_expires_at.0,
        timeout_ms: task.timeout_ms,
        resume_state: task.resume_state.map(Vec::from),
        enqueued_at: task.enqueued_at.0,
        parents: task.parents.into_iter().map(flow::parent).collect(),
        flow: task.flow.as_ref().map(flow::member),
        fairness_key: task.fairness_key.map(String::from),
    }
}

fn body(encoded: &[u8]) -> Body<'_> {
    Body::decode(encoded).expect("a kept body is one that was encoded")
}

pub(super) fn owned_headers(body: &Body<'_>) -> HashMap<String, String> {
    body.headers.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub(super) fn task_error(error: Option<&v1::TaskError>) -> TaskError<'_> {
    error.map_or(TaskError::default(), |error| TaskError {
        error_type: &error.r#type,
        message: &error.message,
        backtrace: &error.backtrace,
    })
}

pub(super) fn fail(request: &v1::FailRequest) -> Result<Fail<'_>, Error> {
    let retry_at = request.retry_at.map(Timestamp);
    Ok(Fail {
        task: edge::task_id(&request.id)?,
        token: ClaimToken(request.claim_token),
        error: task_error(request.error.as_ref()),
        retry_at: edge::when(request.retry_after_ms, retry_at, ["retry_after_ms", "retry_at"])?,
        retryable: !request.not_retryable,
    })
}

pub(super) fn fail_reply(after: AfterFailure) -> v1::FailReply {
    let state = |state: TaskStateName| state.as_str().to_owned();
    match after {
        AfterFailure::Retry { run_at } => {
            v1::FailReply { state: state(TaskStateName::Scheduled), run_at: Some(run_at.0) }
        }
        AfterFailure::Dead => v1::FailReply { state: state(TaskStateName::Dead), run_at: None },
        AfterFailure::Failed => v1::FailReply { state: state(TaskStateName::Failed), run_at: None },
        AfterFailure::Cancelled => {
            v1::FailReply { state: state(TaskStateName::Cancelled), run_at: None }
        }
    }
}

pub(super) fn extend(request: &v1::ExtendRequest) -> Result<Extend<'_>, Error> {
    Ok(Extend {
        task: edge::task_id(&request.id)?,
        token: ClaimToken(request.claim_token),
        lease_ms: request.lease_ms,
        progress: match &request.progress {
            Some(progress) => Some(Progress {
                percent: edge::percent(progress.percent.into())?,
                message: &progress.message,
            }),
            None => None,
        },
        resume_state: request.resume_state.as_deref(),
    })
}

pub(super) fn release(request: &v1::ReleaseRequest) -> Result<Release, Error> {
    let (task, token) = (edge::task_id(&request.id)?, ClaimToken(request.claim_token));
    Ok(Release { task, token })
}

pub(super) fn snooze(request: &v1::SnoozeRequest) -> Result<Snooze, Error> {
    Ok(Snooze {
        task: edge::task_id(&request.id)?,
        token: ClaimToken(request.claim_token),
        until: edge::until(request.delay_ms, request.run_at.map(Timestamp))?,
        push_back_key: request.hold_key,
    })
}

// ---- a worker's session

pub(super) fn hello(hello: v1::Hello) -> Result<Hello, Error> {
    let activity = activity(hello.state());
    Ok(Hello {
        resumed: session_secret(&hello.session_secret)?,
        profile: Profile {
            name: hello.name,
            host: hello.host,
            pid: hello.pid,
            version: hello.version,
            queues: Vec::new(),
            types: TaskTypes::ANY,
            slots: hello.slots,
        },
        queues: queue_weights(hello.queues),
        types: hello.types,
        lease_ms: lease_ms(hello.lease_ms),
        held: held(&hello.held)?,
        activity,
    })
}

/// What a worker says it does.
fn activity(state: v1::WorkerState) -> Activity {
    match state {
        v1::WorkerState::Running | v1::WorkerState::Lost => Activity::Running,
        v1::WorkerState::Quiet => Activity::Quiet,
        v1::WorkerState::Stopping => Activity::Stopping,
    }
}

fn session_secret(bytes: &[u8]) -> Result<Option<SessionSecret>, Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let refused = || {
        Error::Invalid(format!(
            "session_secret has {} bytes; send the {SECRET_BYTES} that the welcome had, or none to open a \
             session",
            bytes.len()
        ))
    };
    SessionSecret::from_bytes(bytes).map(Some).ok_or_else(refused)
}

pub(super) fn held(claims: &[v1::HeldClaim]) -> Result<Vec<(TaskId, ClaimToken)>, Error> {
    let claim =
        |claim: &v1::HeldClaim| Ok((edge::task_id(&claim.id)?, ClaimToken(claim.claim_token)));
    claims.iter().map(claim).collect()
}

pub(super) fn beat(beat: &v1::Beat) -> Result<Beat, Error> {
    Ok(Beat {
        held: held(&beat.held)?,
        rss_bytes: beat.rss_bytes,
        activity: activity(beat.state()),
    })
}

pub(super) fn orders(orders: Orders) -> v1::BrokerMessage {
    let claims = |claims: Vec<(TaskId, ClaimToken)>| {
        let claim = |(task, token): (TaskId, ClaimToken)| v1::HeldClaim {
            id: task.to_string(),
            claim_token: token.0,
        };
        claims.into_iter().map(claim).collect()
    };
    let state = match orders.activity {
        Activity::Running => v1::WorkerState::Running,
        Activity::Quiet => v1::WorkerState::Quiet,
        Activity::Stopping => v1::WorkerState::Stopping,
    };
    message(v1::broker_message::Message::Orders(v1::Orders {
        cancel: claims(orders.cancel),
        lost: claims(orders.lost),
        state: state.into(),
    }))
}

pub(super) fn message(message: v1::broker_message::Message) -> v1::BrokerMessage {
    v1::BrokerMessage { message: Some(message) }
}

// ---- read and change

pub(super) fn task(found: Found) -> v1::Task {
    let Found { task, body: encoded } = found;
    let body = encoded.as_deref().map(body);
    v1::Task {
        id: task.id.to_string(),
        queue: task.queue.as_str().to_owned(),
        r#type: task.task_type.as_ref().to_owned(),
        state: task.state.as_str().to_owned(),
        priority: task.priority.into(),
        attempt: task.attempt,
        max_attempts: task.max_attempts,
        losses: task.losses,
        payload: body.as_ref().map(|body| body.payload.to_vec()),
        content_type: body.as_ref().map_or("", |body| body.content_type).to_owned(),
        headers: body.as_ref().map(owned_headers).unwrap_or_default(),
        result: task.result,
        progress: task
            .progress
            .map(|(percent, message)| v1::TaskProgress { percent: percent.into(), message }),
        enqueued_at: task.enqueued_at.0,
        run_at: task.run_at.map(|at| at.0),
        expires_at: task.expires_at.map(|at| at.0),
        finished_at: task.finished_at.map(|at| at.0),
        timeout_ms: task.timeout_ms,
        tags: task.tags,
        unique: task.unique.map(unique::shown),
        attempts: task.attempts.into_iter().map(attempt).collect(),
        death_reason: task.death.map_or("", |reason| reason.as_str()).to_owned(),
        claim: task.claim.map(|claim| v1::TaskClaim {
            worker: claim.worker.as_ref().to_owned(),
            claimed_at: claim.claimed_at.0,
            lease_expires_at: claim.lease_expires_at.0,
            cancel_requested: claim.cancel_requested,
        }),
        fairness_key: task.fairness_key,
        flow: task.flow.as_ref().map(flow::member),
        schedule: body.as_ref().map_or("", schedule::of_task).to_owned(),
    }
}

fn attempt(attempt: AttemptView) -> v1::Attempt {
    v1::Attempt {
        attempt: attempt.attempt,
        worker: attempt.worker.as_ref().to_owned(),
        claimed_at: attempt.claimed_at.0,
        ended_at: attempt.ended_at.0,
        outcome: attempt.outcome.as_str().to_owned(),
        error: attempt.error.map(error_reply),
    }
}

pub(super) fn error_reply([error_type, message, backtrace]: [String; 3]) -> v1::TaskError {
    v1::TaskError { r#type: error_type, message, backtrace }
}

/// Empty text in a filter matches everything.
pub(super) fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn dead_selection(request: v1::DeadRequest) -> Result<DeadSelection, Error> {
    match (request.ids.is_empty(), request.filter) {
        (false, None) => {
            let ids = request.ids.iter().map(|id| edge::task_id(id));
            Ok(DeadSelection::Ids(ids.collect::<Result<_, _>>()?))
        }
        (true, Some(filter)) => {
            edge::dead_state(&filter.state)?;
            Ok(DeadSelection::Filter {
                queue: given(filter.queue),
                task_type: given(filter.r#type),
                error: given(filter.error),
                tag: given(filter.tag),
                flow: given(filter.flow).map(|id| edge::flow_id(&id)).transpose()?,
            })
        }
        (true, None) => Err(Error::Invalid(edge::NO_SELECTION.into())),
        (false, Some(_)) => Err(Error::Invalid(edge::TWO_SELECTIONS.into())),
    }
}

pub(super) fn bulk_reply(report: BulkReport) -> Result<v1::BulkReply, Status> {
    let done = report.ended.is_some();
    if let Some(ended) = report.ended {
        ended?;
    }
    Ok(v1::BulkReply { changed: report.changed, skipped: report.skipped, done })
}

pub(super) fn queue(view: &QueueView) -> v1::Queue {
    let counts = view.counts;
    v1::Queue {
        name: view.name.as_str().to_owned(),
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

pub(super) fn queue_settings(settings: &v1::QueueSettings) -> Result<QueueSettings, Error> {
    Ok(QueueSettings {
        max_length: settings.max_length,
        dedup_window_ms: settings.dedup_window_ms,
        retention_ms: settings.retention_ms,
        retention_count: settings.retention_count,
        dead_retention_ms: settings.dead_retention_ms,
        dead_retention_count: settings.dead_retention_count,
        retry: settings.retry.as_ref().map(retry_policy).transpose()?,
        timeout_ms: settings.timeout_ms,
        concurrency: settings.concurrency,
        rate: settings.rate.map(|it| rate("rate", it)).transpose()?,
        per_key: settings.per_key.map(per_key).transpose()?.flatten(),
        weights: settings.weights.iter().map(|(key, &n)| (key.as_str().into(), n)).collect(),
        ageing_ms: settings.ageing_ms,
        spread: settings.spread.map(edge::spread).transpose()?,
    })
}

fn rate(what: &str, rate: v1::Rate) -> Result<Rate, Error> {
    RateDraft { per_second: rate.per_second, burst: rate.burst }.rate(what)
}

fn rate_reply(rate: Rate) -> v1::Rate {
    let RateDraft { per_second, burst } = RateDraft::from(rate);
    v1::Rate { per_second, burst }
}

/// Limits that are all absent are no limits.
fn per_key(per_key: v1::PerKey) -> Result<Option<PerKey>, Error> {
    let per_key = PerKey {
        concurrency: per_key.concurrency,
        rate: per_key.rate.map(|it| rate("per_key.rate", it)).transpose()?,
    };
    Ok((per_key != PerKey::default()).then_some(per_key))
}

pub(super) fn wait_reason(reason: WaitReason) -> v1::WaitReason {
    v1::WaitReason {
        code: reason.code.to_owned(),
        message: reason.message,
        key: reason.key,
        until: reason.until.map(|at| at.0),
        claimed: reason.claimed,
        limit: reason.limit,
        ahead: reason.ahead,
        worker: reason.worker,
        parents: reason.parents,
    }
}

pub(super) fn queue_settings_reply(settings: &QueueSettings) -> v1::QueueSettings {
    v1::QueueSettings {
        max_length: settings.max_length,
        dedup_window_ms: settings.dedup_window_ms,
        retention_ms: settings.retention_ms,
        retention_count: settings.retention_count,
        dead_retention_ms: settings.dead_retention_ms,
        dead_retention_count: settings.dead_retention_count,
        retry: settings.retry.as_ref().map(retry_reply),
        timeout_ms: settings.timeout_ms,
        concurrency: settings.concurrency,
        rate: settings.rate.map(rate_reply),
        per_key: settings.per_key.map(|per_key| v1::PerKey {
            concurrency: per_key.concurrency,
            rate: per_key.rate.map(rate_reply),
        }),
        weights: settings.weights.iter().map(|(key, &n)| (key.to_string(), n)).collect(),
        ageing_ms: settings.ageing_ms,
        spread: settings.spread.map(u32::from),
    }
}

pub(super) fn worker(view: WorkerView) -> v1::Worker {
    let Profile { name, host, pid, version, queues, types, slots } = view.profile;
    v1::Worker {
        id: view.id.to_string(),
        name,
        host,
        pid,
        version,
        queues,
        types: types.names().to_vec(),
        slots,
        busy: view.busy,
        state: view.state.as_str().to_owned(),
        connected_at: view.connected_at.0,
        beat_at: view.beat_at.0,
        rss_bytes: view.rss_bytes,
        node: view.node,
    }
}
