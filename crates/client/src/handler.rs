//! Handlers: plain functions that run tasks, and how their arguments are found.
//!
//! The first argument of a handler may be the task's payload. Further arguments are anything that
//! implements [`FromTask`]: the context, shared state, the raw payload.

use crate::{BoxError, Fail, Task, TaskContext, context::States, session::Slot};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, future::Future, sync::Arc};
use tower::util::BoxCloneSyncService;

/// The service that a worker calls for each task, layers included.
pub type TaskService = BoxCloneSyncService<TaskRequest, TaskResponse, BoxError>;

/// One attempt, as layers and handlers see it.
#[derive(Clone, Debug)]
pub struct TaskRequest {
    context: TaskContext,
    /// Keeps the worker's slot taken while this attempt really runs.
    slot: Arc<Slot>,
}

impl TaskRequest {
    pub(crate) fn new(context: TaskContext, slot: Arc<Slot>) -> TaskRequest {
        TaskRequest { context, slot }
    }

    /// The context of the task.
    pub fn context(&self) -> &TaskContext {
        &self.context
    }

    /// The payload as it was enqueued.
    pub fn payload(&self) -> &Bytes {
        self.context.payload()
    }
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct TaskResponse {
    pub(crate) outcome: Result<Option<Bytes>, Fail>,
}

impl TaskResponse {
    /// The attempt succeeded, with this result.
    pub fn succeeded(result: Option<Bytes>) -> TaskResponse {
        TaskResponse { outcome: Ok(result) }
    }

    /// The attempt did not succeed.
    pub fn failed(fail: impl Into<Fail>) -> TaskResponse {
        TaskResponse { outcome: Err(fail.into()) }
    }

    /// Whether the attempt succeeded.
    pub fn is_success(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The handler's result, if it succeeded with one.
    pub fn result(&self) -> Option<&Bytes> {
        self.outcome.as_ref().ok().and_then(Option::as_ref)
    }

    /// Why the attempt did not succeed, if it did not.
    pub fn failure(&self) -> Option<&Fail> {
        self.outcome.as_ref().err()
    }

    fn of(outcome: Result<impl IntoResult, impl Into<Fail>>) -> TaskResponse {
        let outcome = outcome.map_err(Into::into).and_then(IntoResult::into_result);
        TaskResponse { outcome }
    }
}

/// An argument that a handler can take from its task.
pub trait FromTask: Sized {
    /// Takes the argument. A failure here is a failure of the attempt.
    fn from_task(request: &TaskRequest) -> Result<Self, Fail>;

    /// The part that a worker lacks to provide the argument; checked before the worker starts.
    #[doc(hidden)]
    fn missing(_states: &StateSet<'_>) -> Option<String> {
        None
    }
}

/// The shared states that a worker has.
#[doc(hidden)]
#[derive(Debug)]
pub struct StateSet<'a>(pub(crate) &'a States);

impl FromTask for TaskContext {
    fn from_task(request: &TaskRequest) -> Result<TaskContext, Fail> {
        Ok(request.context.clone())
    }
}

impl FromTask for TaskRequest {
    fn from_task(request: &TaskRequest) -> Result<TaskRequest, Fail> {
        Ok(request.clone())
    }
}

/// The payload, decoded from JSON, like a first argument of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromTask for Json<T> {
    fn from_task(request: &TaskRequest) -> Result<Json<T>, Fail> {
        decode(request).map(Json)
    }
}

/// The payload as it was enqueued, with any content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPayload(pub Bytes);

impl FromTask for RawPayload {
    fn from_task(request: &TaskRequest) -> Result<RawPayload, Fail> {
        Ok(RawPayload(request.payload().clone()))
    }
}

/// A value that was given to [`WorkerBuilder::state`](crate::WorkerBuilder::state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<S>(pub S);

