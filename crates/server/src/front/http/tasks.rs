//! Tasks: enqueue, get, list, cancel, retry.

use super::{
    Http,
    extract::{JsonBody, NamePath, NoFields, Parameters, TaskPath},
    ok, reply,
};
use crate::{
    Broker, Error,
    broker::{ListAsked, ListOrder, check_wait},
    front::{edge, json, json::Moment, problem::Problem},
};
use axum::{extract::State, http::StatusCode, response::Response};
use taskyard_machine::{Enqueue, TaskStateName};

/// Adds one task, or an array of tasks, all or none.
///
/// The answer to an object is `{id}`: 201, or 200 with `duplicate` if its `request_id` is known or
/// another task holds its unique key. The answer to an array is 201 with `{ids}`.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/tasks", operation_id = "enqueue", tag = "tasks",
    params(("queue" = String, Path, description = "1 to 128 of letters, digits and -_.:")),
    request_body(content = json::OneOrMany<'_>, content_type = "application/json"),
    responses(
        (status = 201, body = json::EnqueuedOneOrMany, description = "enqueued"),
        (status = 200, body = json::Enqueued, description = "its request_id is known, or another task holds its unique key"),
        Problem,
    ),
)]
pub(super) async fn enqueue(
    State(http): State<Http>,
    NamePath(queue): NamePath,
    body: JsonBody,
) -> Result<Response, Problem> {
    if body.is_array() {
        return enqueue_batch(&http.broker, &queue, &body).await;
    }
    let mut new: json::NewTask<'_> = body.parse()?;
    check_same_queue(&new, &queue)?;
    new.decode()?;
    let enqueue = Enqueue { queue: &queue, task: new.task(&http.broker)? };
    let enqueued = http.broker.enqueue(enqueue).await?;
    let status = if enqueued.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok(reply(status, &json::Enqueued::from(enqueued)))
}

async fn enqueue_batch(broker: &Broker, queue: &str, body: &JsonBody) -> Result<Response, Problem> {
    let enqueued = {
        let json::Batch(mut news) = body.parse()?;
        let element = |index| move |error| Error::Element { index, error: Box::new(error) };
        for (index, new) in news.iter_mut().enumerate() {
            check_same_queue(new, queue).map_err(element(index))?;
            new.decode().map_err(element(index))?;
        }
        let tasks = news.iter().enumerate();
        let tasks = tasks.map(|(index, new)| new.task(broker).map_err(element(index)));
        broker.enqueue_batch(queue, tasks.collect::<Result<_, _>>()?, None)?
    };
    Ok(reply(StatusCode::CREATED, &json::EnqueuedBatch::new(&enqueued.await?)))
}

fn check_same_queue(new: &json::NewTask<'_>, queue: &str) -> Result<(), Error> {
    match &new.queue {
        Some(named) if named != queue => {
            Err(Error::Invalid(format!("queue {named:?} is not the queue {queue:?} of the path")))
        }
        _ => Ok(()),
    }
}

/// One task with its last attempts.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", operation_id = "get_task", tag = "tasks",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = json::Task<'_>, description = "the task"),
        Problem,
    ),
)]
pub(super) async fn task(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
) -> Result<Response, Problem> {
    let found = http.broker.task(task, true).await?;
    Ok(ok(&json::Task::new(&found)))
}

/// A page of tasks. Continue with the answer's `cursor` until there is none.
#[utoipa::path(
    get, path = "/v1/tasks", operation_id = "list_tasks", tag = "tasks",
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
    let state = query.state.as_deref().map(edge::state).transpose()?;
    page(&http.broker, query, state).await
}

/// Answers with a page of tasks in one state, or in any.
pub(super) async fn page(
    broker: &Broker,
    query: json::ListQuery,
    state: Option<TaskStateName>,
) -> Result<Response, Problem> {
    let asked = ListAsked {
        queue: query.queue,
        state,
        task_type: query.task_type,
        error: query.error,
        tag: query.tag,
        flow: query.flow.as_deref().map(edge::flow_id).transpose()?,
        cursor: query.cursor,
        limit: query.limit.unwrap_or(edge::PAGE_TASKS_DEFAULT),
        order: query.order.map_or(ListOrder::Id, ListOrder::from),
        since: query.since.map(|Moment(since)| since),
        with_body: false,
    };
    let page = broker.tasks(asked).await?;
    let tasks = page.tasks.iter().map(json::Task::new).collect();
    Ok(ok(&json::TaskList { tasks, cursor: page.cursor.as_deref() }))
}

/// The result of a task; waits for its end up to `wait_ms`.
///
/// Until the task has ended, the answer is 200 with its state and no result.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/result", operation_id = "get_result", tag = "tasks",
    params(("id" = String, Path), json::WaitQuery),
    responses(
        (status = 200, body = json::ResultReply<'_>, description = "the state, and the result once there is one"),
        Problem,
    ),
)]
pub(super) async fn result(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    Parameters(query): Parameters<json::WaitQuery>,
) -> Result<Response, Problem> {
    let wait = check_wait(query.wait_ms.unwrap_or(0))?;
    let result = http.broker.result(task, wait).await?;
    Ok(ok(&json::ResultReply::new(&result)))
}

/// Why a task waits; the reason to solve first comes first.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/why", operation_id = "why_task", tag = "tasks",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = json::Why<'_>, description = "the reasons"),
        Problem,
    ),
)]
pub(super) async fn why(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
) -> Result<Response, Problem> {
    let reasons = http.broker.why(task).await?;
    Ok(ok(&json::Why::new(&reasons)))
}

/// Cancels a task: at once if it is not claimed. Otherwise its worker is told, and the task ends
/// when the worker yields.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/cancel", operation_id = "cancel_task", tag = "tasks",
    params(("id" = String, Path)),
    request_body(content = json::NoFields, content_type = "application/json"),
    responses(
        (status = 200, body = json::StateReply, description = "cancelled, or claimed until the worker yields"),
        Problem,
    ),
)]
pub(super) async fn cancel(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    _: NoFields,
) -> Result<Response, Problem> {
    let state = http.broker.cancel(task).await?.as_str();
    Ok(ok(&json::StateReply { state }))
}

/// Runs a finished or waiting task now, perhaps with another payload.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/retry", operation_id = "retry_task", tag = "tasks",
    params(("id" = String, Path)),
    request_body(content = json::RetryBody<'_>, content_type = "application/json"),
    responses(
        (status = 200, body = json::StateReply, description = "the task is ready"),
        Problem,
    ),
)]
pub(super) async fn retry(
    State(http): State<Http>,
    TaskPath(task): TaskPath,
    body: JsonBody,
) -> Result<Response, Problem> {
    let body: json::RetryBody<'_> = body.parse_or_default()?;
    http.broker.retry(task, body.edit()).await?;
    Ok(ok(&json::StateReply { state: TaskStateName::Ready.as_str() }))
}
