//! Results: the state and the result of a task, and waiting for its end.

use crate::{
    Client, Error, TaskError, TaskId, TaskState,
    connection::Repeat,
    inspect::{as_json, decode, result_bytes, serialize_bytes},
    timestamp::millis,
};
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap};
use std::{
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    time::Duration,
};
use taskyard_proto::v1;
use tokio::time::Instant;

/// The longest wait of one call on the broker.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// The result of a task, once it has ended: await it, with a limit if you like.
    pub fn result<Output>(&self, task: impl Into<TaskId>) -> ResultOf<Output> {
        ResultOf::new(self.clone(), task.into())
    }

    /// The state of a task and, once it has ended, its result or error. Waits up to `wait` for the
    /// end.
    pub async fn outcome(
        &self,
        task: impl Into<TaskId>,
        wait: Duration,
    ) -> Result<TaskOutcome, Error> {
        let id: String = task.into().into();
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
            let request = v1::GetResultRequest { id: id.clone(), wait_ms: millis(left) };
            let deadline = self.deadline_after(left);
            let reply = self
                .connection()
                .call(request, Repeat::Read, deadline, |mut wire, request| async move {
                    wire.get_result(request).await
                })
                .await?;
            let outcome = TaskOutcome::from(reply);
            if outcome.state.is_finished() || Instant::now() >= until {
                return Ok(outcome);
            }
        }
    }
}

/// The state of a task and, once it has ended, its result or error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskOutcome {
    /// The task's state.
    pub state: TaskState,
    /// The handler's result, if the task succeeded with one.
    pub result: Option<Bytes>,
    /// The error of the last attempt, if the task did not succeed.
    pub error: Option<TaskError>,
}

impl From<v1::GetResultReply> for TaskOutcome {
    fn from(wire: v1::GetResultReply) -> TaskOutcome {
        TaskOutcome {
            state: TaskState::from_wire(&wire.state),
            result: wire.result.map(Bytes::from),
            error: wire.error.map(TaskError::from).filter(|error| *error != TaskError::default()),
        }
    }
}

impl Serialize for TaskOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("state", &self.state)?;
        if let Some(result) = &self.result {
            serialize_bytes(&mut map, "result", "result_base64", result, as_json(result))?;
        }
        if let Some(error) = &self.error {
            map.serialize_entry("error", error)?;
        }
        map.end()
    }
}

/// The result of a task, to be awaited. Made by [`Client::result`] and
/// [`Enqueued::result`](crate::Enqueued::result).
#[must_use = "a result is not asked for until it is awaited"]
pub struct ResultOf<Output> {
    client: Client,
    task: TaskId,
    within: Option<Duration>,
    output: PhantomData<fn() -> Output>,
}

impl<Output> ResultOf<Output> {
    pub(crate) fn new(client: Client, task: TaskId) -> ResultOf<Output> {
        ResultOf { client, task, within: None, output: PhantomData }
    }

    /// Gives up after this long, with [`Error::NotFinished`]. By default the wait has no limit, or
    /// in a test the [patience] of its broker.
    ///
    /// [patience]: https://docs.rs/taskyard/latest/taskyard/testing/struct.TestBroker.html#method.patience
    pub fn within(mut self, limit: Duration) -> ResultOf<Output> {
        self.within = Some(limit);
        self
    }
}

impl<Output: DeserializeOwned + 'static> IntoFuture for ResultOf<Output> {
    type Output = Result<Output, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ResultOf { client, task, within, .. } = self;
            let within = within.or(client.patience());
            loop {
                let outcome = client.outcome(&task, within.unwrap_or(WAIT_MAX)).await?;
                match outcome.state {
                    TaskState::Succeeded => {
                        let result = result_bytes(outcome.result.as_deref());
                        return decode(result, || format!("the result of task {task}"));
                    }
                    state if state.is_finished() => {
                        return Err(Error::NotSucceeded { task, state, error: outcome.error });
                    }
                    state => {
                        if let Some(waited) = within {
                            return Err(Error::NotFinished { task, state, waited });
                        }
                    }
                }
            }
        })
    }
}

impl<Output> fmt::Debug for ResultOf<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultOf")
            .field("task", &self.task)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}
