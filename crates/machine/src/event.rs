//! Event: what happened. Facts; they cannot be refused, only observed.
//!
//! Events feed waiters, metrics and watchers. Losing them must never lose a task.

use crate::{Attest, FlowState, QueueName, SessionId, ShardId, TaskId, Timestamp};
use std::sync::Arc;

/// One fact about one task, queue or session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The shard's time.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

/// A task that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRef {
    /// Its id.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    pub task_type: Arc<str>,
    /// The attempt it is in, 0 before the first.
    pub attempt: u32,
}

/// Why a task became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// Its attempts are spent.
    AttemptsSpent,
    /// Its failure was not retryable.
    NotRetryable,
    /// Its workers died.
    Quarantined,
    /// Somebody said so.
    Killed,
}

impl DeathReason {
    /// The words on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            DeathReason::AttemptsSpent => "attempts spent",
            DeathReason::NotRetryable => "not retryable",
            DeathReason::Quarantined => "its workers died",
            DeathReason::Killed => "killed",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A task was accepted; `TaskReady` follows when it may be claimed at once.
    TaskEnqueued(TaskRef),
    /// Its payload was replaced by a later enqueue with its unique key; a debounced one waits until
    /// then.
    TaskReplaced(TaskRef, Option<Timestamp>),
    /// A task may be claimed: new, due, retried, released or lost.
    TaskReady(TaskRef),
    /// Its flow is retried: it waits for its parents again.
    TaskBlocked(TaskRef),
    /// A worker took it.
    TaskClaimed(TaskRef, Arc<str>),
    /// A worker told how far it is.
    TaskProgressed(TaskRef, u8),
    /// It ended well, `ran_for_ms` after its claim.
    TaskSucceeded(TaskRef, u64),
    /// An attempt failed and it runs again then.
    TaskRetrying(TaskRef, Timestamp),
    /// A worker put it off until then.
    TaskSnoozed(TaskRef, Timestamp),
    /// It ended without success and without a dead letter.
    TaskFailed(TaskRef),
    /// It became a dead letter.
    TaskDied(TaskRef, DeathReason),
    /// Its claim was lost: the lease lapsed or the session fell silent.
    TaskLost(TaskRef),
    /// Its worker is asked to stop.
    TaskCancelRequested(TaskRef),
    /// It was taken back.
    TaskCancelled(TaskRef),
    /// It was not claimed in time.
    TaskExpired(TaskRef),
    /// It was removed: by retention, purge or discard.
    TaskRemoved(TaskRef),
    /// A queue stopped.
    QueuePaused(QueueName),
    /// A queue goes on: its ready tasks may be claimed.
    QueueResumed(QueueName),
    /// A queue's limits let ready tasks through that they held back before.
    QueueOpened(QueueName),
    /// Settings changed.
    QueueSet(QueueName),
    /// A session's claims have ended.
    SessionEnded(SessionId),
    /// A flow was accepted.
    FlowSubmitted(TaskId),
    /// All tasks of a flow have ended.
    FlowEnded(TaskId, FlowState),
    /// An occurrence of a schedule has started a run.
    ScheduleFired {
        /// The schedule.
        name: Arc<str>,
        /// Which occurrence.
        occurrence_at: Timestamp,
        /// The run's task.
        task: TaskId,
    },
    /// That occurrence of a schedule did not fire: an earlier run has not ended.
    ScheduleSkipped(Arc<str>, Timestamp),
    /// So many occurrences of a schedule passed unseen.
    ScheduleMissed(Arc<str>, u64),
    /// The outbox holds something for that shard.
    OutgoingQueued(ShardId),
    /// The digest of the state was kept, for replicas to compare.
    DigestMarked {
        /// Which mark.
        mark: u64,
        /// What this replica has there.
        digest: u64,
    },
    /// A replica has said what it had at a mark.
    DigestAttested {
        /// What it said.
        attest: Attest,
        /// What this replica had there; `None` if that is too long ago.
        own: Option<u64>,
    },
}
