//! The first rung: one machine against a model of it that is simple and slow, over random commands.
//!
//! The model is a list of tasks and linear searches. It says beforehand what each command must
//! answer and what every task must look like after; only ids and tokens are taken from the machine,
//! and must be new. Beside the machine runs a second one that is reloaded from its records now and
//! then: it must do the same to the byte.

mod history;
mod life;

pub(crate) use history::check;

use std::collections::BTreeMap;
use taskyard_machine::limits::{LEASE_FLOOR_MS, PRIORITY_MAX, TIMEOUT_GRACE_MS};
use taskyard_machine::{
    AfterFailure, Claim, Command, DeadAction, EndSession, Enqueue, Enqueued, Fail, NewTask,
    Outcome, QueueSettings, Rejection, Renewal, RetryPolicy, Selection, SessionEnd, SessionId,
    TaskId, TaskStateName, Timestamp, When,
};

/// What differs, in words.
type Difference = String;

/// A rejection's stable code.
type Code = &'static str;

#[derive(Clone, Debug, PartialEq)]
enum State {
    Scheduled { run_at: u64 },
    Ready,
    Claimed(Held),
    Finished { ending: TaskStateName, at: u64 },
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    token: u64,
    session: Option<SessionId>,
    lease_ms: u64,
    lease_ends_at: u64,
    timeout_at: Option<u64>,
    ends_at: u64,
    started: bool,
    cancel_requested: bool,
}

/// How the last attempt ended, as far as its repetition is answered by it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LastEnd {
    Acked,
    Failed { retry_at: Option<u64> },
    Other,
}

#[derive(Clone, Debug)]
struct Task {
    id: TaskId,
    queue: String,
    priority: u8,
    /// Its place: smaller comes first.
    order: i64,
    state: State,
    attempt: u32,
    failures: u32,
    losses: u32,
    expires_at: Option<u64>,
    retention_ms: Option<u64>,
    timeout_ms: Option<u64>,
    retry: RetryPolicy,
    last: Option<(u64, LastEnd)>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    paused: bool,
    settings: QueueSettings,
}

/// The simple machine.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    lease_floor: u64,
    queues: BTreeMap<String, Queue>,
    tasks: Vec<Task>,
    requests: BTreeMap<(String, String), TaskId>,
    known_ids: Vec<TaskId>,
    token_last: u64,
    order_back: i64,
    order_front: i64,
}

impl Task {
    fn held(&self) -> Option<&Held> {
        match &self.state {
            State::Claimed(held) => Some(held),
            _ => None,
        }
    }

    fn state_name(&self) -> TaskStateName {
        match &self.state {
            State::Scheduled { .. } => TaskStateName::Scheduled,
            State::Ready => TaskStateName::Ready,
            State::Claimed(_) => TaskStateName::Claimed,
            State::Finished { ending, .. } => *ending,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Scheduled { .. } | State::Ready)
    }

    fn due_at(&self) -> Option<u64> {
        match &self.state {
            State::Scheduled { run_at } => {
                Some(self.expires_at.map_or(*run_at, |at| at.min(*run_at)))
            }
            State::Ready => self.expires_at,
            State::Claimed(held) => Some(held.ends_at),
            State::Finished { ending: TaskStateName::Dead, .. } => None,
            State::Finished { at, .. } => Some(at + self.retention_ms?),
        }
    }

    /// Whether its queue's own retention removes it, and in which of the queue's two lists it is.
    fn retained_as_dead(&self) -> Option<bool> {
        match self.state {
            State::Finished { ending: TaskStateName::Dead, .. } => Some(true),
            State::Finished { .. } if self.retention_ms.is_none() => Some(false),
            _ => None,
        }
    }
}

impl Held {
    fn set_end(&mut self, floor: u64) {
        let timeout_at = self.timeout_at.unwrap_or(self.lease_ends_at);
        self.ends_at = self.lease_ends_at.min(timeout_at).max(floor);
    }
}

