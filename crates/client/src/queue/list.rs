//! Lists of queues, page by page, or all at once.

use super::QueueDetails;
use crate::{Client, Error, connection::Repeat};
use std::{
    collections::VecDeque,
    future::{Future, IntoFuture},
    pin::Pin,
};
use taskyard_proto::v1;

/// Queues of a page while all are fetched: the most that a broker gives at once.
const PAGE_QUEUES_MAX: u32 = 1_000;

impl Client {
    /// Lists all queues by name, page by page. Await the list to get all of them at once.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// let mut queues = client.queues();
    /// while let Some(queue) = queues.next().await? {
    ///     println!("{}: {} ready", queue.name, queue.ready);
    /// }
    /// println!("{} queues", client.queues().await?.len());
    /// # Ok(()) }
    /// ```
    pub fn queues(&self) -> Queues {
        let request = v1::ListQueuesRequest::default();
        Queues { client: self.clone(), request, ended: false, fetched: VecDeque::new() }
    }
}

/// A list of queues, fetched page by page as it is read. Made by [`Client::queues`].
#[derive(Debug)]
#[must_use = "a list is not fetched until it is read"]
pub struct Queues {
    client: Client,
    /// The request for the next page; its cursor moves.
    request: v1::ListQueuesRequest,
    ended: bool,
    fetched: VecDeque<QueueDetails>,
}

impl Queues {
    /// Sets the number of queues per page; by default the broker decides.
    pub fn page_size(mut self, queues: u32) -> Queues {
        self.request.limit = queues;
        self
    }

    /// Continues at the [`cursor`](Queues::cursor) of an earlier list.
    pub fn after(mut self, cursor: impl Into<String>) -> Queues {
        self.request.cursor = cursor.into();
        self
    }

    /// The next queue; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<QueueDetails>, Error> {
        loop {
            if let Some(queue) = self.fetched.pop_front() {
                return Ok(Some(queue));
            }
            match self.page().await? {
                Some(page) => self.fetched.extend(page),
                None => return Ok(None),
            }
        }
    }

    /// The next page; `None` at the end.
    pub async fn page(&mut self) -> Result<Option<Vec<QueueDetails>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let reply = self
            .client
            .call(self.request.clone(), Repeat::Read, |mut wire, request| async move {
                wire.list_queues(request).await
            })
            .await?;
        self.ended = reply.cursor.is_empty();
        self.request.cursor = reply.cursor;
        Ok(Some(reply.queues.into_iter().map(QueueDetails::from).collect()))
    }

    /// Where the next page starts; `None` at the end.
    pub fn cursor(&self) -> Option<&str> {
        (!self.ended).then_some(self.request.cursor.as_str())
    }
}

/// Awaited: all queues that were not read yet.
impl IntoFuture for Queues {
    type Output = Result<Vec<QueueDetails>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            if self.request.limit == 0 {
                self.request.limit = PAGE_QUEUES_MAX;
            }
            let mut all: Vec<QueueDetails> = std::mem::take(&mut self.fetched).into();
            while let Some(page) = self.page().await? {
                all.extend(page);
            }
            Ok(all)
        })
    }
}
