//! Uniqueness: which task has a unique key of a queue, and until when.
//!
//! The keys are an index, not a lock. While a task has its key, the index follows from the task
//! itself, so that every end of the task frees the key in the same entry. Only a window that
//! outlives its task is a record of its own. Invariant: a key has at most one holder, a task or a
//! window.

use crate::enqueue::{at_most_bytes, no_controls};
use crate::kept::Keep;
use crate::life::{State, Task};
use crate::limits::{UNIQUE_KEY_BYTES_MAX, UNIQUE_MS_MAX};
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{
    Enqueued, EventKind, KeyHolder, Machine, NewTask, OnConflict, Rejection, TaskId, TaskStateName,
    Timestamp, Unique, UniqueUntil, UniqueView, When,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// A task's hold on its unique key.
#[derive(Debug, PartialEq)]
pub(crate) struct Hold {
    key: Box<str>,
    /// The step that frees the key; `None` leaves only the window.
    until: Option<UniqueUntil>,
    /// The end of the window.
    expires_at: Option<Timestamp>,
    debounce_ms: Option<u64>,
    /// Whether the key was given up while the task lives: the task started, or another one took the
    /// key after the window.
    freed: bool,
}

wire_struct!(Hold { key, until, expires_at, debounce_ms, freed });

/// A window that outlives its task.
#[derive(Debug, PartialEq)]
pub(crate) struct Window {
    id: TaskId,
    expires_at: Timestamp,
}

wire_struct!(Window { id, expires_at });

impl Keep for Window {
    type Key = u128;
    const KIND: u8 = 20;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }
}

/// The current holder of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Task(Slot),
    Window(TaskId),
}

/// The verdict on an enqueue with a unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The key is free.
    New,
    /// This task has the key.
    Existing(TaskId),
    /// This waiting task gets the new payload.
    Replace(Slot),
}

impl Hold {
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Hold>() + self.key.len()
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl Unique<'_> {
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        if self.key.is_empty() {
            return Err(Rejection::invalid("unique.key is empty; give a text"));
        }
        at_most_bytes("unique.key", self.key.len(), UNIQUE_KEY_BYTES_MAX)?;
        no_controls("unique.key", &self.key)?;
        for (what, ms) in
            [("unique.window_ms", self.window_ms), ("unique.debounce_ms", self.debounce_ms)]
        {
            if ms == Some(0) {
                return Err(Rejection::invalid(format!("{what} is 0; leave it out")));
            }
            at_most(what, ms.unwrap_or(0), UNIQUE_MS_MAX)?;
        }
        self.check_debounce()
    }

    /// Rejects options that contradict a debounce.
    fn check_debounce(&self) -> Result<(), Rejection> {
        if self.debounce_ms.is_none() {
            return Ok(());
        }
        let contradiction = if self.until == Some(UniqueUntil::Done) {
            "until done"
        } else if self.window_ms.is_some() {
            "window_ms"
        } else if self.on_conflict != OnConflict::Replace {
            "an on_conflict other than replace"
        } else {
            return Ok(());
        };
        Err(Rejection::invalid(format!(
            "unique.debounce_ms contradicts {contradiction}; \
             a debounced task takes the latest payload until it starts"
        )))
    }

    /// The hold of a task that is enqueued at `now`.
    pub(crate) fn hold(&self, now: Timestamp) -> Hold {
        let default = match (self.debounce_ms, self.window_ms) {
            (Some(_), _) => Some(UniqueUntil::Start),
            (None, None) => Some(UniqueUntil::Done),
            (None, Some(_)) => None,
        };
        Hold {
            key: (&*self.key).into(),
            until: self.until.or(default),
            expires_at: self.window_ms.map(|ms| now.plus_ms(ms)),
            debounce_ms: self.debounce_ms,
            freed: false,
        }
    }
}

impl NewTask<'_> {
    /// When the task may first run. A debounced task waits for quiet; a task from another shard's
    /// outbox comes with its moment.
    pub(crate) fn first_run_at(&self, now: Timestamp) -> Timestamp {
        match (self.debounce_ms(), self.run_at) {
            (Some(ms), When::Now) => now.plus_ms(ms),
            (_, when) => when.moment(now),
        }
    }

    pub(crate) fn debounce_ms(&self) -> Option<u64> {
        self.unique.as_ref()?.debounce_ms
    }
}

impl Task {
    fn hold(&self) -> Option<&Hold> {
        self.extra.as_ref()?.unique.as_deref()
    }

