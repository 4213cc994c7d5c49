//! Gather: turns concurrent enqueues into few requests.
//!
//! While one request is in flight, further enqueues wait together and become the next request. A
//! single caller pays one round trip and a thousand callers share it, without a timer and without a
//! setting. If a full request waits, it goes out beside the first.
//!
//! Each request has a random batch id and is repeated unchanged, on another server if necessary,
//! until every task in it is decided or every caller has given up. The broker answers a repetition
//! with the first ids, so that nothing is enqueued twice.

use crate::{
    Error,
    connection::{Connection, Tries},
    random,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use taskyard_proto::v1;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

/// A request is full with this many tasks: past that, sharing a round trip gains nothing.
const REQUEST_TASKS_MAX: usize = 1_000;
/// A request is full with this many bytes of payload; one larger task goes alone.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The most requests in flight: the broker answers one while the next is on its way.
const IN_FLIGHT_MAX: usize = 2;
/// The bound of waiting and in-flight tasks: each task takes one unit, and one more per KiB of
/// payload. Later callers wait until there is room.
const UNITS_MAX: usize = 64 << 10;

/// Gathers the enqueues of all clones of one client.
#[derive(Clone, Debug)]
pub(crate) struct Gather(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Connection,
    room: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    items: VecDeque<Item>,
    bytes: usize,
    in_flight: usize,
}

#[derive(Debug)]
struct Item {
    task: v1::NewTask,
    answer: oneshot::Sender<Result<v1::EnqueueReply, Error>>,
    deadline: Instant,
    _room: OwnedSemaphorePermit,
}

impl Gather {
    pub(crate) fn new(connection: Connection) -> Gather {
        let room = Arc::new(Semaphore::new(UNITS_MAX));
        Gather(Arc::new(Shared { connection, room, waiting: Mutex::default() }))
    }

    /// Enqueues one task together with all other waiting ones.
    pub(crate) async fn enqueue(
        &self,
        task: v1::NewTask,
        deadline: Instant,
    ) -> Result<v1::EnqueueReply, Error> {
        let units = (1 + task.payload.len() / 1_024).min(UNITS_MAX) as u32;
        let room = Arc::clone(&self.0.room).acquire_many_owned(units);
        let Ok(room) = tokio::time::timeout_at(deadline, room).await else {
            let message = "too many enqueues are waiting for an answer; enqueue again later";
            return Err(Error::unavailable(message));
        };
        let room = room.expect("the semaphore is never closed");
        let (answer, answered) = oneshot::channel();
        self.push(Item { task, answer, deadline, _room: room });
        match tokio::time::timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The runtime of the request was shut down.
            Ok(Err(_)) => Err(unanswered("the request was dropped with its runtime")),
            Err(_) => Err(unanswered("no server answered in time")),
        }
    }

    fn push(&self, item: Item) {
        let mut waiting = self.0.waiting();
        waiting.bytes += item.task.payload.len();
        waiting.items.push_back(item);
        let idle = waiting.in_flight == 0;
        let full = waiting.items.len() >= REQUEST_TASKS_MAX || waiting.bytes >= REQUEST_BYTES_MAX;
        if idle || (full && waiting.in_flight < IN_FLIGHT_MAX) {
            waiting.in_flight += 1;
            let flight = Flight(Arc::clone(&self.0));
            tokio::spawn(flight.carry());
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends requests until nothing waits. Counts as in flight until it is dropped.
struct Flight(Arc<Shared>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.waiting().in_flight -= 1;
    }
}

impl Flight {
    async fn carry(self) {
        while let Some(batch) = self.next_batch() {
            batch.carry(&self.0.connection).await;
        }
    }

    /// Takes waiting tasks, up to a full request; ends the flight if there are none.
    ///
    /// Tasks whose callers gave up are left out.
    fn next_batch(&self) -> Option<Batch> {
        let mut waiting = self.0.waiting();
        let mut batch = Batch { tasks: Vec::new(), callers: Vec::new() };
        let mut bytes = 0;
        while let Some(item) = waiting.items.front() {
            let item_bytes = item.task.payload.len();
            let full = batch.tasks.len() == REQUEST_TASKS_MAX
                || (bytes + item_bytes > REQUEST_BYTES_MAX && !batch.tasks.is_empty());
            if full {
                break;
            }
            waiting.bytes -= item_bytes;
            let item = waiting.items.pop_front().expect("the front was just seen");
            if item.answer.is_closed() {
                continue;
            }
            bytes += item_bytes;
            batch.tasks.push(item.task);
            let (answer, deadline, room) = (item.answer, item.deadline, item._room);
            batch.callers.push(Some(Caller { answer, deadline, unknown: false, _room: room }));
        }
        (!batch.tasks.is_empty()).then_some(batch)
    }
}

/// One request: the tasks in order, and the callers that still wait.
struct Batch {
    tasks: Vec<v1::NewTask>,
    callers: Vec<Option<Caller>>,
}

struct Caller {
    answer: oneshot::Sender<Result<v1::EnqueueReply, Error>>,
    deadline: Instant,
    /// Whether an answer was lost: the task may then exist, even if later tries fail.
    unknown: bool,
    _room: OwnedSemaphorePermit,
}

impl Batch {
    /// Sends the request until every caller is answered or has given up.
    async fn carry(mut self, connection: &Connection) {
        let request = v1::EnqueueManyRequest {
            tasks: std::mem::take(&mut self.tasks),
            batch_id: random::identity().to_vec(),
        };
        let Some(deadline) = self.deadline() else { return };
        let mut tries = Tries::of(connection, deadline);
        while let Some(deadline) = self.deadline() {
            tries.deadline = tries.deadline.min(deadline);
            let mut attempt = connection.current();
            let call = attempt.wire.enqueue_many(connection.request(request.clone()));
            let (error, whole) = match tokio::time::timeout_at(tries.deadline, call).await {
                Ok(Ok(reply)) => {
                    connection.note_cluster(&reply);
                    match self.answer(reply.into_inner()) {
                        None => return,
                        Some(undecided) => (undecided, false),
                    }
                }
                Ok(Err(status)) => (Error::from_status(attempt.server(), &status), true),
                Err(_) => (attempt.timed_out(), true),
            };
            if !error.is_undecided() {
                return self.refuse(&error);
            }
            if error.is_outcome_unknown() && whole {
                self.callers.iter_mut().flatten().for_each(|caller| caller.unknown = true);
            }
            tracing::debug!(%error, "an enqueue request got no answer and is sent again");
            attempt.failed();
            if let Err(error) = tries.again(error).await {
                return self.refuse(&error);
            }
        }
    }

    /// When the last caller gives up; `None` if no caller waits any more.
    fn deadline(&self) -> Option<Instant> {
        let waiting = self.callers.iter().flatten().filter(|caller| !caller.answer.is_closed());
        waiting.map(|caller| caller.deadline).max()
    }

    /// Gives each caller its answer. Returns an error if some tasks are still undecided.
    fn answer(&mut self, reply: v1::EnqueueManyReply) -> Option<Error> {
        if reply.results.len() != self.callers.len() {
            let (results, tasks) = (reply.results.len(), self.callers.len());
            let message = format!("the broker answered {results} of {tasks} tasks");
            self.refuse(&Error::OutcomeUnknown { message });
            return None;
        }
        let mut undecided = None;
        for (slot, result) in self.callers.iter_mut().zip(reply.results) {
            let answer = match result.error {
                None => Ok(v1::EnqueueReply { id: result.id, duplicate: result.duplicate }),
                Some(error) => Err(Error::from_item(error)),
            };
            match answer {
                Err(error) if error.is_undecided() => {
                    if let Some(caller) = slot {
                        caller.unknown |= error.is_outcome_unknown();
                        undecided = Some(error);
                    }
                }
                decided => {
                    if let Some(caller) = slot.take() {
                        let decided = decided.map_err(|error| error.after(caller.unknown));
                        let _ = caller.answer.send(decided);
                    }
                }
            }
        }
        undecided
    }

    fn refuse(&mut self, error: &Error) {
        for caller in self.callers.iter_mut().filter_map(Option::take) {
            let _ = caller.answer.send(Err(error.after(caller.unknown)));
        }
    }
}

fn unanswered(message: &str) -> Error {
    Error::OutcomeUnknown { message: message.to_string() }
}
