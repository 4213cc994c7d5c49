//! Query: views of tasks and queues for fronts, dashboard and CLI. They decide nothing.

use crate::wire::wire_struct;
use crate::{ClaimToken, QueueName, SessionId, TaskId, TaskStateName, Timestamp, UniqueUntil};
use std::sync::Arc;

/// Whether a claim would get a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimable {
    /// The number of claimable tasks, at least 1.
    Now(u64),
    /// No task before that moment.
    At(Timestamp),
    /// No task before an event.
    OnEvent,
}

/// A view of one task, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// The task's id.
    pub id: TaskId,
    /// The task's queue.
    pub queue: QueueName,
    /// The function's name.
    pub task_type: Arc<str>,
    /// The task's state.
    pub state: TaskStateName,
    /// The priority, 0 to 9.
    pub priority: u8,
    /// The number of the current or last attempt, 0 before the first.
    pub attempt: u32,
    /// The highest attempt number that the task can reach if every attempt fails from now on.
    pub max_attempts: u32,
    /// The number of lost claims.
    pub losses: u32,
    /// When the task was enqueued.
    pub enqueued_at: Timestamp,
    /// When a scheduled task runs next.
    pub run_at: Option<Timestamp>,
    /// When the task expires if it is still waiting.
    pub expires_at: Option<Timestamp>,
    /// When the task ended.
    pub finished_at: Option<Timestamp>,
    /// Longest run time of one attempt.
    pub timeout_ms: Option<u64>,
    /// The current claim.
    pub claim: Option<ClaimView>,
    /// The last reported progress.
    pub progress: Option<(u8, String)>,
    /// The resume state that the last attempt left for the next.
    pub resume_state: Option<Vec<u8>>,
    /// The task's result.
    pub result: Option<Vec<u8>>,
    /// Why the task became a dead letter.
    pub death: Option<crate::DeathReason>,
    /// Words by which the task can be found.
    pub tags: Vec<String>,
    /// The customer that the task is for.
    pub fairness_key: Option<String>,
    /// The task's place in its flow.
    pub flow: Option<FlowMember>,
    /// The last attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// The task's unique key.
    pub unique: Option<UniqueView>,
    /// The length of the encoded body.
    pub body_bytes: u32,
}

/// A task's unique key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueView {
    /// The key, in the task's queue.
    pub key: String,
    /// The step of the task that frees the key; `None` leaves only the window.
    pub until: Option<UniqueUntil>,
    /// When the window is over.
    pub expires_at: Option<Timestamp>,
    /// How long no further enqueue may come before the task runs.
    pub debounce_ms: Option<u64>,
    /// Whether the task has the key now.
    pub held: bool,
}

/// A task's place in a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMember {
    /// The flow.
    pub flow: TaskId,
    /// The name of the task's node.
    pub node: Box<str>,
    /// The parent whose failure ended the task before it ran.
    pub failed_parent: Option<Box<str>>,
}

/// The current claim of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// The claim token.
    pub token: ClaimToken,
    /// The name of the worker that holds the claim.
    pub worker: Arc<str>,
    /// The session of the worker.
    pub session: Option<SessionId>,
    /// When the task was claimed.
    pub claimed_at: Timestamp,
    /// When the lease lapses unless renewed.
    pub lease_expires_at: Timestamp,
    /// Whether the worker is asked to stop.
    pub cancel_requested: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The worker acked the task.
    Succeeded,
    /// The worker failed the task.
    Failed,
    /// The lease lapsed or the session fell silent.
    Lost,
    /// The worker released the task.
    Released,
    /// The worker snoozed the task.
    Snoozed,
    /// A cancellation stopped the attempt.
    Cancelled,
    /// The broker ended the attempt because its run time was over.
    TimedOut,
}

impl AttemptOutcome {
    /// Whether the attempt ran, or may have run, and did not succeed.
    pub(crate) fn has_failed(self) -> bool {
        use AttemptOutcome::{Cancelled, Failed, Lost, Released, Snoozed, Succeeded, TimedOut};
        match self {
            Failed | Lost | TimedOut => true,
            Succeeded | Released | Snoozed | Cancelled => false,
        }
    }

    /// The name of the outcome, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptOutcome::Succeeded => "succeeded",
            AttemptOutcome::Failed => "failed",
            AttemptOutcome::Lost => "lost",
            AttemptOutcome::Released => "released",
            AttemptOutcome::Snoozed => "snoozed",
            AttemptOutcome::Cancelled => "cancelled",
            AttemptOutcome::TimedOut => "timed_out",
        }
    }
}

