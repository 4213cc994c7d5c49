//! Enqueue: one task, many tasks for any queues, or an atomic batch for one queue.
//!
//! Commands are encoded before the first await, so that a request's memory is free while its answer
//! is awaited.

use super::{
    Broker, check_queue,
    place::{Look, Placing, is_moved},
    shares::Shares,
    staging::Staging,
    unexpected,
};
use crate::Error;
use std::{collections::BTreeMap, future::Future};
use taskyard_machine::{
    Command, CommitBatch, EncodedCommand, Enqueue, EnqueueBatch, Enqueued, FollowUp, NewTask,
    Outcome, Rejection, StageBatch, TaskId, When, limits,
};

/// The queue of a task that names none.
pub const QUEUE_DEFAULT: &str = "default";

impl Broker {
    /// Adds one task.
    pub async fn enqueue(&self, enqueue: Enqueue<'_>) -> Result<Enqueued, Error> {
        self.check_enqueue(&enqueue)?;
        if self.shards().spread(enqueue.queue).is_some() {
            return self.enqueue_placed(&Placing::new(enqueue)).await;
        }
        let shard = self.shards().home(enqueue.queue);
        let command = EncodedCommand::new(&Command::Enqueue(enqueue.clone()));
        match self.shards().propose(shard, command, true).await {
            Ok(Outcome::Enqueued(enqueued)) => Ok(enqueued),
            Ok(other) => unexpected(&other),
            // The queue was spread a moment ago, and this node did not know it yet.
            Err(error) if is_moved(&error) => self.enqueue_placed(&Placing::new(enqueue)).await,
            Err(error) => Err(error),
        }
    }

    /// Adds many tasks to any queues in one go; each gets its own answer, in order. An item that
    /// the front could not read comes in as an error and is its own answer.
    pub fn enqueue_many(
        &self,
        items: Vec<Result<Enqueue<'_>, Error>>,
        batch_id: Option<u128>,
    ) -> impl Future<Output = Vec<Result<Enqueued, Error>>> + Send + use<> {
        let too_many = check_batch_length(items.len()).err();
        let mut answers: Vec<Result<Enqueued, Error>> = Vec::with_capacity(items.len());
        let mut shares = Shares::default();
        // Tasks whose request an earlier shard of their queue may remember.
        let mut placings = Vec::new();
        let turn = self.turn_of(batch_id);
        for (position, item) in items.into_iter().enumerate() {
            let checked = match &too_many {
                Some(error) => Err(error.clone()),
                None => item.and_then(|enqueue| {
                    self.check_enqueue(&enqueue)?;
                    Ok(enqueue)
                }),
            };
            // The shard's answer replaces this, unless none comes.
            answers.push(Err(Error::OutcomeUnknown));
            match checked {
                Ok(enqueue) => {
                    let place = self.place(enqueue.queue, &enqueue.task, turn);
                    match place.looks.is_empty() {
                        true => shares.add(&place, position, enqueue),
                        false => placings.push((position, Placing::new(enqueue))),
                    }
                }
                Err(error) => answers[position] = Err(error),
            }
        }
        let (commands, sent) = shares.encode(batch_id);
        let broker = self.clone();
        async move {
            if !commands.is_empty() {
                let outcomes = broker.shards().propose_all(commands, true).await;
                for (outcome, sent) in outcomes.into_iter().zip(sent) {
                    sent.answer(outcome, &mut answers, &mut placings);
                }
            }
            if !placings.is_empty() {
                broker.enqueue_each_placed(placings, &mut answers).await;
            }
            broker.await_spreads(&answers).await;
            answers
        }
    }

    /// Adds many tasks to one queue, all or none. A batch over the size of one log entry is staged
    /// in parts, which stay invisible until the last.
    pub fn enqueue_batch(
        &self,
        queue: &str,
        tasks: Vec<NewTask<'_>>,
        batch_id: Option<u128>,
    ) -> Result<impl Future<Output = Result<Vec<Enqueued>, Error>> + Send + use<>, Error> {
        check_queue(queue)?;
        if tasks.is_empty() {
            return Err(Error::Invalid("the batch is empty; send at least one task".into()));
        }
        check_batch_length(tasks.len())?;
        let mut bytes = 0;
        for (index, task) in tasks.iter().enumerate() {
            self.check_task(task)
                .map_err(|error| Error::Element { index, error: Box::new(error) })?;
            bytes += task_bytes(task);
        }
        if bytes > limits::BATCH_BYTES_MAX {
            let bytes_max = limits::BATCH_BYTES_MAX;
            return Err(Error::Invalid(format!(
                "the batch has {bytes} bytes, at most {bytes_max} are allowed; split it"
            )));
        }
        let version = self.shards().spread(queue).map_or(0, |lies| lies.version);
        let (shard, looks) = self.place_batch(queue, &tasks, batch_id)?;
        let count = tasks.len();
        let mut staging = None;
        let commands = if bytes <= limits::ENTRY_BYTES_MAX {
            let batch = EnqueueBatch { batch_id, queue, tasks };
            vec![EncodedCommand::new(&Command::EnqueueBatch(batch))]
        } else {
            // Check first, because the parts of a batch that is rejected later would stay for a
            // while.
            for (index, task) in (0..).zip(&tasks) {
                task.check_shape().map_err(|rejection| Rejection::BatchElement {
                    index,
                    rejection: Box::new(rejection),
                })?;
            }
            let under = staging.insert(Staging::new(self.shards(), shard, batch_id));
            staged(queue, tasks, under.batch_id)
        };
        let (broker, queue) = (self.clone(), queue.to_owned());
        Ok(async move {
            if let Some(known) = broker.known_batch(&queue, looks, count).await? {
                return Ok(known);
            }
            let outcome = broker.shards().propose_in_turn(shard, commands, true).await;
            if outcome.as_ref().is_err_and(is_moved) {
                // A repeated call goes to the shards that the queue has now.
                broker.await_spread(&queue, version).await?;
            }
            match outcome? {
                Outcome::EnqueuedBatch(enqueued) => {
                    if let Some(staging) = staging {
                        staging.committed();
                    }
                    Ok(enqueued)
                }
                other => unexpected(&other),
            }
        })
    }