impl<S: Clone + Send + Sync + 'static> FromTask for State<S> {
    fn from_task(request: &TaskRequest) -> Result<State<S>, Fail> {
        let state = request.context.states().get::<S>().cloned();
        let missing = || Fail::permanent(format!("no state of type {}", type_name::<S>()));
        state.map(State).ok_or_else(missing)
    }

    fn missing(states: &StateSet<'_>) -> Option<String> {
        let name = type_name::<S>();
        let missing = states.0.get::<S>().is_none();
        missing.then(|| format!("State<{name}>: give the worker one with .state(...)"))
    }
}

fn type_name<T>() -> &'static str {
    std::any::type_name::<T>()
}

/// A payload of another shape is a failure that is retried, because a newer worker may know the
/// shape.
fn decode<T: DeserializeOwned>(request: &TaskRequest) -> Result<T, Fail> {
    serde_json::from_slice(request.payload()).map_err(|error| {
        let message = format!("the payload is no {}: {error}", type_name::<T>());
        Fail::from(message).kind("bad_payload")
    })
}

/// A value that a handler can return in its `Ok`.
pub trait IntoResult {
    /// The bytes to keep as the task's result; `None` keeps nothing.
    fn into_result(self) -> Result<Option<Bytes>, Fail>;
}

impl<T: Serialize> IntoResult for T {
    fn into_result(self) -> Result<Option<Bytes>, Fail> {
        let result = serde_json::to_vec(&self).map_err(|error| {
            let message = format!("the result {} is no JSON: {error}", type_name::<T>());
            Fail::permanent(message).kind("bad_result")
        })?;
        Ok((result != b"null").then(|| result.into()))
    }
}

/// A result that is stored as these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawResult(pub Bytes);

impl IntoResult for RawResult {
    fn into_result(self) -> Result<Option<Bytes>, Fail> {
        Ok(Some(self.0))
    }
}

/// An async function that runs tasks of a type known by name.
///
/// `Arguments` only helps the compiler to choose the implementation; it is never named. A payload
/// type must not itself be a [`FromTask`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle tasks",
    note = "a handler is an async function of an optional payload (serde) and extractors, returning Result"
)]
pub trait Handler<Arguments>: Clone + Send + Sync + 'static {
    /// Runs one task.
    fn call(&self, request: TaskRequest) -> impl Future<Output = TaskResponse> + Send;

    /// The parts that a worker lacks for it.
    #[doc(hidden)]
    fn missing(states: &StateSet<'_>) -> Vec<String>;
}

/// An async function that runs tasks of one declared type, its first argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle tasks of a declared type",
    note = "it must be an async function of a Task and extractors, returning Result<the task's Output, _>"
)]
pub trait TaskHandler<T: Task, Arguments>: Clone + Send + Sync + 'static {
    /// Runs one task.
    fn call(&self, request: TaskRequest) -> impl Future<Output = TaskResponse> + Send;

    /// The parts that a worker lacks for it.
    #[doc(hidden)]
    fn missing(states: &StateSet<'_>) -> Vec<String>;
}

/// A function that runs tasks of a type known by name and may block: it runs on a thread of its
/// own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle tasks on a blocking thread",
    note = "it must be a function, not async, of an optional payload (serde) and extractors, returning Result"
)]
pub trait BlockingHandler<Arguments>: Clone + Send + Sync + 'static {
    /// Runs one task.
    fn call(&self, request: &TaskRequest) -> TaskResponse;

    /// The parts that a worker lacks for it.
    #[doc(hidden)]
    fn missing(states: &StateSet<'_>) -> Vec<String>;
}

/// Tells the compiler that the first argument of a handler is the payload.
#[doc(hidden)]
#[derive(Debug)]
pub enum WithPayload {}

/// Tells the compiler that a handler has extractors only.
#[doc(hidden)]
#[derive(Debug)]
pub enum WithoutPayload {}

