//! Queues: details, pause and resume, purge, settings, deletion.

mod list;

pub use list::Queues;

use crate::{
    Client, Error, RetryPolicy,
    bulk::{Bulk, Operation},
    connection::Repeat,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use taskyard_proto::v1;

impl Client {
    /// One queue, to read or to change it.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// client.queue("mail").pause().await?;
    /// println!("{} wait", client.queue("mail").details().await?.ready);
    /// # Ok(()) }
    /// ```
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue { client: self.clone(), name: name.into() }
    }
}

/// One queue, to read or to change it. Made by [`Client::queue`].
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: String,
}

impl Queue {
    /// The details of the queue.
    pub async fn details(&self) -> Result<QueueDetails, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::Read, |mut wire, request| async move {
                wire.get_queue(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Stops handing out tasks; enqueues and running tasks go on.
    pub async fn pause(&self) -> Result<(), Error> {
        self.client
            .call(self.request(), Repeat::Always, |mut wire, request| async move {
                wire.pause_queue(request).await
            })
            .await?;
        Ok(())
    }

    /// Hands out tasks again.
    pub async fn resume(&self) -> Result<(), Error> {
        self.client
            .call(self.request(), Repeat::Always, |mut wire, request| async move {
                wire.resume_queue(request).await
            })
            .await?;
        Ok(())
    }

    /// Removes the waiting tasks; tasks that are enqueued meanwhile stay. Await it, or read its
    /// progress.
    pub fn purge(&self) -> Bulk {
        Bulk::new(self.client.clone(), Operation::Purge(self.request()))
    }

    /// Deletes the queue with its settings. Refused with the code `queue_not_empty` while it has
    /// tasks that have not ended, or dead letters. Finished tasks stay readable by id for as long
    /// as a queue without settings keeps them. The first use of the name makes a new queue.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// client.queue("mial").purge().await?;
    /// client.queue("mial").delete().await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete(&self) -> Result<(), Error> {
        // A repetition would find no queue, and return an error.
        self.client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.delete_queue(request).await
            })
            .await?;
        Ok(())
    }

    /// The settings of the queue.
    pub async fn settings(&self) -> Result<QueueSettings, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::Read, |mut wire, request| async move {
                wire.get_queue_settings(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Replaces all settings; `None` stands for the default.
    pub async fn set(&self, settings: QueueSettings) -> Result<QueueSettings, Error> {
        let request = v1::SetQueueSettingsRequest {
            queue: self.name.clone(),
            settings: Some(settings.into()),
        };
        let reply = self
            .client
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.set_queue_settings(request).await
            })
            .await?;
        Ok(reply.into())
    }

    fn request(&self) -> v1::QueueRequest {
        v1::QueueRequest { queue: self.name.clone() }
    }
}

/// The details of a queue. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueDetails {
    /// The queue's name.
    pub name: String,
    /// Tasks that may be claimed now.
    pub ready: u64,
    /// Tasks that wait for a moment.
    pub scheduled: u64,
    /// The scheduled tasks whose last attempt failed or was lost.
    pub retrying: u64,
    /// Tasks that workers hold.
    pub claimed: u64,
    /// Tasks that wait for other tasks.
    pub blocked: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// How long the oldest ready task has been waiting, in milliseconds.
    pub oldest_ready_age_ms: u64,
    /// Tasks enqueued so far.
    pub enqueued_total: u64,
    /// Tasks that succeeded so far.
    pub succeeded_total: u64,
    /// Attempts that failed so far.
    pub failed_total: u64,
    /// Tasks that became dead letters so far.
    pub dead_total: u64,
    /// Claims that were lost so far.
    pub lost_total: u64,
    /// Tasks that expired before they ran.
    pub expired_total: u64,
    /// Tasks that were cancelled so far.
    pub cancelled_total: u64,
}

impl QueueDetails {
    /// How long the oldest ready task has been waiting.
    pub fn oldest_ready_age(&self) -> Duration {
        Duration::from_millis(self.oldest_ready_age_ms)
    }
}

impl From<v1::Queue> for QueueDetails {
    fn from(wire: v1::Queue) -> QueueDetails {
        QueueDetails {
            name: wire.name,
            ready: wire.ready,
            scheduled: wire.scheduled,
            retrying: wire.retrying,
            claimed: wire.claimed,
            blocked: wire.blocked,
            dead: wire.dead,
            paused: wire.paused,
            oldest_ready_age_ms: wire.oldest_ready_age_ms,
            enqueued_total: wire.enqueued_total,
            succeeded_total: wire.succeeded_total,
            failed_total: wire.failed_total,
            dead_total: wire.dead_total,
            lost_total: wire.lost_total,
            expired_total: wire.expired_total,
            cancelled_total: wire.cancelled_total,
        }
    }
}

