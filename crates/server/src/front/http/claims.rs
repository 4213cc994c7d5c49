//! Claims: claim, ack, fail, extend, snooze, release.

use super::{
    Http,
    extract::{JsonBody, TaskPath},
    ok,
};
use crate::{
    broker::{ClaimAsked, QUEUE_DEFAULT, check_wait},
    front::{json, problem::Problem},
};
use axum::{extract::State, response::Response};
use taskyard_machine::{Ack, ClaimToken, Enqueue, Release};

/// Claims ready tasks; waits for the first up to `wait_ms`.
#[utoipa::path(
    post, path = "/v1/claims", operation_id = "claim", tag = "claims",
    request_body(content = json::Claim, content_type = "application/json"),
    responses(
        (status = 200, body = json::Claimed<'_>, description = "the claimed tasks, perhaps none"),
        Problem,
    ),
)]
pub(super) async fn claim(State(http): State<Http>, body: JsonBody) -> Result<Response, Problem> {
    let mut claim: json::Claim = body.parse()?;
    let places = http.broker.places(&claim.queues()?)?.of_types(claim.types)?;
    let asked = ClaimAsked {
        tasks_max: claim.max,
        lease_ms: claim.lease_ms.0,
        session: None,
        begun: false,
        worker: claim.worker,
    };
    let tasks = http.broker.claim(&places, &asked, check_wait(claim.wait_ms.0)?).await?;
    Ok(ok(&json::Claimed::new(&tasks)))
}

/// Acks a claimed task. A repeat with the same token gets the same answer.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/ack", operation_id = "ack", tag = "claims",
    params(("id" = String, Path)),
    request_body(content = json::Ack<'_>, content_type = "application/json"),
    responses(
        (status = 200, body = json::Acked, description = "the task has succeeded"),
        Problem,
    ),
)]
pub(super) async fn ack(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let mut ack: json::Ack<'_> = body.parse()?;
    for new in &mut ack.enqueue {
        new.decode()?;
    }
    let mut follow_ups = Vec::with_capacity(ack.enqueue.len());
    for new in &ack.enqueue {
        let queue = new.queue.as_deref().unwrap_or(QUEUE_DEFAULT);
        follow_ups.push(http.broker.follow_up(Enqueue { queue, task: new.task(&http.broker)? })?);
    }
    let result = ack.result.map(json::Plain::bytes);
    let token = ClaimToken(ack.claim_token);
    let enqueued = http.broker.ack(Ack { task, token, result, follow_ups }).await?;
    Ok(ok(&json::Acked::new(&enqueued)))
}

/// Fails an attempt: the task is retried by its policy, or becomes a dead letter.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/fail", operation_id = "fail", tag = "claims",
    params(("id" = String, Path)),
    request_body(content = json::FailBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Failed, description = "the task's new state"),
        Problem,
    ),
)]
pub(super) async fn fail(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::FailBody = body.parse()?;
    let after = http.broker.fail(body.fail(task)?).await?;
    Ok(ok(&json::Failed::from(after)))
}

/// Renews a lease, with progress and a state for the next attempt.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/extend", operation_id = "extend", tag = "claims",
    params(("id" = String, Path)),
    request_body(content = json::ExtendBody<'_>, content_type = "application/json"),
    responses(
        (status = 200, body = json::Extended, description = "renewed"),
        Problem,
    ),
)]
pub(super) async fn extend(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::ExtendBody<'_> = body.parse()?;
    let (lease_expires_at, cancel_requested) = http.broker.extend(body.extend(task)?).await?;
    let lease_expires_at = lease_expires_at.into();
    Ok(ok(&json::Extended { lease_expires_at, cancel_requested }))
}

/// Snoozes a claimed task without spending an attempt.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/snooze", operation_id = "snooze", tag = "claims",
    params(("id" = String, Path)),
    request_body(content = json::SnoozeBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Snoozed, description = "snoozed"),
        Problem,
    ),
)]
pub(super) async fn snooze(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::SnoozeBody = body.parse()?;
    let (run_at, state) = http.broker.snooze(body.snooze(task)?).await?;
    Ok(ok(&json::Snoozed { state: state.as_str(), run_at: run_at.into() }))
}

/// Releases a claimed task without spending an attempt.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/release", operation_id = "release", tag = "claims",
    params(("id" = String, Path)),
    request_body(content = json::ReleaseBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::StateReply, description = "released"),
        Problem,
    ),
)]
pub(super) async fn release(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::ReleaseBody = body.parse()?;
    let token = ClaimToken(body.claim_token);
    let state = http.broker.release(Release { task, token }).await?.as_str();
    Ok(ok(&json::StateReply { state }))
}
