//! Inbox: the queue of inputs to the shard loop's thread.
//!
//! A push takes a lock for a moment; the loop takes as many inputs as one turn can write. While the
//! loop syncs the log, the next batch gathers here: group commit without a timer.
//!
//! Invariant: inputs that wait for a slow disk are bounded, in number and in bytes. Beyond the
//! bounds a call is refused, and a Raft message is dropped, which Raft sends again. Raft messages
//! come before calls, so that a busy node still hears its leaders.

use super::{ClaimRequest, HandedTask, Hint, Look, ShardStatus, session_news::SessionNews};
use crate::{
    Error,
    buffers::{Buffers, Reserved},
    checkpoint::{Report, View},
    cluster::{Fetched, GroupStatus},
    limits::{INPUT_BYTES_MAX, INPUTS_MAX, RAFT_INPUT_BYTES_MAX},
    shard_loop::{SoughtBody, Spare, Unread},
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_machine::{
    ClaimToken, ClaimedTask, EncodedCommand, Machine, Outcome, ShardId, TaskId, Timestamp,
};
use taskyard_replica::{Change, ControlCommand, NodeId};
use tokio::sync::{mpsc, oneshot};

/// Raft messages up to this size, such as heartbeats and votes, are dropped last, because elections
/// need them.
const SMALL_MESSAGE_BYTES: usize = 1 << 10;

/// The answer to one call.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// A read of one shard's state on the loop's thread; it receives an error if it can't run.
pub(crate) type ReadFn = Box<dyn FnOnce(Result<(&Machine, Timestamp), Error>) + Send>;

/// Identifies one parked claim, hint or watch, so that it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TicketId(pub u64);

pub(crate) struct Waiter {
    pub ticket: TicketId,
    pub request: ClaimRequest,
    /// Whether the claim waits when nothing is ready.
    pub parks: bool,
    pub answer: Answer<Vec<HandedTask>>,
}

/// An order for a view of all shards at one moment.
pub(crate) struct BackupOrder {
    /// Signalled once the shards are frozen.
    pub frozen: oneshot::Sender<()>,
    /// Answered once the view is on disk.
    pub written: Answer<View>,
}

/// An input of the loop.
pub(crate) enum Input {
    Propose {
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
        answer: Answer<Outcome>,
    },
    ProposeAll {
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
        answer: oneshot::Sender<Vec<Result<Outcome, Error>>>,
    },
    Claim {
        shard: ShardId,
        waiter: Waiter,
    },
    /// How many tasks the shards have to claim now.
    Probe {
        looks: Vec<Look>,
        answer: oneshot::Sender<Vec<Hint>>,
    },
    /// Parks hints: each shard answers once, when it has tasks.
    Hints {
        ticket: TicketId,
        looks: Vec<Look>,
        answer: mpsc::UnboundedSender<Hint>,
    },
    Read {
        shard: ShardId,
        read: ReadFn,
    },
    Bodies {
        tasks: Vec<TaskId>,
        answer: Answer<Vec<Option<Bytes>>>,
    },
    Watch {
        task: TaskId,
        ticket: TicketId,
        answer: Answer<bool>,
    },
    /// Removes a parked claim or parked hints.
    Unpark {
        shards: Vec<ShardId>,
        ticket: TicketId,
    },
    /// Removes a watch.
    Unwatch {
        task: TaskId,
        ticket: TicketId,
    },
    /// Claims that were handed over and not received: they are released.
    Undelivered {
        claims: Vec<(TaskId, ClaimToken)>,
    },
    /// Bodies of claimed tasks were read from disk or from other replicas.
    BodiesRead {
        waiter: Waiter,
        tasks: Vec<ClaimedTask>,
        bodies: Vec<SoughtBody>,
    },
    /// A read from this node's disk that failed for some bodies.
    Unread(Unread),
    /// The answers of other replicas about some of these bodies, by position.
    Spared {
        unread: Unread,
        answers: Vec<(usize, Vec<Spare>)>,
    },
    /// A request of another node whose disk can't read this body.
    Spare {
        task: TaskId,
        answer: Answer<Option<Bytes>>,
    },
    /// What the node `from` reports of its sessions.
    Sessions {
        from: NodeId,
        news: SessionNews,
    },
    Status(oneshot::Sender<Vec<ShardStatus>>),
    /// The status of every replica of this node.
    Groups(oneshot::Sender<Vec<GroupStatus>>),
    /// A command to the control group, if this node leads it.
    Control {
        command: ControlCommand,
        answer: Answer<()>,
    },
    /// A change of a group's members, if this node leads the group.
    Change {
        group: u64,
        /// The term, and the index of the entry that made the current members.
        fence: (u64, u64),
        changes: Vec<Change>,
        answer: Answer<()>,
    },
    /// Hands over leadership of a group to a replica, if this node leads the group.
    Transfer {
        group: u64,
        to: u64,
        answer: Answer<()>,
    },
    /// Hands over all leadership that other nodes can take. Answered when done, or at `until`.
    HandOver {
        until: Instant,
        answer: Answer<()>,
    },
    /// Pauses messages between shards until `until`, for a backup; no delivered message is dropped.
    PauseDelivery {
        backup: u64,
        until: Instant,
        answer: Answer<()>,
    },
    /// The answers of a shard that another node leads to messages of `from`, by number.
    Owed {
        from: ShardId,
        to: ShardId,
        answers: Vec<(u64, Result<Outcome, Error>)>,
    },
    Raft {
        from: NodeId,
        group: u64,
        message: Bytes,
    },
    /// A peer became reachable or unreachable.
    Peer {
        node: NodeId,
        is_up: bool,
    },
    /// A shard's snapshot is complete in the store.
    Fetched(Box<Fetched>),
    /// A snapshot could not be fetched: the leader has to offer one again.
    FetchFailed {
        shard: ShardId,
        index: u64,
    },
    /// No checkpoint begins until `until`, unless a backup asks for it. Answered once none is under
    /// way.
    Quiet {
        until: Instant,
        answer: Answer<()>,
    },
    /// Checkpoints all shards at one moment and takes a view of that.
    Backup(BackupOrder),
    Report(Report),
    /// A job for the thread that writes checkpoints.
    #[cfg(test)]
    Job(crate::checkpoint::Job),
    /// Wakes the loop after a change that is no input, such as a manual clock.
    Look,
    /// Ends calls, writes checkpoints as far as time allows, then ends the thread.
    Stop {
        until: Instant,
    },
    /// Ends the thread at once, as a crash would.
    Halt,
}

impl Input {
    /// About the bytes that this input adds to the log, because a turn takes at most what one write
    /// can hold.
    pub(crate) fn log_bytes(&self) -> usize {
        match self {
            Input::Propose { command, .. } => command.as_bytes().len(),
            Input::ProposeAll { commands, .. } => {
                commands.iter().map(|(_, command)| command.as_bytes().len()).sum()
            }
            Input::Raft { message, .. } => message.len(),
            _ => 0,
        }
    }
}

impl Input {
    /// Whether this is a caller's request, which may be refused because the caller can repeat it.
    fn is_call(&self) -> bool {
        matches!(
            self,
            Input::Propose { .. }
                | Input::ProposeAll { .. }
                | Input::Claim { .. }
                | Input::Probe { .. }
                | Input::Hints { .. }
                | Input::Read { .. }
                | Input::Bodies { .. }
                | Input::Watch { .. }
                | Input::Status(_)
                | Input::Groups(_)
                | Input::Control { .. }
                | Input::Change { .. }
                | Input::Transfer { .. }
                | Input::Quiet { .. }
                | Input::Backup(_)
        )
    }
}

/// Waiting inputs, in order.
#[derive(Default)]
struct Lane {
    inputs: VecDeque<Input>,
    /// Bytes that all inputs add to the log.
    bytes: usize,
}

impl Lane {
    fn push(&mut self, input: Input) {
        self.bytes += input.log_bytes();
        self.inputs.push_back(input);
    }

    /// Moves inputs into the empty `taken`, until they add about `bytes_max` to the log.
    fn take(&mut self, taken: &mut VecDeque<Input>, bytes_max: usize) {
        if self.bytes <= bytes_max {
            // The buffers are swapped, so that nothing is allocated once both have grown.
            std::mem::swap(taken, &mut self.inputs);
            self.bytes = 0;
            return;
        }
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(input) = self.inputs.pop_front()
        {
            bytes += input.log_bytes();
            taken.push_back(input);
        }
        self.bytes -= bytes;
    }
}

#[derive(Default)]
struct Queue {
    raft: Lane,
    others: Lane,
    /// The bytes of both lanes, as counted among the node's bytes in flight.
    counted: Option<Reserved>,
    /// Why inputs are refused, once the inbox is closed.
    closed: Option<String>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.raft.inputs.is_empty() && self.others.inputs.is_empty()
    }

    /// Updates the count of waiting bytes.
    fn count(&mut self) {
        let waiting = self.raft.bytes + self.others.bytes;
        if let Some(counted) = &mut self.counted {
            counted.charge(waiting.saturating_sub(counted.bytes()));
            counted.shrink_to(waiting);
        }
    }

    /// Whether a peer's message is dropped, because too much waits.
    fn is_too_much(&self, message: &Bytes) -> bool {
        let Lane { inputs, bytes } = &self.raft;
        inputs.len() >= INPUTS_MAX
            || (bytes + message.len() > RAFT_INPUT_BYTES_MAX && message.len() > SMALL_MESSAGE_BYTES)
    }

    /// The error of a call that is refused, because too much waits.
    fn refusal(&self, call: &Input) -> Option<Error> {
        let Lane { inputs, bytes } = &self.others;
        let what = if inputs.len() >= INPUTS_MAX {
            format!("{INPUTS_MAX} calls")
        } else if *bytes > 0 && bytes + call.log_bytes() > INPUT_BYTES_MAX {
            format!("calls of {} MiB", bytes >> 20)
        } else {
            return None;
        };
        let why = format!("{what} already wait for the disk of this node; send it again later");
        Some(Error::Unavailable(why))
    }
}