macro_rules! handlers {
    ($($argument:ident),*) => {
        impl<F, Answer, Output, Failure, $($argument),*> Handler<(WithoutPayload, $($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Answer + Clone + Send + Sync + 'static,
            Answer: Future<Output = Result<Output, Failure>> + Send,
            Output: IntoResult,
            Failure: Into<Fail>,
            $($argument: FromTask + Send,)*
        {
            async fn call(&self, request: TaskRequest) -> TaskResponse {
                let _ = &request;
                $(let $argument = extract!($argument, &request);)*
                TaskResponse::of(self($($argument),*).await)
            }

            fn missing(states: &StateSet<'_>) -> Vec<String> {
                missing!(states, $($argument),*)
            }
        }

        impl<F, Answer, Output, Failure, Payload, $($argument),*>
            Handler<(WithPayload, Payload, $($argument,)*)> for F
        where
            F: Fn(Payload, $($argument),*) -> Answer + Clone + Send + Sync + 'static,
            Answer: Future<Output = Result<Output, Failure>> + Send,
            Output: IntoResult,
            Failure: Into<Fail>,
            Payload: DeserializeOwned + Send,
            $($argument: FromTask + Send,)*
        {
            async fn call(&self, request: TaskRequest) -> TaskResponse {
                let payload: Payload = payload!(&request);
                $(let $argument = extract!($argument, &request);)*
                TaskResponse::of(self(payload, $($argument),*).await)
            }

            fn missing(states: &StateSet<'_>) -> Vec<String> {
                missing!(states, $($argument),*)
            }
        }

        impl<F, Answer, Failure, T, $($argument),*> TaskHandler<T, ($($argument,)*)> for F
        where
            F: Fn(T, $($argument),*) -> Answer + Clone + Send + Sync + 'static,
            Answer: Future<Output = Result<T::Output, Failure>> + Send,
            Failure: Into<Fail>,
            T: Task,
            $($argument: FromTask + Send,)*
        {
            async fn call(&self, request: TaskRequest) -> TaskResponse {
                let payload: T = payload!(&request);
                $(let $argument = extract!($argument, &request);)*
                TaskResponse::of(self(payload, $($argument),*).await)
            }

            fn missing(states: &StateSet<'_>) -> Vec<String> {
                missing!(states, $($argument),*)
            }
        }

        impl<F, Output, Failure, $($argument),*> BlockingHandler<(WithoutPayload, $($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Result<Output, Failure> + Clone + Send + Sync + 'static,
            Output: IntoResult,
            Failure: Into<Fail>,
            $($argument: FromTask,)*
        {
            fn call(&self, request: &TaskRequest) -> TaskResponse {
                let _ = request;
                $(let $argument = extract!($argument, request);)*
                TaskResponse::of(self($($argument),*))
            }

            fn missing(states: &StateSet<'_>) -> Vec<String> {
                missing!(states, $($argument),*)
            }
        }

        impl<F, Output, Failure, Payload, $($argument),*>
            BlockingHandler<(WithPayload, Payload, $($argument,)*)> for F
        where
            F: Fn(Payload, $($argument),*) -> Result<Output, Failure> + Clone + Send + Sync + 'static,
            Output: IntoResult,
            Failure: Into<Fail>,
            Payload: DeserializeOwned,
            $($argument: FromTask,)*
        {
            fn call(&self, request: &TaskRequest) -> TaskResponse {
                let payload: Payload = payload!(request);
                $(let $argument = extract!($argument, request);)*
                TaskResponse::of(self(payload, $($argument),*))
            }

            fn missing(states: &StateSet<'_>) -> Vec<String> {
                missing!(states, $($argument),*)
            }
        }
    };
}

macro_rules! extract {
    ($argument:ident, $request:expr) => {
        match <$argument as FromTask>::from_task($request) {
            Ok(value) => value,
            Err(fail) => return TaskResponse { outcome: Err(fail) },
        }
    };
}

macro_rules! payload {
    ($request:expr) => {
        match decode($request) {
            Ok(payload) => payload,
            Err(fail) => return TaskResponse { outcome: Err(fail) },
        }
    };
}

macro_rules! missing {
    ($states:ident, $($argument:ident),*) => {{
        let missing: [Option<String>; _] = [$(<$argument as FromTask>::missing($states)),*];
        let _ = $states;
        missing.into_iter().flatten().collect()
    }};
}

#[allow(non_snake_case, reason = "each argument is named after its type parameter")]
mod arities {
    use super::*;

    handlers!();
    handlers!(A);
    handlers!(A, B);
    handlers!(A, B, C);
    handlers!(A, B, C, D);
}

/// Runs a blocking handler on the blocking pool of the runtime.
///
/// The closure keeps the slot. A thread cannot be stopped, so that its slot stays taken until it
/// returns, even if its attempt has long ended.
pub(crate) async fn call_blocking<H, Arguments>(handler: H, request: TaskRequest) -> TaskResponse
where
    H: BlockingHandler<Arguments>,
{
    let slot = Arc::clone(&request.slot);
    let call = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        crate::attempt::caught(|| handler.call(&request))
    });
    match call.await {
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => TaskResponse { outcome: Err(panic) },
        Err(_) => TaskResponse::failed("the runtime is shutting down"),
    }
}

impl fmt::Display for TaskRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.context.kind(), self.context.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize)]
    struct Add(u32, u32);

    impl Task for Add {
        const NAME: &'static str = "add";
        type Output = u32;
    }

    async fn bare() -> Result<(), Fail> {
        Ok(())
    }

    async fn payload_alone(_: Vec<u32>) -> Result<String, std::io::Error> {
        Ok(String::new())
    }

    async fn context_alone(_: TaskContext) -> Result<RawResult, BoxError> {
        Ok(RawResult(Bytes::new()))
    }

    async fn all(
        _: Add,
        State(_): State<u8>,
        _: TaskContext,
        _: RawPayload,
    ) -> Result<u32, String> {
        Ok(0)
    }

    fn blocking(_: Add, State(_): State<u8>) -> Result<u32, Fail> {
        Ok(0)
    }

    fn handler<H: Handler<A>, A>(_: H) -> Vec<String> {
        H::missing(&StateSet(&States::default()))
    }

    fn task<T: Task, H: TaskHandler<T, A>, A>(_: H) -> Vec<String> {
        H::missing(&StateSet(&States::default()))
    }

    fn blocking_handler<H: BlockingHandler<A>, A>(_: H) -> Vec<String> {
        H::missing(&StateSet(&States::default()))
    }

    #[test]
    fn functions_of_many_shapes_are_handlers() {
        assert_eq!(handler(bare).len(), 0);
        assert_eq!(handler(payload_alone).len(), 0);
        assert_eq!(handler(context_alone).len(), 0);
        assert_eq!(handler(|_: TaskContext, _: Json<u8>| async { Ok::<_, Fail>(1) }).len(), 0);
        assert_eq!(handler(all).len(), 1);
        assert_eq!(task(all).len(), 1);
        assert_eq!(blocking_handler(blocking).len(), 1);
        assert_eq!(blocking_handler(|_: String| Ok::<_, Fail>(())).len(), 0);
    }

    #[test]
    fn a_missing_state_is_named() {
        assert_eq!(handler(all), ["State<u8>: give the worker one with .state(...)"]);
        let mut states = States::default();
        states.insert(7_u8);
        assert_eq!(<State<u8> as FromTask>::missing(&StateSet(&states)), None);
    }

    #[test]
    fn nothing_is_no_result() {
        assert_eq!(().into_result().unwrap(), None);
        assert_eq!(None::<u8>.into_result().unwrap(), None);
        assert_eq!("a".into_result().unwrap().unwrap(), "\"a\"");
        assert_eq!(RawResult("a".into()).into_result().unwrap().unwrap(), "a");
    }
}