    /// The task's hold, while the task lives and has not given up the key.
    fn held(&self) -> Option<&Hold> {
        self.hold().filter(|hold| !hold.freed && !self.state.name().is_finished())
    }

    fn waits(&self) -> bool {
        matches!(self.state, State::Scheduled { .. } | State::Ready { .. })
    }
}

impl Machine {
    /// The unique key that a task has, as a key of the index.
    pub(crate) fn held_key(&self, task: &Task) -> Option<u128> {
        task.held().map(|hold| self.key_of(task, hold))
    }

    fn key_of(&self, task: &Task, hold: &Hold) -> u128 {
        unique_key(self.queues.get(task.queue).name.as_str(), &hold.key)
    }

    /// The holder of a key. A window that is over no longer counts, even before its removal.
    fn key_holder(&self, key: u128) -> Option<Holder> {
        let now = self.counters.now;
        if let Some(&slot) = self.unique.get(&key) {
            let hold = self.tasks.get(slot).held().expect("a task in the index holds its key");
            return (!hold.is_over(now)).then_some(Holder::Task(slot));
        }
        let window = self.windows.get(key).filter(|window| window.expires_at > now)?;
        Some(Holder::Window(window.id))
    }

    fn holder_id(&self, holder: Holder) -> TaskId {
        match holder {
            Holder::Task(slot) => self.tasks.get(slot).id,
            Holder::Window(id) => id,
        }
    }

    /// The view of a task's key.
    pub(crate) fn unique_view(&self, task: &Task) -> Option<UniqueView> {
        let hold = task.hold()?;
        let holder = self.key_holder(self.key_of(task, hold));
        Some(UniqueView {
            key: hold.key.to_string(),
            until: hold.until,
            expires_at: hold.expires_at,
            debounce_ms: hold.debounce_ms,
            held: holder.is_some_and(|holder| self.holder_id(holder) == task.id),
        })
    }
}