/// The inputs of one turn: messages between replicas first.
#[derive(Default)]
pub(crate) struct Taken {
    raft: VecDeque<Input>,
    others: VecDeque<Input>,
}

impl Taken {
    pub(crate) fn next(&mut self) -> Option<Input> {
        self.raft.pop_front().or_else(|| self.others.pop_front())
    }
}

/// The shared queue.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Inbox {
    /// An inbox whose waiting bytes count among those in flight.
    pub(crate) fn new(buffers: &Buffers) -> Inbox {
        let inbox = Inbox::default();
        inbox.lock().counted = Some(buffers.none());
        inbox
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes an input to the loop. Dropping a refused input also drops its answer.
    pub(crate) fn push(&self, input: Input) -> Result<(), Error> {
        let mut queue = self.lock();
        if let Some(why) = &queue.closed {
            return Err(Error::Unavailable(why.clone()));
        }
        let was_empty = queue.is_empty();
        match &input {
            Input::Raft { message, .. } if queue.is_too_much(message) => return Ok(()),
            Input::Raft { .. } => queue.raft.push(input),
            // The node's own inputs are never refused: a lost report would block its shard for
            // ever.
            call if call.is_call() => match queue.refusal(call) {
                Some(refusal) => return Err(refusal),
                None => queue.others.push(input),
            },
            _ => queue.others.push(input),
        }
        queue.count();
        drop(queue);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits until there is an input, for up to `wait` or, with `None`, without end. Then takes
    /// inputs of each lane that add about `bytes_max` to the log. `taken` must be empty.
    pub(crate) fn take(&self, taken: &mut Taken, wait: Option<Duration>, bytes_max: usize) {
        let mut queue = self.lock();
        if queue.is_empty() {
            let is_empty = |queue: &mut Queue| queue.is_empty();
            queue = match wait {
                Some(Duration::ZERO) => queue,
                Some(wait) => {
                    let waited = self.filled.wait_timeout_while(queue, wait, is_empty);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.filled.wait_while(queue, is_empty);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        queue.raft.take(&mut taken.raft, bytes_max);
        queue.others.take(&mut taken.others, bytes_max);
        queue.count();
    }

    /// Refuses all inputs from now on, and drops waiting ones.
    pub(crate) fn close(&self, why: &str) {
        let dropped = {
            let mut queue = self.lock();
            queue.closed.get_or_insert_with(|| why.to_owned());
            let dropped = (std::mem::take(&mut queue.raft), std::mem::take(&mut queue.others));
            queue.count();
            dropped
        };
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use taskyard_machine::{Command, Enqueue, NewTask};

    #[test]
    fn a_waiting_loop_is_woken_by_an_input() {
        let inbox = Arc::new(Inbox::default());
        let pusher = {
            let inbox = Arc::clone(&inbox);
            std::thread::spawn(move || inbox.push(Input::Look))
        };
        let mut taken = Taken::default();
        inbox.take(&mut taken, None, 0);
        assert!(matches!(taken.next(), Some(Input::Look)));
        pusher.join().unwrap().unwrap();
        inbox.take(&mut taken, Some(Duration::from_millis(1)), 0);
        assert!(taken.next().is_none());
    }

    const MIB: usize = 1 << 20;

    fn propose(bytes: usize) -> Input {
        let payload = vec![b'x'; bytes];
        let body = taskyard_machine::Body { payload: &payload, ..Default::default() };
        let task = NewTask { task_type: "test", body, ..NewTask::default() };
        let enqueue = Enqueue { queue: "mail", task };
        let command = EncodedCommand::new(&Command::Enqueue(enqueue));
        Input::Propose { shard: ShardId(0), command, enqueue: true, answer: oneshot::channel().0 }
    }

    fn raft(bytes: usize) -> Input {
        Input::Raft { from: 2, group: 1, message: Bytes::from(vec![0; bytes]) }
    }

    /// The numbers of messages, proposals and other inputs in one turn.
    fn turn(inbox: &Inbox) -> [usize; 3] {
        let (mut taken, mut counts) = (Taken::default(), [0; 3]);
        inbox.take(&mut taken, Some(Duration::ZERO), 16 * MIB);
        while let Some(input) = taken.next() {
            let of = match input {
                Input::Raft { .. } => 0,
                Input::Propose { .. } => 1,
                _ => 2,
            };
            assert!(counts[of + 1..].iter().all(|count| *count == 0) || of > 0, "messages first");
            counts[of] += 1;
        }
        counts
    }

    #[test]
    fn a_turn_takes_what_one_write_can_hold_and_messages_first() {
        let inbox = Inbox::default();
        for _ in 0..20 {
            inbox.push(propose(MIB)).unwrap();
            inbox.push(raft(MIB)).unwrap();
        }
        inbox.push(Input::Look).unwrap();
        assert_eq!(turn(&inbox), [16, 16, 0]);
        assert_eq!(turn(&inbox), [4, 4, 1]);
        assert_eq!(turn(&inbox), [0; 3]);
    }

    /// A stalled disk must not fill the memory.
    #[test]
    fn waiting_inputs_are_bounded_and_further_calls_are_refused() {
        let inbox = Inbox::default();
        let mut calls = 0;
        let refused = loop {
            match inbox.push(propose(MIB)) {
                Ok(()) => calls += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(calls, INPUT_BYTES_MAX / MIB - 1, "each is a little more than a MiB");
        assert_eq!(refused.code(), "unavailable");
        assert_eq!(
            refused.to_string(),
            "calls of 255 MiB already wait for the disk of this node; send it again later"
        );
        inbox.push(Input::Look).unwrap();
        let messages = RAFT_INPUT_BYTES_MAX / MIB;
        for _ in 0..messages + 10 {
            inbox.push(raft(MIB)).unwrap();
        }
        inbox.push(raft(100)).unwrap();
        let mut turns = [0; 3];
        turns[0] += turn(&inbox)[0];
        inbox.push(propose(MIB)).expect("there is room again");
        loop {
            let more = turn(&inbox);
            if more == [0; 3] {
                break;
            }
            turns = std::array::from_fn(|of| turns[of] + more[of]);
        }
        assert_eq!(turns, [messages + 1, calls + 1 - 16, 1], "the small one was kept");
    }

    #[test]
    fn a_closed_inbox_says_why_and_drops_waiting_calls() {
        let inbox = Inbox::default();
        let (answer, mut answered) = oneshot::channel();
        inbox.push(Input::Status(answer)).unwrap();
        inbox.close("the disk is gone");
        inbox.close("later words change nothing");
        assert!(answered.try_recv().is_err(), "dropped");
        let error = inbox.push(Input::Look).unwrap_err();
        assert_eq!(error.to_string(), "the disk is gone");
    }
}
