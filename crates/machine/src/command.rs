//! Command: a request to a shard. Commands are verbs; the machine may reject each of them.
//!
//! Commands borrow from the request or the log entry that they were decoded from. `codec.rs` has
//! their encoding, `entry.rs` packs them into log entries.

use crate::{
    AddFlowTasks, AddToTally, Attest, BackfillSchedule, CancelFlow, ClaimToken, CommitFlow,
    CommitTally, FireSchedule, OpenTally, PauseSchedule, QueueSettings, RemoveSchedule,
    ReopenTally, ResumeSchedule, RetryFlow, RetryPolicy, SessionId, SetSchedule, ShardId,
    StageFlow, SubmitFlow, TaskId, Timestamp, TriggerSchedule,
};
use std::borrow::Cow;

/// One request to one shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<'a> {
    /// Adds one task.
    Enqueue(Enqueue<'a>),
    /// Adds many tasks to queues of this shard; each gets its own answer.
    EnqueueMany(EnqueueMany<'a>),
    /// Adds many tasks to one queue, all or none.
    EnqueueBatch(EnqueueBatch<'a>),
    /// Keeps one part of a batch that is too large for one entry; invisible until committed.
    StageBatch(StageBatch<'a>),
    /// Adds the tasks of all staged parts of a batch, all or none.
    CommitBatch(CommitBatch),
    /// Forgets the staged parts of a batch or flow that will not be committed.
    Unstage(Unstage),
    /// Hands ready tasks to a worker.
    Claim(Claim<'a>),
    /// Ends a claimed task as succeeded.
    Ack(Ack<'a>),
    /// Ends an attempt as failed: the task is retried, becomes a dead letter, or ends.
    Fail(Fail<'a>),
    /// Renews one lease, with progress and resume state.
    Extend(Extend<'a>),
    /// Renews the leases of a session's claims.
    Renew(Renew),
    /// Returns a claimed task to its queue without spending an attempt.
    Release(Release),
    /// Schedules a claimed task for later without spending an attempt.
    Snooze(Snooze),
    /// Cancels a task: at once if it waits, by a request to the worker if it is claimed.
    Cancel(Cancel),
    /// Makes a waiting task a dead letter.
    Kill(Kill),
    /// Makes a finished or waiting task ready now.
    Retry(Retry<'a>),
    /// Retries or discards dead letters, by id or filter, a bounded number per entry.
    Dead(DeadCommand<'a>),
    /// Stops handing out tasks of a queue.
    PauseQueue(QueueCommand<'a>),
    /// Hands out tasks of a queue again.
    ResumeQueue(QueueCommand<'a>),
    /// Removes waiting tasks of a queue, a bounded number per entry.
    PurgeQueue(crate::PurgeQueue<'a>),
    /// Replaces a queue's settings; makes the queue if it does not exist.
    SetQueue(SetQueue<'a>),
    /// Drops from a queue's reach the shards beyond its spread that were seen empty.
    TrimQueue(TrimQueue<'a>),
    /// Deletes a queue that has no tasks but finished ones.
    DeleteQueue(DeleteQueue<'a>),
    /// Ends a session's claims on this shard, a bounded number per entry.
    EndSession(EndSession),
    /// Makes a flow: a DAG of tasks, all or none.
    SubmitFlow(SubmitFlow<'a>),
    /// Keeps one part of a flow that is too large for one entry; invisible until committed.
    StageFlow(StageFlow<'a>),
    /// Makes a flow of all its staged parts.
    CommitFlow(CommitFlow<'a>),
    /// Adds tasks to the flow of a running task.
    AddFlowTasks(AddFlowTasks<'a>),
    /// Cancels a flow: waiting tasks at once, claimed tasks when their workers yield.
    CancelFlow(CancelFlow),
    /// Runs the failed nodes of a flow again, and then the nodes that wait for them.
    RetryFlow(RetryFlow),
    /// Makes a tally, empty and open.
    OpenTally(OpenTally<'a>),
    /// Adds tasks to a tally, open or not.
    AddToTally(AddToTally<'a>),
    /// Keeps the steps of a tally that are not made yet from being made until the next commit.
    ReopenTally(ReopenTally),
    /// Lets the steps of a tally be made: all its tasks are added, or are added by its own tasks.
    CommitTally(CommitTally),
    /// Makes a schedule, or gives it new rules.
    SetSchedule(SetSchedule<'a>),
    /// Decides occurrences that are due.
    FireSchedule(FireSchedule<'a>),
    /// Forgets a schedule; its tasks are left alone.
    RemoveSchedule(RemoveSchedule<'a>),
    /// Lets occurrences pass without a run.
    PauseSchedule(PauseSchedule<'a>),
    /// Starts runs again, from the next occurrence on.
    ResumeSchedule(ResumeSchedule<'a>),
    /// Starts a run of a schedule now.
    TriggerSchedule(TriggerSchedule<'a>),
    /// Runs past occurrences of a schedule, a bounded number per entry.
    BackfillSchedule(BackfillSchedule<'a>),
    /// Does what is due: makes delayed tasks ready, ends lapsed claims, expires and removes;
    /// bounded per entry.
    ExpireDue,
    /// The first entry of a new leader: no claim lapses before `now` + `LEASE_FLOOR_MS`.
    BeginTerm,
    /// Gives live claims the time that their workers could not use.
    PutOff(PutOff),
    /// Applies a command that another shard's outbox owes this one, once.
    Deliver(Deliver<'a>),
    /// Drops the messages that the target shard has taken from this shard's outbox.
    Delivered(Delivered),
    /// Keeps the digest of the state as of now, for replicas to compare.
    Mark,
    /// Attests the digest of a replica at a mark.
    Attest(Attest),
}

/// When a task may first run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// This long after the entry's time.
    After {
        /// The delay.
        ms: u64,
    },
    /// At this moment; at once if it has passed.
    At(Timestamp),
}

/// The task's input for its handler. Kept beside the state, not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body<'a> {
    /// Media type of the payload; empty means `application/json`.
    pub content_type: &'a str,
    /// Free key-value pairs, in the order given.
    pub headers: Vec<(&'a str, &'a str)>,
    /// The bytes, kept verbatim.
    pub payload: &'a [u8],
}

/// A new task, as its producer describes it. Fields that are `None` come from the queue's settings
/// or the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTask<'a> {
    /// The function's name; `type` on the wire.
    pub task_type: &'a str,
    /// The input for the handler.
    pub body: Body<'a>,
    /// 0 to 9, 9 first; `None` is 5.
    pub priority: Option<u8>,
    /// When the task may first run.
    pub run_at: When,
    /// When the task becomes Expired if it is still waiting.
    pub expires_at: Option<Timestamp>,
    /// Identity of the request: within the queue's dedup window it makes at most one task.
    pub request_id: Option<&'a str>,
    /// How failures are retried.
    pub retry: Option<RetryPolicy>,
    /// Longest run time of one attempt.
    pub timeout_ms: Option<u64>,
    /// The lease of the task, which overrides the lease of the claim.
    pub lease_ms: Option<u64>,
    /// Whether the task, once no retry is left, ends as failed and not as a dead letter. A
    /// quarantined or killed task becomes a dead letter all the same, because its producer did not
    /// choose that end.
    pub discard_dead: bool,
    /// How long the finished task is kept, which overrides the queue's retention.
    pub retention_ms: Option<u64>,
    /// Words by which the task can be found.
    pub tags: Vec<&'a str>,
    /// The key that one task of the queue has at a time.
    pub unique: Option<Box<Unique<'a>>>,
    /// The customer that the task is for: the keys of a queue take turns, and have limits of their
    /// own.
    pub fairness_key: Option<&'a str>,
}

/// A key that one task of a queue has at a time.
///
/// Without `until` and `window_ms` the task has the key until it is done. With a window alone the
/// key is taken for the window, even if the task ends before. With both, the key is free after the
/// step or the window, whichever comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique<'a> {
    /// The key, in the task's queue.
    pub key: Cow<'a, str>,
    /// The step of the task that frees the key.
    pub until: Option<UniqueUntil>,
    /// The longest time from the enqueue for which the key is taken.
    pub window_ms: Option<u64>,
    /// The answer to an enqueue while another task has the key.
    pub on_conflict: OnConflict,
    /// The task runs after this long without another enqueue of the key, with the latest payload.
    /// Implies until start; goes with `Replace` alone.
    pub debounce_ms: Option<u64>,
}

/// The step of a task that frees its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueUntil {
    /// The first claim; a retry does not take the key again.
    Start,
    /// The end of the task, in any final state.
    Done,
}

impl UniqueUntil {
    /// The name of the step, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            UniqueUntil::Start => "start",
            UniqueUntil::Done => "done",
        }
    }
}

/// The answer to an enqueue while another task has its unique key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Answers the holder's id; nothing changes.
    #[default]
    Existing,
    /// Answers the waiting holder's id; the holder gets the new payload and headers.
    Replace,
    /// Rejects the enqueue and names the holder.
    Reject,
}

/// See [`Command::Enqueue`].
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueue<'a> {
    /// The queue; created if it does not exist.
    pub queue: &'a str,
    /// The task.
    pub task: NewTask<'a>,
}

/// See [`Command::EnqueueMany`].
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueMany<'a> {
    /// The id of the batch: a repetition within 10 minutes enqueues nothing twice. Accepted tasks
    /// get their first answer; rejected tasks are judged again.
    pub batch_id: Option<u128>,
    /// The tasks.
    pub items: Vec<Enqueue<'a>>,
}

/// See [`Command::EnqueueBatch`].
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueBatch<'a> {
    /// The id of the batch: a repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// The queue of all its tasks.
    pub queue: &'a str,
    /// The tasks, in the order in which they become claimable.
    pub tasks: Vec<NewTask<'a>>,
}

/// See [`Command::StageBatch`].
#[derive(Clone, Debug, PartialEq)]
pub struct StageBatch<'a> {
    /// The batch that this is a part of.
    pub batch_id: u128,
    /// The queue of all its tasks.
    pub queue: &'a str,
    /// The part's number, from 0. Parts come in order; a repeated part is ignored.
    pub part: u32,
    /// The part's tasks. A bad task is rejected here, with its index in the whole batch.
    pub tasks: Vec<NewTask<'a>>,
}

/// See [`Command::CommitBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBatch {
    /// The staged batch.
    pub batch_id: u128,
    /// The number of parts that the batch must have.
    pub parts: u32,
}

/// See [`Command::Unstage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unstage {
    /// The staged batch or flow. A committed or unknown id changes nothing.
    pub batch_id: u128,
}

/// See [`Command::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The queues to claim from, at least one. An unknown queue is empty, not an error.
    pub queues: Vec<ClaimQueue<'a>>,
    /// The types of tasks that the worker can run; empty: any type. A type that no task has is
    /// empty, not an error.
    pub types: Vec<&'a str>,
    /// `None`: queues in strict order. `Some`: drawn by weight, from this seed.
    pub weighted_seed: Option<u64>,
    /// At most this many tasks, at least 1.
    pub tasks_max: u32,
    /// The claim ends once its tasks have this many bytes together, or `CLAIM_BYTES_MAX`.
    pub bytes_max: u32,
    /// How long the worker may be silent about a task, unless the task has a lease of its own.
    pub lease_ms: u64,
    /// The session that holds the claims; without a session, a claim ends by its lease alone.
    pub session: Option<SessionId>,
    /// The session's number for this claim; a repetition with the same number gets the same tasks.
    pub number: Option<ClaimNumber>,
    /// Whether handed-out tasks count as begun, so that a lapse is a loss. Set for a worker that
    /// does not report the start of its tasks. Without a session tasks always count as begun.
    pub begun: bool,
    /// The worker's name, for people.
    pub worker: &'a str,
}

/// The name of one claim of a session, and of one sending of that claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimNumber {
    /// The claim: a number that the session never uses for another claim.
    pub sequence: u64,
    /// The number of this sending of the claim, from 0. A later sending takes over the tasks of an
    /// earlier one, under new tokens. An earlier sending that arrives after a later one gets none.
    pub sending: u32,
}

/// A queue to claim from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimQueue<'a> {
    /// Its name.
    pub name: &'a str,
    /// The queue's share when queues are drawn by weight, 1 to 1000.
    pub weight: u32,
}

/// See [`Command::Ack`].
#[derive(Clone, Debug, PartialEq)]
pub struct Ack<'a> {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// The handler's result, verbatim (JSON, or any bytes).
    pub result: Option<&'a [u8]>,
    /// Tasks to enqueue in the same entry, or through the outbox if their home is another shard.
    pub follow_ups: Vec<FollowUp<'a>>,
}

/// A task that follows an ack or a step of a tally, or that is added to a tally.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp<'a> {
    /// The shard of its queue.
    pub home: ShardId,
    /// The task and its queue.
    pub enqueue: Enqueue<'a>,
}

/// The error of an attempt. Longer texts are cut to `ERROR_BYTES_MAX` in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskError<'a> {
    /// The error's class, for grouping.
    pub error_type: &'a str,
    /// The error's message.
    pub message: &'a str,
    /// Where the error happened.
    pub backtrace: &'a str,
}

/// See [`Command::Fail`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail<'a> {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// The error of the attempt.
    pub error: TaskError<'a>,
    /// When to retry: overrides the wait of the retry policy, but not its number of attempts.
    pub retry_at: Option<When>,
    /// `false` makes the task a dead letter at once.
    pub retryable: bool,
}

/// How far a running task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// 0 to 100.
    pub percent: u8,
    /// One line of text for people.
    pub message: &'a str,
}

/// See [`Command::Extend`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// The new lease, from now; `None` is as long as it was claimed for, or as the task itself
    /// says.
    pub lease_ms: Option<u64>,
    /// The task's progress.
    pub progress: Option<Progress<'a>>,
    /// The resume state for the next attempt.
    pub resume_state: Option<&'a [u8]>,
}

/// See [`Command::Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The claims to renew.
    pub claims: Vec<(TaskId, ClaimToken)>,
}

/// See [`Command::Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
}

/// See [`Command::Snooze`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snooze {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// When the task may run again.
    pub until: When,
    /// Pushes the task's fairness key back until then too; without a key, all tasks without one.
    pub push_back_key: bool,
}

/// See [`Command::Cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The task.
    pub task: TaskId,
}

/// See [`Command::Kill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The task.
    pub task: TaskId,
}

/// See [`Command::Retry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry<'a> {
    /// The task.
    pub task: TaskId,
    /// Replaces the task's body.
    pub body: Option<Body<'a>>,
}

