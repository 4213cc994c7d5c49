//! Flows: submit, get, list, cancel, retry, add tasks.

use super::{
    Http,
    extract::{FlowPath, JsonBody, NoFields, Parameters},
    ok, reply,
};
use crate::{
    broker::{FlowsAsked, check_wait, not_added},
    front::{edge, json, problem::Problem},
};
use axum::{extract::State, http::StatusCode, response::Response};
use taskyard_machine::{ClaimToken, FlowFilter};

/// Submits a flow: a graph of up to 10,000 tasks, all or none.
#[utoipa::path(
    post, path = "/v1/flows", operation_id = "submit_flow", tag = "flows",
    request_body(content = json::NewFlow<'_>, content_type = "application/json"),
    responses(
        (status = 201, body = json::FlowSubmitted, description = "submitted"),
        Problem,
    ),
)]
pub(super) async fn submit(State(http): State<Http>, body: JsonBody) -> Result<Response, Problem> {
    let submitted = {
        let mut new: json::NewFlow<'_> = body.parse()?;
        json::decode_nodes(&mut new.nodes)?;
        if let Some(node) = new.nodes.iter().find(|node| node.on_failure.is_some()) {
            return Err(not_added(node.name.as_deref().unwrap_or_default()).into());
        }
        let nodes = json::flow_nodes(&http.broker, &new.nodes)?;
        let retention_ms = new.retention_ms.map(|ms| ms.0);
        http.broker.submit_flow(&new.name, nodes, retention_ms, None)?
    };
    Ok(reply(StatusCode::CREATED, &json::FlowSubmitted::from(submitted.await?)))
}

/// One flow with its nodes; waits for its end up to `wait_ms`.
#[utoipa::path(
    get, path = "/v1/flows/{id}", operation_id = "get_flow", tag = "flows",
    params(("id" = String, Path), json::WaitQuery),
    responses(
        (status = 200, body = json::Flow<'_>, description = "the flow"),
        Problem,
    ),
)]
pub(super) async fn flow(
    State(http): State<Http>,
    FlowPath(flow): FlowPath,
    Parameters(query): Parameters<json::WaitQuery>,
) -> Result<Response, Problem> {
    let wait = check_wait(query.wait_ms.unwrap_or(0))?;
    let found = http.broker.flow(flow, wait, true).await?;
    Ok(ok(&json::Flow::new(&found)))
}

/// A page of flows. Continue with the answer's `cursor` until there is none.
#[utoipa::path(
    get, path = "/v1/flows", operation_id = "list_flows", tag = "flows",
    params(json::FlowsQuery),
    responses(
        (status = 200, body = json::FlowList<'_>, description = "a page"),
        Problem,
    ),
)]
pub(super) async fn list(
    State(http): State<Http>,
    Parameters(query): Parameters<json::FlowsQuery>,
) -> Result<Response, Problem> {
    let state = query.state.as_deref().map(edge::flow_state).transpose()?;
    let asked = FlowsAsked {
        filter: FlowFilter { name: query.name, state },
        cursor: query.cursor,
        limit: query.limit.unwrap_or(edge::PAGE_TASKS_DEFAULT),
    };
    let (flows, cursor) = http.broker.flows(asked).await?;
    let flows = flows.iter().map(json::Flow::summary).collect();
    Ok(ok(&json::FlowList { flows, cursor: cursor.as_deref() }))
}

/// Cancels a flow: waiting tasks end at once, running ones when their workers yield.
#[utoipa::path(
    post, path = "/v1/flows/{id}/cancel", operation_id = "cancel_flow", tag = "flows",
    params(("id" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::StateReply, description = "cancelled, or running until its workers have yielded"),
        Problem,
    ),
)]
pub(super) async fn cancel(
    State(http): State<Http>,
    FlowPath(flow): FlowPath,
    _: NoFields,
) -> Result<Response, Problem> {
    let state = http.broker.cancel_flow(flow).await?.as_str();
    Ok(ok(&json::StateReply { state }))
}

/// Runs the failed tasks of a flow again, and then the tasks that waited for them.
#[utoipa::path(
    post, path = "/v1/flows/{id}/retry", operation_id = "retry_flow", tag = "flows",
    params(("id" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::StateReply, description = "the flow runs again"),
        Problem,
    ),
)]
pub(super) async fn retry(
    State(http): State<Http>,
    FlowPath(flow): FlowPath,
    _: NoFields,
) -> Result<Response, Problem> {
    let state = http.broker.retry_flow(flow).await?.as_str();
    Ok(ok(&json::StateReply { state }))
}

/// Adds tasks to the flow of a running task.
///
/// They may depend on each other, and on nodes of the flow that do not wait for them. A name that
/// the same node added before is the same task, so that a retried attempt adds nothing twice.
#[utoipa::path(
    post, path = "/v1/flows/{id}/tasks", operation_id = "add_flow_tasks", tag = "flows",
    params(("id" = String, Path)),
    request_body(content = json::AddedTasks<'_>, content_type = "application/json"),
    responses(
        (status = 200, body = json::FlowTasksAdded, description = "added, now or before"),
        Problem,
    ),
)]
pub(super) async fn add(
    State(http): State<Http>,
    FlowPath(flow): FlowPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let mut added: json::AddedTasks<'_> = body.parse()?;
    json::decode_nodes(&mut added.nodes)?;
    let nodes = json::flow_nodes(&http.broker, &added.nodes)?;
    let token = ClaimToken(added.claim_token);
    let tasks = http.broker.add_flow_tasks(flow, &added.parent, token, nodes).await?;
    Ok(ok(&json::FlowTasksAdded::from(tasks)))
}
