//! Queues: counts, pause, purge, settings, deletion.

use super::{
    Http,
    extract::{JsonBody, NamePath, NoFields, Parameters},
    ok, reply,
};
use crate::{
    broker::BulkJob,
    front::{edge, json, problem::Problem},
    limits,
};
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use std::time::Duration;

/// How long a call waits for the end of a bulk operation before it answers with the progress.
const BULK_WAITED_FOR: Duration = Duration::from_millis(limits::BULK_WAIT_MS_MAX);

/// All queues with exact counts, a page at a time, by name.
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(json::QueueQuery),
    responses(
        (status = 200, body = json::QueueList<'_>, description = "a page"),
        Problem,
    ),
)]
pub(super) async fn list(
    State(http): State<Http>,
    Parameters(query): Parameters<json::QueueQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(edge::PAGE_TASKS_DEFAULT);
    let page = http.broker.queue_page(query.cursor, limit).await?;
    let queues = page.queues.iter().map(json::Queue::new).collect();
    Ok(ok(&json::QueueList { queues, cursor: page.cursor.as_deref() }))
}

/// One queue, with exact counts.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, body = json::Queue<'_>, description = "the queue"),
        Problem,
    ),
)]
pub(super) async fn queue(
    State(http): State<Http>,
    NamePath(queue): NamePath,
) -> Result<Response, Problem> {
    let view = http.broker.queue(&queue).await?;
    Ok(ok(&json::Queue::new(&view)))
}

/// Deletes a queue with its settings. Refused while it has tasks that have not ended, or dead
/// letters. Its first use makes it anew, with default settings.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 204, description = "deleted"),
        Problem,
    ),
)]
pub(super) async fn delete(
    State(http): State<Http>,
    NamePath(queue): NamePath,
) -> Result<Response, Problem> {
    http.broker.delete_queue(&queue).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Stops handing out tasks of a queue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::Paused, description = "paused"),
        Problem,
    ),
)]
pub(super) async fn pause(
    State(http): State<Http>,
    NamePath(queue): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.pause(&queue).await?;
    Ok(ok(&json::Paused { paused: true }))
}

/// Hands out tasks of a queue again.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::Paused, description = "resumed"),
        Problem,
    ),
)]
pub(super) async fn resume(
    State(http): State<Http>,
    NamePath(queue): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.resume(&queue).await?;
    Ok(ok(&json::Paused { paused: false }))
}

/// Removes the waiting tasks of a queue. Tasks that are enqueued meanwhile stay.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::Bulk, description = "done"),
        (status = 202, body = json::Bulk, description = "not done yet; the operation goes on"),
        Problem,
    ),
)]
pub(super) async fn purge(
    State(http): State<Http>,
    NamePath(queue): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    bulk(http.broker.purge(&queue).await?).await
}

/// Waits for the end of a job, or answers with its progress.
pub(super) async fn bulk(mut job: BulkJob) -> Result<Response, Problem> {
    // If the job takes longer, its report at this moment is the answer.
    let _ = tokio::time::timeout(BULK_WAITED_FOR, job.end()).await;
    let report = job.report();
    let body = json::Bulk::from(&report);
    match report.ended {
        Some(ended) => {
            ended?;
            Ok(ok(&body))
        }
        None => Ok(reply(StatusCode::ACCEPTED, &body)),
    }
}

/// A queue's own settings.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/settings", operation_id = "get_queue_settings", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, body = json::QueueSettings, description = "the queue's own settings"),
        Problem,
    ),
)]
pub(super) async fn settings(
    State(http): State<Http>,
    NamePath(queue): NamePath,
) -> Result<Response, Problem> {
    let settings = http.broker.queue_settings(&queue).await?;
    Ok(ok(&json::QueueSettings::from(&settings)))
}

/// Replaces all settings of a queue. Absent settings return to their defaults.
#[utoipa::path(
    put, path = "/v1/queues/{queue}/settings", operation_id = "set_queue_settings", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = json::QueueSettings, content_type = "application/json"),
    responses(
        (status = 200, body = json::QueueSettings, description = "the new settings"),
        Problem,
    ),
)]
pub(super) async fn set(
    State(http): State<Http>,
    NamePath(queue): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::QueueSettings = body.parse()?;
    let settings = body.settings()?;
    http.broker.set_queue(&queue, settings.clone()).await?;
    Ok(ok(&json::QueueSettings::from(&settings)))
}
