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

/// Workers with a session, and those lost within a day.
#[utoipa::path(
    get, path = "/v1/workers", operation_id = "list_workers", tag = "workers",
    responses(
        (status = 200, body = json::WorkerList, description = "all of them"),
        Problem,
    ),
)]
pub(super) async fn list(State(http): State<Http>) -> Response {
    let workers = http.broker.sessions().workers().into_iter().map(Into::into).collect();
    ok(&json::WorkerList { workers })
}

/// Asks a worker to finish what it has and claim nothing more.
#[utoipa::path(
    post, path = "/v1/workers/{id}/quiet", operation_id = "quiet_worker", tag = "workers",
    params(("id" = String, Path)),
    responses(
        (status = 202, body = json::Asked, description = "it will be told"),
        Problem,
    ),
)]
pub(super) async fn quiet(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.sessions().order(&id, Activity::Quiet)?;
    Ok(reply(StatusCode::ACCEPTED, &json::Asked { asked: "quiet" }))
}

/// Asks a worker to shut down.
#[utoipa::path(
    post, path = "/v1/workers/{id}/stop", operation_id = "stop_worker", tag = "workers",
    params(("id" = String, Path)),
    responses(
        (status = 202, body = json::Asked, description = "it will be told"),
        Problem,
    ),
)]
pub(super) async fn stop(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    http.broker.sessions().order(&id, Activity::Stopping)?;
    Ok(reply(StatusCode::ACCEPTED, &json::Asked { asked: "stopping" }))
}