impl Model {
    /// Follows one command, and says where the machine's answer differs.
    fn follow(
        &mut self,
        command: &Command<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match command {
            Command::Enqueue(enqueue) => self.enqueue(enqueue, answer),
            Command::EnqueueBatch(batch) => {
                let Ok(Outcome::EnqueuedBatch(ids)) = answer else {
                    let expected = self.batch_refused(batch.queue, &batch.tasks);
                    return expect_code(expected, answer);
                };
                expect(&self.batch_refused(batch.queue, &batch.tasks), &None)?;
                for (task, enqueued) in batch.tasks.iter().zip(ids) {
                    self.add(batch.queue, task, *enqueued)?;
                }
                expect(&batch.tasks.len(), &ids.len())
            }
            Command::Claim(claim) => self.claim(claim, answer),
            Command::Ack(ack) => {
                let acked = Ok(Outcome::Acked { follow_ups: vec![] });
                if let Some(task) = self.find(ack.task) {
                    let same = task.last == Some((ack.token.0, LastEnd::Acked));
                    if same && task.state_name() == TaskStateName::Succeeded {
                        return expect(&acked, answer);
                    }
                }
                if let Err(code) = self.held(ack.task, ack.token.0) {
                    return expect_code(Some(code), answer);
                }
                self.end_attempt(ack.task, LastEnd::Acked);
                self.finish(ack.task, TaskStateName::Succeeded);
                expect(&acked, answer)
            }
            Command::Fail(fail) => self.fail(fail, answer),
            Command::Extend(extend) => match self.held(extend.task, extend.token.0) {
                Err(code) => expect_code(Some(code), answer),
                Ok(()) => {
                    let (ends_at, cancel_requested) = self.renew(extend.task, extend.lease_ms);
                    let lease_expires_at = Timestamp(ends_at);
                    expect(&Ok(Outcome::Extended { lease_expires_at, cancel_requested }), answer)
                }
            },
            Command::Renew(renew) => {
                let mut renewals = Vec::new();
                for (task, token) in &renew.claims {
                    renewals.push(match self.held(*task, token.0) {
                        Err(_) => Renewal::Lost,
                        Ok(()) => {
                            let (ends_at, cancel_requested) = self.renew(*task, None);
                            let lease_expires_at = Timestamp(ends_at);
                            Renewal::Held { lease_expires_at, cancel_requested }
                        }
                    });
                }
                expect(&Ok(Outcome::Renewed(renewals)), answer)
            }
            Command::Release(release) => match self.held(release.task, release.token.0) {
                Err(code) => expect_code(Some(code), answer),
                Ok(()) => {
                    let state = self.give_back(release.task);
                    expect(&Ok(Outcome::Released { state }), answer)
                }
            },
            Command::Snooze(snooze) => match self.held(snooze.task, snooze.token.0) {
                Err(code) => expect_code(Some(code), answer),
                Ok(()) => {
                    let run_at = self.moment(snooze.until).max(self.now);
                    if self.cancel_requested(snooze.task) {
                        // It yields, and ends instead of running again.
                        let state = self.give_back(snooze.task);
                        let run_at = Timestamp(run_at);
                        return expect(&Ok(Outcome::Snoozed { run_at, state }), answer);
                    }
                    self.end_attempt(snooze.task, LastEnd::Other);
                    self.change(snooze.task, |task| task.attempt -= 1);
                    self.schedule(snooze.task, run_at);
                    let (run_at, state) = (Timestamp(run_at), TaskStateName::Scheduled);
                    expect(&Ok(Outcome::Snoozed { run_at, state }), answer)
                }
            },
            Command::Cancel(cancel) => self.cancel(cancel.task, answer),
            Command::Retry(retry) => self.retry(retry.task, answer),
            Command::Dead(dead) => self.dead(dead.action, &dead.selection, answer),
            Command::PauseQueue(queue) => self.pause(queue.queue, true, answer),
            Command::ResumeQueue(queue) => self.pause(queue.queue, false, answer),
            Command::PurgeQueue(queue) => {
                if !self.queues.contains_key(queue.queue) {
                    return expect_code(Some("not_found"), answer);
                }
                let before = self.tasks.len();
                self.tasks.retain(|task| task.queue != queue.queue || !task.is_waiting());
                self.expect_bulk(before - self.tasks.len(), 0, answer)
            }
            Command::SetQueue(set) => {
                let queue = self.queues.entry(set.queue.to_owned()).or_default();
                queue.settings = set.settings.clone();
                expect(&Ok(Outcome::Done), answer)
            }
            Command::EndSession(end) => self.end_session(end, answer),
            Command::ExpireDue => self.expire(answer),
            Command::BeginTerm => {
                self.lease_floor = self.now + LEASE_FLOOR_MS;
                expect(&Ok(Outcome::Done), answer)
            }
            Command::EnqueueMany(_)
            | Command::StageBatch(_)
            | Command::CommitBatch(_)
            | Command::Deliver(_)
            | Command::Delivered(_) => Err(format!("the model does not know {command:?}")),
        }
    }

