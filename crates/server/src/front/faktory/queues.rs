//! QUEUE: pauses, resumes and empties queues, and says how long their oldest job has waited.

use super::{
    Shared,
    frame::{Reply, split},
};
use crate::{Error, limits::FAKTORY_REMOVED_MAX};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{MutexGuard, PoisonError},
};
use taskyard_machine::{QueueView, Rejection};

impl Shared {
    pub(super) async fn queue(&self, rest: &str) -> Result<Reply, Error> {
        let (verb, names) = split(rest);
        let names: Vec<&str> = names.split_ascii_whitespace().collect();
        match verb.to_ascii_uppercase().as_str() {
            "PAUSE" => {
                for queue in self.named(&names).await? {
                    self.broker.pause(queue.name.as_str()).await?;
                }
            }
            "RESUME" => {
                for queue in self.named(&names).await? {
                    self.broker.resume(queue.name.as_str()).await?;
                }
            }
            "REMOVE" => {
                for queue in self.named(&names).await? {
                    self.remove_queue(queue.name.as_str()).await?;
                }
            }
            "LATENCY" => return self.latency(&names).await,
            other => {
                let shown: String = other.chars().take(64).collect();
                return Ok(Reply::error(format!("no such QUEUE subcommand: {shown}")));
            }
        }
        Ok(Reply::Ok)
    }

    /// The queues of these names, or all for `*`; names without a queue are ignored.
    async fn named(&self, names: &[&str]) -> Result<Vec<QueueView>, Error> {
        let mut queues = self.broker.queues().await?;
        if !names.contains(&"*") {
            queues.retain(|queue| names.contains(&queue.name.as_str()));
        }
        Ok(queues)
    }

    /// The seconds since the oldest job of each queue could have been fetched.
    async fn latency(&self, names: &[&str]) -> Result<Reply, Error> {
        if names.contains(&"*") {
            return Ok(Reply::error("QUEUE LATENCY does not support wildcards"));
        }
        let known = self.named(names).await?;
        let waits = |name: &&str| {
            let queue = known.iter().find(|queue| queue.name.as_str() == *name);
            let waits_ms = queue.and_then(|queue| queue.oldest_ready_for_ms);
            waits_ms.map_or(0.0, |ms| ms as f64 / 1_000.0)
        };
        let waits: BTreeMap<&str, f64> = names.iter().map(|name| (*name, waits(name))).collect();
        Ok(Reply::json(&waits))
    }

    /// Removes the waiting jobs of a queue, and hides the queue from INFO until it is used again.
    async fn remove_queue(&self, name: &str) -> Result<(), Error> {
        let report = self.broker.purge(name).await?.end().await;
        report.ended.unwrap_or(Ok(()))?;
        let enqueued = match self.broker.queue(name).await {
            Ok(queue) => queue.counts.enqueued_total,
            // It was deleted meanwhile.
            Err(Error::Rejected(Rejection::QueueNotFound { .. })) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut removed = self.removed();
        if removed.len() < FAKTORY_REMOVED_MAX || removed.contains_key(name) {
            removed.insert(name.to_owned(), enqueued);
        }
        Ok(())
    }

    /// Whether INFO lists a queue: it was not removed, or has been used since.
    pub(super) fn is_listed(&self, queue: &QueueView) -> bool {
        let mut removed = self.removed();
        let name = queue.name.as_str();
        let Some(then) = removed.get(name) else { return true };
        // A queue that was deleted and is used again counts from 0.
        if *then != queue.counts.enqueued_total {
            removed.remove(name);
            return true;
        }
        false
    }

    fn removed(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
