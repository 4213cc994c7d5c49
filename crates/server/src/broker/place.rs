//! Place: chooses the shard of a new task.
//!
//! A queue is on its home shard, or spread over it and the shards after it. In a spread queue, a
//! task with a unique key goes to the home shard, a task with a `request_id` to the shard of its
//! hash, and all others take turns. After a change of spread, shards that may remember a request by
//! an earlier spread are asked first. A shard that knows of the change rejects tasks that belong
//! elsewhere. In either order of events, one request therefore makes one task.

use super::{Broker, unexpected};
use crate::Error;
use futures_util::future::{join_all, try_join_all};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};
use taskyard_machine::{
    Command, EncodedCommand, Enqueue, Enqueued, NewTask, Outcome, QueueName, Rejection, ShardId,
    TaskId, ask, request_shard, spread_shards,
};
use taskyard_replica::Spread;
use tokio::time::timeout;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// How often a task is sent again after it went to a wrong shard; one change of spread explains one
/// time.
const MOVES_MAX: usize = 3;
/// How long a change of spread normally takes to reach all nodes.
const CHANGES_WITHIN: Duration = Duration::from_millis(200);

/// A queue and a request id.
pub(super) type Request = (String, String);

/// The place of a new task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: ShardId,
    /// The version of its queue's spread; 0 for a queue that is not spread.
    pub(super) version: u64,
    /// Separates the shares of a wire batch: 0 for queues that are not spread, `None` for a task
    /// whose request id is enough.
    pub(super) salt: Option<u128>,
    /// Shards that may remember its request.
    pub(super) looks: Vec<ShardId>,
}

/// A shard that may remember the request of one task of a batch.
pub(super) struct Look {
    pub(super) shard: ShardId,
    /// The task's position in its batch.
    pub(super) index: usize,
    pub(super) request: Request,
}

/// One task for a spread queue, owned, so that it can be placed again.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    queue: String,
    request_id: Option<String>,
    is_unique: bool,
    command: EncodedCommand,
}

impl Placing {
    pub(super) fn new(enqueue: Enqueue<'_>) -> Placing {
        Placing {
            queue: enqueue.queue.to_owned(),
            request_id: enqueue.task.request_id.map(str::to_owned),
            is_unique: enqueue.task.unique.is_some(),
            command: EncodedCommand::new(&Command::Enqueue(enqueue)),
        }
    }

    fn request(&self) -> Request {
        (self.queue.clone(), self.request_id.clone().unwrap_or_default())
    }
}

impl Broker {
    /// The next turn of tasks that may go to any shard of their queue.
    pub(super) fn next_turn(&self) -> u64 {
        self.0.turns.fetch_add(1, Relaxed)
    }

    /// The turn of a wire batch, the same when the batch is sent again.
    pub(super) fn turn_of(&self, batch_id: Option<u128>) -> u64 {
        match batch_id {
            None => self.next_turn(),
            Some(id) => xxh3_64(&id.to_le_bytes()),
        }
    }

    /// The place of a task; `turn` is for tasks that may go to any shard of their queue.
    pub(super) fn place(&self, queue: &str, task: &NewTask<'_>, turn: u64) -> Place {
        self.place_by(queue, task.request_id, task.unique.is_some(), turn)
    }

    fn place_by(&self, queue: &str, request_id: Option<&str>, is_unique: bool, turn: u64) -> Place {
        let home = self.shards().home(queue);
        let Some(current) = self.shards().spread(queue) else {
            return Place { shard: home, version: 0, salt: Some(0), looks: Vec::new() };
        };
        let version = current.version;
        let salt = match request_id {
            Some(_) => None,
            None => Some(xxh3_128_with_seed(queue.as_bytes(), current.spread.into())),
        };
        match request_id {
            _ if is_unique => Place { shard: home, version, salt, looks: Vec::new() },
            Some(request_id) => {
                let shards = self.shards().count();
                let shard = request_shard(queue, request_id, current.spread, shards);
                let looks = self.looks(queue, request_id, &current, shard);
                Place { shard, version, salt, looks }
            }
            None => {
                let position = (turn % u64::from(current.spread)) as usize;
                let mut shards = spread_shards(queue, current.spread, self.shards().count());
                let shard = shards.nth(position).unwrap_or(home);
                Place { shard, version, salt, looks: Vec::new() }
            }
        }
    }

    /// The other shards that may remember a request, by earlier spreads of its queue.
    fn looks(
        &self,
        queue: &str,
        request_id: &str,
        current: &Spread,
        shard: ShardId,
    ) -> Vec<ShardId> {
        let now = self.now();
        let before = current.before.iter().filter(|past| past.until_ms > now.0);
        let mut looks: Vec<ShardId> = before
            .map(|past| request_shard(queue, request_id, past.spread, self.shards().count()))
            .filter(|look| *look != shard)
            .collect();
        looks.sort_unstable();
        looks.dedup();
        looks
    }