    fn moment(&self, when: When) -> u64 {
        match when {
            When::Now => self.now,
            When::After { ms } => self.now + ms,
            When::At(at) => at.0,
        }
    }

    fn find(&self, id: TaskId) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    fn change<R>(&mut self, id: TaskId, change: impl FnOnce(&mut Task) -> R) -> R {
        let task = self.tasks.iter_mut().find(|task| task.id == id);
        change(task.expect("the caller has found it"))
    }

    /// Why a task that is not there is not there.
    fn missing(&self, id: TaskId) -> Code {
        if self.known_ids.contains(&id) { "already_finished" } else { "not_found" }
    }

    fn held(&self, id: TaskId, token: u64) -> Result<(), Code> {
        let task = self.find(id).ok_or_else(|| self.missing(id))?;
        match &task.state {
            State::Claimed(held) if held.token == token => Ok(()),
            State::Finished { .. } => Err("already_finished"),
            _ => Err("claim_lost"),
        }
    }

    fn cancel_requested(&self, id: TaskId) -> bool {
        self.find(id).and_then(Task::held).is_some_and(|held| held.cancel_requested)
    }

    fn refused(&self, task: &NewTask<'_>) -> Option<Code> {
        let starts = self.moment(task.run_at).max(self.now);
        let never = task.expires_at.is_some_and(|at| at.0 <= starts);
        (task.priority.unwrap_or(5) > PRIORITY_MAX || never).then_some("invalid_argument")
    }

    fn is_full(&self, queue: &str, count: usize) -> bool {
        let limit = self.queues.get(queue).and_then(|queue| queue.settings.max_length);
        let waiting =
            self.tasks.iter().filter(|task| task.queue == queue && task.is_waiting()).count();
        limit.is_some_and(|limit| (waiting + count) as u64 > limit)
    }

