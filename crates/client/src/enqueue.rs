//! Enqueue: one task or an atomic batch on its way to the broker, and the answer.

use crate::{
    Client, Error, NewTask, ResultOf, RetryPolicy, TaskId, Timestamp, Unique, connection::Repeat,
    new_task::task_options, random, timestamp::millis,
};
use serde_json::Value;
use std::{
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    time::Duration,
};
use taskyard_proto::v1;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A task that is being enqueued: set its options, then await it.
///
/// Made by [`Client::enqueue`] and [`Client::task`].
#[must_use = "an enqueue does nothing until it is awaited"]
pub struct Enqueue<Output = Value> {
    client: Client,
    task: NewTask,
    output: PhantomData<fn() -> Output>,
}

impl<Output> Enqueue<Output> {
    pub(crate) fn new(client: Client, task: NewTask) -> Enqueue<Output> {
        Enqueue { client, task, output: PhantomData }
    }

    task_options!(Enqueue<Output>, |self, change| {
        Enqueue { task: self.task.with(change), ..self }
    });
}

impl<Output: 'static> IntoFuture for Enqueue<Output> {
    type Output = Result<Enqueued<Output>, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let task = self.task.into_wire()?;
            let reply = self.client.gather().enqueue(task, self.client.deadline()).await?;
            Ok(Enqueued::new(self.client, reply))
        })
    }
}

impl<Output> fmt::Debug for Enqueue<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Enqueue").field(&self.task).finish()
    }
}

/// A task that the broker has on disk.
pub struct Enqueued<Output = Value> {
    client: Client,
    id: TaskId,
    duplicate: bool,
    output: PhantomData<fn() -> Output>,
}

impl<Output> Enqueued<Output> {
    pub(crate) fn new(client: Client, reply: v1::EnqueueReply) -> Enqueued<Output> {
        let (id, duplicate) = (TaskId::from(reply.id), reply.duplicate);
        Enqueued { client, id, duplicate, output: PhantomData }
    }

    /// The task's id.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// Whether the `request_id` was known or another task has the unique key: the id then names the
    /// earlier task, and no task was added.
    pub fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    /// The result of the task, once it has ended: await it, with a limit if you like.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// # use std::time::Duration;
    /// let task = client.task("add", &[1, 2]).await?;
    /// let sum = task.result().within(Duration::from_secs(10)).await?;
    /// # let _ = sum; Ok(()) }
    /// ```
    pub fn result(&self) -> ResultOf<Output> {
        ResultOf::new(self.client.clone(), self.id.clone())
    }
}

impl<Output> From<Enqueued<Output>> for TaskId {
    fn from(enqueued: Enqueued<Output>) -> TaskId {
        enqueued.id
    }
}

impl<Output> fmt::Debug for Enqueued<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueued")
            .field("id", &self.id)
            .field("duplicate", &self.duplicate)
            .finish_non_exhaustive()
    }
}

/// Tasks for one queue that are enqueued together, all or none. Made by [`Client::batch`].
#[derive(Debug)]
#[must_use = "a batch does nothing until it is sent"]
pub struct Batch {
    client: Client,
    queue: String,
    tasks: Vec<NewTask>,
}

impl Batch {
    pub(crate) fn new(client: Client, queue: String) -> Batch {
        Batch { client, queue, tasks: Vec::new() }
    }

    /// Adds a task: a declared one, or a [`NewTask`]. The task goes to the batch's queue, even if
    /// its type names another.
    pub fn push(mut self, task: impl Into<NewTask>) -> Batch {
        self.tasks.push(task.into().queue(""));
        self
    }

    /// Adds many tasks.
    pub fn extend(self, tasks: impl IntoIterator<Item = impl Into<NewTask>>) -> Batch {
        tasks.into_iter().fold(self, Batch::push)
    }

    /// The number of tasks so far.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the batch has no task yet.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Enqueues all tasks, or none. The answers are in the order of the tasks.
    pub async fn send(self) -> Result<Vec<Enqueued>, Error> {
        let Batch { client, queue, tasks } = self;
        let mut wire = Vec::with_capacity(tasks.len());
        for (index, task) in tasks.into_iter().enumerate() {
            let task = task.into_wire();
            wire.push(task.map_err(|problem| {
                let message = format!("task {index} of the batch: {problem}; nothing was enqueued");
                Error::Invalid(message)
            })?);
        }
        let batch_id = random::identity().to_vec();
        let request = v1::EnqueueBatchRequest { queue, tasks: wire, batch_id };
        // Its batch id makes a repetition safe.
        let reply = client
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.enqueue_batch(request).await
            })
            .await?;
        Ok(reply.tasks.into_iter().map(|task| Enqueued::new(client.clone(), task)).collect())
    }
}
