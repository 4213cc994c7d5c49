//! Rejection: every expected "no" of the machine.
//!
//! A rejection is deterministic, changes nothing but time, and has a stable code that is the same
//! on every front. Retired codes are never reused.

use crate::wire::{wire_enum, wire_struct};
use crate::{FlowState, QueueCounts, QueueName, TaskId, TaskStateName, Timestamp};
use std::fmt;

/// The machine's answer "no". Every replica gives the same answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// An argument is outside its bounds.
    #[error("{what}")]
    InvalidArgument {
        /// Lower case, no full stop: the argument, its value and the bound.
        what: String,
    },
    /// One element of an atomic batch is rejected, so that nothing was enqueued.
    #[error("task {index} of the batch: {rejection}; nothing was enqueued")]
    BatchElement {
        /// Position in the batch, from 0.
        index: u32,
        /// The rejection of the element.
        rejection: Box<Rejection>,
    },
    /// One node of a flow is rejected, so that nothing was changed.
    #[error("node {node:?}: {rejection}")]
    InNode {
        /// The node's name.
        node: Box<str>,
        /// The rejection of the node.
        rejection: Box<Rejection>,
    },
    /// The flow is unknown: never submitted here, or no longer kept.
    #[error("flow {flow} is not known here: it never existed or is no longer kept")]
    FlowNotFound {
        /// The requested id.
        flow: TaskId,
    },
    /// The flow has ended, so that it cannot change any more.
    #[error("flow {flow} is already {state}")]
    FlowEnded {
        /// The flow that has ended.
        flow: TaskId,
        /// The final state of the flow.
        state: FlowState,
    },
    /// The tally is unknown: never opened here, or no longer kept.
    #[error("tally {tally} is not known here: it never existed or is no longer kept")]
    TallyNotFound {
        /// The requested id.
        tally: TaskId,
    },
    /// The task is unknown: never enqueued here, or removed by its retention.
    #[error("task {task} is not known here: it never existed or its retention removed it")]
    TaskNotFound {
        /// The requested id.
        task: TaskId,
    },
    /// The task was here, and its retention, a purge or a discard removed it.
    #[error("task {task} has ended and is no longer kept")]
    AlreadyRemoved {
        /// The task that was removed.
        task: TaskId,
    },
    /// The queue does not exist: its first task or its first settings create it.
    #[error("queue {queue} does not exist; it is made by its first task or by setting it")]
    QueueNotFound {
        /// The requested name.
        queue: QueueName,
    },
    /// The queue has tasks that have not ended, or dead letters, so that it can't be deleted.
    #[error("queue {queue} has {}; {}", held.words(), held.advice(queue))]
    QueueNotEmpty {
        /// The queue.
        queue: QueueName,
        /// What it has.
        held: HeldTasks,
    },
    /// The schedule does not exist.
    #[error("schedule {name} does not exist; set it first")]
    ScheduleNotFound {
        /// The requested name.
        name: Box<str>,
    },
    /// The command was computed from earlier rules of the schedule.
    #[error("schedule {name} has changed meanwhile; send it again")]
    ScheduleChanged {
        /// The schedule.
        name: Box<str>,
    },
    /// The batch is not staged: it expired, or it was committed and its ids are forgotten.
    #[error("batch {batch:032x} is not staged here; send it again whole")]
    BatchNotFound {
        /// The requested batch id.
        batch: u128,
    },
    /// The token is not the current one: the claim lapsed, or another worker holds the task.
    #[error(
        "task {task} is no longer held under this claim; drop this result, another attempt counts"
    )]
    ClaimLost {
        /// The task whose claim was lost.
        task: TaskId,
    },
    /// The task has ended, so that it cannot change any more.
    #[error("task {task} is already {state}")]
    AlreadyFinished {
        /// The task that has ended.
        task: TaskId,
        /// The final state of the task.
        state: TaskStateName,
    },
    /// The task's state does not allow this operation.
    #[error("task {task} is {state}; {hint}")]
    WrongState {
        /// The task.
        task: TaskId,
        /// The state of the task.
        state: TaskStateName,
        /// What the caller can do instead.
        hint: Box<str>,
    },
    /// The flow's state does not allow this operation.
    #[error("flow {flow} is {state}; {hint}")]
    WrongFlowState {
        /// The flow.
        flow: TaskId,
        /// The state of the flow.
        state: FlowState,
        /// Why the state does not allow it, or what the caller can do instead.
        hint: Box<str>,
    },
    /// The queue has as many waiting tasks as its settings allow.
    #[error(
        "queue {queue} holds its limit of {limit} tasks; enqueue again later or raise max_length"
    )]
    QueueFull {
        /// The full queue.
        queue: QueueName,
        /// Its `max_length`.
        limit: u64,
    },
    /// Another task has the unique key.
    #[error("unique key {key:?} is held by {holder}; {hint}")]
    NotUnique {
        /// The key, in its queue.
        key: Box<str>,
        /// The holder of the key.
        holder: KeyHolder,
        /// Why this is a conflict, or what the caller can do.
        hint: Box<str>,
    },
    /// New tasks of the queue go to another shard. Only gateways see this rejection: a gateway then
    /// asks for the queue's spread again.
    #[error("queue {queue} is being spread over other shards; send it again")]
    QueueMoved {
        /// The queue.
        queue: QueueName,
    },
    /// A bound of this shard is reached (queues, staged batches, remembered request ids).
    #[error("{what}")]
    LimitExceeded {
        /// Lower case, no full stop: the bound, its value and what the caller can do.
        what: String,
    },
    /// The task would be expired before it could run.
    #[error("expires_at {expires_at} is not after the time it may run; it would never run")]
    NeverRuns {
        /// The requested expiry.
        expires_at: Timestamp,
    },
}