/// The settings of a queue; `None` stands for the broker's default. The names are those of the HTTP
/// front.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// Enqueues are refused while this many tasks wait. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// How long a `request_id` is remembered, in milliseconds. 24 h by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<u64>,
    /// How long finished tasks can be looked up, in milliseconds. 24 h by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// How many finished tasks can be looked up. 10,000 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_count: Option<u32>,
    /// How long dead letters are kept, in milliseconds. 30 days by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_retention_ms: Option<u64>,
    /// How many dead letters are kept. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_retention_count: Option<u32>,
    /// The retry policy of tasks without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// The timeout of tasks without one, in milliseconds. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The most tasks that are claimed at once. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often a task may be claimed. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The limits of every fairness key. Tasks without a key have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_key: Option<PerKey>,
    /// How many tasks a fairness key is served per turn, 1 to 1000; 1 by default. The empty key
    /// stands for the tasks without a key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// How long a waiting task waits before its priority rises by one, in milliseconds. Never by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ageing_ms: Option<u64>,
    /// The number of shards that the queue is spread over. 1 by default. For a queue that is too
    /// busy for one shard; not together with `max_length`, `concurrency`, `rate` or `per_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<u32>,
}

/// A rate: an average per second, and a burst after a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The average per second, 0.000001 to 1,000,000.
    pub per_second: f64,
    /// The burst after a pause; by default what comes in within a second, but at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Rate {
    /// A rate of this many per second.
    pub fn per_second(per_second: f64) -> Rate {
        Rate { per_second, burst: None }
    }

    /// Allows this many at once, after a pause.
    pub fn burst(self, burst: u32) -> Rate {
        Rate { burst: Some(burst), ..self }
    }
}

/// The limits of each fairness key of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerKey {
    /// The most tasks of one key that are claimed at once. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often a task of one key may be claimed. No bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl From<v1::Rate> for Rate {
    fn from(wire: v1::Rate) -> Rate {
        Rate { per_second: wire.per_second, burst: wire.burst }
    }
}

impl From<Rate> for v1::Rate {
    fn from(rate: Rate) -> v1::Rate {
        v1::Rate { per_second: rate.per_second, burst: rate.burst }
    }
}

impl From<v1::QueueSettings> for QueueSettings {
    fn from(wire: v1::QueueSettings) -> QueueSettings {
        QueueSettings {
            max_length: wire.max_length,
            dedup_window_ms: wire.dedup_window_ms,
            retention_ms: wire.retention_ms,
            retention_count: wire.retention_count,
            dead_retention_ms: wire.dead_retention_ms,
            dead_retention_count: wire.dead_retention_count,
            retry: wire.retry.map(RetryPolicy::from),
            timeout_ms: wire.timeout_ms,
            concurrency: wire.concurrency,
            rate: wire.rate.map(Rate::from),
            per_key: wire.per_key.map(|per_key| PerKey {
                concurrency: per_key.concurrency,
                rate: per_key.rate.map(Rate::from),
            }),
            weights: wire.weights.into_iter().collect(),
            ageing_ms: wire.ageing_ms,
            spread: wire.spread,
        }
    }
}

impl From<QueueSettings> for v1::QueueSettings {
    fn from(settings: QueueSettings) -> v1::QueueSettings {
        v1::QueueSettings {
            max_length: settings.max_length,
            dedup_window_ms: settings.dedup_window_ms,
            retention_ms: settings.retention_ms,
            retention_count: settings.retention_count,
            dead_retention_ms: settings.dead_retention_ms,
            dead_retention_count: settings.dead_retention_count,
            retry: settings.retry.map(v1::RetryPolicy::from),
            timeout_ms: settings.timeout_ms,
            concurrency: settings.concurrency,
            rate: settings.rate.map(v1::Rate::from),
            per_key: settings.per_key.map(|per_key| v1::PerKey {
                concurrency: per_key.concurrency,
                rate: per_key.rate.map(v1::Rate::from),
            }),
            weights: settings.weights.into_iter().collect(),
            ageing_ms: settings.ageing_ms,
            spread: settings.spread,
        }
    }
}
