//! Claims without a worker: a program takes tasks when it likes and answers for each by itself.
//!
//! Such a claim lives by its lease alone: nobody beats for it, so extend it in time. A [`Worker`]
//! does all of this by itself.
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

/// The longest the broker holds one call open.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// Claims tasks from queues, the first named first: say more about it, then await it.
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
    /// How many tasks to take at most; 1 if not said.
    pub fn max(mut self, tasks: u32) -> Claim {
        self.request.max = tasks;
        self
    }

    /// Only tasks of these types, up to 256: those that this program can run. Any type, if not
    /// said.
    pub fn types(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Claim {
        self.request.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// How long the claims live without an [`extend`](ClaimedTask::extend); 30 s if not said.
    pub fn lease(mut self, lease: Duration) -> Claim {
        self.request.lease_ms = millis(lease);
        self
    }

    /// How long to wait while there is nothing to take, up to 60 s; not at all if not said.
    pub fn wait(mut self, wait: Duration) -> Claim {
        self.request.wait_ms = millis(wait.min(WAIT_MAX));
        self
    }

    /// What operators see the claimant as.
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
            // Tasks of an answer that was lost come back when their lease lapses.
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

/// A task that this program holds. If nothing is said about it, it runs again after its lease.
#[derive(Clone, Debug)]
pub struct ClaimedTask {
    client: Client,
    task: v1::ClaimedTask,
}

impl ClaimedTask {
    /// Its id.
    pub fn id(&self) -> TaskId {
        self.task.id.as_str().into()
    }

    /// Its type.
    pub fn kind(&self) -> &str {
        &self.task.r#type
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.task.queue
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt
    }

    /// The fencing token of this claim.
    pub fn claim_token(&self) -> u64 {
        self.task.claim_token
    }

    /// When the claim lapses.
    pub fn lease_expires_at(&self) -> Timestamp {
        Timestamp::from_millis(self.task.lease_expires_at)
    }

    /// Whom it is for.
    pub fn fairness_key(&self) -> Option<&str> {
        self.task.fairness_key.as_deref()
    }

    /// What travels with it.
    pub fn headers(&self) -> &HashMap<String, String> {
        &self.task.headers
    }

    /// Its payload as it was enqueued.
    pub fn payload(&self) -> &Bytes {
        &self.task.payload
    }

    /// Its payload, decoded from JSON.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.task.payload).map_err(|error| Error::Decode {
            what: format!("the payload of task {}", self.task.id),
            problem: error.to_string(),
        })
    }

    /// What an earlier attempt saved last.
    pub fn resume_bytes(&self) -> Option<&[u8]> {
        self.task.resume_state.as_deref()
    }

    /// Ends it with success and a result.
    pub async fn ack(&self, result: impl IntoResult) -> Result<(), Error> {
        self.ack_with(result, []).await.map(drop)
    }

    /// Ends it with success and a result, and enqueues tasks: all of it happens, or nothing.
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

    /// Ends the attempt without success. Returns where the task is now.
    pub async fn fail(&self, fail: impl Into<Fail>) -> Result<TaskState, Error> {
        let Fail { error, then } = fail.into();
        let (id, claim_token) = self.names();
        if let Then::Snooze(snooze) | Then::HoldKey(snooze) = then {
            let hold_key = matches!(then, Then::HoldKey(_));
            let reply = self.snoozed(snooze, hold_key).await?;
            // Brokers that say nothing of it are older.
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
    /// then stop and [`fail`](ClaimedTask::fail) it.
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

    /// Gives it back as if it had never been claimed.
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

    /// Puts it back to sleep without counting the attempt. Returns when it wakes.
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
