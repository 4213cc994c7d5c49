//! The node itself: metrics, health, the contract.

use super::{Document, Http, document, ok};
use crate::front::{json, problem::Problem};
use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use utoipa::OpenApi;

/// Metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "node",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "all metrics"),
        Problem,
    ),
)]
pub(super) async fn metrics(State(http): State<Http>) -> Result<Response, Problem> {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let metrics = http.broker.shards().metrics().await?;
    Ok(([(header::CONTENT_TYPE, content_type)], metrics).into_response())
}

/// Says that the process lives.
#[utoipa::path(
    get, path = "/healthz", operation_id = "get_health", tag = "node",
    responses((status = 200, body = json::Health, description = "the process lives")),
)]
pub(super) async fn healthz() -> Response {
    ok(&json::Health { status: "ok" })
}

/// Says whether this node knows a leader of every shard.
#[utoipa::path(
    get, path = "/readyz", operation_id = "get_readiness", tag = "node",
    responses(
        (status = 200, body = json::Health, description = "the node serves"),
        Problem,
    ),
)]
pub(super) async fn readyz(State(http): State<Http>) -> Result<Response, Problem> {
    http.broker.check_ready().await?;
    Ok(ok(&json::Health { status: "ok" }))
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "node",
    responses(
        (status = 200, body = Object, content_type = "application/json", description = "the document"),
    ),
)]
pub(super) async fn openapi() -> Response {
    ok(&document::completed(&Document::openapi()))
}
