//! Outcome: the answer to an accepted command.

use crate::wire::{wire_enum, wire_struct};
use crate::{
    ClaimToken, FlowMember, FlowState, ParentResult, QueueName, Rejection, TaskId, TaskStateName,
    Timestamp,
};
use std::sync::Arc;

/// What an accepted command did.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// To `Enqueue`.
    Enqueued(Enqueued),
    /// To `EnqueueMany`: one answer per item.
    EnqueuedMany(Vec<Result<Enqueued, Rejection>>),
    /// To `EnqueueBatch` and `CommitBatch`: ids in the order of the batch. A task whose request_id
    /// was known keeps its old id.
    EnqueuedBatch(Vec<Enqueued>),
    /// To `StageBatch`.
    Staged,
    /// To `Claim`: perhaps none.
    Claimed(Vec<ClaimedTask>),
    /// To `Ack`: ids of its follow-ups, in order.
    Acked {
        /// Ids of the follow-ups.
        follow_ups: Vec<TaskId>,
    },
    /// To `Fail`.
    Failed(AfterFailure),
    /// To `Extend`.
    Extended {
        /// The lease's new end, by the shard's time.
        lease_expires_at: Timestamp,
        /// How long it is from now on: whoever is told has another clock.
        lease_ms: u64,
        /// The worker should stop: the task is cancelled when it yields.
        cancel_requested: bool,
    },
    /// To `Renew`: one answer per claim.
    Renewed(Vec<Renewal>),
    /// To `Release`. A cancelled task is `Cancelled`, else it is `Ready`.
    Released {
        /// Where it is now.
        state: TaskStateName,
    },
    /// To `Snooze`.
    Snoozed {
        /// When it runs again, if it does.
        run_at: Timestamp,
        /// Where it is now: `Scheduled`, or `Cancelled` if it was cancelled meanwhile.
        state: TaskStateName,
    },
    /// To `Cancel`: `Cancelled`, or `Claimed` while the worker is still to yield.
    CancelRequested {
        /// Where it is now.
        state: TaskStateName,
    },
    /// To `Kill`: `Dead`, or `Failed` where its queue keeps no dead letters.
    Killed {
        /// Where it is now.
        state: TaskStateName,
    },
    /// To `Retry`.
    Retried,
    /// To `Dead`, `PurgeQueue` and `EndSession`: what this entry did of it.
    Bulk(BulkProgress),
    /// To `SetSchedule`.
    ScheduleSet {
        /// There was none of this name.
        is_new: bool,
        /// Its rules are not what they were.
        is_changed: bool,
    },
    /// To `FireSchedule` and `BackfillSchedule`: what became of the occurrences.
    ScheduleFired {
        /// Runs that were started.
        fired: u64,
        /// Skipped, because an earlier run had not ended.
        skipped: u64,
        /// Passed unseen, and too long ago.
        missed: u64,
    },
    /// To `PauseQueue`, `ResumeQueue`, `SetQueue`, `BeginTerm`, `Delivered`, `RemoveSchedule`,
    /// `PauseSchedule`, `ResumeSchedule`, `ReopenTally`, `CommitTally`.
    Done,
    /// To `ExpireDue`: how many deadlines passed.
    Expired {
        /// Deadlines handled; at the entry's bound there may be more.
        count: u32,
    },
    /// To `SubmitFlow` and `CommitFlow`.
    FlowSubmitted {
        /// The flow's id.
        flow: TaskId,
        /// The ids of its tasks, in the order of its nodes.
        tasks: Vec<TaskId>,
        /// Its batch_id was known: this is the flow that it made then.
        duplicate: bool,
    },
    /// To `AddFlowTasks`: one per node, in order. One that was added before keeps its id.
    FlowTasksAdded(Vec<Enqueued>),
    /// To `CancelFlow` and `RetryFlow`: where the flow is now.
    FlowState(FlowState),
    /// To `Deliver`: it was applied now or before.
    Taken,
    /// To `OpenTally`.
    TallyOpened {
        /// The tally's id.
        tally: TaskId,
    },
    /// To `AddToTally`.
    TallyAdded {
        /// The ids of the tasks, in order.
        ids: Vec<TaskId>,
    },
}

