//! Claims without a worker: a program claims tasks when it likes, and answers for each one itself.
//!
//! Such a claim lasts as long as its lease, because no beat renews it, so extend it in time. A
//! [`Worker`] does all of this automatically.
//!
//! [`Worker`]: crate::Worker

use crate::{
    Client, Error, Fail, IntoResult, NewTask, Snooze, TaskId, TaskState, Timestamp,
    connection::Repeat, fail::Then, timestamp::millis,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::{
    collections::HashMap,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};
use taskyard_proto::v1;

/// The longest wait of one call on the broker.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// Claims tasks from queues, in the order of the names: set its options, then await it.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// use std::time::Duration;
    ///
    /// for task in client.claim(["mail"]).max(10).wait(Duration::from_secs(20)).await? {
    ///     let to: String = task.payload_as()?;
    ///     task.ack(&format!("sent to {to}")).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn claim(&self, queues: impl IntoIterator<Item = impl Into<String>>) -> Claim {
        let queue = |name: String| v1::QueueWeight { name, weight: 0 };
        let queues = queues.into_iter().map(|name| queue(name.into())).collect();
        let request = v1::ClaimRequest { queues, ..v1::ClaimRequest::default() };
        Claim { client: self.clone(), request }
    }
}

/// A claim being made. Made by [`Client::claim`].
#[derive(Clone, Debug)]
#[must_use = "nothing is claimed until it is awaited"]
pub struct Claim {
    client: Client,
    request: v1::ClaimRequest,
}

impl Claim {
    /// Sets the most tasks to claim; 1 by default.
    pub fn max(mut self, tasks: u32) -> Claim {
        self.request.max = tasks;
        self
    }

    /// Claims only tasks of these types, up to 256: the types that this program can run. Any type
    /// by default.
    pub fn types(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Claim {
        self.request.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long the claims last without an [`extend`](ClaimedTask::extend); 30 s by default.
    pub fn lease(mut self, lease: Duration) -> Claim {
        self.request.lease_ms = millis(lease);
        self
    }

    /// Sets how long to wait while there is no task, up to 60 s; not at all by default.
    pub fn wait(mut self, wait: Duration) -> Claim {
        self.request.wait_ms = millis(wait.min(WAIT_MAX));
        self
    }

    /// Sets the name of the claimant that operators see.
    pub fn worker(mut self, name: impl Into<String>) -> Claim {
        self.request.worker = name.into();
        self
    }
}

impl IntoFuture for Claim {
    type Output = Result<Vec<ClaimedTask>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Claim { client, request } = self;
        let deadline = client.deadline_after(Duration::from_millis(request.wait_ms));
        Box::pin(async move {
            // If the answer is lost, its tasks come back when their lease lapses.
            let reply = client
                .connection()
                .call(request, Repeat::Always, deadline, |mut wire, request| async move {
                    wire.claim(request).await
                })
                .await?;
            let claimed = |task| ClaimedTask { client: client.clone(), task };
            Ok(reply.tasks.into_iter().map(claimed).collect())
        })
    }
}

/// A task that this program holds. Without an answer, it runs again after its lease.
#[derive(Clone, Debug)]
pub struct ClaimedTask {
    client: Client,
    task: v1::ClaimedTask,
}

impl ClaimedTask {
    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.task.id.as_str().into()
    }

    /// The task's type.
    pub fn kind(&self) -> &str {
        &self.task.r#type
    }

