//! Bulk: operations on many tasks that the broker carries out and reports on: purge a queue, retry
//! or discard dead letters.
//!
//! An operation starts when it is first read, and runs to its end even if its caller goes away. It
//! is never sent twice, because a repetition could reach tasks that came later.

use crate::{Client, Error, FlowId, TaskFilter, TaskId, TaskState, Tasks, connection::Repeat};
use serde::Serialize;
use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
};
use taskyard_proto::v1;
use tonic::Streaming;

impl Client {
    /// Dead letters: all of them, unless filters are set.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// let retried = client.dead().queue("mail").error("connection refused").retry().await?;
    /// println!("{} run again", retried.changed);
    /// # Ok(()) }
    /// ```
    pub fn dead(&self) -> DeadLetters {
        DeadLetters { client: self.clone(), which: Which::Matching(TaskFilter::new()) }
    }
}

/// Dead letters, to list, retry or discard. Made by [`Client::dead`].
#[derive(Clone, Debug)]
pub struct DeadLetters {
    client: Client,
    which: Which,
}

#[derive(Clone, Debug)]
enum Which {
    Ids(Vec<TaskId>),
    Matching(TaskFilter),
}

impl DeadLetters {
    /// Only dead letters of this queue.
    pub fn queue(self, queue: impl Into<String>) -> DeadLetters {
        self.narrow(|filter| filter.queue(queue))
    }

    /// Only dead letters of this type.
    pub fn kind(self, kind: impl Into<String>) -> DeadLetters {
        self.narrow(|filter| filter.kind(kind))
    }

    /// Only dead letters whose last error contains this text.
    pub fn error(self, error: impl Into<String>) -> DeadLetters {
        self.narrow(|filter| filter.error(error))
    }

    /// Only dead letters with this tag.
    pub fn tag(self, tag: impl Into<String>) -> DeadLetters {
        self.narrow(|filter| filter.tag(tag))
    }

    /// Only dead letters of this flow.
    pub fn flow(self, flow: impl Into<FlowId>) -> DeadLetters {
        self.narrow(|filter| filter.flow(flow))
    }

    /// Only dead letters with these ids; replaces all other filters.
    pub fn ids(mut self, ids: impl IntoIterator<Item = impl Into<TaskId>>) -> DeadLetters {
        self.which = Which::Ids(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Lists the dead letters. A selection by ids has no list: read each task with [`Client::get`].
    pub fn list(self) -> Tasks {
        let filter = match self.which {
            Which::Matching(filter) => filter,
            Which::Ids(_) => TaskFilter::new(),
        };
        self.client.tasks().matching(filter.state(TaskState::Dead))
    }

    /// Runs them again, with their full number of attempts. Await it, or read its progress.
    pub fn retry(self) -> Bulk {
        Bulk::new(self.client, Operation::RetryDead(self.which.into_wire()))
    }

    /// Removes them for good. Await it, or read its progress.
    pub fn discard(self) -> Bulk {
        Bulk::new(self.client, Operation::DiscardDead(self.which.into_wire()))
    }

    fn narrow(mut self, change: impl FnOnce(TaskFilter) -> TaskFilter) -> DeadLetters {
        let filter = match self.which {
            Which::Matching(filter) => filter,
            Which::Ids(_) => TaskFilter::new(),
        };
        self.which = Which::Matching(change(filter));
        self
    }
}

impl Which {
    fn into_wire(self) -> v1::DeadRequest {
        match self {
            Which::Ids(ids) => {
                v1::DeadRequest { ids: ids.into_iter().map(String::from).collect(), filter: None }
            }
            Which::Matching(filter) => {
                v1::DeadRequest { ids: Vec::new(), filter: Some(filter.into_wire()) }
            }
        }
    }
}

/// The progress of a bulk operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BulkProgress {
    /// Tasks changed so far.
    pub changed: u64,
    /// Tasks skipped so far, because their state no longer allowed the operation.
    pub skipped: u64,
    /// Whether the operation has ended.
    pub done: bool,
}

/// An operation on many tasks. Await it for the end, or read its progress:
///
/// ```no_run
/// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
/// let mut purge = client.queue("mail").purge();
/// while let Some(progress) = purge.next().await? {
///     println!("{} removed", progress.changed);
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is done until it is awaited or read"]
pub struct Bulk {
    client: Client,
    stage: Stage,
}

enum Stage {
    Asked(Operation),
    Running(Box<Streaming<v1::BulkReply>>),
    Ended,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Purge(v1::QueueRequest),
    RetryDead(v1::DeadRequest),
    DiscardDead(v1::DeadRequest),
}

impl Bulk {
    pub(crate) fn new(client: Client, operation: Operation) -> Bulk {
        Bulk { client, stage: Stage::Asked(operation) }
    }

    /// The next progress; `None` when the operation has ended. Waits for news.
    pub async fn next(&mut self) -> Result<Option<BulkProgress>, Error> {
        let replies = match &mut self.stage {
            Stage::Ended => return Ok(None),
            Stage::Running(replies) => replies,
            Stage::Asked(operation) => {
                let replies = operation.clone().start(&self.client).await?;
                self.stage = Stage::Running(Box::new(replies));
                let Stage::Running(replies) = &mut self.stage else { return Ok(None) };
                replies
            }
        };
        let reply = replies.message().await;
        let progress = match reply {
            Ok(Some(reply)) => {
                BulkProgress { changed: reply.changed, skipped: reply.skipped, done: reply.done }
            }
            Ok(None) => {
                self.stage = Stage::Ended;
                let message = "the broker stopped reporting before the end".to_string();
                return Err(Error::OutcomeUnknown { message });
            }
            Err(status) => {
                self.stage = Stage::Ended;
                return Err(Error::from_status("the broker", &status));
            }
        };
        if progress.done {
            self.stage = Stage::Ended;
        }
        Ok(Some(progress))
    }
}

impl Operation {
    async fn start(self, client: &Client) -> Result<Streaming<v1::BulkReply>, Error> {
        let once = Repeat::IfNotTaken;
        match self {
            Operation::Purge(request) => {
                client
                    .call(request, once, |mut wire, request| async move {
                        wire.purge_queue(request).await
                    })
                    .await
            }
            Operation::RetryDead(request) => {
                client
                    .call(request, once, |mut wire, request| async move {
                        wire.retry_dead(request).await
                    })
                    .await
            }
            Operation::DiscardDead(request) => {
                client
                    .call(request, once, |mut wire, request| async move {
                        wire.discard_dead(request).await
                    })
                    .await
            }
        }
    }
}

impl IntoFuture for Bulk {
    type Output = Result<BulkProgress, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut last = BulkProgress::default();
            while let Some(progress) = self.next().await? {
                last = progress;
            }
            Ok(last)
        })
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stage {
            Stage::Asked(operation) => f.debug_tuple("Bulk").field(operation).finish(),
            Stage::Running(_) => f.write_str("Bulk(running)"),
            Stage::Ended => f.write_str("Bulk(ended)"),
        }
    }
}
