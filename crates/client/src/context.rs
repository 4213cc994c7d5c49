//! TaskContext: what a handler can read about its task, and report while it runs.

use crate::{
    Client, Error, NewTask, TaskId, Timestamp,
    schedule::{OCCURRENCE_HEADER, SCHEDULE_HEADER},
    session::{ClaimKey, Report, Reports},
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_proto::v1;
use tokio::sync::{oneshot, watch};

/// The task of a running handler, and the handler's way to report on it. Cheap to clone.
///
/// ```
/// use taskyard::{Cancelled, Fail, TaskContext};
///
/// async fn import(rows: Vec<String>, context: TaskContext) -> Result<usize, Fail> {
///     let done = context.resume_state::<usize>()?.unwrap_or(0);
///     for (index, row) in rows.iter().enumerate().skip(done) {
///         if context.is_cancelled() {
///             return Err(Cancelled.into());
///         }
///         println!("{row}");
///         context.progress((index * 100 / rows.len()) as u32, "importing");
///         context.checkpoint(&(index + 1)).await?;
///     }
///     Ok(rows.len())
/// }
/// ```
#[derive(Clone)]
pub struct TaskContext(Arc<Inner>);

struct Inner {
    key: ClaimKey,
    id: TaskId,
    task: v1::ClaimedTask,
    deadline: Option<Instant>,
    cancel: watch::Receiver<Option<CancelReason>>,
    follow_ups: Mutex<Vec<v1::NewTask>>,
    reports: Reports,
    client: Client,
    states: Arc<States>,
}

/// Why a handler is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// A client cancelled the task.
    Requested,
    /// The claim is lost: another attempt counts, and all further work of this one is in vain.
    Lost,
    /// The attempt has run longer than its timeout.
    Timeout,
    /// The worker shuts down; the task will run elsewhere.
    Shutdown,
}

impl TaskContext {
    pub(crate) fn new(
        task: v1::ClaimedTask,
        deadline: Option<Instant>,
        cancel: watch::Receiver<Option<CancelReason>>,
        reports: Reports,
        client: Client,
        states: Arc<States>,
    ) -> TaskContext {
        let key = ClaimKey::of(&task);
        let id = TaskId::from(task.id.as_str());
        let follow_ups = Mutex::default();
        TaskContext(Arc::new(Inner {
            key,
            id,
            task,
            deadline,
            cancel,
            follow_ups,
            reports,
            client,
            states,
        }))
    }

    /// The task's id: the same in every attempt, so it serves as an idempotency key.
    pub fn id(&self) -> &TaskId {
        &self.0.id
    }

    /// The queue of the task.
    pub fn queue(&self) -> &str {
        &self.0.task.queue
    }

    /// The type of the task.
    pub fn kind(&self) -> &str {
        &self.0.task.r#type
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.task.attempt
    }

    /// The priority, 0 to 9, 9 first.
    pub fn priority(&self) -> u8 {
        u8::try_from(self.0.task.priority).unwrap_or(u8::MAX)
    }

    /// The customer that the task is for.
    pub fn fairness_key(&self) -> Option<&str> {
        self.0.task.fairness_key.as_deref()
    }

    /// When the task was enqueued.
    pub fn enqueued_at(&self) -> Timestamp {
        Timestamp::from_millis(self.0.task.enqueued_at)
    }

    /// The task's headers.
    pub fn headers(&self) -> &HashMap<String, String> {
        &self.0.task.headers
    }

