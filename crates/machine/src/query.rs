//! What readers see of tasks and queues: for fronts, dashboard and CLI. They decide nothing.

use crate::wire::wire_struct;
use crate::{ClaimToken, QueueName, SessionId, TaskId, TaskStateName, Timestamp, UniqueUntil};
use std::sync::Arc;

/// Whether a claim would get something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimable {
    /// This many tasks now, at least 1.
    Now(u64),
    /// Nothing before that moment.
    At(Timestamp),
    /// Nothing until an event.
    OnEvent,
}

/// One task, whole, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// The function's name.
    pub task_type: Arc<str>,
    /// Where it is.
    pub state: TaskStateName,
    /// 0 to 9.
    pub priority: u8,
    /// The attempt it is in or was last in, 0 before the first.
    pub attempt: u32,
    /// The number of the last attempt that it may come to, if all fail from here on.
    pub max_attempts: u32,
    /// Claims lost so far.
    pub losses: u32,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it runs next, while scheduled.
    pub run_at: Option<Timestamp>,
    /// When it expires if still waiting.
    pub expires_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Longest run time of one attempt.
    pub timeout_ms: Option<u64>,
    /// The current claim.
    pub claim: Option<ClaimView>,
    /// How far it is or was.
    pub progress: Option<(u8, String)>,
    /// What its last attempt left for the next.
    pub resume_state: Option<Vec<u8>>,
    /// What it returned.
    pub result: Option<Vec<u8>>,
    /// Why it died.
    pub death: Option<crate::DeathReason>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Whom it is for.
    pub fairness_key: Option<String>,
    /// The flow that it is a task of.
    pub flow: Option<FlowMember>,
    /// Its last attempts, oldest first.
    pub attempts: Vec<AttemptView>,
    /// Its unique key.
    pub unique: Option<UniqueView>,
    /// Length of its encoded body.
    pub body_bytes: u32,
}

/// A task's unique key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueView {
    /// The key, in the task's queue.
    pub key: String,
    /// Which step of the task frees it; `None` leaves it to the window alone.
    pub until: Option<UniqueUntil>,
    /// When its window is over.
    pub expires_at: Option<Timestamp>,
    /// For how long there must be quiet before it runs.
    pub debounce_ms: Option<u64>,
    /// Whether this task holds the key now.
    pub held: bool,
}

/// A task's place in a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMember {
    /// The flow.
    pub flow: TaskId,
    /// The name of its node.
    pub node: Box<str>,
    /// The parent whose failure ended the task before it ran.
    pub failed_parent: Option<Box<str>>,
}

/// The current claim of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// The right to finish it.
    pub token: ClaimToken,
    /// Who holds it.
    pub worker: Arc<str>,
    /// In which session.
    pub session: Option<SessionId>,
    /// Since when.
    pub claimed_at: Timestamp,
    /// Until when, unless renewed.
    pub lease_expires_at: Timestamp,
    /// The worker is asked to stop.
    pub cancel_requested: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// Acked.
    Succeeded,
    /// Failed.
    Failed,
    /// Its lease lapsed or its session fell silent.
    Lost,
    /// Given back.
    Released,
    /// Put off.
    Snoozed,
    /// Stopped by a cancellation.
    Cancelled,
    /// Ended by the broker when its run time was over.
    TimedOut,
}

impl AttemptOutcome {
    /// Whether the task ran, as far as anybody knows, and did not come to a good end.
    pub(crate) fn has_failed(self) -> bool {
        use AttemptOutcome::{Cancelled, Failed, Lost, Released, Snoozed, Succeeded, TimedOut};
        match self {
            Failed | Lost | TimedOut => true,
            Succeeded | Released | Snoozed | Cancelled => false,
        }
    }

    /// The word on every front.
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
    /// Its number, from 1.
    pub attempt: u32,
    /// Who ran it.
    pub worker: Arc<str>,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub outcome: AttemptOutcome,
    /// What went wrong: type, message, backtrace.
    pub error: Option<[String; 3]>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPage {
    /// In id order.
    pub tasks: Vec<TaskView>,
    /// Where to go on; `None` is the end. A page may be short, even empty, and still go on.
    pub next: Option<TaskId>,
}

/// One queue of a shard, with exact counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// Whether it is paused.
    pub paused: bool,
    /// Tasks by state, exact.
    pub counts: QueueCounts,
    /// How long the oldest ready task has been ready, by its shard's time; with many keys, of those
    /// whose turn comes first.
    pub oldest_ready_for_ms: Option<u64>,
}

impl QueueView {
    /// This one with what another shard of the same queue holds.
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

/// Exact counts of a queue, kept at write time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Waiting for parents.
    pub blocked: u64,
    /// Waiting for their time.
    pub scheduled: u64,
    /// Those of them that wait because their last attempt failed, timed out or was lost.
    pub retrying: u64,
    /// Claimable now.
    pub ready: u64,
    /// Held by workers.
    pub claimed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Finished and still kept (without dead letters).
    pub finished: u64,
    /// Ever accepted.
    pub enqueued_total: u64,
    /// Ever ended well.
    pub succeeded_total: u64,
    /// Attempts that ever failed.
    pub failed_total: u64,
    /// Tasks that ever died.
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
