//! The cluster: its state; drain, remove, transfer, replication. Any node answers.

use super::{
    Http,
    extract::{JsonBody, NamePath, NoFields},
    ok,
};
use crate::{
    cluster::Operation,
    front::{edge, json, problem::Problem},
};
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

/// The nodes and shards of this cluster.
#[utoipa::path(
    get, path = "/v1/cluster", operation_id = "get_cluster", tag = "cluster",
    responses(
        (status = 200, body = json::Cluster, description = "as this node sees it"),
        Problem,
    ),
)]
pub(super) async fn cluster(State(http): State<Http>) -> Response {
    ok(&json::Cluster::from(http.broker.cluster().await))
}

/// Empties a node: its replicas and leaders move to others.
#[utoipa::path(
    post, path = "/v1/cluster/nodes/{id}/drain", operation_id = "drain_node", tag = "cluster",
    params(("id" = u64, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 204, description = "the drain begins; the cluster's state shows its progress"),
        Problem,
    ),
)]
pub(super) async fn drain(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    operate(&http, Operation::Drain { node: edge::node_id(&id)?, drains: true }).await
}

/// Ends the drain of a node, which is used again.
#[utoipa::path(
    post, path = "/v1/cluster/nodes/{id}/undrain", operation_id = "undrain_node", tag = "cluster",
    params(("id" = u64, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 204, description = "the node is in use"),
        Problem,
    ),
)]
pub(super) async fn undrain(
    State(http): State<Http>,
    NamePath(id): NamePath,
    _: NoFields,
) -> Result<Response, Problem> {
    operate(&http, Operation::Drain { node: edge::node_id(&id)?, drains: false }).await
}

/// Removes an empty node from the cluster. With `force`, gives up a node that is lost with its
/// data.
#[utoipa::path(
    post, path = "/v1/cluster/nodes/{id}/remove", operation_id = "remove_node", tag = "cluster",
    params(("id" = u64, Path)),
    request_body(content = json::RemoveBody, content_type = "application/json"),
    responses(
        (status = 204, description = "removed; or with `force` given up, and removed once other nodes have its replicas"),
        Problem,
    ),
)]
pub(super) async fn remove(
    State(http): State<Http>,
    NamePath(id): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let json::RemoveBody { force } = body.parse_or_default()?;
    operate(&http, Operation::Remove { node: edge::node_id(&id)?, force }).await
}

/// Hands a shard over to a node that has a replica of it.
#[utoipa::path(
    post, path = "/v1/cluster/shards/{id}/transfer", operation_id = "transfer_shard", tag = "cluster",
    params(("id" = u16, Path)),
    request_body(content = json::TransferBody, content_type = "application/json"),
    responses(
        (status = 204, description = "handed over"),
        Problem,
    ),
)]
pub(super) async fn transfer(
    State(http): State<Http>,
    NamePath(id): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let json::TransferBody { node } = body.parse()?;
    operate(&http, Operation::Transfer { shard: edge::shard_id(&id)?, node }).await
}

/// Sets how many replicas each shard has, once there are enough nodes.
#[utoipa::path(
    post, path = "/v1/cluster/replication", operation_id = "set_replication", tag = "cluster",
    request_body(content = json::ReplicationBody, content_type = "application/json"),
    responses(
        (status = 204, description = "replicas are added or removed, one shard at a time"),
        Problem,
    ),
)]
pub(super) async fn set_replication(
    State(http): State<Http>,
    body: JsonBody,
) -> Result<Response, Problem> {
    let json::ReplicationBody { factor } = body.parse()?;
    operate(&http, Operation::SetReplication { factor: edge::replication(factor)? }).await
}

async fn operate(http: &Http, operation: Operation) -> Result<Response, Problem> {
    http.broker.operate(operation).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