    /// One of the task's headers.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.task.headers.get(name).map(String::as_str)
    }

    /// The schedule of which the task is a run.
    pub fn schedule(&self) -> Option<&str> {
        self.header(SCHEDULE_HEADER)
    }

    /// The occurrence of the schedule that this run is for, however late it runs. Together with the
    /// schedule's name it is an idempotency key, and it is the moment to report about.
    pub fn occurrence_at(&self) -> Option<Timestamp> {
        self.header(OCCURRENCE_HEADER).and_then(Timestamp::parse)
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        match self.0.task.content_type.as_str() {
            "" => "application/json",
            content_type => content_type,
        }
    }

    /// The fencing token of this attempt. It grows with every claim of the task, so that a store
    /// that remembers the highest one can reject an outdated attempt.
    pub fn claim_token(&self) -> u64 {
        self.0.key.token
    }

    /// When the attempt will be stopped for running too long; `None` if it has no timeout.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// How long the attempt may still run; `None` if it has no timeout.
    pub fn time_left(&self) -> Option<Duration> {
        self.0.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the handler should stop: the task was cancelled or lost, its time is up, or the
    /// worker shuts down. [`cancel_reason`](TaskContext::cancel_reason) gives the reason.
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Why the handler should stop, if it should.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        *self.0.cancel.borrow()
    }

    /// Waits until the handler should stop, and returns the reason.
    ///
    /// A handler that does not stop within a few seconds is dropped at its next await; a handler
    /// whose claim is lost is dropped at once. Blocking handlers cannot be dropped, so that they
    /// must check themselves.
    pub async fn cancelled(&self) -> CancelReason {
        let mut cancel = self.0.cancel.clone();
        match cancel.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(CancelReason::Lost),
            // Nothing is left that would use the answer.
            Err(_) => CancelReason::Lost,
        }
    }

    /// Reports progress. Cheap: only the latest report is sent from time to time.
    pub fn progress(&self, percent: u32, message: impl Into<String>) {
        let progress = v1::TaskProgress { percent: percent.min(100), message: message.into() };
        self.0.reports.send(Report::Progress { key: self.0.key.clone(), progress });
    }

    /// Saves the task's resume state, up to 64 KiB as JSON; the next attempt reads it with
    /// [`resume_state`](TaskContext::resume_state). The state is durable once this has returned.
    pub async fn checkpoint(&self, state: &impl Serialize) -> Result<(), Error> {
        let saved = self.save(state)?;
        saved.await.unwrap_or_else(|_| Err(session_ended()))
    }

    /// [`checkpoint`](TaskContext::checkpoint) for blocking handlers.
    pub fn blocking_checkpoint(&self, state: &impl Serialize) -> Result<(), Error> {
        let saved = self.save(state)?;
        saved.blocking_recv().unwrap_or_else(|_| Err(session_ended()))
    }

    /// The last state that an earlier attempt saved; `None` if there is none.
    pub fn resume_state<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(state) = &self.0.task.resume_state else { return Ok(None) };
        let state = serde_json::from_slice(state);
        state.map(Some).map_err(|error| Error::Decode {
            what: format!("the resume state of task {}", self.0.id),
            problem: error.to_string(),
        })
    }

    /// The last state that an earlier attempt saved, as bytes.
    pub fn resume_bytes(&self) -> Option<&[u8]> {
        self.0.task.resume_state.as_deref()
    }

    /// Enqueues a task together with the success of this one: both happen, or neither. Nothing is
    /// enqueued if the handler fails.
    pub fn enqueue(&self, task: impl Into<NewTask>) -> Result<(), Error> {
        let task = task.into().into_wire()?;
        self.follow_ups().push(task);
        Ok(())
    }

    /// The client of this worker, for actions that should happen whether the handler succeeds or
    /// not.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn wire(&self) -> &v1::ClaimedTask {
        &self.0.task
    }

    pub(crate) fn key(&self) -> &ClaimKey {
        &self.0.key
    }

    pub(crate) fn states(&self) -> &States {
        &self.0.states
    }

    pub(crate) fn payload(&self) -> &Bytes {
        &self.0.task.payload
    }

    /// The tasks that the handler enqueued along with its success.
    pub(crate) fn take_follow_ups(&self) -> Vec<v1::NewTask> {
        std::mem::take(&mut self.follow_ups())
    }

    fn follow_ups(&self) -> MutexGuard<'_, Vec<v1::NewTask>> {
        self.0.follow_ups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, state: &impl Serialize) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let state = serde_json::to_vec(state).map_err(|error| {
            Error::Invalid(format!("the state of task {} is no JSON: {error}", self.0.id))
        })?;
        let (saved, answer) = oneshot::channel();
        self.0.reports.send(Report::Checkpoint { key: self.0.key.clone(), state, saved });
        Ok(answer)
    }
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext")
            .field("id", &self.0.id)
            .field("kind", &self.0.task.r#type)
            .field("queue", &self.0.task.queue)
            .field("attempt", &self.0.task.attempt)
            .finish_non_exhaustive()
    }
}

fn session_ended() -> Error {
    Error::OutcomeUnknown { message: "the worker's session ended first".to_string() }
}

/// Values shared by all handlers of a worker, one per type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<S: Send + Sync + 'static>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Box::new(state));
    }

    pub(crate) fn get<S: 'static>(&self) -> Option<&S> {
        self.0.get(&TypeId::of::<S>()).and_then(|state| state.downcast_ref())
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}