    fn batch_refused(&self, queue: &str, tasks: &[NewTask<'_>]) -> Option<Code> {
        let bad = tasks.iter().find_map(|task| self.refused(task));
        bad.or_else(|| self.is_full(queue, tasks.len()).then_some("queue_full"))
    }

    fn enqueue(
        &mut self,
        enqueue: &Enqueue<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Enqueue { queue, task } = enqueue;
        let key = task.request_id.map(|request_id| ((*queue).to_owned(), request_id.to_owned()));
        if let Some(&id) = key.as_ref().and_then(|key| self.requests.get(key)) {
            return expect(&Ok(Outcome::Enqueued(Enqueued { id, duplicate: true })), answer);
        }
        let full = self.is_full(queue, 1).then_some("queue_full");
        if let Some(code) = self.refused(task).or(full) {
            return expect_code(Some(code), answer);
        }
        let Ok(Outcome::Enqueued(enqueued)) = answer else {
            return Err(format!("an enqueue was answered {answer:?}"));
        };
        if let Some(key) = key {
            self.requests.insert(key, enqueued.id);
        }
        self.add(queue, task, *enqueued)
    }

    fn add(&mut self, queue: &str, task: &NewTask<'_>, made: Enqueued) -> Result<(), Difference> {
        if made.duplicate || self.known_ids.contains(&made.id) {
            return Err(format!("a new task got an old id: {made:?}"));
        }
        self.known_ids.push(made.id);
        self.queues.entry(queue.to_owned()).or_default();
        let run_at = self.moment(task.run_at);
        let order = self.next_order(false);
        self.tasks.push(Task {
            id: made.id,
            queue: queue.to_owned(),
            priority: task.priority.unwrap_or(5),
            order,
            state: if run_at > self.now { State::Scheduled { run_at } } else { State::Ready },
            attempt: 0,
            failures: 0,
            losses: 0,
            expires_at: task.expires_at.map(|at| at.0),
            retention_ms: task.retention_ms,
            timeout_ms: task.timeout_ms,
            retry: task.retry.clone().unwrap_or_default(),
            last: None,
        });
        Ok(())
    }

    fn claim(
        &mut self,
        claim: &Claim<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Ok(Outcome::Claimed(taken)) = answer else {
            return Err(format!("a claim was answered {answer:?}"));
        };
        let mut expected = Vec::new();
        let mut taken_in_order = taken.iter();
        for queue in &claim.queues {
            while expected.len() < claim.tasks_max as usize {
                let Some(id) = self.best_ready(queue.name) else { break };
                expected.push(id);
                let Some(given) = taken_in_order.next() else { break };
                if given.id != id || given.token.0 <= self.token_last {
                    return Err(format!("expected {id}, got {given:?}"));
                }
                self.token_last = given.token.0;
                let lease_ends_at = self.now + claim.lease_ms;
                let floor = self.lease_floor;
                let timeout_at = self.find(id).and_then(|task| task.timeout_ms);
                let mut held = Held {
                    token: given.token.0,
                    session: claim.session,
                    lease_ms: claim.lease_ms,
                    lease_ends_at,
                    timeout_at: timeout_at.map(|ms| self.now + ms + TIMEOUT_GRACE_MS),
                    ends_at: 0,
                    started: false,
                    cancel_requested: false,
                };
                held.set_end(floor);
                self.set_state(id, State::Claimed(held), false);
                self.change(id, |task| task.attempt += 1);
            }
        }
        expect(&expected, &taken.iter().map(|task| task.id).collect())
    }

    fn fail(
        &mut self,
        fail: &Fail<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        if let Some(after) = self.failed_before(fail) {
            return expect(&Ok(Outcome::Failed(after)), answer);
        }
        if let Err(code) = self.held(fail.task, fail.token.0) {
            return expect_code(Some(code), answer);
        }
        let retry_at = fail.retry_at.map(|when| self.moment(when));
        let after = self.fail_attempt(fail.task, retry_at, fail.retryable, true);
        expect(&Ok(Outcome::Failed(after)), answer)
    }

    /// What the same failure was answered, if its attempt was the last.
    fn failed_before(&self, fail: &Fail<'_>) -> Option<AfterFailure> {
        let task = self.find(fail.task).filter(|task| task.held().is_none())?;
        let (_, LastEnd::Failed { retry_at }) = task.last.filter(|last| last.0 == fail.token.0)?
        else {
            return None;
        };
        match (task.state_name(), retry_at) {
            (TaskStateName::Scheduled | TaskStateName::Ready, Some(at)) => {
                Some(AfterFailure::Retry { run_at: Timestamp(at) })
            }
            (TaskStateName::Dead, _) => Some(AfterFailure::Dead),
            (TaskStateName::Failed, _) => Some(AfterFailure::Failed),
            (TaskStateName::Cancelled, _) => Some(AfterFailure::Cancelled),
            _ => None,
        }
    }

    fn cancel(
        &mut self,
        id: TaskId,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let Some(task) = self.find(id) else { return expect_code(Some(self.missing(id)), answer) };
        let state = match task.state_name() {
            TaskStateName::Scheduled | TaskStateName::Ready => {
                self.finish(id, TaskStateName::Cancelled);
                TaskStateName::Cancelled
            }
            TaskStateName::Claimed => {
                self.change(id, |task| {
                    if let State::Claimed(held) = &mut task.state {
                        held.cancel_requested = true;
                    }
                });
                TaskStateName::Claimed
            }
            TaskStateName::Cancelled => TaskStateName::Cancelled,
            _ => return expect_code(Some("already_finished"), answer),
        };
        expect(&Ok(Outcome::CancelRequested { state }), answer)
    }

    fn retry(&mut self, id: TaskId, answer: &Result<Outcome, Rejection>) -> Result<(), Difference> {
        let Some(task) = self.find(id) else { return expect_code(Some(self.missing(id)), answer) };
        match task.state_name() {
            TaskStateName::Claimed | TaskStateName::Succeeded => {
                return expect_code(Some("invalid_argument"), answer);
            }
            TaskStateName::Ready => {}
            TaskStateName::Scheduled => self.set_state(id, State::Ready, false),
            _ => self.revive(id),
        }
        expect(&Ok(Outcome::Retried), answer)
    }

    fn dead(
        &mut self,
        action: DeadAction,
        selection: &Selection<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let mut chosen: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|task| task.state_name() == TaskStateName::Dead)
            .filter(|task| match selection {
                Selection::Ids(ids) => ids.contains(&task.id),
                Selection::Filter { filter, .. } => {
                    filter.queue.is_none_or(|name| name == task.queue)
                }
            })
            .map(|task| task.id)
            .collect();
        chosen.sort_unstable();
        for &id in &chosen {
            match action {
                DeadAction::Retry => self.revive(id),
                DeadAction::Discard => self.tasks.retain(|task| task.id != id),
            }
        }
        let skipped = match selection {
            Selection::Ids(ids) => ids.len() - chosen.len(),
            Selection::Filter { .. } => 0,
        };
        self.expect_bulk(chosen.len(), skipped, answer)
    }