/// The tasks that keep a queue from being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTasks {
    /// Ready, scheduled and blocked tasks.
    pub waiting: u64,
    /// Claimed tasks.
    pub claimed: u64,
    /// Dead letters.
    pub dead: u64,
}

impl HeldTasks {
    /// What these counts have of it.
    pub fn of(counts: &QueueCounts) -> HeldTasks {
        HeldTasks {
            waiting: counts.ready + counts.scheduled + counts.blocked,
            claimed: counts.claimed,
            dead: counts.dead,
        }
    }

    /// Whether nothing keeps the queue.
    pub fn is_none(&self) -> bool {
        *self == HeldTasks::default()
    }

    /// "3 waiting and 1 dead tasks".
    fn words(&self) -> String {
        let kinds = [(self.waiting, "waiting"), (self.claimed, "claimed"), (self.dead, "dead")];
        let kinds: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        let noun = if self.waiting + self.claimed + self.dead == 1 { "task" } else { "tasks" };
        match kinds.split_last() {
            Some((last, [])) => format!("{last} {noun}"),
            Some((last, others)) => format!("{} and {last} {noun}", others.join(", ")),
            None => format!("no {noun}"),
        }
    }

    /// What to do about the tasks, in the order in which it works.
    fn advice(&self, queue: &QueueName) -> String {
        let mut steps = Vec::new();
        if self.waiting > 0 {
            steps.push(format!("purge it first: taskyard queue purge {queue}"));
        }
        if self.claimed > 0 {
            steps.push("let the claimed ones end, or cancel them".to_owned());
        }
        if self.dead > 0 {
            steps.push(format!("discard the dead ones: taskyard dead discard --queue {queue}"));
        }
        steps.join("; ")
    }
}

/// The holder of a unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHolder {
    /// A task.
    Task(TaskId),
    /// The task at this position of the same batch, from 0. The batch made no task.
    BatchElement(u32),
}

wire_enum!(Rejection {
    1 => InvalidArgument { what },
    2 => BatchElement { index, rejection },
    3 => InNode { node, rejection },
    4 => FlowNotFound { flow },
    5 => FlowEnded { flow, state },
    6 => TaskNotFound { task },
    7 => AlreadyRemoved { task },
    8 => QueueNotFound { queue },
    9 => ScheduleNotFound { name },
    10 => ScheduleChanged { name },
    11 => BatchNotFound { batch },
    12 => ClaimLost { task },
    13 => AlreadyFinished { task, state },
    14 => WrongState { task, state, hint },
    15 => QueueFull { queue, limit },
    16 => NotUnique { key, holder, hint },
    17 => LimitExceeded { what },
    18 => NeverRuns { expires_at },
    19 => WrongFlowState { flow, state, hint },
    20 => QueueMoved { queue },
    21 => TallyNotFound { tally },
    22 => QueueNotEmpty { queue, held },
});
wire_struct!(HeldTasks { waiting, claimed, dead });
wire_enum!(KeyHolder { 1 => Task(id), 2 => BatchElement(index) });

impl fmt::Display for KeyHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyHolder::Task(id) => write!(f, "task {id}"),
            KeyHolder::BatchElement(index) => write!(f, "task {index} of the same batch"),
        }
    }
}

impl Rejection {
    pub(crate) fn invalid(what: impl Into<String>) -> Rejection {
        Rejection::InvalidArgument { what: what.into() }
    }

    /// The task that has the unique key, if the rejection names one.
    pub fn holder(&self) -> Option<TaskId> {
        match self {
            Rejection::NotUnique { holder: KeyHolder::Task(id), .. } => Some(*id),
            Rejection::BatchElement { rejection, .. } => rejection.holder(),
            _ => None,
        }
    }

    /// The stable code, the same on every front.
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::InvalidArgument { .. }
            | Rejection::NeverRuns { .. }
            | Rejection::ScheduleChanged { .. } => "invalid_argument",
            Rejection::WrongFlowState { .. } | Rejection::WrongState { .. } => "conflict",
            Rejection::BatchElement { rejection, .. } | Rejection::InNode { rejection, .. } => {
                rejection.code()
            }
            Rejection::TaskNotFound { .. }
            | Rejection::FlowNotFound { .. }
            | Rejection::TallyNotFound { .. }
            | Rejection::QueueNotFound { .. }
            | Rejection::ScheduleNotFound { .. }
            | Rejection::BatchNotFound { .. } => "not_found",
            Rejection::ClaimLost { .. } => "claim_lost",
            Rejection::AlreadyFinished { .. }
            | Rejection::AlreadyRemoved { .. }
            | Rejection::FlowEnded { .. } => "already_finished",
            Rejection::QueueFull { .. } => "queue_full",
            Rejection::QueueNotEmpty { .. } => "queue_not_empty",
            Rejection::NotUnique { .. } => "not_unique",
            Rejection::LimitExceeded { .. } => "limit_exceeded",
            Rejection::QueueMoved { .. } => "unavailable",
        }
    }
}

/// Rejects a value over its bound, and names both.
pub(crate) fn at_most(what: &str, value: u64, max: u64) -> Result<(), Rejection> {
    if value <= max {
        return Ok(());
    }
    Err(Rejection::invalid(format!("{what} is {value}; at most {max} is allowed")))
}
