//! Looking at tasks and changing them: details, lists, results, cancel, retry.

use crate::{
    Client, Error, TaskError, TaskId, TaskState, Timestamp, connection::Repeat, timestamp::millis,
};
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    time::Duration,
};
use taskyard_proto::v1;
use tokio::time::Instant;

/// The longest the broker holds one call open.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// Everything that is known about a task, its payload and result included.
    pub async fn get(&self, task: impl Into<TaskId>) -> Result<TaskDetails, Error> {
        let request = v1::GetTaskRequest { id: task.into().into(), without_payload: false };
        let reply = self
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.get_task(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Lists tasks, all or those that match what is said about them, page by page.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// use taskyard::TaskState;
    ///
    /// let mut waiting = client.tasks().queue("mail").state(TaskState::Ready);
    /// while let Some(task) = waiting.next().await? {
    ///     println!("{} {}", task.id, task.kind);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn tasks(&self) -> Tasks {
        Tasks::new(self.clone())
    }

    /// The result of a task, once it has ended: await it, with a limit if you like.
    pub fn result<Output>(&self, task: impl Into<TaskId>) -> ResultOf<Output> {
        ResultOf::new(self.clone(), task.into())
    }

    /// How a task stands and, once it has ended, what came of it. Waits up to `wait` for the end.
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
                .call(request, Repeat::Always, deadline, |mut wire, request| async move {
                    wire.get_result(request).await
                })
                .await?;
            let outcome = TaskOutcome::from(reply);
            if outcome.state.is_finished() || Instant::now() >= until {
                return Ok(outcome);
            }
        }
    }

    /// Cancels a task: at once if nobody runs it, else as soon as its worker yields. Returns where
    /// the task is now: `Cancelled`, or `Claimed` until the worker has yielded.
    pub async fn cancel(&self, task: impl Into<TaskId>) -> Result<TaskState, Error> {
        let request = v1::CancelRequest { id: task.into().into() };
        let reply = self
            .call(request, Repeat::IfNotTaken, |mut wire, request| async move {
                wire.cancel(request).await
            })
            .await?;
        Ok(TaskState::from_wire(&reply.state))
    }

    /// Runs a task again: a dead, failed or cancelled one from the start, a scheduled one at once.
    pub async fn retry(&self, task: impl Into<TaskId>) -> Result<TaskState, Error> {
        self.retry_edited(task, None::<Bytes>).await
    }

    /// Runs a task again, with another payload if one is given.
    pub async fn retry_edited(
        &self,
        task: impl Into<TaskId>,
        payload: Option<impl Into<Bytes>>,
    ) -> Result<TaskState, Error> {
        let request = v1::RetryRequest {
            id: task.into().into(),
            payload: payload.map(|payload| payload.into().to_vec()),
            ..v1::RetryRequest::default()
        };
        let reply = self
            .call(request, Repeat::IfNotTaken, |mut wire, request| async move {
                wire.retry(request).await
            })
            .await?;
        Ok(TaskState::from_wire(&reply.state))
    }
}

/// Everything that is known about a task. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskDetails {
    /// Its id.
    pub id: TaskId,
    /// The queue it is in.
    pub queue: String,
    /// Its type: the name of the function that does it.
    pub kind: String,
    /// Where it is in its life.
    pub state: TaskState,
    /// 0 to 9, 9 first.
    pub priority: u8,
    /// The attempt that runs or ran last; 0 before the first.
    pub attempt: u32,
    /// After this many attempts it is a dead letter.
    pub max_attempts: u32,
    /// How many of its workers died under it.
    pub losses: u32,
    /// Its payload, unless a list left it out.
    pub payload: Option<Bytes>,
    /// The media type of its payload.
    pub content_type: String,
    /// What travels with it.
    pub headers: BTreeMap<String, String>,
    /// What its handler returned.
    pub result: Option<Bytes>,
    /// How far its handler says it is.
    pub progress: Option<Progress>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it may run, while it waits for its time.
    pub run_at: Option<Timestamp>,
    /// When it is given up, if it has not run.
    pub expires_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The longest one attempt may run.
    pub timeout: Option<Duration>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Its last attempts, the oldest first.
    pub attempts: Vec<AttemptDetails>,
    /// Why it is a dead letter; empty if it is none.
    pub death_reason: String,
    /// Who runs it now.
    pub claim: Option<ClaimDetails>,
}

