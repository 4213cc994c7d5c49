//! Inbox: how everything reaches the shard loop's thread.
//!
//! Whoever pushes takes a lock for a moment; the loop takes what one turn can write at once. While
//! the loop syncs the log, the next batch gathers here: group commit without a timer.
//!
//! Invariant: what waits for a disk that does not get on is bounded, in number and in bytes: a call
//! beyond is refused, and a Raft message is dropped, which Raft sends again. Raft messages come
//! before calls, so that a node with much to do still hears who leads.

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

/// Raft messages up to this size, as heartbeats and votes, are dropped last: without them nobody
/// would lead.
const SMALL_MESSAGE_BYTES: usize = 1 << 10;

/// The answer to one call.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// A look at one shard's state on the loop's thread; told why if there is none.
pub(crate) type ReadFn = Box<dyn FnOnce(Result<(&Machine, Timestamp), Error>) + Send>;

/// Names one parked claim, hint or watch, so that it can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TicketId(pub u64);

/// A claim that waits for its tasks.
pub(crate) struct Waiter {
    pub ticket: TicketId,
    pub request: ClaimRequest,
    /// Whether it waits when there is nothing.
    pub parks: bool,
    pub answer: Answer<Vec<HandedTask>>,
}

/// Somebody wants a view of all shards as of one moment.
pub(crate) struct BackupOrder {
    /// Told when that moment has come.
    pub frozen: oneshot::Sender<()>,
    /// Told when all of it is on the disk.
    pub written: Answer<View>,
}

/// One thing for the loop to do.
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
    /// What shards have to claim now.
    Probe {
        looks: Vec<Look>,
        answer: oneshot::Sender<Vec<Hint>>,
    },
    /// When they have: each shard says so once.
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
    /// Nobody waits for this claim, or these hints, any more.
    Unpark {
        shards: Vec<ShardId>,
        ticket: TicketId,
    },
    /// Nobody waits for this task any more.
    Unwatch {
        task: TaskId,
        ticket: TicketId,
    },
    /// Claims that were handed over and not taken: they go back.
    Undelivered {
        claims: Vec<(TaskId, ClaimToken)>,
    },
    /// Bodies of claimed tasks came from disk, or from other replicas.
    BodiesRead {
        waiter: Waiter,
        tasks: Vec<ClaimedTask>,
        bodies: Vec<SoughtBody>,
    },
    /// This node's disk could not give all of these bodies.
    Unread(Unread),
    /// What other replicas said of some of these bodies, by position.
    Spared {
        unread: Unread,
        answers: Vec<(usize, Vec<Spare>)>,
    },
    /// The body of a task, for a node whose disk can't give it.
    Spare {
        task: TaskId,
        answer: Answer<Option<Bytes>>,
    },
    /// What the node `from` tells of the sessions that it has.
    Sessions {
        from: NodeId,
        news: SessionNews,
    },
    Status(oneshot::Sender<Vec<ShardStatus>>),
    /// How every replica of this node stands.
    Groups(oneshot::Sender<Vec<GroupStatus>>),
    /// For the control group, if this node leads it.
    Control {
        command: ControlCommand,
        answer: Answer<()>,
    },
    /// A change of a group's members, if this node leads it.
    Change {
        group: u64,
        /// Term, and the entry that made its members what they are.
        fence: (u64, u64),
        changes: Vec<Change>,
        answer: Answer<()>,
    },
    /// Hands leadership of a group over to a replica, if this node leads it.
    Transfer {
        group: u64,
        to: u64,
        answer: Answer<()>,
    },
    /// Hands over all leadership that another node could have; answered when that is done or takes
    /// too long.
    HandOver {
        until: Instant,
        answer: Answer<()>,
    },
    /// Shards send each other nothing until then, for a backup, and keep what they have delivered.
    Hold {
        backup: u64,
        until: Instant,
        answer: Answer<()>,
    },
    /// What a shard that another node leads has answered to what `from` owes it: by number.
    Owed {
        from: ShardId,
        to: ShardId,
        answers: Vec<(u64, Result<Outcome, Error>)>,
    },
    /// A message of a peer's replica to this node's.
    Raft {
        from: NodeId,
        group: u64,
        message: Bytes,
    },
    /// A peer can be sent to, or no longer can.
    Peer {
        node: NodeId,
        is_up: bool,
    },
    /// A shard's state came as a snapshot, and waits in the store.
    Fetched(Box<Fetched>),
    /// It did not come: the leader has to offer one again.
    FetchFailed {
        shard: ShardId,
        index: u64,
    },
    /// No checkpoint begins until then, unless a backup asks for it; answered when none is under
    /// way.
    Quiet {
        until: Instant,
        answer: Answer<()>,
    },
    /// Checkpoint all shards at one moment and take a view of that.
    Backup(BackupOrder),
    Report(Report),
    /// For the thread that writes checkpoints.
    #[cfg(test)]
    Job(crate::checkpoint::Job),
    /// Something to look at has changed outside: a manual clock.
    Look,
    /// End calls, checkpoint as far as there is time, then end the thread.
    Stop {
        until: Instant,
    },
    /// End the thread at once, as a crash would.
    Halt,
}

