//! Enqueue: one task, many tasks for any queues, or an atomic batch for one queue.
//!
//! Commands are encoded before the first await, so that a request's memory is free while its
//! answer is waited for.

use super::{Broker, check_queue, unexpected};
use crate::{Error, random::random_u128};
use std::future::Future;
use taskyard_machine::{
    Command, CommitBatch, EncodedCommand, Enqueue, EnqueueBatch, EnqueueMany, Enqueued, FollowUp,
    NewTask, Outcome, Rejection, ShardId, StageBatch, When, limits,
};

/// Where a task goes that names no queue.
pub const QUEUE_DEFAULT: &str = "default";

/// Tasks of one wire batch for one shard are proposed in commands of about this size, so that they
/// pack into log entries and no single one holds up the others.
const MANY_BYTES_MAX: usize = limits::ENTRY_BYTES_MAX / 2;

impl Broker {
    /// Adds one task.
    pub async fn enqueue(&self, enqueue: Enqueue<'_>) -> Result<Enqueued, Error> {
        self.check_enqueue(&enqueue)?;
        let shard = self.shards().home(enqueue.queue);
        let command = EncodedCommand::new(&Command::Enqueue(enqueue));
        match self.shards().propose(shard, command, true).await? {
            Outcome::Enqueued(enqueued) => Ok(enqueued),
            other => unexpected(&other),
        }
    }

    /// Adds many tasks to any queues with one hand-off; each gets its own answer, in order. What a
    /// front could not read comes in as its error and goes out as its answer.
    pub fn enqueue_many(
        &self,
        items: Vec<Result<Enqueue<'_>, Error>>,
        batch_id: Option<u128>,
    ) -> impl Future<Output = Vec<Result<Enqueued, Error>>> + Send + use<> {
        let too_many = check_batch_length(items.len()).err();
        let mut answers: Vec<Result<Enqueued, Error>> = Vec::with_capacity(items.len());
        let mut shares = Shares::new(self.shards().count());
        for (position, item) in items.into_iter().enumerate() {
            let checked = match &too_many {
                Some(error) => Err(error.clone()),
                None => item.and_then(|enqueue| {
                    self.check_enqueue(&enqueue)?;
                    Ok(enqueue)
                }),
            };
            // Replaced by the shard's answer, unless none comes.
            answers.push(Err(Error::OutcomeUnknown));
            match checked {
                Ok(enqueue) => shares.add(self.shards().home(enqueue.queue), position, enqueue),
                Err(error) => answers[position] = Err(error),
            }
        }
        let (commands, positions) = shares.encode(batch_id);
        let shards = self.shards().clone();
        async move {
            if commands.is_empty() {
                return answers;
            }
            let outcomes = shards.propose_all(commands, true).await;
            for (outcome, positions) in outcomes.into_iter().zip(positions) {
                match outcome {
                    Ok(Outcome::EnqueuedMany(enqueued)) => {
                        for (position, answer) in positions.into_iter().zip(enqueued) {
                            answers[position] = answer.map_err(Error::from);
                        }
                    }
                    Ok(other) => unexpected(&other),
                    Err(error) => {
                        positions.iter().for_each(|&at| answers[at] = Err(error.clone()));
                    }
                }
            }
            answers
        }
    }

    /// Adds many tasks to one queue, all or none; past the size of one log entry staged in parts,
    /// invisible until the last.
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
        let shard = self.shards().home(queue);
        let commands = if bytes <= limits::ENTRY_BYTES_MAX {
            let batch = EnqueueBatch { batch_id, queue, tasks };
            vec![(shard, EncodedCommand::new(&Command::EnqueueBatch(batch)))]
        } else {
            // Parts of a batch that is refused later would be kept for a while.
            for (index, task) in (0..).zip(&tasks) {
                task.check_shape().map_err(|rejection| Rejection::BatchElement {
                    index,
                    rejection: Box::new(rejection),
                })?;
            }
            staged(shard, queue, tasks, batch_id.unwrap_or_else(random_u128))
        };
        let shards = self.shards().clone();
        Ok(async move {
            let mut last = None;
            for outcome in shards.propose_all(commands, true).await {
                last = Some(outcome?);
            }
            match last {
                Some(Outcome::EnqueuedBatch(enqueued)) => Ok(enqueued),
                Some(other) => unexpected(&other),
                None => Err(Error::OutcomeUnknown),
            }
        })
    }

    /// A task that an ack enqueues, checked and routed.
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

    /// Checks a payload against this node's own limit.
    pub(super) fn check_payload(&self, payload: &[u8]) -> Result<(), Error> {
        let (bytes, bytes_max) = (payload.len(), self.0.payload_bytes_max);
        if bytes > bytes_max {
            return Err(Error::PayloadTooLarge { bytes, bytes_max });
        }
        Ok(())
    }
}

