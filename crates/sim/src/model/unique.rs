//! Unique: the holder of a unique key in the model, found by a search through all tasks.

use super::{Code, Difference, Model, Task, expect, expect_code};
use taskyard_machine::{
    Enqueue, EnqueueBatch, Enqueued, NewTask, OnConflict, Outcome, Rejection, TaskId,
    TaskStateName, Unique, UniqueUntil, When,
};

/// A task's hold on its key.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    key: String,
    /// The step that frees the key; `None` leaves only the window.
    until: Option<UniqueUntil>,
    window_ends_at: Option<u64>,
    /// Whether the task has started, or was revived while another had the key.
    freed: bool,
}

/// A window that goes on after the end of its task.
#[derive(Clone, Debug)]
pub(super) struct Window {
    queue: String,
    key: String,
    id: TaskId,
    ends_at: u64,
}

/// The verdict on an enqueue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    New,
    Existing(TaskId),
    Replace(TaskId),
}

impl Hold {
    pub(super) fn new(unique: &Unique<'_>, now: u64) -> Hold {
        let until = match unique {
            Unique { debounce_ms: Some(_), .. } => Some(UniqueUntil::Start),
            Unique { until: None, window_ms: None, .. } => Some(UniqueUntil::Done),
            Unique { until, .. } => *until,
        };
        let window_ends_at = unique.window_ms.map(|ms| now + ms);
        Hold { key: unique.key.to_string(), until, window_ends_at, freed: false }
    }

    fn is_over(&self, now: u64) -> bool {
        self.window_ends_at.is_some_and(|at| at <= now)
    }
}

impl Task {
    fn is_finished(&self) -> bool {
        !self.is_waiting() && self.held().is_none()
    }

    /// Updates the hold after a first claim or an end.
    fn settle_key(&mut self) {
        let claimed = self.held().is_some();
        let Some(hold) = &mut self.unique else { return };
        hold.freed |= claimed && hold.until == Some(UniqueUntil::Start);
    }
}

/// Whether a task's unique key contradicts itself or its other terms.
pub(super) fn is_contradiction(task: &NewTask<'_>) -> bool {
    let Some(unique) = &task.unique else { return false };
    let empty =
        unique.key.is_empty() || unique.window_ms == Some(0) || unique.debounce_ms == Some(0);
    let debounced = unique.debounce_ms.is_some()
        && (unique.until == Some(UniqueUntil::Done)
            || unique.window_ms.is_some()
            || unique.on_conflict != OnConflict::Replace
            || task.run_at != When::Now);
    empty || debounced
}

impl Model {
    /// When a new task first runs: a debounced one after quiet.
    pub(super) fn first_run_at(&self, task: &NewTask<'_>) -> u64 {
        let debounce_ms = task.unique.as_ref().and_then(|unique| unique.debounce_ms);
        debounce_ms.map_or_else(|| self.moment(task.run_at), |ms| self.now + ms)
    }

    /// The task that has a key now.
    pub(super) fn holder(&self, queue: &str, key: &str) -> Option<TaskId> {
        let holds = |task: &&Task| {
            let hold = task.unique.as_ref().filter(|hold| hold.key == key && !hold.freed);
            task.queue == queue
                && !task.is_finished()
                && hold.is_some_and(|hold| !hold.is_over(self.now))
        };
        let window = |window: &&Window| {
            window.queue == queue && window.key == key && window.ends_at > self.now
        };
        let live: Vec<TaskId> = self.tasks.iter().filter(holds).map(|task| task.id).collect();
        assert!(live.len() < 2, "the model lets two tasks hold {key}");
        live.first().copied().or_else(|| self.windows.iter().find(window).map(|found| found.id))
    }

    /// Whether each task with a key has it now.
    pub(super) fn holds_key(&self, task: &Task) -> Option<bool> {
        let hold = task.unique.as_ref()?;
        Some(self.holder(&task.queue, &hold.key) == Some(task.id))
    }

    fn judge(&self, queue: &str, new: &NewTask<'_>) -> Result<Verdict, Code> {
        let Some(unique) = &new.unique else { return Ok(Verdict::New) };
        let Some(id) = self.holder(queue, &unique.key) else { return Ok(Verdict::New) };
        match unique.on_conflict {
            OnConflict::Existing => Ok(Verdict::Existing(id)),
            OnConflict::Reject => Err("not_unique"),
            OnConflict::Replace => {
                let holder = self.find(id).filter(|task| task.is_waiting());
                let same = holder.is_some_and(|task| task.task_type == new.task_type);
                if same { Ok(Verdict::Replace(id)) } else { Err("not_unique") }
            }
        }
    }

    fn known_request(&self, queue: &str, task: &NewTask<'_>) -> Option<TaskId> {
        let request_id = task.request_id?;
        self.requests.get(&(queue.to_owned(), request_id.to_owned())).copied()
    }

    pub(super) fn enqueue(
        &mut self,
        enqueue: &Enqueue<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Enqueue { queue, task } = enqueue;
        if let Some(id) = self.known_request(queue, task) {
            return expect(&Ok(Outcome::Enqueued(Enqueued { id, duplicate: true })), answer);
        }
        let judged = self.judge(queue, task);
        let full = judged == Ok(Verdict::New) && self.is_full(queue, 1);
        let refused = self.refused(task).or(judged.err()).or(full.then_some("queue_full"));
        if let Some(code) = refused {
            self.check_named_holder(queue, task, answer)?;
            return expect_code(Some(code), answer);
        }
        let Ok(Outcome::Enqueued(enqueued)) = answer else {
            return Err(format!("an enqueue was answered {answer:?}"));
        };
        self.accept(queue, task, *enqueued)
    }

