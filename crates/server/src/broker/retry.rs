//! Cancel, kill and retry one task by hand.

use super::{Broker, unexpected};
use crate::Error;
use taskyard_machine::{
    Body, Cancel, Command, Kill, Outcome, Rejection, Retry, TaskId, TaskStateName,
};

/// The changes that a retry makes to the task's body; `None` keeps a part.
#[derive(Clone, Debug, Default)]
pub struct Edit<'a> {
    /// The new payload and its media type.
    pub payload: Option<(&'a [u8], &'a str)>,
    /// The new headers, which replace all old ones.
    pub headers: Option<Vec<(&'a str, &'a str)>>,
}

impl Broker {
    /// Cancels a task: `Cancelled`, or `Claimed` until its worker yields. The shard's leader
    /// informs a worker with a session, see `shard/gateway.rs`; any other worker learns it with its
    /// next renewal.
    pub async fn cancel(&self, task: TaskId) -> Result<TaskStateName, Error> {
        let shard = self.shard_of_task(task)?;
        match self.propose(shard, &Command::Cancel(Cancel { task })).await? {
            Outcome::CancelRequested { state } => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Makes a waiting task a dead letter: `Dead`, or `Failed` if its queue keeps none.
    pub async fn kill(&self, task: TaskId) -> Result<TaskStateName, Error> {
        let shard = self.shard_of_task(task)?;
        match self.propose(shard, &Command::Kill(Kill { task })).await? {
            Outcome::Killed { state } => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Makes a finished or waiting task ready now, perhaps with another body.
    pub async fn retry(&self, task: TaskId, edit: Option<Edit<'_>>) -> Result<(), Error> {
        let shard = self.shard_of_task(task)?;
        let outcome = match edit {
            None => self.propose(shard, &Command::Retry(Retry { task, body: None })).await?,
            Some(edit) => {
                let kept = self.shards().bodies(vec![task]).await?.pop().flatten();
                let kept = kept.ok_or(Rejection::TaskNotFound { task })?;
                let kept = Body::decode(&kept).expect("a kept body is one that was encoded");
                let (payload, content_type) =
                    edit.payload.unwrap_or((kept.payload, kept.content_type));
                self.check_payload(payload)?;
                let headers = edit.headers.unwrap_or(kept.headers);
                let body = Body { content_type, headers, payload };
                self.propose(shard, &Command::Retry(Retry { task, body: Some(body) })).await?
            }
        };
        match outcome {
            Outcome::Retried => Ok(()),
            other => unexpected(&other),
        }
    }
}