fn check_batch_length(tasks: usize) -> Result<(), Error> {
    let tasks_max = limits::BATCH_TASKS_MAX;
    if tasks > tasks_max {
        let text =
            format!("the batch has {tasks} tasks, at most {tasks_max} are allowed; split it");
        return Err(Error::Invalid(text));
    }
    Ok(())
}

/// About how long the task's encoding is.
pub(super) fn task_bytes(task: &NewTask<'_>) -> usize {
    let headers: usize = task.body.headers.iter().map(|(key, value)| key.len() + value.len()).sum();
    let tags: usize = task.tags.iter().map(|tag| tag.len()).sum();
    let key = task.unique.as_ref().map_or(0, |unique| unique.key.len());
    let texts = task.task_type.len() + task.request_id.map_or(0, str::len) + key;
    task.body.payload.len() + headers + tags + texts + 64
}

/// The parts of a batch and their commit, in the order in which they must be applied.
fn staged(
    shard: ShardId,
    queue: &str,
    tasks: Vec<NewTask<'_>>,
    batch_id: u128,
) -> Vec<(ShardId, EncodedCommand)> {
    let mut commands = Vec::new();
    let mut parts = 0;
    let mut part_tasks = Vec::new();
    let mut part_bytes = 0;
    let mut stage = |tasks: Vec<NewTask<'_>>, parts: &mut u32| {
        let part = StageBatch { batch_id, queue, part: *parts, tasks };
        commands.push((shard, EncodedCommand::new(&Command::StageBatch(part))));
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
    commands
        .push((shard, EncodedCommand::new(&Command::CommitBatch(CommitBatch { batch_id, parts }))));
    commands
}

/// The tasks of one wire batch, by shard.
struct Shares<'a> {
    shares: Vec<Share<'a>>,
    /// Per shard: its share that is being filled, and how many were filled before it.
    filling: Vec<Option<(usize, u32)>>,
}

struct Share<'a> {
    shard: ShardId,
    /// Which of its shard's shares it is, from 0.
    number: u32,
    items: Vec<Enqueue<'a>>,
    positions: Vec<usize>,
    bytes: usize,
}

impl<'a> Shares<'a> {
    fn new(shards: u16) -> Shares<'a> {
        Shares { shares: Vec::new(), filling: vec![None; usize::from(shards)] }
    }

    fn add(&mut self, shard: ShardId, position: usize, enqueue: Enqueue<'a>) {
        let bytes = task_bytes(&enqueue.task);
        let slot = &mut self.filling[usize::from(shard.0)];
        let index = match *slot {
            Some((index, _)) if self.shares[index].bytes + bytes <= MANY_BYTES_MAX => index,
            full => {
                let number = full.map_or(0, |(_, number)| number + 1);
                let (items, positions) = (Vec::new(), Vec::new());
                self.shares.push(Share { shard, number, items, positions, bytes: 0 });
                let index = self.shares.len() - 1;
                *slot = Some((index, number));
                index
            }
        };
        let share = &mut self.shares[index];
        share.bytes += bytes;
        share.items.push(enqueue);
        share.positions.push(position);
    }

    /// One command per share, and the positions that its answers belong to.
    fn encode(self, batch_id: Option<u128>) -> (Vec<(ShardId, EncodedCommand)>, Vec<Vec<usize>>) {
        let encode = |share: Share<'_>| {
            let batch_id = batch_id.map(|id| share_id(id, share.number));
            let many = EnqueueMany { batch_id, items: share.items };
            let command = EncodedCommand::new(&Command::EnqueueMany(many));
            ((share.shard, command), share.positions)
        };
        self.shares.into_iter().map(encode).unzip()
    }
}

/// The identity of one share of a wire batch: the same for the same request, so that a repetition
/// is known share by share. Far apart even where clients number their batches.
fn share_id(batch_id: u128, number: u32) -> u128 {
    const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    batch_id ^ u128::from(number).wrapping_mul(SPREAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_numbered_batches_never_meet() {
        let mut seen = std::collections::HashSet::new();
        for batch in 0..100 {
            for number in 0..100 {
                assert!(seen.insert(share_id(batch, number)), "batch {batch} share {number}");
            }
        }
    }
}
