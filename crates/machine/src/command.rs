//! Command: what is asked of a shard. Verbs; each may be rejected.
//!
//! Commands borrow from the request they were decoded from and from the log entry they are read
//! back from. `codec.rs` holds their encoding, `entry.rs` how they are packed into log entries.

use crate::{
    AddFlowTasks, AddToTally, Attest, BackfillSchedule, CancelFlow, ClaimToken, CommitFlow,
    CommitTally, FireSchedule, OpenTally, PauseSchedule, QueueSettings, RemoveSchedule,
    ReopenTally, ResumeSchedule, RetryFlow, RetryPolicy, SessionId, SetSchedule, ShardId,
    StageFlow, SubmitFlow, TaskId, Timestamp, TriggerSchedule,
};
use std::borrow::Cow;

/// One thing asked of one shard.
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
    /// Forgets the staged parts of a batch or flow that nobody will commit.
    Unstage(Unstage),
    /// Hands ready tasks to a worker.
    Claim(Claim<'a>),
    /// Ends a claimed task well.
    Ack(Ack<'a>),
    /// Ends an attempt badly: retry, dead letter or end.
    Fail(Fail<'a>),
    /// Renews one lease, with progress and resume state.
    Extend(Extend<'a>),
    /// Renews the leases of what a session holds.
    Renew(Renew),
    /// Gives a claimed task back without spending anything.
    Release(Release),
    /// Puts a claimed task off without spending an attempt.
    Snooze(Snooze),
    /// Takes a task back: at once when waiting, by request when claimed.
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
    /// Forgets shards beyond a queue's spread that were seen empty.
    TrimQueue(TrimQueue<'a>),
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
    /// Takes a flow back: what waits at once, what runs when its worker yields.
    CancelFlow(CancelFlow),
    /// Runs the failed nodes of a flow again, and then what waited for them.
    RetryFlow(RetryFlow),
    /// Makes a tally, empty and open.
    OpenTally(OpenTally<'a>),
    /// Adds tasks to a tally, open or not.
    AddToTally(AddToTally<'a>),
    /// Holds back what has not followed from a tally yet.
    ReopenTally(ReopenTally),
    /// Lets tasks follow from a tally: all that it is to count is added, or is added by its tasks.
    CommitTally(CommitTally),
    /// Makes a schedule, or gives it new rules.
    SetSchedule(SetSchedule<'a>),
    /// Decides occurrences whose time has come.
    FireSchedule(FireSchedule<'a>),
    /// Forgets a schedule; its tasks are left alone.
    RemoveSchedule(RemoveSchedule<'a>),
    /// Lets occurrences pass without firing.
    PauseSchedule(PauseSchedule<'a>),
    /// Fires again, from the next occurrence on.
    ResumeSchedule(ResumeSchedule<'a>),
    /// Starts a run of a schedule now.
    TriggerSchedule(TriggerSchedule<'a>),
    /// Runs past occurrences of a schedule, a bounded number per entry.
    BackfillSchedule(BackfillSchedule<'a>),
    /// Does what is due: promotes, lapses, expires, removes; bounded per entry.
    ExpireDue,
    /// The first entry of a new leader: no claim lapses before `now` + `LEASE_FLOOR_MS`.
    BeginTerm,
    /// Gives live claims the time that their workers could not use.
    PutOff(PutOff),
    /// Applies a command that another shard's outbox owes this one, once.
    Deliver(Deliver<'a>),
    /// Drops what the target has taken from this shard's outbox.
    Delivered(Delivered),
    /// Keeps the digest of the state as it is now, for replicas to compare.
    Mark,
    /// Says which digest a replica had at a mark.
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

/// What a handler receives. Kept beside the state, not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body<'a> {
    /// Media type of the payload; empty means `application/json`.
    pub content_type: &'a str,
    /// Free key-value pairs, in the order given.
    pub headers: Vec<(&'a str, &'a str)>,
    /// The bytes, kept verbatim.
    pub payload: &'a [u8],
}

/// A task as it is asked for. What is `None` comes from its queue's settings or the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTask<'a> {
    /// The function's name; `type` on the wire.
    pub task_type: &'a str,
    /// What the handler receives.
    pub body: Body<'a>,
    /// 0 to 9, 9 first; `None` is 5.
    pub priority: Option<u8>,
    /// When it may first run.
    pub run_at: When,
    /// Not worth running from here on: it becomes Expired if still waiting.
    pub expires_at: Option<Timestamp>,
    /// Identity of the request: within the queue's dedup window it makes at most one task.
    pub request_id: Option<&'a str>,
    /// How failures are retried.
    pub retry: Option<RetryPolicy>,
    /// Longest run time of one attempt.
    pub timeout_ms: Option<u64>,
    /// How long a claim of it holds without being renewed, whatever the claimant asks for.
    pub lease_ms: Option<u64>,
    /// When it is not tried again after a failure it ends as failed, and not as a dead letter. A
    /// quarantined one is a dead letter all the same: nobody chose that.
    pub discard_dead: bool,
    /// How long the finished task is kept, whatever its queue keeps.
    pub retention_ms: Option<u64>,
    /// Words to find it by.
    pub tags: Vec<&'a str>,
    /// Of the tasks with this key in its queue, only one at a time.
    pub unique: Option<Box<Unique<'a>>>,
    /// Whom it is for: the keys of a queue take turns, and have limits of their own.
    pub fairness_key: Option<&'a str>,
}

/// A key that one task of a queue holds at a time.
///
/// Without `until` and `window_ms` it is held until the task is done. With a window alone it is held
/// for the window, whatever becomes of the task; with both, until then but no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique<'a> {
    /// The key, in the task's queue.
    pub key: Cow<'a, str>,
    /// Which step of the task frees it.
    pub until: Option<UniqueUntil>,
    /// For how long from the enqueue it is held at most.
    pub window_ms: Option<u64>,
    /// What an enqueue comes to while another task holds the key.
    pub on_conflict: OnConflict,
    /// Runs after this long without another enqueue of the key, with the latest payload. Implies
    /// until start; goes with `Replace` alone.
    pub debounce_ms: Option<u64>,
}

/// Which step of a task frees its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueUntil {
    /// Its first claim; a retry does not take the key again.
    Start,
    /// Its end, whichever that is.
    Done,
}

impl UniqueUntil {
    /// The word on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            UniqueUntil::Start => "start",
            UniqueUntil::Done => "done",
        }
    }
}

/// What an enqueue comes to while another task holds its unique key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The holder's id, and nothing changes.
    #[default]
    Existing,
    /// The waiting holder's id, and it takes the new payload and headers.
    Replace,
    /// Refused, naming the holder.
    Reject,
}

/// See [`Command::Enqueue`].
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueue<'a> {
    /// The queue; made if it does not exist.
    pub queue: &'a str,
    /// The task.
    pub task: NewTask<'a>,
}

/// See [`Command::EnqueueMany`].
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueMany<'a> {
    /// Identity of the wire batch: its repetition within 10 minutes enqueues nothing twice. Accepted
    /// tasks get their first answer; rejected ones are judged again.
    pub batch_id: Option<u128>,
    /// The tasks.
    pub items: Vec<Enqueue<'a>>,
}

/// See [`Command::EnqueueBatch`].
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueBatch<'a> {
    /// Identity of the batch: its repetition within 10 minutes gets the first answer.
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
    /// The part's tasks. Bad ones are rejected here, with their index in the whole batch.
    pub tasks: Vec<NewTask<'a>>,
}

/// See [`Command::CommitBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBatch {
    /// The staged batch.
    pub batch_id: u128,
    /// How many parts it must have.
    pub parts: u32,
}

/// See [`Command::Unstage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unstage {
    /// The staged batch or flow. One that is committed, or unknown, is left as it is.
    pub batch_id: u128,
}

/// See [`Command::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Where to look, at least one. Unknown queues are empty, not an error.
    pub queues: Vec<ClaimQueue<'a>>,
    /// The types of tasks that the worker can run; empty: any type. A type that no task has is
    /// empty, not an error.
    pub types: Vec<&'a str>,
    /// `None`: queues in strict order. `Some`: drawn by weight, from this seed.
    pub weighted_seed: Option<u64>,
    /// At most this many tasks, at least 1.
    pub tasks_max: u32,
    /// How long the worker may be silent about a task, unless the task itself says.
    pub lease_ms: u64,
    /// The session that holds the claims; `None` leaves them to their lease alone.
    pub session: Option<SessionId>,
    /// The session's number for this claim, by which its repetition gets the same tasks.
    pub number: Option<ClaimNumber>,
    /// Whether what is handed out counts as begun, so that its lapse is a loss: of a worker that
    /// never tells when it begins, and beats for none of its tasks. Without a session it counts so
    /// in any case.
    pub begun: bool,
    /// Who claims, for people.
    pub worker: &'a str,
}

/// Names one claim of a session, and one sending of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimNumber {
    /// Which claim: the session's own, never used for another.
    pub sequence: u64,
    /// Which sending of it, from 0. A later one takes over what an earlier one got, under new
    /// tokens; an earlier one that comes after a later one gets nothing.
    pub sending: u32,
}

/// A queue to claim from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimQueue<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its share when drawn by weight, 1 to 1000.
    pub weight: u32,
}