/// The action on dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadAction {
    /// Make them ready again, with their full number of attempts ahead.
    Retry,
    /// Remove them for good.
    Discard,
}

/// A filter of tasks; every given part must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter<'a> {
    /// In this queue.
    pub queue: Option<&'a str>,
    /// In this state.
    pub state: Option<crate::TaskStateName>,
    /// Of this type.
    pub task_type: Option<&'a str>,
    /// The last error has this type, or its message contains this text.
    pub error: Option<&'a str>,
    /// With this tag.
    pub tag: Option<&'a str>,
    /// Of this flow.
    pub flow: Option<TaskId>,
}

/// A selection of dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// These ids. An id that is unknown or not dead counts as skipped.
    Ids(Vec<TaskId>),
    /// All dead letters that match, after `after` in id order.
    Filter {
        /// The filter; `state` is ignored.
        filter: TaskFilter<'a>,
        /// The last id of the previous entry of this operation.
        after: Option<TaskId>,
        /// Only tasks that died before this moment, so that an operation ends.
        dead_before: Option<Timestamp>,
    },
}

/// See [`Command::Dead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCommand<'a> {
    /// What to do.
    pub action: DeadAction,
    /// The dead letters.
    pub selection: Selection<'a>,
}

/// A command about a queue as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCommand<'a> {
    /// The queue.
    pub queue: &'a str,
}