    fn pause(
        &mut self,
        queue: &str,
        paused: bool,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match self.queues.get_mut(queue) {
            None => expect_code(Some("not_found"), answer),
            Some(queue) => {
                queue.paused = paused;
                expect(&Ok(Outcome::Done), answer)
            }
        }
    }

    fn end_session(
        &mut self,
        end: &EndSession,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        let mut held: Vec<(i64, TaskId)> = self
            .tasks
            .iter()
            .filter(|task| task.held().is_some_and(|held| held.session == Some(end.session)))
            .filter(|task| !end.keep.contains(&task.id))
            .map(|task| (task.order, task.id))
            .collect();
        // The newest first, so that what goes to the front ends up in the old order.
        held.sort_unstable_by(|left, right| right.cmp(left));
        for (_, id) in &held {
            if end.reason == SessionEnd::Silence && !end.not_started.contains(id) {
                self.lose(*id, true);
            } else {
                self.give_back(*id);
            }
        }
        self.expect_bulk(held.len(), 0, answer)
    }

    fn expire(&mut self, answer: &Result<Outcome, Rejection>) -> Result<(), Difference> {
        let Ok(Outcome::Expired { .. }) = answer else {
            return Err(format!("an expiry was answered {answer:?}"));
        };
        let due = self.tasks.iter().filter_map(|task| Some((task.due_at()?, task.order, task.id)));
        let mut due: Vec<_> = due.filter(|(at, ..)| *at <= self.now).collect();
        due.sort_unstable();
        let held = |id: &TaskId| self.find(*id).and_then(Task::held).is_some();
        let (mut claims, others): (Vec<TaskId>, Vec<TaskId>) =
            due.into_iter().map(|(.., id)| id).partition(held);
        // The last claim first, so that what goes to the front ends up in the old order.
        claims.reverse();
        for id in claims.into_iter().chain(others) {
            self.pass_deadline(id);
        }
        for queue in self.queues.keys().cloned().collect::<Vec<_>>() {
            for dead in [false, true] {
                while let Some(id) = self.oldest_to_go(&queue, dead) {
                    self.tasks.retain(|task| task.id != id);
                }
            }
        }
        Ok(())
    }

    fn expect_bulk(
        &self,
        changed: usize,
        skipped: usize,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match answer {
            Ok(Outcome::Bulk(progress)) if progress.next.is_none() => {
                expect(&(changed, skipped), &(progress.changed as usize, progress.skipped as usize))
            }
            other => Err(format!("expected {changed} changed, got {other:?}")),
        }
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(expected: &T, found: &T) -> Result<(), Difference> {
    if expected == found { Ok(()) } else { Err(format!("expected {expected:?}, got {found:?}")) }
}

fn expect_code(
    expected: Option<Code>,
    answer: &Result<Outcome, Rejection>,
) -> Result<(), Difference> {
    let found = answer.as_ref().err().map(Rejection::code);
    if expected.is_some() && expected == found {
        return Ok(());
    }
    Err(format!("expected {expected:?}, got {answer:?}"))
}