/// See [`Command::Ack`].
#[derive(Clone, Debug, PartialEq)]
pub struct Ack<'a> {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// What the handler returned, verbatim (JSON, or any bytes).
    pub result: Option<&'a [u8]>,
    /// Tasks to enqueue in the same entry, or through the outbox where they live elsewhere.
    pub follow_ups: Vec<FollowUp<'a>>,
}

/// A task that follows from something: an ack, or a step of a tally; or one that is added to a
/// tally.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp<'a> {
    /// The shard of its queue.
    pub home: ShardId,
    /// The task and its queue.
    pub enqueue: Enqueue<'a>,
}

/// What went wrong in an attempt. Longer texts are cut to `ERROR_BYTES_MAX` in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskError<'a> {
    /// Its class, for grouping.
    pub error_type: &'a str,
    /// Its message.
    pub message: &'a str,
    /// Where it happened.
    pub backtrace: &'a str,
}

/// See [`Command::Fail`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail<'a> {
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
    /// What went wrong.
    pub error: TaskError<'a>,
    /// Overrides the policy's wait, not its number of attempts.
    pub retry_at: Option<When>,
    /// `false` ends the task at once as a dead letter.
    pub retryable: bool,
}

/// How far a running task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// 0 to 100.
    pub percent: u8,
    /// One line for people.
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
    /// How far it is.
    pub progress: Option<Progress<'a>>,
    /// What the next attempt receives.
    pub resume_state: Option<&'a [u8]>,
}