/// How far a running task is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: u32,
    /// One line for people.
    pub message: String,
}

/// One attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AttemptDetails {
    /// Its number, from 1.
    pub attempt: u32,
    /// Who ran it.
    pub worker: String,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended, in one word.
    pub outcome: String,
    /// What it failed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
}

/// Who runs a task now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClaimDetails {
    /// The worker's name.
    pub worker: String,
    /// Since when.
    pub claimed_at: Timestamp,
    /// When the claim lapses unless it is renewed.
    pub lease_expires_at: Timestamp,
    /// The worker was asked to stop.
    pub cancel_requested: bool,
}

impl TaskDetails {
    /// Its payload, as the type it was enqueued with.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(self.payload.as_deref().unwrap_or_default(), || {
            format!("the payload of task {}", self.id)
        })
    }

    /// Its result, as the type its handler returned.
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(result_bytes(self.result.as_deref()), || format!("the result of task {}", self.id))
    }
}

impl Serialize for TaskDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("queue", &self.queue)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("priority", &self.priority)?;
        map.serialize_entry("attempt", &self.attempt)?;
        map.serialize_entry("max_attempts", &self.max_attempts)?;
        map.serialize_entry("losses", &self.losses)?;
        if let Some(payload) = &self.payload {
            let json = is_json(&self.content_type).then(|| as_json(payload)).flatten();
            serialize_bytes(&mut map, "payload", "payload_base64", payload, json)?;
        }
        map.serialize_entry("content_type", &self.content_type)?;
        map.serialize_entry("headers", &self.headers)?;
        if let Some(result) = &self.result {
            serialize_bytes(&mut map, "result", "result_base64", result, as_json(result))?;
        }
        map.serialize_entry("progress", &self.progress)?;
        map.serialize_entry("enqueued_at", &self.enqueued_at)?;
        map.serialize_entry("run_at", &self.run_at)?;
        map.serialize_entry("expires_at", &self.expires_at)?;
        map.serialize_entry("finished_at", &self.finished_at)?;
        map.serialize_entry("timeout_ms", &self.timeout.map(millis))?;
        map.serialize_entry("tags", &self.tags)?;
        map.serialize_entry("attempts", &self.attempts)?;
        if !self.death_reason.is_empty() {
            map.serialize_entry("death_reason", &self.death_reason)?;
        }
        map.serialize_entry("claim", &self.claim)?;
        map.end()
    }
}

impl From<v1::Task> for TaskDetails {
    fn from(wire: v1::Task) -> TaskDetails {
        TaskDetails {
            state: TaskState::from_wire(&wire.state),
            id: wire.id.into(),
            queue: wire.queue,
            kind: wire.r#type,
            priority: u8::try_from(wire.priority).unwrap_or(u8::MAX),
            attempt: wire.attempt,
            max_attempts: wire.max_attempts,
            losses: wire.losses,
            payload: wire.payload.map(Bytes::from),
            content_type: wire.content_type,
            headers: wire.headers.into_iter().collect(),
            result: wire.result.map(Bytes::from),
            progress: wire.progress.map(Progress::from),
            enqueued_at: Timestamp::from_millis(wire.enqueued_at),
            run_at: wire.run_at.map(Timestamp::from_millis),
            expires_at: wire.expires_at.map(Timestamp::from_millis),
            finished_at: wire.finished_at.map(Timestamp::from_millis),
            timeout: wire.timeout_ms.map(Duration::from_millis),
            tags: wire.tags,
            attempts: wire.attempts.into_iter().map(AttemptDetails::from).collect(),
            death_reason: wire.death_reason,
            claim: wire.claim.map(ClaimDetails::from),
        }
    }
}

impl From<v1::TaskProgress> for Progress {
    fn from(wire: v1::TaskProgress) -> Progress {
        Progress { percent: wire.percent, message: wire.message }
    }
}

impl From<v1::Attempt> for AttemptDetails {
    fn from(wire: v1::Attempt) -> AttemptDetails {
        AttemptDetails {
            attempt: wire.attempt,
            worker: wire.worker,
            claimed_at: Timestamp::from_millis(wire.claimed_at),
            ended_at: Timestamp::from_millis(wire.ended_at),
            outcome: wire.outcome,
            error: wire.error.map(TaskError::from),
        }
    }
}