    /// The answer to a batch that shards know from before its queue was spread anew, if they know
    /// all its tasks.
    async fn known_batch(
        &self,
        queue: &str,
        looks: Vec<Look>,
        count: usize,
    ) -> Result<Option<Vec<Enqueued>>, Error> {
        let indexes: Vec<usize> = looks.iter().map(|look| look.index).collect();
        let asked = looks.into_iter().map(|look| (look.shard, look.request)).collect();
        let found = indexes.into_iter().zip(self.known(asked).await?);
        let known: BTreeMap<usize, TaskId> =
            found.filter_map(|(index, id)| Some((index, id?))).collect();
        match known.len() {
            0 => Ok(None),
            all if all == count => {
                Ok(Some(known.into_values().map(|id| Enqueued { id, duplicate: true }).collect()))
            }
            some => Err(Error::Invalid(format!(
                "the batch can't be all or none: {some} of its {count} tasks are known from before queue \
                 {queue} was spread anew; send its tasks one by one"
            ))),
        }
    }

    /// A task that an ack or a tally enqueues, checked and routed to the home shard of its queue.
    /// The home is always one of the queue's shards.
    pub fn follow_up<'a>(&self, enqueue: Enqueue<'a>) -> Result<FollowUp<'a>, Error> {
        self.check_enqueue(&enqueue)?;
        Ok(FollowUp { home: self.shards().home(enqueue.queue), enqueue })
    }

    pub(super) fn check_enqueue(&self, enqueue: &Enqueue<'_>) -> Result<(), Error> {
        check_queue(enqueue.queue)?;
        self.check_task(&enqueue.task)
    }

    fn check_task(&self, task: &NewTask<'_>) -> Result<(), Error> {
        if let When::At(run_at) = task.run_at {
            self.check_moment("run_at", run_at)?;
        }
        if let Some(expires_at) = task.expires_at {
            self.check_moment("expires_at", expires_at)?;
        }
        self.check_payload(task.body.payload)
    }

    /// The longest payload that this node takes.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.0.payload_bytes_max
    }

    pub(super) fn check_payload(&self, payload: &[u8]) -> Result<(), Error> {
        let (bytes, bytes_max) = (payload.len(), self.0.payload_bytes_max);
        if bytes > bytes_max {
            return Err(Error::PayloadTooLarge { bytes, bytes_max });
        }
        Ok(())
    }
}

pub(crate) fn check_batch_length(tasks: usize) -> Result<(), Error> {
    let tasks_max = limits::BATCH_TASKS_MAX;
    if tasks > tasks_max {
        let text =
            format!("the batch has {tasks} tasks, at most {tasks_max} are allowed; split it");
        return Err(Error::Invalid(text));
    }
    Ok(())
}

/// The approximate length of the task's encoding.
pub(super) fn task_bytes(task: &NewTask<'_>) -> usize {
    let headers: usize = task.body.headers.iter().map(|(key, value)| key.len() + value.len()).sum();
    let tags: usize = task.tags.iter().map(|tag| tag.len()).sum();
    let key = task.unique.as_ref().map_or(0, |unique| unique.key.len());
    let texts = task.task_type.len() + task.request_id.map_or(0, str::len) + key;
    task.body.payload.len() + headers + tags + texts + 64
}

/// The parts of a batch and their commit, in the order in which they must be applied.
fn staged(queue: &str, tasks: Vec<NewTask<'_>>, batch_id: u128) -> Vec<EncodedCommand> {
    let mut commands = Vec::new();
    let mut parts = 0;
    let mut part_tasks = Vec::new();
    let mut part_bytes = 0;
    let mut stage = |tasks: Vec<NewTask<'_>>, parts: &mut u32| {
        let part = StageBatch { batch_id, queue, part: *parts, tasks };
        commands.push(EncodedCommand::new(&Command::StageBatch(part)));
        *parts += 1;
    };
    for task in tasks {
        let bytes = task_bytes(&task);
        if !part_tasks.is_empty() && part_bytes + bytes > limits::ENTRY_BYTES_MAX {
            stage(std::mem::take(&mut part_tasks), &mut parts);
            part_bytes = 0;
        }
        part_bytes += bytes;
        part_tasks.push(task);
    }
    stage(part_tasks, &mut parts);
    commands.push(EncodedCommand::new(&Command::CommitBatch(CommitBatch { batch_id, parts })));
    commands
}
