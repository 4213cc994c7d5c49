//! Schedules: set, list, get, pause, resume, trigger, backfill, remove.

use super::{
    Http,
    extract::{JsonBody, NamePath, NoFields, Parameters},
    ok, reply,
};
use crate::front::{edge, json, problem::Problem};
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use taskyard_machine::Enqueued;

/// All schedules, a page at a time, by name.
#[utoipa::path(
    get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(json::ScheduleQuery),
    responses(
        (status = 200, body = json::ScheduleList<'_>, description = "a page"),
        Problem,
    ),
)]
pub(super) async fn list(
    State(http): State<Http>,
    Parameters(query): Parameters<json::ScheduleQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(edge::PAGE_TASKS_DEFAULT);
    let page = http.broker.schedules(query.cursor, limit).await?;
    let schedules = page.schedules.iter().map(json::Schedule::new).collect();
    Ok(ok(&json::ScheduleList { schedules, cursor: page.cursor.as_deref() }))
}

/// One schedule, with its next occurrences.
#[utoipa::path(
    get, path = "/v1/schedules/{name}", operation_id = "get_schedule", tag = "schedules",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = json::Schedule<'_>, description = "the schedule"),
        Problem,
    ),
)]
pub(super) async fn schedule(
    State(http): State<Http>,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    Ok(ok(&json::Schedule::new(&http.broker.schedule(&name).await?)))
}

/// Makes a schedule or gives it new rules. Its record of runs stays, and the same rules again
/// change nothing.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", operation_id = "set_schedule", tag = "schedules",
    params(("name" = String, Path)),
    request_body(content = json::ScheduleBody<'_>, content_type = "application/json"),
    responses(
        (status = 200, body = json::Schedule<'_>, description = "the schedule was there before"),
        (status = 201, body = json::Schedule<'_>, description = "the schedule is new"),
        Problem,
    ),
)]
pub(super) async fn set(
    State(http): State<Http>,
    NamePath(name): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let mut body: json::ScheduleBody<'_> = body.parse()?;
    body.decode()?;
    let (found, is_new) = http.broker.set_schedule(&name, body.spec(&http.broker)?).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply(status, &json::Schedule::new(&found)))
}

/// Removes a schedule; tasks that it fired stay.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", operation_id = "remove_schedule", tag = "schedules",
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "removed"),
        Problem,
    ),
)]
pub(super) async fn remove(
    State(http): State<Http>,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    http.broker.remove_schedule(&name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Skips occurrences until the schedule is resumed.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "schedules",
    params(("name" = String, Path)),
    request_body(content = json::PauseBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Schedule<'_>, description = "paused"),
        Problem,
    ),
)]
pub(super) async fn pause(
    State(http): State<Http>,
    NamePath(name): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::PauseBody = body.parse_or_default()?;
    Ok(ok(&json::Schedule::new(&http.broker.pause_schedule(&name, &body.note).await?)))
}

/// Fires again from the next occurrence on. Occurrences during the pause are not made up.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "schedules",
    params(("name" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::Schedule<'_>, description = "resumed"),
        Problem,
    ),
)]
pub(super) async fn resume(
    State(http): State<Http>,
    NamePath(name): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    Ok(ok(&json::Schedule::new(&http.broker.resume_schedule(&name).await?)))
}

/// Starts a run now, whatever its other runs do.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/trigger", operation_id = "trigger_schedule", tag = "schedules",
    params(("name" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 201, body = json::Enqueued, description = "the run's task"),
        Problem,
    ),
)]
pub(super) async fn trigger(
    State(http): State<Http>,
    NamePath(name): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    let id = http.broker.trigger_schedule(&name).await?;
    let enqueued = json::Enqueued::from(Enqueued { id, duplicate: false });
    Ok(reply(StatusCode::CREATED, &enqueued))
}

/// Runs every occurrence of a past range now, side by side.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/backfill", operation_id = "backfill_schedule", tag = "schedules",
    params(("name" = String, Path)),
    request_body(content = json::BackfillBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Backfilled, description = "the tasks are enqueued"),
        Problem,
    ),
)]
pub(super) async fn backfill(
    State(http): State<Http>,
    NamePath(name): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::BackfillBody = body.parse()?;
    let enqueued = http.broker.backfill_schedule(&name, body.from.0, body.to.0).await?;
    Ok(ok(&json::Backfilled { enqueued }))
}
