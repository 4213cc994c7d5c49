//! Bulk operations: purge of a queue, retry and discard of dead letters.
//!
//! Each is a job of this server. It goes on, one bounded entry at a time, even if its caller is
//! gone, and reports its progress to every listener.

use super::{Broker, unexpected};
use crate::Error;
use futures_util::future::try_join_all;
use std::{future::Future, sync::Arc};
use taskyard_machine::{
    BulkProgress, Command, DeadAction, DeadCommand, EnqueueCut, Outcome, PurgeQueue, Rejection,
    Selection, ShardId, TaskFilter, TaskId, ask, limits,
};
use tokio::sync::watch;

/// The progress of a job.
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// Tasks changed so far.
    pub changed: u64,
    /// Named tasks that were not fit for the operation, so far.
    pub skipped: u64,
    /// The result, once the job has ended.
    pub ended: Option<Result<(), Error>>,
}

/// A running job; dropping this does not stop it.
#[derive(Clone, Debug)]
pub struct BulkJob(watch::Receiver<BulkReport>);

impl BulkJob {
    /// The next report after the last one seen; `None` after the job's end.
    pub async fn next(&mut self) -> Option<BulkReport> {
        if let Err(_gone) = self.0.changed().await {
            return None;
        }
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits for the job's end and returns its last report.
    pub async fn end(&mut self) -> BulkReport {
        // If the job is gone, its last report counts.
        let _ = self.0.wait_for(|report| report.ended.is_some()).await;
        self.0.borrow().clone()
    }

    /// The last report.
    pub fn report(&self) -> BulkReport {
        self.0.borrow().clone()
    }
}

/// A choice of dead letters.
#[derive(Clone, Debug)]
pub enum DeadSelection {
    /// These dead letters.
    Ids(Vec<TaskId>),
    /// All dead letters that match.
    Filter {
        /// In this queue.
        queue: Option<String>,
        /// Of this type.
        task_type: Option<String>,
        /// Whose last error's type is this, or whose message contains it.
        error: Option<String>,
        /// With this tag.
        tag: Option<String>,
        /// Of this flow.
        flow: Option<TaskId>,
    },
}

impl Broker {
    /// Removes the tasks that wait in a queue now. Tasks enqueued from here on stay, whatever their
    /// priority. So a producer that is as fast as the purge neither loses a task nor keeps the
    /// purge going.
    pub async fn purge(&self, queue: &str) -> Result<BulkJob, Error> {
        // An unknown queue is refused without delay.
        self.queue(queue).await?;
        let reach = self.reach_of_queue(queue)?;
        let cut = |&shard: &ShardId| async move {
            Ok::<_, Error>((shard, self.shards().ask(shard, ask::EnqueueCut {}).await?))
        };
        let cuts = try_join_all(reach.iter().map(cut)).await?;
        let (broker, queue) = (self.clone(), queue.to_owned());
        Ok(start(|report| async move {
            for (shard, before) in cuts {
                match broker.purge_shard(shard, &queue, before, &report).await {
                    // A shard of a spread queue may never have had a task of it.
                    Err(Error::Rejected(Rejection::QueueNotFound { .. })) => {}
                    purged => purged?,
                }
            }
            Ok(())
        }))
    }

    async fn purge_shard(
        &self,
        shard: ShardId,
        queue: &str,
        before: EnqueueCut,
        report: &Reporter,
    ) -> Result<(), Error> {
        let mut after = None;
        loop {
            let purge = Command::PurgeQueue(PurgeQueue { queue, before, after });
            let progress = bulk(self.propose(shard, &purge).await?);
            report.count(progress);
            after = progress.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Retries or discards dead letters.
    pub fn dead(&self, action: DeadAction, selection: DeadSelection) -> Result<BulkJob, Error> {
        if let DeadSelection::Filter { queue: Some(queue), .. } = &selection {
            self.shard_of_queue(queue)?;
        }
        let broker = self.clone();
        Ok(start(|report| async move {
            match selection {
                DeadSelection::Ids(ids) => broker.dead_by_ids(action, ids, &report).await,
                filter @ DeadSelection::Filter { .. } => {
                    broker.dead_by_filter(action, &filter, &report).await
                }
            }
        }))
    }

    async fn dead_by_ids(
        &self,
        action: DeadAction,
        mut ids: Vec<TaskId>,
        report: &Reporter,
    ) -> Result<(), Error> {
        let named = ids.len();
        ids.retain(|id| self.shard_of_task(*id).is_ok());
        report.count(BulkProgress { skipped: (named - ids.len()) as u32, ..Default::default() });
        ids.sort();
        for of_shard in ids.chunk_by(|one, other| one.home == other.home) {
            for part in of_shard.chunks(limits::BULK_PER_ENTRY_MAX) {
                let selection = Selection::Ids(part.to_vec());
                let command = Command::Dead(DeadCommand { action, selection });
                report.count(bulk(self.propose(part[0].home, &command).await?));
            }
        }
        Ok(())
    }

    async fn dead_by_filter(
        &self,
        action: DeadAction,
        selection: &DeadSelection,
        report: &Reporter,
    ) -> Result<(), Error> {
        let DeadSelection::Filter { queue, task_type, error, tag, flow } = selection else {
            return Ok(());
        };
        let filter = TaskFilter {
            queue: queue.as_deref(),
            state: None,
            task_type: task_type.as_deref(),
            error: error.as_deref(),
            tag: tag.as_deref(),
            flow: *flow,
        };
        let shards: Vec<ShardId> = match queue {
            Some(queue) => self.reach_of_queue(queue)?,
            None => (0..self.shards().count()).map(ShardId).collect(),
        };
        for shard in shards {
            // Dead letters that come while this runs are left alone. Otherwise a task that dies
            // again at once would keep the job going for ever.
            let now = self.shards().ask(shard, ask::Now {}).await?;
            let mut after = None;
            loop {
                let dead_before = Some(now.plus_ms(1));
                let filter = filter.clone();
                let selection = Selection::Filter { filter, after, dead_before };
                let command = Command::Dead(DeadCommand { action, selection });
                let progress = bulk(self.propose(shard, &command).await?);
                report.count(progress);
                after = progress.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Sends the reports of a job.
#[derive(Clone, Debug)]
struct Reporter(Arc<watch::Sender<BulkReport>>);

impl Reporter {
    fn count(&self, progress: BulkProgress) {
        self.0.send_modify(|report| {
            report.changed += u64::from(progress.changed);
            report.skipped += u64::from(progress.skipped);
        });
    }
}

fn start<F>(work: impl FnOnce(Reporter) -> F) -> BulkJob
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (sender, reports) = watch::channel(BulkReport::default());
    let reporter = Reporter(Arc::new(sender));
    let work = work(reporter.clone());
    tokio::spawn(async move {
        let ended = work.await;
        reporter.0.send_modify(|report| report.ended = Some(ended));
    });
    BulkJob(reports)
}

fn bulk(outcome: Outcome) -> BulkProgress {
    match outcome {
        Outcome::Bulk(progress) => progress,
        other => unexpected(&other),
    }
}
