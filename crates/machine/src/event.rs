//! Event: a fact about what happened. An event cannot be refused, only observed.
//!
//! Events feed waiters, metrics and watchers. A lost event must never lose a task.

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
    /// The task's id.
    pub id: TaskId,
    /// The task's queue.
    pub queue: QueueName,
    /// The task's type.
    pub task_type: Arc<str>,
    /// The number of the current attempt, 0 before the first.
    pub attempt: u32,
}

/// Why a task became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// The task's attempts are spent.
    AttemptsSpent,
    /// The failure was not retryable.
    NotRetryable,
    /// The task's workers died.
    Quarantined,
    /// An operator killed the task.
    Killed,
}

impl DeathReason {
    /// The words for the reason, the same on every front.
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
    /// A task was accepted; `TaskReady` follows if the task may be claimed at once.
    TaskEnqueued(TaskRef),
    /// A later enqueue with the same unique key replaced the task's payload; a debounced task waits
    /// until the moment given.
    TaskReplaced(TaskRef, Option<Timestamp>),
    /// A task may be claimed: it is new, due, retried, released or lost.
    TaskReady(TaskRef),
    /// The flow is retried: the task waits for its parents again.
    TaskBlocked(TaskRef),
    /// A worker claimed the task.
    TaskClaimed(TaskRef, Arc<str>),
    /// A worker reported its progress, in percent.
    TaskProgressed(TaskRef, u8),
    /// The task succeeded, so many milliseconds after its claim.
    TaskSucceeded(TaskRef, u64),
    /// An attempt failed; the task is retried at the moment given.
    TaskRetrying(TaskRef, Timestamp),
    /// A worker put the task off until the moment given.
    TaskSnoozed(TaskRef, Timestamp),
    /// The task ended without success and without a dead letter.
    TaskFailed(TaskRef),
    /// The task became a dead letter.
    TaskDied(TaskRef, DeathReason),
    /// The claim was lost: its lease lapsed or its session fell silent.
    TaskLost(TaskRef),
    /// The worker of the task is asked to stop.
    TaskCancelRequested(TaskRef),
    /// The task was cancelled.
    TaskCancelled(TaskRef),
    /// The task was not claimed in time.
    TaskExpired(TaskRef),
    /// The task was removed: by retention, purge or discard.
    TaskRemoved(TaskRef),
    /// A queue was paused.
    QueuePaused(QueueName),
    /// A queue was resumed: its ready tasks may be claimed.
    QueueResumed(QueueName),
    /// A queue's limits let ready tasks through again.
    QueueOpened(QueueName),
    /// The settings of a queue changed.
    QueueSet(QueueName),
    /// A queue was deleted on this shard.
    QueueDeleted(QueueName),
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
    /// The occurrence at the moment given did not start a run, because an earlier run has not
    /// ended.
    ScheduleSkipped(Arc<str>, Timestamp),
    /// The given number of occurrences passed unseen.
    ScheduleMissed(Arc<str>, u64),
    /// The outbox has a new message for the shard given.
    OutgoingQueued(ShardId),
    /// The machine kept the digest of the state, for replicas to compare.
    DigestMarked {
        /// The number of the mark.
        mark: u64,
        /// The digest of this replica at the mark.
        digest: u64,
    },
    /// A replica attested its digest at a mark.
    DigestAttested {
        /// The attestation.
        attest: Attest,
        /// The digest of this replica at the mark; `None` if the mark is too long ago.
        own: Option<u64>,
    },
}