impl From<v1::TaskClaim> for ClaimDetails {
    fn from(wire: v1::TaskClaim) -> ClaimDetails {
        ClaimDetails {
            worker: wire.worker,
            claimed_at: Timestamp::from_millis(wire.claimed_at),
            lease_expires_at: Timestamp::from_millis(wire.lease_expires_at),
            cancel_requested: wire.cancel_requested,
        }
    }
}

/// How a task stands and, once it has ended, what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskOutcome {
    /// Where it is.
    pub state: TaskState,
    /// What its handler returned, if it succeeded with a result.
    pub result: Option<Bytes>,
    /// What its last attempt failed with, if it did not succeed.
    pub error: Option<TaskError>,
}

impl From<v1::GetResultReply> for TaskOutcome {
    fn from(wire: v1::GetResultReply) -> TaskOutcome {
        TaskOutcome {
            state: TaskState::from_wire(&wire.state),
            result: wire.result.map(Bytes::from),
            error: wire.error.map(TaskError::from),
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

    /// Gives up waiting after this long, with [`Error::NotFinished`]. Waits until the task ends, if
    /// not said.
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

/// Which tasks are meant. What is not said matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter(v1::TaskFilter);

impl TaskFilter {
    /// All tasks.
    pub fn new() -> TaskFilter {
        TaskFilter::default()
    }

    /// Only those in this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> TaskFilter {
        self.0.queue = queue.into();
        self
    }

    /// Only those in this state.
    pub fn state(mut self, state: TaskState) -> TaskFilter {
        self.0.state = state.to_string();
        self
    }

    /// Only those of this type.
    pub fn kind(mut self, kind: impl Into<String>) -> TaskFilter {
        self.0.r#type = kind.into();
        self
    }

    /// Only those whose last error contains this text.
    pub fn error(mut self, error: impl Into<String>) -> TaskFilter {
        self.0.error = error.into();
        self
    }

    /// Only those with this tag.
    pub fn tag(mut self, tag: impl Into<String>) -> TaskFilter {
        self.0.tag = tag.into();
        self
    }

    pub(crate) fn into_wire(self) -> v1::TaskFilter {
        self.0
    }
}

/// A list of tasks, fetched page by page as it is read. Made by [`Client::tasks`].
#[derive(Debug)]
#[must_use = "a list is not fetched until it is read"]
pub struct Tasks {
    client: Client,
    filter: TaskFilter,
    page_size: u32,
    with_payload: bool,
    cursor: Cursor,
    fetched: VecDeque<TaskDetails>,
}

#[derive(Debug)]
enum Cursor {
    At(String),
    End,
}

impl Tasks {
    fn new(client: Client) -> Tasks {
        Tasks {
            client,
            filter: TaskFilter::new(),
            page_size: 0,
            with_payload: false,
            cursor: Cursor::At(String::new()),
            fetched: VecDeque::new(),
        }
    }

    /// Only those in this queue.
    pub fn queue(self, queue: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.queue(queue))
    }

    /// Only those in this state.
    pub fn state(self, state: TaskState) -> Tasks {
        self.narrow(|filter| filter.state(state))
    }

    /// Only those of this type.
    pub fn kind(self, kind: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.kind(kind))
    }