impl Input {
    /// Bytes that this adds to the log, about: a turn takes no more than one write can hold.
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
    /// Whether somebody asks for it, who can ask again.
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

/// Inputs that wait, in order.
#[derive(Default)]
struct Lane {
    inputs: VecDeque<Input>,
    /// What all of them add to the log.
    bytes: usize,
}

impl Lane {
    fn push(&mut self, input: Input) {
        self.bytes += input.log_bytes();
        self.inputs.push_back(input);
    }

    /// Moves inputs into `taken`, which is empty, until they add about `bytes_max` to the log.
    fn take(&mut self, taken: &mut VecDeque<Input>, bytes_max: usize) {
        if self.bytes <= bytes_max {
            // Both buffers are kept and swapped: no allocation once they have grown.
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
    /// What both add to the log, as the node counts what is in flight.
    counted: Option<Reserved>,
    /// Why nothing is taken any more.
    closed: Option<String>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.raft.inputs.is_empty() && self.others.inputs.is_empty()
    }

    /// Counts what waits now.
    fn count(&mut self) {
        let waiting = self.raft.bytes + self.others.bytes;
        if let Some(counted) = &mut self.counted {
            counted.charge(waiting.saturating_sub(counted.bytes()));
            counted.shrink_to(waiting);
        }
    }

    /// Whether a message of a peer is dropped.
    fn is_too_much(&self, message: &Bytes) -> bool {
        let Lane { inputs, bytes } = &self.raft;
        inputs.len() >= INPUTS_MAX
            || (bytes + message.len() > RAFT_INPUT_BYTES_MAX && message.len() > SMALL_MESSAGE_BYTES)
    }

    /// Why a call is not taken now, if it is not.
    fn refusal(&self, call: &Input) -> Option<Error> {
        let Lane { inputs, bytes } = &self.others;
        let what = if inputs.len() >= INPUTS_MAX {
            format!("{INPUTS_MAX} calls")
        } else if *bytes > 0 && bytes + call.log_bytes() > INPUT_BYTES_MAX {
            format!("calls of {} MiB", bytes >> 20)
        } else {
            return None;
        };
        let why = format!("{what} wait for the disk of this node; send it again later");
        Some(Error::Unavailable(why))
    }
}

/// What the loop has taken for one turn: messages between replicas first.
#[derive(Default)]
pub(crate) struct Taken {
    raft: VecDeque<Input>,
    others: VecDeque<Input>,
}

impl Taken {
    /// The next one.
    pub(crate) fn next(&mut self) -> Option<Input> {
        self.raft.pop_front().or_else(|| self.others.pop_front())
    }
}

/// Where inputs gather.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Inbox {
    /// One whose waiting bytes are counted among those in flight.
    pub(crate) fn new(buffers: &Buffers) -> Inbox {
        let inbox = Inbox::default();
        inbox.lock().counted = Some(buffers.none());
        inbox
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands something to the loop. An input that is not taken is dropped, and so answered.
    pub(crate) fn push(&self, input: Input) -> Result<(), Error> {
        let mut queue = self.lock();
        if let Some(why) = &queue.closed {
            return Err(Error::Unavailable(why.clone()));
        }
        let was_empty = queue.is_empty();
        match &input {
            Input::Raft { message, .. } if queue.is_too_much(message) => return Ok(()),
            Input::Raft { .. } => queue.raft.push(input),
            // What the node tells itself is never refused: a lost report would hold up its shard
            // for ever.
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

    /// Waits until there is something, or until `wait` is over; `None` waits for something alone.
    /// Takes of messages, and of everything else, what adds about `bytes_max` to the log. `taken`
    /// is empty.
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

    /// Takes nothing from now on, and drops what is there.
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

    /// Numbers of messages, of calls, and of everything else in one turn.
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

    /// A disk that stands still must not fill the memory.
    #[test]
    fn what_waits_is_bounded_and_calls_hear_of_it() {
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
            "calls of 255 MiB wait for the disk of this node; send it again later"
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
    fn a_closed_inbox_says_why_and_answers_what_it_held() {
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