    /// Checks the holder that a rejection names.
    fn check_named_holder(
        &self,
        queue: &str,
        task: &NewTask<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Err(rejection) = answer else { return Ok(()) };
        let key = task.unique.as_ref().filter(|_| rejection.code() == "not_unique");
        let holder = key.and_then(|unique| self.holder(queue, &unique.key));
        expect(&holder, &rejection.holder())
    }

    /// Accepts a task: new, known, or in conflict with another, which is then the answer.
    pub(super) fn accept(
        &mut self,
        queue: &str,
        task: &NewTask<'_>,
        made: Enqueued,
    ) -> Result<(), Difference> {
        self.queues.entry(queue.to_owned()).or_default().deleted = false;
        if let Some(id) = self.known_request(queue, task) {
            return expect(&Enqueued { id, duplicate: true }, &made);
        }
        if let Some(request_id) = task.request_id {
            self.requests.insert((queue.to_owned(), request_id.to_owned()), made.id);
        }
        let holder = |unique: &Unique<'_>| self.holder(queue, &unique.key);
        let held_by = task.unique.as_deref().and_then(holder);
        match self.judge(queue, task) {
            Ok(Verdict::New) => self.add(queue, task, made),
            Ok(Verdict::Existing(id)) => expect(&Enqueued { id, duplicate: true }, &made),
            Ok(Verdict::Replace(id)) => {
                self.replace(id, task);
                expect(&Enqueued { id, duplicate: true }, &made)
            }
            Err(_) => expect(&(held_by, true), &(Some(made.id), made.duplicate)),
        }
    }

    fn replace(&mut self, id: TaskId, new: &NewTask<'_>) {
        let payload = new.body.payload.to_vec();
        self.change(id, |task| task.payload = payload);
        if new.unique.as_ref().is_none_or(|unique| unique.debounce_ms.is_none()) {
            return;
        }
        // The task waits for quiet again. A scheduled task keeps its place among those of the same
        // moment.
        let run_at = self.first_run_at(new);
        let is_ready = self.find(id).is_some_and(|task| task.state_name() == TaskStateName::Ready);
        if is_ready {
            self.schedule(id, run_at);
        } else {
            self.change(id, |task| task.state = super::State::Scheduled { run_at });
        }
    }

    pub(super) fn batch(
        &mut self,
        batch: &EnqueueBatch<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let refused = self.batch_refused(batch);
        let Ok(Outcome::EnqueuedBatch(made)) = answer else {
            return expect_code(refused, answer);
        };
        expect(&None, &refused)?;
        expect(&batch.tasks.len(), &made.len())?;
        for (task, made) in batch.tasks.iter().zip(made) {
            self.accept(batch.queue, task, *made)?;
        }
        Ok(())
    }

    /// Tries a batch on a copy of the model, task by task.
    fn batch_refused(&self, batch: &EnqueueBatch<'_>) -> Option<Code> {
        let bad = batch.tasks.iter().find_map(|task| self.refused(task));
        if bad.is_some() {
            return bad;
        }
        let (mut copy, mut new) = (self.clone(), 0);
        for (number, task) in batch.tasks.iter().enumerate() {
            match copy.judge(batch.queue, task) {
                Ok(Verdict::New) => {
                    // An id that no machine makes.
                    let id = TaskId::from_u128(u128::MAX - number as u128);
                    copy.add(batch.queue, task, Enqueued { id, duplicate: false }).ok();
                    new += 1;
                }
                Ok(_) => {}
                Err(code) => return Some(code),
            }
        }
        self.is_full(batch.queue, new).then_some("queue_full")
    }

    /// Updates a task's hold for its new state.
    pub(super) fn settle_key(&mut self, id: TaskId, was_finished: bool) {
        let now = self.now;
        self.change(id, Task::settle_key);
        let Some(task) = self.find(id).cloned() else { return };
        if was_finished && !task.is_finished() {
            let Some(hold) = task.unique.as_ref().filter(|hold| !hold.freed) else { return };
            // The revived task takes over its own window.
            self.windows.retain(|window| window.id != id || window.ends_at <= now);
            let gone = hold.is_over(now);
            self.change(id, |task| task.unique.as_mut().expect("it has one").freed |= gone);
        } else if !was_finished && task.is_finished() {
            self.keep_window(&task);
        }
    }

    /// Keeps a window without a step, regardless of its task.
    pub(super) fn keep_window(&mut self, task: &Task) {
        let Some(hold) = task.unique.as_ref().filter(|hold| hold.until.is_none() && !hold.freed)
        else {
            return;
        };
        let Some(ends_at) = hold.window_ends_at.filter(|at| *at > self.now) else { return };
        let (queue, key) = (task.queue.clone(), hold.key.clone());
        self.windows.push(Window { queue, key, id: task.id, ends_at });
    }

    /// Whether a finished task may be revived: not while another has its key.
    pub(super) fn may_revive(&self, task: &Task) -> bool {
        let hold = task.unique.as_ref().filter(|hold| !hold.freed && !hold.is_over(self.now));
        let holder = hold.and_then(|hold| self.holder(&task.queue, &hold.key));
        holder.is_none_or(|id| id == task.id)
    }

    pub(super) fn is_task_finished(&self, id: TaskId) -> bool {
        self.find(id).is_some_and(Task::is_finished)
    }
}