/// See [`Command::Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The claims that their session still holds.
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
    /// When it may run again.
    pub until: When,
    /// Holds all tasks of its key back until then too; for a task without a key, all without one.
    pub hold_key: bool,
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

/// What to do with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadAction {
    /// Make them ready, with all attempts before them.
    Retry,
    /// Remove them for good.
    Discard,
}

/// Which tasks; every given part must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter<'a> {
    /// In this queue.
    pub queue: Option<&'a str>,
    /// In this state.
    pub state: Option<crate::TaskStateName>,
    /// Of this type.
    pub task_type: Option<&'a str>,
    /// Whose last error's type is this, or whose message contains it.
    pub error: Option<&'a str>,
    /// With this tag.
    pub tag: Option<&'a str>,
    /// Of this flow.
    pub flow: Option<TaskId>,
}

/// Which dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// These. An unknown or not dead one is counted as skipped.
    Ids(Vec<TaskId>),
    /// All that match, after `after` in id order.
    Filter {
        /// What must match; `state` is ignored.
        filter: TaskFilter<'a>,
        /// Where the previous entry of this operation stopped.
        after: Option<TaskId>,
        /// Only those dead before this moment, so that an operation ends.
        dead_before: Option<Timestamp>,
    },
}

/// See [`Command::Dead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCommand<'a> {
    /// What to do.
    pub action: DeadAction,
    /// With which.
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
    /// All its settings; what is `None` returns to the default.
    pub settings: QueueSettings,
}

/// See [`Command::TrimQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimQueue<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The rules under which they were seen empty; a newer version changes nothing.
    pub version: u64,
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The worker said goodbye: its claims are released.
    Goodbye,
    /// It was silent too long: its claims are lost, and counted so.
    Silence,
}

/// See [`Command::EndSession`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSession {
    /// The session.
    pub session: SessionId,
    /// Why it ends.
    pub reason: SessionEnd,
    /// Claims that were handed out but never reported started: released, not lost.
    pub not_started: Vec<TaskId>,
    /// Spare these claims (a resumed session lists what it still holds); empty ends all.
    pub keep: Vec<TaskId>,
}

/// See [`Command::Deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliver<'a> {
    /// The shard that owes it.
    pub from: ShardId,
    /// Its number in that shard's outbox for this one, from 1, delivered in order.
    pub sequence: u64,
    /// How long it has waited there, by that shard's time.
    pub waited_ms: u64,
    /// The encoded command.
    pub command: &'a [u8],
}

/// Time that passed on this shard without its workers having it: the leader stood still and heard
/// nobody, or its clock was set forward. Every live claim's lease and run time end so much later,
/// and none ends within as much from now on, up to `LEASE_FLOOR_MS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOff {
    /// How much it is.
    pub claims_ms: u64,
}

/// See [`Command::Delivered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The shard that took them.
    pub to: ShardId,
    /// All up to this number are taken.
    pub up_to: u64,
}