impl Turn<'_> {
    /// The verdict on an enqueue whose request id is new.
    pub(crate) fn judge(&self, queue: &str, new: &NewTask<'_>) -> Result<Verdict, Rejection> {
        let Some(unique) = &new.unique else { return Ok(Verdict::New) };
        let Some(holder) = self.shard.key_holder(unique_key(queue, &unique.key)) else {
            return Ok(Verdict::New);
        };
        let id = self.shard.holder_id(holder);
        let refuse = |hint: &str| {
            let (key, holder) = ((&*unique.key).into(), KeyHolder::Task(id));
            Err(Rejection::NotUnique { key, holder, hint: hint.into() })
        };
        match (unique.on_conflict, holder) {
            (OnConflict::Existing, _) => Ok(Verdict::Existing(id)),
            (OnConflict::Reject, _) => refuse("enqueue again when the key is free"),
            (OnConflict::Replace, Holder::Window(_)) => {
                refuse("it has ended and its window is not over, so there is nothing to replace")
            }
            (OnConflict::Replace, Holder::Task(slot)) if !self.task(slot).waits() => {
                refuse("it no longer waits, so its payload can't be replaced")
            }
            (OnConflict::Replace, Holder::Task(slot)) => {
                match &**self.shard.names.get(self.task(slot).task_type) == new.task_type {
                    true => Ok(Verdict::Replace(slot)),
                    false => refuse("it is of another type, so its payload can't be replaced"),
                }
            }
        }
    }

    /// The verdict on a task that is already accepted: every conflict is answered with the holder.
    pub(crate) fn judge_accepted(&self, queue: &str, new: &NewTask<'_>) -> Verdict {
        self.judge(queue, new).unwrap_or_else(|rejection| match rejection {
            Rejection::NotUnique { holder: KeyHolder::Task(id), .. } => Verdict::Existing(id),
            other => panic!("a key is judged by its holder alone: {other}"),
        })
    }

    /// Answers a conflict with the holder, after a replacement if there is one. The request is
    /// remembered with the holder, so that a repetition gets the same answer and changes nothing
    /// more.
    pub(crate) fn settle_conflict(
        &mut self,
        queue: Slot,
        new: &NewTask<'_>,
        verdict: Verdict,
    ) -> Option<Enqueued> {
        let id = match verdict {
            Verdict::New => return None,
            Verdict::Existing(id) => id,
            Verdict::Replace(slot) => self.replace(slot, new),
        };
        self.remember_request(queue, new.request_id, id);
        Some(Enqueued { id, duplicate: true })
    }

    /// Gives a waiting task the payload and headers of a later one, and restarts its debounce.
    fn replace(&mut self, slot: Slot, new: &NewTask<'_>) -> TaskId {
        let id = self.task(slot).id;
        let (bytes, checksum) = self.put_body(id, &new.body);
        self.shard.edit(slot, |task| (task.body_bytes, task.body_checksum) = (bytes, checksum));
        let run_at = new.debounce_ms().map(|_| new.first_run_at(self.now));
        match (run_at, &self.task(slot).state) {
            (Some(run_at), State::Scheduled { .. }) => {
                self.shard.edit_deadline(slot, |task| task.state = State::Scheduled { run_at });
            }
            (Some(run_at), State::Ready { .. }) if run_at > self.now => {
                self.transition(slot, State::Scheduled { run_at }, Place::Back);
            }
            _ => {}
        }
        self.emit_task(slot, |task| EventKind::TaskReplaced(task, run_at));
        id
    }

    /// Checks that a finished task may run again, because it would take its key back.
    pub(crate) fn check_revival(&self, slot: Slot) -> Result<(), Rejection> {
        let task = self.task(slot);
        let Some(hold) = task.hold().filter(|hold| !hold.freed && !hold.is_over(self.now)) else {
            return Ok(());
        };
        match self.shard.key_holder(self.shard.key_of(task, hold)) {
            Some(holder) if self.shard.holder_id(holder) != task.id => Err(Rejection::NotUnique {
                key: hold.key.clone(),
                holder: KeyHolder::Task(self.shard.holder_id(holder)),
                hint: "retry it when the key is free".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Gives a new or revived task its key, unless another task has the key or the window is over.
    /// Must come before the task enters the indexes.
    pub(crate) fn take_key(&mut self, slot: Slot) {
        let task = self.task(slot);
        let Some(hold) = task.held() else { return };
        let (id, is_over) = (task.id, hold.is_over(self.now));
        let key = self.shard.key_of(task, hold);
        let holder = self.shard.key_holder(key);
        if is_over || holder.is_some_and(|holder| self.shard.holder_id(holder) != id) {
            self.give_up_key(slot);
            return;
        }
        // The remains of a window that is over, or of this task's own window.
        self.shard.windows.remove(key);
        if let Some(before) = self.shard.unique.remove(&key) {
            self.give_up_key(before);
        }
    }

    /// Updates the hold for the task's new state. Must come before the task enters the indexes.
    pub(crate) fn settle_key(&mut self, slot: Slot, from: TaskStateName) {
        let task = self.task(slot);
        let Some(hold) = task.hold().filter(|hold| !hold.freed) else { return };
        let to = task.state.name();
        match (from.is_finished(), to.is_finished()) {
            (false, true) => self.keep_window(slot),
            (true, false) => self.take_key(slot),
            _ if to == TaskStateName::Claimed && hold.until == Some(UniqueUntil::Start) => {
                self.give_up_key(slot);
            }
            _ => {}
        }
    }

    /// Records a window that goes on after its task ends or is removed.
    pub(crate) fn keep_window(&mut self, slot: Slot) {
        let task = self.task(slot);
        let Some(hold) = task.hold().filter(|hold| !hold.freed && hold.until.is_none()) else {
            return;
        };
        let Some(expires_at) = hold.expires_at.filter(|&at| at > self.now) else { return };
        let key = self.shard.key_of(task, hold);
        let window = Window { id: task.id, expires_at };
        self.shard.windows.insert(key, window);
    }

    /// Frees the key of a task during its ack, because a succeeded task never runs again.
    pub(crate) fn free_acked_key(&mut self, slot: Slot) {
        let task = self.task(slot);
        let Some(hold) = task.held().filter(|hold| hold.until.is_some()) else { return };
        let key = self.shard.key_of(task, hold);
        self.shard.unique.remove(&key);
        self.give_up_key(slot);
    }

    fn give_up_key(&mut self, slot: Slot) {
        self.shard.edit(slot, |task| {
            let hold = task.extra.as_mut().and_then(|extra| extra.unique.as_mut());
            hold.expect("it has a key").freed = true;
        });
    }
}

/// The queue's hash is the seed, so that equal keys of two queues differ.
pub(crate) fn unique_key(queue: &str, key: &str) -> u128 {
    xxh3_128_with_seed(key.as_bytes(), xxh3_64(queue.as_bytes()))
}

#[cfg(test)]
mod tests;