/// One past attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptView {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The name of the worker.
    pub worker: Arc<str>,
    /// When the task was claimed.
    pub claimed_at: Timestamp,
    /// When the attempt ended.
    pub ended_at: Timestamp,
    /// How the attempt ended.
    pub outcome: AttemptOutcome,
    /// The error: type, message, backtrace.
    pub error: Option<[String; 3]>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks, in id order.
    pub tasks: Vec<TaskView>,
    /// The id after which the next page starts; `None` is the end. A page may be short, even empty,
    /// and still have a next one.
    pub next: Option<TaskId>,
}

/// One page of a shard's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePage {
    /// The queues, by name.
    pub queues: Vec<QueueView>,
    /// The name after which the next page starts; `None` is the end. A page may be short and still
    /// have a next one.
    pub next: Option<QueueName>,
}

/// One queue of a shard, with exact counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// The queue's name.
    pub name: QueueName,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Tasks by state, exact.
    pub counts: QueueCounts,
    /// How long the oldest ready task has been ready, by its shard's time; with many keys, of those
    /// whose turn comes first.
    pub oldest_ready_for_ms: Option<u64>,
}

impl QueueView {
    /// Adds the counts of the same queue on another shard.
    #[must_use]
    pub fn with(mut self, other: &QueueView) -> QueueView {
        let (sum, more) = (&mut self.counts, &other.counts);
        sum.blocked += more.blocked;
        sum.scheduled += more.scheduled;
        sum.retrying += more.retrying;
        sum.ready += more.ready;
        sum.claimed += more.claimed;
        sum.dead += more.dead;
        sum.finished += more.finished;
        sum.enqueued_total += more.enqueued_total;
        sum.succeeded_total += more.succeeded_total;
        sum.failed_total += more.failed_total;
        sum.dead_total += more.dead_total;
        sum.lost_total += more.lost_total;
        sum.expired_total += more.expired_total;
        sum.cancelled_total += more.cancelled_total;
        self.oldest_ready_for_ms = self.oldest_ready_for_ms.max(other.oldest_ready_for_ms);
        self
    }
}

/// Exact counts of a queue, updated with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Tasks that wait for parents.
    pub blocked: u64,
    /// Tasks that wait for a moment.
    pub scheduled: u64,
    /// The scheduled tasks whose last attempt failed, timed out or was lost.
    pub retrying: u64,
    /// Tasks that may be claimed now.
    pub ready: u64,
    /// Tasks that workers hold.
    pub claimed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Finished tasks that are still kept, without dead letters.
    pub finished: u64,
    /// Tasks ever accepted.
    pub enqueued_total: u64,
    /// Tasks that ever succeeded.
    pub succeeded_total: u64,
    /// Attempts that ever failed.
    pub failed_total: u64,
    /// Tasks that ever became dead letters.
    pub dead_total: u64,
    /// Claims that were ever lost.
    pub lost_total: u64,
    /// Tasks that ever expired.
    pub expired_total: u64,
    /// Tasks that were ever cancelled.
    pub cancelled_total: u64,
}

wire_struct!(TaskView {
    id,
    queue,
    task_type,
    state,
    priority,
    attempt,
    max_attempts,
    losses,
    enqueued_at,
    run_at,
    expires_at,
    finished_at,
    timeout_ms,
    claim,
    progress,
    resume_state,
    result,
    death,
    tags,
    fairness_key,
    flow,
    attempts,
    unique,
    body_bytes,
});
wire_struct!(UniqueView { key, until, expires_at, debounce_ms, held });
wire_struct!(FlowMember { flow, node, failed_parent });
wire_struct!(ClaimView { token, worker, session, claimed_at, lease_expires_at, cancel_requested });
wire_struct!(AttemptView { attempt, worker, claimed_at, ended_at, outcome, error });
wire_struct!(TaskPage { tasks, next });
wire_struct!(QueuePage { queues, next });
wire_struct!(QueueView { name, paused, counts, oldest_ready_for_ms });
wire_struct!(QueueCounts {
    blocked,
    scheduled,
    ready,
    claimed,
    dead,
    finished,
    enqueued_total,
    succeeded_total,
    failed_total,
    dead_total,
    lost_total,
    expired_total,
    cancelled_total,
    retrying,
});