    /// The only shard that all tasks of an atomic batch may go to, and the shards that may remember
    /// their requests.
    pub(super) fn place_batch(
        &self,
        queue: &str,
        tasks: &[NewTask<'_>],
        batch_id: Option<u128>,
    ) -> Result<(ShardId, Vec<Look>), Error> {
        let turn = self.turn_of(batch_id);
        let mut bound: Option<ShardId> = None;
        let mut looks = Vec::new();
        for (index, task) in tasks.iter().enumerate() {
            let place = self.place(queue, task, turn);
            if task.request_id.is_none() && task.unique.is_none() {
                continue;
            }
            let request = (queue.to_owned(), task.request_id.unwrap_or_default().to_owned());
            let look = |&shard: &ShardId| Look { shard, index, request: request.clone() };
            looks.extend(place.looks.iter().map(look));
            if *bound.get_or_insert(place.shard) != place.shard {
                return Err(Error::Invalid(format!(
                    "the batch can't be all or none: queue {queue} is spread, and the request ids and \
                     unique keys of the batch belong to several of its shards; send its tasks one by \
                     one, or without them"
                )));
            }
        }
        let plain = NewTask::default();
        Ok((bound.unwrap_or_else(|| self.place(queue, &plain, turn).shard), looks))
    }

    /// Adds one task to a queue that is spread, or that a shard says is.
    pub(super) async fn enqueue_placed(&self, placing: &Placing) -> Result<Enqueued, Error> {
        let turn = self.next_turn();
        for _ in 0..MOVES_MAX {
            let Placing { queue, request_id, is_unique, command } = placing;
            let place = self.place_by(queue, request_id.as_deref(), *is_unique, turn);
            let looks = place.looks.iter().map(|&shard| (shard, placing.request())).collect();
            if let Some(id) = self.known(looks).await?.into_iter().flatten().next() {
                return Ok(Enqueued { id, duplicate: true });
            }
            match self.shards().propose(place.shard, command.clone(), true).await {
                Ok(Outcome::Enqueued(enqueued)) => return Ok(enqueued),
                Ok(other) => unexpected(&other),
                Err(error) if is_moved(&error) => self.await_spread(queue, place.version).await?,
                Err(error) => return Err(error),
            }
        }
        Err(moved(&placing.queue))
    }

    /// Waits until this node learns of a change of spread that a shard already knows. An unfinished
    /// change is completed here.
    pub(super) async fn await_spread(&self, queue: &str, known: u64) -> Result<(), Error> {
        let mut changes = self.shards().routes().changes();
        let version = || self.shards().spread(queue).map_or(0, |current| current.version);
        let heard = async { while version() == known && changes.changed().await.is_ok() {} };
        match timeout(CHANGES_WITHIN, heard).await {
            Ok(()) => Ok(()),
            Err(_elapsed) => self.complete_spread(queue).await,
        }
    }

    /// Waits for the spreads of all queues in these answers whose tasks went to a wrong shard and
    /// cannot be placed again here. The caller sends them again, and then they reach their shards.
    pub(super) async fn await_spreads(&self, answers: &[Result<Enqueued, Error>]) {
        let moved = |answer: &Result<Enqueued, Error>| match answer {
            Err(Error::Rejected(Rejection::QueueMoved { queue })) => Some(queue.clone()),
            _ => None,
        };
        let queues: BTreeSet<QueueName> = answers.iter().filter_map(moved).collect();
        for queue in queues {
            // If the change cannot be completed now, the next call tries again.
            let _ = self.await_spread(queue.as_str(), 0).await;
        }
    }

    /// Calls `enqueue_placed` for many tasks, each with the position of its answer.
    pub(super) async fn enqueue_each_placed(
        &self,
        placings: Vec<(usize, Placing)>,
        answers: &mut [Result<Enqueued, Error>],
    ) {
        let made = placings.iter().map(|(_, placing)| self.enqueue_placed(placing));
        for (&(position, _), answer) in placings.iter().zip(join_all(made).await) {
            answers[position] = answer;
        }
    }

    /// The tasks of requests that shards remember, in the same order.
    pub(super) async fn known(
        &self,
        asked: Vec<(ShardId, Request)>,
    ) -> Result<Vec<Option<TaskId>>, Error> {
        let mut known = vec![None; asked.len()];
        let mut by_shard: BTreeMap<ShardId, Vec<(usize, Request)>> = BTreeMap::new();
        for (index, (shard, request)) in asked.into_iter().enumerate() {
            by_shard.entry(shard).or_default().push((index, request));
        }
        let answers = by_shard.into_iter().map(|(shard, asked)| async move {
            let (indexes, requests): (Vec<usize>, Vec<Request>) = asked.into_iter().unzip();
            let found = self.shards().ask(shard, ask::KnownRequests { requests }).await?;
            Ok::<_, Error>(indexes.into_iter().zip(found))
        });
        for (index, found) in try_join_all(answers).await?.into_iter().flatten() {
            known[index] = found;
        }
        Ok(known)
    }
}

/// Whether a shard says that the task belongs on another.
pub(super) fn is_moved(error: &Error) -> bool {
    matches!(error, Error::Rejected(Rejection::QueueMoved { .. }))
}

fn moved(queue: &str) -> Error {
    Error::Unavailable(format!("queue {queue} is being spread over other shards; send it again"))
}
