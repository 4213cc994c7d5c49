//! Deletes queues that have no tasks but finished ones.
//!
//! The queue's home shard decides, in one entry. A queue on several shards is first narrowed to its
//! home and deleted on the others, which then accept none of its tasks. Every step may be repeated,
//! and a deletion that stops half-way leaves a queue that works: on its home shard alone.

use super::{Broker, inspect::queue_name, unexpected};
use crate::Error;
use taskyard_machine::{
    Command, DeleteQueue, HeldTasks, Outcome, QueueSettings, Rejection, ShardId, SpreadView,
    TrimQueue, ask, spread_shards,
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
        match self.spread_at_home(queue).await? {
            Some(at_home) if at_home.reach > 1 => self.delete_spread(queue, at_home).await,
            _ => self.delete_at(self.shards().home(queue), queue, 0).await,
        }
    }

    /// Narrows a queue to its home and deletes it. If a task comes in between, the queue gets its
    /// spread back.
    async fn delete_spread(&self, queue: &str, at_home: SpreadView) -> Result<(), Error> {
        let before = self.queue_settings(queue).await?;
        if at_home.spread > 1 {
            let narrow = QueueSettings { spread: None, ..before.clone() };
            self.set_queue(queue, narrow).await?;
        }
        let deleted = self.delete_narrow(queue).await;
        let is_kept = matches!(
            deleted,
            Err(Error::Rejected(Rejection::QueueNotEmpty { .. } | Rejection::QueueMoved { .. }))
        );
        if is_kept
            && at_home.spread > 1
            && let Err(error) = self.set_queue(queue, before).await
        {
            tracing::warn!(
                %queue, %error,
                "the queue was not deleted, and stays on its home shard alone; set its spread again"
            );
        }
        deleted
    }

    async fn delete_narrow(&self, queue: &str) -> Result<(), Error> {
        self.complete_spread_to_end(queue).await?;
        let home = self.shards().home(queue);
        let at_home = self.spread_at_home(queue).await?;
        if let Some(at_home) = at_home.filter(|at_home| at_home.reach > 1) {
            let others = spread_shards(queue, at_home.reach, self.shards().count()).skip(1);
            for shard in others {
                match self.delete_at(shard, queue, at_home.version).await {
                    // An earlier try has deleted it there.
                    Err(Error::Rejected(Rejection::QueueNotFound { .. })) => {}
                    deleted => deleted?,
                }
            }
            let trim = Command::TrimQueue(TrimQueue { queue, version: at_home.version });
            self.propose(home, &trim).await?;
            self.complete_spread_to_end(queue).await?;
        }
        self.delete_at(home, queue, 0).await
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
