//! Inbox: how everything reaches the shard loop's thread.
//!
//! Whoever pushes takes a lock for a moment; the loop takes all there is at once. While the loop syncs
//! the log, the next batch gathers here: group commit without a timer.

use super::{ClaimRequest, HandedTask, ShardStatus};
use crate::{
    Error,
    checkpoint::{Report, View},
    cluster::{Fetched, GroupStatus},
    limits::INPUTS_MAX,
};
use bytes::Bytes;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_machine::{
    ClaimToken, ClaimedTask, EncodedCommand, Machine, Outcome, SessionId, ShardId, TaskId,
};
use taskyard_replica::{Change, ControlCommand, NodeId};
use tokio::sync::oneshot;

/// The answer to one call.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// A look at one shard's state on the loop's thread; told why if there is none.
pub(crate) type ReadFn = Box<dyn FnOnce(Result<&Machine, Error>) + Send>;

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
    Hint {
        shard: ShardId,
        ticket: TicketId,
        queues: Vec<String>,
        answer: Answer<bool>,
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
    /// Nobody waits for this claim or hint any more.
    Unpark {
        shard: ShardId,
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
    /// Bodies of claimed tasks came from disk.
    BodiesRead {
        waiter: Waiter,
        tasks: Vec<ClaimedTask>,
        bodies: Vec<Option<Bytes>>,
    },
    /// What the node `from` tells of the sessions that it has.
    SessionsAlive {
        from: NodeId,
        sessions: Vec<SessionId>,
    },
    SessionCut {
        from: NodeId,
        session: SessionId,
    },
    SessionNotStarted {
        from: NodeId,
        session: SessionId,
        tasks: Vec<TaskId>,
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
    /// No checkpoint begins until then, unless a backup asks for it; answered when none is under way.
    Quiet {
        until: Instant,
        answer: Answer<()>,
    },
    /// Checkpoint all shards at one moment and take a view of that.
    Backup(BackupOrder),
    Report(Report),
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
                | Input::Hint { .. }
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

#[derive(Default)]
struct Queue {
    inputs: Vec<Input>,
    /// Why nothing is taken any more.
    closed: Option<String>,
}

/// Where inputs gather.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands something to the loop. An input that is not taken is dropped, and so answered.
    pub(crate) fn push(&self, input: Input) -> Result<(), Error> {
        let mut queue = self.lock();
        if let Some(why) = &queue.closed {
            return Err(Error::Unavailable(why.clone()));
        }
        // What the node tells itself is never refused: a lost report would hold up its shard for ever.
        if queue.inputs.len() >= INPUTS_MAX && input.is_call() {
            return Err(Error::LimitExceeded(format!(
                "{INPUTS_MAX} calls wait for the shards of this node; send it again later"
            )));
        }
        let was_empty = queue.inputs.is_empty();
        queue.inputs.push(input);
        drop(queue);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits until there is something, or until `wait` is over; `None` waits for something alone.
    /// Moves all there is into `inputs`.
    pub(crate) fn take(&self, inputs: &mut Vec<Input>, wait: Option<Duration>) {
        let mut queue = self.lock();
        if queue.inputs.is_empty() {
            let is_empty = |queue: &mut Queue| queue.inputs.is_empty();
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
        // Both buffers are kept and swapped: no allocation once they have grown.
        std::mem::swap(inputs, &mut queue.inputs);
    }

    /// Takes nothing from now on, and drops what is there.
    pub(crate) fn close(&self, why: &str) {
        let dropped = {
            let mut queue = self.lock();
            queue.closed.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut queue.inputs)
        };
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_waiting_loop_is_woken_by_an_input() {
        let inbox = Arc::new(Inbox::default());
        let pusher = {
            let inbox = Arc::clone(&inbox);
            std::thread::spawn(move || inbox.push(Input::Look))
        };
        let mut inputs = Vec::new();
        inbox.take(&mut inputs, None);
        assert!(matches!(inputs[..], [Input::Look]));
        pusher.join().unwrap().unwrap();
        inputs.clear();
        inbox.take(&mut inputs, Some(Duration::from_millis(1)));
        assert!(inputs.is_empty());
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