    /// Only those whose last error contains this text.
    pub fn error(self, error: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.error(error))
    }

    /// Only those with this tag.
    pub fn tag(self, tag: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.tag(tag))
    }

    /// Only those that match a filter.
    pub fn matching(self, filter: TaskFilter) -> Tasks {
        self.narrow(|_| filter)
    }

    /// How many come in one page; the broker's default if not said.
    pub fn page_size(mut self, tasks: u32) -> Tasks {
        self.page_size = tasks;
        self
    }

    /// Fetches payloads too.
    pub fn with_payload(mut self) -> Tasks {
        self.with_payload = true;
        self
    }

    /// Goes on where [`cursor`](Tasks::cursor) of an earlier list was.
    pub fn after(mut self, cursor: impl Into<String>) -> Tasks {
        self.cursor = Cursor::At(cursor.into());
        self
    }

    /// The next task; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<TaskDetails>, Error> {
        loop {
            if let Some(task) = self.fetched.pop_front() {
                return Ok(Some(task));
            }
            match self.page().await? {
                Some(page) => self.fetched.extend(page),
                None => return Ok(None),
            }
        }
    }

    /// The next page, which may be short or even empty; `None` at the end.
    pub async fn page(&mut self) -> Result<Option<Vec<TaskDetails>>, Error> {
        let Cursor::At(cursor) = &self.cursor else { return Ok(None) };
        let request = v1::ListTasksRequest {
            filter: Some(self.filter.clone().into_wire()),
            cursor: cursor.clone(),
            limit: self.page_size,
            with_payload: self.with_payload,
        };
        let reply = self
            .client
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.list_tasks(request).await
            })
            .await?;
        self.cursor = if reply.cursor.is_empty() { Cursor::End } else { Cursor::At(reply.cursor) };
        Ok(Some(reply.tasks.into_iter().map(TaskDetails::from).collect()))
    }

    /// All of them, up to `limit`.
    pub async fn collect(mut self, limit: usize) -> Result<Vec<TaskDetails>, Error> {
        let mut all = Vec::new();
        while all.len() < limit {
            match self.next().await? {
                Some(task) => all.push(task),
                None => break,
            }
        }
        Ok(all)
    }

    /// Where the next page starts; `None` at the end.
    pub fn cursor(&self) -> Option<&str> {
        match &self.cursor {
            Cursor::At(cursor) => Some(cursor),
            Cursor::End => None,
        }
    }

    fn narrow(mut self, change: impl FnOnce(TaskFilter) -> TaskFilter) -> Tasks {
        self.filter = change(self.filter);
        self
    }
}

/// A handler that returned nothing has no result: that reads as JSON's null.
fn result_bytes(result: Option<&[u8]>) -> &[u8] {
    match result {
        None | Some([]) => b"null",
        Some(result) => result,
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8], what: impl Fn() -> String) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Decode { what: what(), problem: error.to_string() })
}

fn is_json(content_type: &str) -> bool {
    content_type.is_empty() || content_type.starts_with("application/json")
}

fn as_json(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(bytes).ok()
}

fn serialize_bytes<M: SerializeMap>(
    map: &mut M,
    json_key: &str,
    base64_key: &str,
    bytes: &[u8],
    json: Option<&RawValue>,
) -> Result<(), M::Error> {
    match json {
        Some(json) => map.serialize_entry(json_key, json),
        None => map.serialize_entry(base64_key, &base64(bytes)),
    }
}

/// Standard base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_what_is_not_a_multiple_of_three() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn a_task_is_shown_as_on_the_http_front() {
        let wire = v1::Task {
            id: "t1".into(),
            r#type: "resize".into(),
            state: "dead".into(),
            payload: Some(b"{\"width\": 12345678901234567890}".to_vec()),
            result: Some(vec![0xff]),
            timeout_ms: Some(1_500),
            enqueued_at: 1,
            ..v1::Task::default()
        };
        let json = serde_json::to_string(&TaskDetails::from(wire)).unwrap();
        assert!(json.contains(r#""type":"resize","state":"dead""#), "{json}");
        assert!(json.contains(r#""payload":{"width": 12345678901234567890}"#), "{json}");
        assert!(json.contains(r#""result_base64":"/w==""#), "{json}");
        assert!(json.contains(r#""timeout_ms":1500"#), "{json}");
        assert!(json.contains(r#""enqueued_at":"1970-01-01T00:00:00.001Z""#), "{json}");
    }

    #[test]
    fn a_payload_that_is_no_json_is_shown_as_base64() {
        for (content_type, payload, key) in [
            ("", "{}", "\"payload\":"),
            ("application/json", "{}", "\"payload\":"),
            ("application/json", "{", "\"payload_base64\":"),
            ("text/plain", "{}", "\"payload_base64\":"),
        ] {
            let wire = v1::Task {
                payload: Some(payload.into()),
                content_type: content_type.into(),
                ..v1::Task::default()
            };
            let json = serde_json::to_string(&TaskDetails::from(wire)).unwrap();
            assert!(json.contains(key), "{json}");
        }
    }

    #[test]
    fn no_result_reads_as_nothing() {
        let details = TaskDetails::from(v1::Task::default());
        details.result_as::<()>().unwrap();
        assert_eq!(details.result_as::<Option<u32>>().unwrap(), None);
        assert_eq!(details.result_as::<u32>().unwrap_err().code(), "decode");
    }
}
