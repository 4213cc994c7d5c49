//! Workers: list, quiet, stop.

use super::{
    Http,
    extract::{NamePath, NoFields},
    ok, reply,
};
use crate::{
    front::{json, problem::Problem},
    sessions::Activity,
};
use axum::{extract::State, http::StatusCode, response::Response};

/// The workers of all nodes: those with a session, and those lost within a day.
#[utoipa::path(
    get, path = "/v1/workers", operation_id = "list_workers", tag = "workers",
    responses(
        (status = 200, body = json::WorkerList, description = "all workers, except those of nodes that did not answer"),
        Problem,
    ),
)]
pub(super) async fn list(State(http): State<Http>) -> Result<Response, Problem> {
    Ok(ok(&json::WorkerList::from(http.broker.workers().await?)))
}

/// Asks a worker on any node to finish its tasks and claim no more.
#[utoipa::path(
    post, path = "/v1/workers/{id}/quiet", operation_id = "quiet_worker", tag = "workers",
    params(("id" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 202, body = json::Asked, description = "the worker will be told"),
        Problem,
    ),
)]
pub(super) async fn quiet(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.order_worker(&id, Activity::Quiet).await?;
    Ok(reply(StatusCode::ACCEPTED, &json::Asked { asked: "quiet" }))
}

/// Asks a worker on any node to shut down.
#[utoipa::path(
    post, path = "/v1/workers/{id}/stop", operation_id = "stop_worker", tag = "workers",
    params(("id" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 202, body = json::Asked, description = "the worker will be told"),
        Problem,
    ),
)]
pub(super) async fn stop(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.order_worker(&id, Activity::Stopping).await?;
    Ok(reply(StatusCode::ACCEPTED, &json::Asked { asked: "stopping" }))
}
