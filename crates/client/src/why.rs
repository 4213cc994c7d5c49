//! Why: the reasons for which a task waits.

use crate::{Client, Error, TaskId, Timestamp, connection::Repeat};
use serde::Serialize;
use taskyard_proto::v1;

impl Client {
    /// The reasons for which a task waits, in the order in which they must be lifted.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// for reason in client.why("6hrp7d20020010000000000001").await? {
    ///     println!("{}", reason.message);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn why(&self, task: impl Into<TaskId>) -> Result<Vec<WaitReason>, Error> {
        let request = v1::WhyTaskRequest { id: task.into().into() };
        let reply =
            self.call(request, Repeat::Read, |mut wire, request| async move {
                wire.why_task(request).await
            })
            .await?;
        Ok(reply.reasons.into_iter().map(WaitReason::from).collect())
    }
}

/// One reason for which a task waits. Serialized as on the HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaitReason {
    /// A stable word: `parents`, `queue_paused`, `scheduled`, `queue_concurrency`, `queue_rate`,
    /// `key_concurrency`, `key_rate`, `key_held`, `no_worker`, `no_worker_for_type`, `ahead`,
    /// `running`, `finished`.
    pub code: String,
    /// The reason in words.
    pub message: String,
    /// The fairness key of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When the reason ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The number of running tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed: Option<u32>,
    /// The number of tasks that may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The number of tasks ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// The worker that runs the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Nodes of the flow that the task waits for; the first ones if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<String>,
}

impl From<v1::WaitReason> for WaitReason {
    fn from(wire: v1::WaitReason) -> WaitReason {
        WaitReason {
            code: wire.code,
            message: wire.message,
            key: wire.key,
            until: wire.until.map(Timestamp::from_millis),
            claimed: wire.claimed,
            limit: wire.limit,
            ahead: wire.ahead,
            worker: wire.worker,
            parents: wire.parents,
        }
    }
}