/// The identity of a task that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Its id.
    pub id: TaskId,
    /// Its request_id was known: this is the task it made then.
    pub duplicate: bool,
}

/// A task as handed to a worker; the server adds the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTask {
    /// Its id.
    pub id: TaskId,
    /// The right to finish this attempt.
    pub token: ClaimToken,
    /// Its queue.
    pub queue: QueueName,
    /// The function's name.
    pub task_type: Arc<str>,
    /// 0 to 9.
    pub priority: u8,
    /// This attempt's number, from 1.
    pub attempt: u32,
    /// When the lease ends unless renewed, by the shard's time.
    pub lease_expires_at: Timestamp,
    /// How long it is: whoever gets the task has another clock.
    pub lease_ms: u64,
    /// Longest run time of this attempt.
    pub timeout_ms: Option<u64>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// What the previous attempt left.
    pub resume_state: Option<Box<[u8]>>,
    /// Whom it is for.
    pub fairness_key: Option<Box<str>>,
    /// The flow that it is a task of.
    pub flow: Option<FlowMember>,
    /// What the tasks that it depends on left for it.
    pub parents: Box<[ParentResult]>,
}

/// What became of a task that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// It runs again.
    Retry {
        /// When.
        run_at: Timestamp,
    },
    /// It is a dead letter.
    Dead,
    /// It ended without a dead letter.
    Failed,
    /// It was cancelled meanwhile.
    Cancelled,
}

/// What became of one claim in a `Renew`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still held.
    Held {
        /// The lease's new end, by the shard's time.
        lease_expires_at: Timestamp,
        /// How long it is from now on: whoever is told has another clock.
        lease_ms: u64,
        /// The worker should stop.
        cancel_requested: bool,
    },
    /// Not held any more: stop and drop it.
    Lost,
}

/// How far one entry of a bulk operation came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkProgress {
    /// Tasks changed by this entry.
    pub changed: u32,
    /// Tasks named but not fit for it.
    pub skipped: u32,
    /// Where to go on; `None` is the end.
    pub next: Option<TaskId>,
}

wire_enum!(Outcome {
    1 => Enqueued(enqueued),
    2 => EnqueuedMany(answers),
    3 => EnqueuedBatch(enqueued),
    4 => Staged,
    5 => Claimed(tasks),
    6 => Acked { follow_ups },
    7 => Failed(after),
    8 => Extended { lease_expires_at, lease_ms, cancel_requested },
    9 => Renewed(renewals),
    10 => Released { state },
    11 => Snoozed { run_at, state },
    12 => CancelRequested { state },
    13 => Retried,
    14 => Bulk(progress),
    15 => ScheduleSet { is_new, is_changed },
    16 => ScheduleFired { fired, skipped, missed },
    17 => Done,
    18 => Expired { count },
    19 => FlowSubmitted { flow, tasks, duplicate },
    20 => FlowTasksAdded(enqueued),
    21 => FlowState(state),
    22 => Taken,
    23 => Killed { state },
    24 => TallyOpened { tally },
    25 => TallyAdded { ids },
});
wire_struct!(Enqueued { id, duplicate });
wire_struct!(ClaimedTask {
    id,
    token,
    queue,
    task_type,
    priority,
    attempt,
    lease_expires_at,
    lease_ms,
    timeout_ms,
    enqueued_at,
    resume_state,
    fairness_key,
    flow,
    parents,
});
wire_enum!(AfterFailure { 1 => Retry { run_at }, 2 => Dead, 3 => Failed, 4 => Cancelled });
wire_enum!(Renewal { 1 => Held { lease_expires_at, lease_ms, cancel_requested }, 2 => Lost });
wire_struct!(BulkProgress { changed, skipped, next });
