//! Deletes queues that have no tasks but finished ones.
//!
//! The queue's home shard decides, in one entry. A queue whose tasks were on several shards is
//! first deleted on the others, which accept none of its tasks once its spread is 1. Every step may
//! be repeated, and a deletion that stops half-way leaves a queue that works.

use super::{Broker, inspect::queue_name, unexpected};
use crate::Error;
use taskyard_machine::{
    Command, DeleteQueue, HeldTasks, Outcome, Rejection, ShardId, SpreadView, TrimQueue, ask,
    spread_shards,
};

impl Broker {
    /// Deletes a queue with its settings. Refused while the queue has tasks that have not ended, or
    /// dead letters. Goes on to its end even if the caller goes away.
    pub async fn delete_queue(&self, queue: &str) -> Result<(), Error> {
        let (broker, queue) = (self.clone(), queue.to_owned());
        let deleted = tokio::spawn(async move { broker.delete_to_end(&queue).await });
        deleted.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    async fn delete_to_end(&self, queue: &str) -> Result<(), Error> {
        // The counts of all shards, before anything is changed.
        let held = HeldTasks::of(&self.queue(queue).await?.counts);
        if !held.is_none() {
            return Err(Rejection::QueueNotEmpty { queue: queue_name(queue), held }.into());
        }
        let home = self.shards().home(queue);
        let Some(at_home) = self.spread_at_home(queue).await? else {
            return self.delete_at(home, queue, 0).await;
        };
        if at_home.spread > 1 {
            let shards = at_home.spread;
            return Err(Error::Refused(format!(
                "queue {queue} is spread over {shards} shards; narrow it first: taskyard queue set {queue} \
                 --spread 1"
            )));
        }
        // All nodes must know that the queue is on its home alone, or they would go on without it.
        self.complete_spread_to_end(queue).await?;
        if at_home.reach > 1 {
            let others = spread_shards(queue, at_home.reach, self.shards().count()).skip(1);
            for shard in others {
                self.delete_beside(shard, queue, at_home.version).await?;
            }
            let trim = Command::TrimQueue(TrimQueue { queue, version: at_home.version });
            self.propose(home, &trim).await?;
            self.complete_spread_to_end(queue).await?;
        }
        self.delete_at(home, queue, 0).await
    }

    /// Deletes a queue on a shard beside its home, where an earlier try may have deleted it.
    async fn delete_beside(&self, shard: ShardId, queue: &str, version: u64) -> Result<(), Error> {
        let deleted = match self.delete_at(shard, queue, version).await {
            Err(Error::OutcomeUnknown) => self.delete_at(shard, queue, version).await,
            deleted => deleted,
        };
        match deleted {
            Err(Error::Rejected(Rejection::QueueNotFound { .. })) => Ok(()),
            deleted => deleted,
        }
    }

    /// The spread of a queue that is or was spread, as its home shard knows it.
    async fn spread_at_home(&self, queue: &str) -> Result<Option<SpreadView>, Error> {
        let home = self.shard_of_queue(queue)?;
        let view = self.shards().ask(home, ask::Spread { queue: queue_name(queue) }).await?;
        Ok(view.filter(|view| view.version > 0))
    }

    async fn delete_at(&self, shard: ShardId, queue: &str, version: u64) -> Result<(), Error> {
        let delete = Command::DeleteQueue(DeleteQueue { queue, version });
        match self.propose(shard, &delete).await? {
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }
}