    /// The task's queue.
    pub fn queue(&self) -> &str {
        &self.task.queue
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// The fencing token of this claim.
    pub fn claim_token(&self) -> u64 {
        self.task.claim_token
    }

    /// When the lease lapses.
    pub fn lease_expires_at(&self) -> Timestamp {
        Timestamp::from_millis(self.task.lease_expires_at)
    }

    /// The customer that the task is for.
    pub fn fairness_key(&self) -> Option<&str> {
        self.task.fairness_key.as_deref()
    }

    /// The task's headers.
    pub fn headers(&self) -> &HashMap<String, String> {
        &self.task.headers
    }

    /// The payload as it was enqueued.
    pub fn payload(&self) -> &Bytes {
        &self.task.payload
    }

    /// The payload, decoded from JSON.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.task.payload).map_err(|error| Error::Decode {
            what: format!("the payload of task {}", self.task.id),
            problem: error.to_string(),
        })
    }

    /// The last resume state that an earlier attempt saved.
    pub fn resume_bytes(&self) -> Option<&[u8]> {
        self.task.resume_state.as_deref()
    }

    /// Ends the task with success and a result.
    pub async fn ack(&self, result: impl IntoResult) -> Result<(), Error> {
        self.ack_with(result, []).await.map(drop)
    }

    /// Ends the task with success and a result, and enqueues tasks, all or nothing.
    pub async fn ack_with(
        &self,
        result: impl IntoResult,
        follow_ups: impl IntoIterator<Item = NewTask>,
    ) -> Result<Vec<TaskId>, Error> {
        let result = result.into_result().map_err(|fail| Error::Invalid(fail.error.message))?;
        let enqueue = follow_ups.into_iter().map(NewTask::into_wire);
        let enqueue = enqueue.collect::<Result<Vec<_>, _>>()?;
        let (id, claim_token) = self.names();
        let request = v1::AckRequest { id, claim_token, result, enqueue };
        let reply =
            self.client
                .call(request, Repeat::Always, |mut wire, request| async move {
                    wire.ack(request).await
                })
                .await?;
        Ok(reply.enqueued.into_iter().map(TaskId::from).collect())
    }

    /// Ends the attempt without success. Returns the new state of the task.
    pub async fn fail(&self, fail: impl Into<Fail>) -> Result<TaskState, Error> {
        let Fail { error, then } = fail.into();
        let (id, claim_token) = self.names();
        if let Then::Snooze(snooze) | Then::PushBackKey(snooze) = then {
            let hold_key = matches!(then, Then::PushBackKey(_));
            let reply = self.snoozed(snooze, hold_key).await?;
            // Older brokers do not send the state.
            return Ok(match reply.state.as_str() {
                "" => TaskState::Scheduled,
                state => TaskState::from_wire(state),
            });
        }
        let (retry_at, retry_after_ms) = then.retry_wire();
        let request = v1::FailRequest {
            id,
            claim_token,
            error: Some(error.into()),
            retry_at,
            retry_after_ms,
            not_retryable: then == Then::Never,
        };
        let reply =
            self.client
                .call(request, Repeat::Always, |mut wire, request| async move {
                    wire.fail(request).await
                })
                .await?;
        Ok(TaskState::from_wire(&reply.state))
    }

    /// Renews the claim for this long from now. Returns whether the task was cancelled meanwhile:
    /// then stop, and [`fail`](ClaimedTask::fail) the task.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let (id, claim_token) = self.names();
        let lease_ms = Some(millis(lease));
        let request = v1::ExtendRequest { id, claim_token, lease_ms, ..Default::default() };
        let reply =
            self.client
                .call(request, Repeat::Always, |mut wire, request| async move {
                    wire.extend(request).await
                })
                .await?;
        Ok(reply.cancel_requested)
    }

    /// Returns the task to its queue as if it had never been claimed.
    pub async fn release(&self) -> Result<(), Error> {
        let (id, claim_token) = self.names();
        let request = v1::ReleaseRequest { id, claim_token };
        self.client
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.release(request).await
            })
            .await?;
        Ok(())
    }

    /// Schedules the task for later without counting the attempt. Returns when it runs again.
    pub async fn snooze(&self, snooze: Snooze) -> Result<Timestamp, Error> {
        Ok(Timestamp::from_millis(self.snoozed(snooze, false).await?.run_at))
    }

    async fn snoozed(&self, snooze: Snooze, hold_key: bool) -> Result<v1::SnoozeReply, Error> {
        let (id, claim_token) = self.names();
        let (delay_ms, run_at) = snooze.into_wire();
        let request = v1::SnoozeRequest { id, claim_token, delay_ms, run_at, hold_key };
        self.client
            .call(
                request,
                Repeat::Always,
                |mut wire, request| async move { wire.snooze(request).await },
            )
            .await
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn wire(&self) -> &v1::ClaimedTask {
        &self.task
    }

    fn names(&self) -> (String, u64) {
        (self.task.id.clone(), self.task.claim_token)
    }
}
