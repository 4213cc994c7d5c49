//! Dead letters: list, retry, discard.

use super::{
    Http,
    extract::{JsonBody, Parameters},
    queues::bulk,
    tasks::page,
};
use crate::front::{edge, json, problem::Problem};
use axum::{extract::State, response::Response};
use taskyard_machine::{DeadAction, TaskStateName};

/// A page of dead letters.
#[utoipa::path(
    get, path = "/v1/dead", operation_id = "list_dead", tag = "dead letters",
    params(json::ListQuery),
    responses(
        (status = 200, body = json::TaskList<'_>, description = "a page"),
        Problem,
    ),
)]
pub(super) async fn list(
    State(http): State<Http>,
    Parameters(query): Parameters<json::ListQuery>,
) -> Result<Response, Problem> {
    edge::dead_state(query.state.as_deref().unwrap_or_default())?;
    page(&http.broker, query, Some(TaskStateName::Dead)).await
}

/// Retries dead letters, with all their attempts again.
#[utoipa::path(
    post, path = "/v1/dead/retry", operation_id = "retry_dead", tag = "dead letters",
    request_body(content = json::DeadBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Bulk, description = "done"),
        (status = 202, body = json::Bulk, description = "not done yet; the operation goes on"),
        Problem,
    ),
)]
pub(super) async fn retry(State(http): State<Http>, body: JsonBody) -> Result<Response, Problem> {
    let selection = body.parse::<json::DeadBody>()?.selection()?;
    bulk(http.broker.dead(DeadAction::Retry, selection)?).await
}

/// Removes dead letters for good.
#[utoipa::path(
    post, path = "/v1/dead/discard", operation_id = "discard_dead", tag = "dead letters",
    request_body(content = json::DeadBody, content_type = "application/json"),
    responses(
        (status = 200, body = json::Bulk, description = "done"),
        (status = 202, body = json::Bulk, description = "not done yet; the operation goes on"),
        Problem,
    ),
)]
pub(super) async fn discard(State(http): State<Http>, body: JsonBody) -> Result<Response, Problem> {
    let selection = body.parse::<json::DeadBody>()?.selection()?;
    bulk(http.broker.dead(DeadAction::Discard, selection)?).await
}
