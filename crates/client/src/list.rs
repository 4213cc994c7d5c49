//! Lists of tasks: filters and pages.

use crate::{Client, Error, FlowId, TaskDetails, TaskState, Timestamp, connection::Repeat};
use std::collections::VecDeque;
use taskyard_proto::v1;

impl Client {
    /// Lists tasks, all or those that match the filters, page by page.
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
}

/// A filter of tasks. A part that is not set matches all tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter(v1::TaskFilter);

impl TaskFilter {
    /// All tasks.
    pub fn new() -> TaskFilter {
        TaskFilter::default()
    }

    /// Only tasks in this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> TaskFilter {
        self.0.queue = queue.into();
        self
    }

    /// Only tasks in this state.
    pub fn state(mut self, state: TaskState) -> TaskFilter {
        self.0.state = state.to_string();
        self
    }

    /// Only tasks of this type.
    pub fn kind(mut self, kind: impl Into<String>) -> TaskFilter {
        self.0.r#type = kind.into();
        self
    }

    /// Only tasks whose last error contains this text.
    pub fn error(mut self, error: impl Into<String>) -> TaskFilter {
        self.0.error = error.into();
        self
    }

    /// Only tasks with this tag.
    pub fn tag(mut self, tag: impl Into<String>) -> TaskFilter {
        self.0.tag = tag.into();
        self
    }

    /// Only tasks of this flow.
    pub fn flow(mut self, flow: impl Into<FlowId>) -> TaskFilter {
        self.0.flow = flow.into().into();
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
    newest_first: bool,
    since: Option<Timestamp>,
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
            newest_first: false,
            since: None,
            cursor: Cursor::At(String::new()),
            fetched: VecDeque::new(),
        }
    }

    /// Only tasks in this queue.
    pub fn queue(self, queue: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.queue(queue))
    }

    /// Only tasks in this state.
    pub fn state(self, state: TaskState) -> Tasks {
        self.narrow(|filter| filter.state(state))
    }

    /// Only tasks of this type.
    pub fn kind(self, kind: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.kind(kind))
    }

    /// Only tasks whose last error contains this text.
    pub fn error(self, error: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.error(error))
    }

    /// Only tasks with this tag.
    pub fn tag(self, tag: impl Into<String>) -> Tasks {
        self.narrow(|filter| filter.tag(tag))
    }

    /// Only tasks of this flow.
    pub fn flow(self, flow: impl Into<FlowId>) -> Tasks {
        self.narrow(|filter| filter.flow(flow))
    }

    /// Only tasks that match a filter, which replaces earlier ones.
    pub fn matching(self, filter: TaskFilter) -> Tasks {
        self.narrow(|_| filter)
    }

    /// Sets the number of tasks per page; by default the broker decides.
    pub fn page_size(mut self, tasks: u32) -> Tasks {
        self.page_size = tasks;
        self
    }

    /// Fetches payloads too.
    pub fn with_payload(mut self) -> Tasks {
        self.with_payload = true;
        self
    }

    /// Lists the newest tasks first: by their enqueue, or dead letters by their death. By default a
    /// list is in the order of ids.
    pub fn newest_first(mut self) -> Tasks {
        self.newest_first = true;
        self
    }

    /// Only tasks that were enqueued at this moment or later, or dead letters that died then, the
    /// newest first.
    pub fn since(mut self, moment: impl Into<Timestamp>) -> Tasks {
        (self.newest_first, self.since) = (true, Some(moment.into()));
        self
    }

    /// Continues at the [`cursor`](Tasks::cursor) of an earlier list.
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
            newest_first: self.newest_first,
            since: self.since.map(Timestamp::as_millis),
        };
        let reply = self
            .client
            .call(request, Repeat::Read, |mut wire, request| async move {
                wire.list_tasks(request).await
            })
            .await?;
        self.cursor = if reply.cursor.is_empty() { Cursor::End } else { Cursor::At(reply.cursor) };
        Ok(Some(reply.tasks.into_iter().map(TaskDetails::from).collect()))
    }

    /// All tasks of the list, up to `limit`.
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
