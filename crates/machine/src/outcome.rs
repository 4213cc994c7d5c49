//! Outcome: the answer to an accepted command.

use crate::wire::{wire_enum, wire_struct};
use crate::{
    ClaimToken, FlowMember, FlowState, ParentResult, QueueName, Rejection, TaskId, TaskStateName,
    Timestamp,
};
use std::sync::Arc;

/// The result of an accepted command.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Answers `Enqueue`.
    Enqueued(Enqueued),
    /// Answers `EnqueueMany`: one answer per item.
    EnqueuedMany(Vec<Result<Enqueued, Rejection>>),
    /// Answers `EnqueueBatch` and `CommitBatch`: ids in the order of the batch. A task with a known
    /// request_id keeps its old id.
    EnqueuedBatch(Vec<Enqueued>),
    /// Answers `StageBatch`.
    Staged,
    /// Answers `Claim`; the list may be empty.
    Claimed(Vec<ClaimedTask>),
    /// Answers `Ack`.
    Acked {
        /// Ids of the follow-ups, in order.
        follow_ups: Vec<TaskId>,
    },
    /// Answers `Fail`.
    Failed(AfterFailure),
    /// Answers `Extend`.
    Extended {
        /// The lease's new end, by the shard's time.
        lease_expires_at: Timestamp,
        /// The length of the lease from now on, because the worker has another clock.
        lease_ms: u64,
        /// The worker should stop: the task is cancelled when it yields.
        cancel_requested: bool,
    },
    /// Answers `Renew`: one answer per claim.
    Renewed(Vec<Renewal>),
    /// Answers `Release`.
    Released {
        /// The new state: `Ready`, or `Cancelled` if a cancellation was requested.
        state: TaskStateName,
    },
    /// Answers `Snooze`.
    Snoozed {
        /// When the task runs again, unless it was cancelled.
        run_at: Timestamp,
        /// The new state: `Scheduled`, or `Cancelled` if a cancellation was requested.
        state: TaskStateName,
    },
    /// Answers `Cancel`.
    CancelRequested {
        /// The new state: `Cancelled`, or `Claimed` until the worker yields.
        state: TaskStateName,
    },
    /// Answers `Kill`.
    Killed {
        /// The new state: `Dead`, or `Failed` if the queue keeps no dead letters.
        state: TaskStateName,
    },
    /// Answers `Retry`.
    Retried,
    /// Answers `Dead`, `PurgeQueue` and `EndSession`: the share of this entry in the operation.
    Bulk(BulkProgress),
    /// Answers `SetSchedule`.
    ScheduleSet {
        /// Whether the schedule is new.
        is_new: bool,
        /// Whether the rules have changed.
        is_changed: bool,
    },
    /// Answers `FireSchedule` and `BackfillSchedule`: the numbers of decided occurrences.
    ScheduleFired {
        /// Runs that were started.
        fired: u64,
        /// Occurrences skipped because an earlier run had not ended.
        skipped: u64,
        /// Occurrences that no leader saw in time.
        missed: u64,
    },
    /// Answers `PauseQueue`, `ResumeQueue`, `SetQueue`, `BeginTerm`, `Delivered`, `RemoveSchedule`,
    /// `PauseSchedule`, `ResumeSchedule`, `ReopenTally`, `CommitTally`.
    Done,
    /// Answers `ExpireDue`.
    Expired {
        /// The number of deadlines handled; at the entry's bound there may be more.
        count: u32,
    },
    /// Answers `SubmitFlow` and `CommitFlow`.
    FlowSubmitted {
        /// The flow's id.
        flow: TaskId,
        /// The ids of the flow's tasks, in the order of its nodes.
        tasks: Vec<TaskId>,
        /// Whether the batch_id was known; the answer then names the flow that it made before.
        duplicate: bool,
    },
    /// Answers `AddFlowTasks`: one answer per node, in order. A node that was added before keeps
    /// its id.
    FlowTasksAdded(Vec<Enqueued>),
    /// Answers `CancelFlow` and `RetryFlow` with the flow's new state.
    FlowState(FlowState),
    /// Answers `Deliver`: the command was applied now or before.
    Taken,
    /// Answers `OpenTally`.
    TallyOpened {
        /// The tally's id.
        tally: TaskId,
    },
    /// Answers `AddToTally`.
    TallyAdded {
        /// The ids of the tasks, in order.
        ids: Vec<TaskId>,
    },
}

/// The id of an enqueued task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The task's id.
    pub id: TaskId,
    /// Whether the request_id was known; the answer then names the task that it made before.
    pub duplicate: bool,
}

/// A task for a worker; the server adds the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTask {
    /// The task's id.
    pub id: TaskId,
    /// The claim token, which proves the right to finish this attempt.
    pub token: ClaimToken,
    /// The task's queue.
    pub queue: QueueName,
    /// The function's name.
    pub task_type: Arc<str>,
    /// The priority, 0 to 9.
    pub priority: u8,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// When the lease ends unless renewed, by the shard's time.
    pub lease_expires_at: Timestamp,
    /// The length of the lease, because the worker has another clock.
    pub lease_ms: u64,
    /// Longest run time of this attempt.
    pub timeout_ms: Option<u64>,
    /// When the task was enqueued.
    pub enqueued_at: Timestamp,
    /// The resume state that the previous attempt left.
    pub resume_state: Option<Box<[u8]>>,
    /// The customer that the task is for.
    pub fairness_key: Option<Box<str>>,
    /// The task's place in its flow.
    pub flow: Option<FlowMember>,
    /// The results of the tasks that it depends on.
    pub parents: Box<[ParentResult]>,
}

/// The next state of a task that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The task is retried.
    Retry {
        /// When the task runs again.
        run_at: Timestamp,
    },
    /// The task is a dead letter.
    Dead,
    /// The task ended without a dead letter.
    Failed,
    /// The task is cancelled, because a cancellation was requested.
    Cancelled,
}

/// The answer to one claim in a `Renew`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The claim is still held.
    Held {
        /// The lease's new end, by the shard's time.
        lease_expires_at: Timestamp,
        /// The length of the lease from now on, because the worker has another clock.
        lease_ms: u64,
        /// The worker should stop.
        cancel_requested: bool,
    },
    /// The claim is lost: the worker must stop and drop the task.
    Lost,
}

/// The progress of a bulk operation in one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkProgress {
    /// Tasks changed by this entry.
    pub changed: u32,
    /// Tasks that the operation named but could not change.
    pub skipped: u32,
    /// The id after which the next entry continues; `None` is the end.
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