/// See [`Command::SetQueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetQueue<'a> {
    /// The queue.
    pub queue: &'a str,
    /// All settings of the queue; `None` stands for the default.
    pub settings: QueueSettings,
}

/// See [`Command::TrimQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimQueue<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The version of the settings under which the shards were seen empty. A newer version in the
    /// state makes this command change nothing.
    pub version: u64,
}

/// See [`Command::DeleteQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteQueue<'a> {
    /// The queue.
    pub queue: &'a str,
    /// Of a queue that was spread, the version of its rules under which all its shards are asked.
    /// On the home shard it is not looked at.
    pub version: u64,
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The worker said goodbye: its claims are released.
    Goodbye,
    /// The worker was silent too long: its claims end as losses.
    Silence,
}

/// See [`Command::EndSession`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSession {
    /// The session.
    pub session: SessionId,
    /// Why it ends.
    pub reason: SessionEnd,
    /// Claims that were handed out but never reported as started: they are released, not lost.
    pub not_started: Vec<TaskId>,
    /// Claims to spare, because a resumed session still holds them; empty ends all.
    pub keep: Vec<TaskId>,
}

/// See [`Command::Deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliver<'a> {
    /// The shard whose outbox the command comes from.
    pub from: ShardId,
    /// The command's number in that outbox, from 1; delivered in order.
    pub sequence: u64,
    /// How long it has waited there, by that shard's time.
    pub waited_ms: u64,
    /// The encoded command.
    pub command: &'a [u8],
}

/// Gives workers back the time of a standstill: the leader was stopped and heard no worker, or its
/// clock was set forward. The lease and run time of every live claim end that much later. No claim
/// ends within that much from now on, up to `LEASE_FLOOR_MS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOff {
    /// The length of that time.
    pub claims_ms: u64,
}

/// See [`Command::Delivered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The shard that took the messages.
    pub to: ShardId,
    /// The last number that the shard took; all earlier ones are taken too.
    pub up_to: u64,
}
