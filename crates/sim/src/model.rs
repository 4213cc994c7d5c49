//! The first rung: one machine against a simple and slow model of it, over random commands.
//!
//! The model is a list of tasks with linear searches. It predicts the answer to each command and
//! the state of every task after it. Only ids and tokens come from the machine, and must be new. A
//! second machine runs beside the first and is reloaded from its records from time to time; both
//! must stay equal, byte for byte.

mod by_hand;
mod commands;
mod flows;
mod history;
mod life;
mod schedules;
mod shards;
mod turns;
mod unique;
mod wakes;
mod why;

use std::collections::BTreeMap;
use std::fmt;
use taskyard_machine::limits::{LEASE_FLOOR_MS, PRIORITY_MAX, TIMEOUT_GRACE_MS};
use taskyard_machine::{
    Ack, AfterFailure, Claim, Command, Enqueued, Fail, NewTask, Outcome, QueueSettings, Rejection,
    Renewal, RetryPolicy, SessionId, TaskId, TaskStateName, Timestamp, When,
};

use turns::Turns;
use unique::{Hold, Window, is_contradiction};

/// One random history of a seed against one model; the first difference, in words.
type Follow = fn(u64) -> Result<(), Difference>;

const MODELS: [Follow; 3] = [history::check, flows::check, schedules::check];

/// Runs the histories of a seed, one against each model.
pub(crate) fn check(seed: u64) -> Result<(), Failure> {
    MODELS.iter().try_for_each(|follow| follow(seed)).map_err(|what| Failure { seed, what })
}

/// A difference between the machine and a model.
#[derive(Debug)]
pub(crate) struct Failure {
    seed: u64,
    what: Difference,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "history {} is not as the model says: {}", self.seed, self.what)?;
        write!(f, "replay: {}", replay_command(self.seed))
    }
}

fn replay_command(seed: u64) -> String {
    format!("cargo run -p taskyard-sim -- --histories 1 --seed {seed}")
}

/// Reports a panic: a broken assertion in the machine is a finding.
pub(crate) struct ReportPanic(pub(crate) u64);

impl Drop for ReportPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("history {} panicked\nreplay: {}", self.0, replay_command(self.0));
        }
    }
}

/// A difference, in words.
type Difference = String;

/// A rejection's stable code.
type Code = &'static str;

#[derive(Clone, Debug, PartialEq)]
enum State {
    Scheduled { run_at: u64 },
    Ready { since: u64 },
    Claimed(Held),
    Finished { ending: TaskStateName, at: u64 },
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    token: u64,
    /// When the task became ready, before its claim.
    since: u64,
    session: Option<SessionId>,
    lease_ms: u64,
    lease_ends_at: u64,
    timeout_at: Option<u64>,
    ends_at: u64,
    /// The sum of all put-offs when the claim's times were set.
    put_off_ms: u64,
    started: bool,
    cancel_requested: bool,
}

/// The end of the last attempt, as far as a repeated answer depends on it.
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
    task_type: String,
    payload: Vec<u8>,
    /// The task's fairness key.
    key: Option<String>,
    unique: Option<Hold>,
    priority: u8,
    /// The place of the task: smaller comes first.
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
    /// The tasks that its ack enqueued.
    follow_ups: Vec<TaskId>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    paused: bool,
    settings: QueueSettings,
    turns: Turns,
    /// Whether the queue is deleted and was not used since.
    deleted: bool,
}

/// The model of a machine.
#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    lease_floor: u64,
    /// The sum of all times by which claims were put off.
    put_off_ms: u64,
    queues: BTreeMap<String, Queue>,
    tasks: Vec<Task>,
    requests: BTreeMap<(String, String), TaskId>,
    windows: Vec<Window>,
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
            State::Ready { .. } => TaskStateName::Ready,
            State::Claimed(_) => TaskStateName::Claimed,
            State::Finished { ending, .. } => *ending,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Scheduled { .. } | State::Ready { .. })
    }

    fn due_at(&self) -> Option<u64> {
        match &self.state {
            State::Scheduled { run_at } => {
                Some(self.expires_at.map_or(*run_at, |at| at.min(*run_at)))
            }
            State::Ready { .. } => self.expires_at,
            State::Claimed(held) => Some(held.ends_at),
            State::Finished { ending: TaskStateName::Dead, .. } => None,
            State::Finished { at, .. } => Some(at + self.retention_ms?),
        }
    }

    /// Whether the queue's own retention removes the task, and in which of the queue's two lists it
    /// is.
    fn retained_as_dead(&self) -> Option<bool> {
        match self.state {
            State::Finished { ending: TaskStateName::Dead, .. } => Some(true),
            State::Finished { .. } if self.retention_ms.is_none() => Some(false),
            _ => None,
        }
    }
}

impl Held {
    /// Moves the claim's times by all put-offs since they were set.
    fn catch_up(&mut self, put_off_ms: u64, floor: u64) {
        let ms = put_off_ms - std::mem::replace(&mut self.put_off_ms, put_off_ms);
        self.lease_ends_at += ms;
        self.timeout_at = self.timeout_at.map(|at| at + ms);
        self.set_end(floor);
    }

    fn set_end(&mut self, floor: u64) {
        let timeout_at = self.timeout_at.unwrap_or(self.lease_ends_at);
        self.ends_at = self.lease_ends_at.min(timeout_at).max(floor);
    }
}

impl Model {
    /// Follows one command, and returns a difference in the machine's answer.
    fn follow(
        &mut self,
        command: &Command<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        match command {
            Command::Enqueue(enqueue) => self.enqueue(enqueue, answer),
            Command::EnqueueBatch(batch) => self.batch(batch, answer),
            Command::Claim(claim) => self.claim(claim, answer),
            Command::Ack(ack) => self.ack(ack, answer),
            Command::Fail(fail) => self.fail(fail, answer),
            Command::Extend(extend) => match self.held(extend.task, extend.token.0) {
                Err(code) => expect_code(Some(code), answer),
                Ok(()) => {
                    let (ends_at, cancel_requested) = self.renew(extend.task, extend.lease_ms);
                    let (lease_expires_at, lease_ms) = (Timestamp(ends_at), ends_at - self.now);
                    let extended =
                        Outcome::Extended { lease_expires_at, lease_ms, cancel_requested };
                    expect(&Ok(extended), answer)
                }
            },
            Command::Renew(renew) => {
                let mut renewals = Vec::new();
                for (task, token) in &renew.claims {
                    renewals.push(match self.held(*task, token.0) {
                        Err(_) => Renewal::Lost,
                        Ok(()) => {
                            let (ends_at, cancel_requested) = self.renew(*task, None);
                            let lease_ms = ends_at - self.now;
                            let lease_expires_at = Timestamp(ends_at);
                            Renewal::Held { lease_expires_at, lease_ms, cancel_requested }
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
                    if snooze.push_back_key {
                        self.push_back(snooze.task, run_at);
                    }
                    if self.cancel_requested(snooze.task) {
                        // The worker yields, so that the task ends and does not run again.
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
            Command::Retry(retry) => self.retry(retry, answer),
            Command::Dead(dead) => self.dead(dead.action, &dead.selection, answer),
            Command::PauseQueue(queue) => self.pause(queue.queue, true, answer),
            Command::ResumeQueue(queue) => self.pause(queue.queue, false, answer),
            Command::PurgeQueue(purge) => {
                if !self.has_queue(purge.queue) {
                    return expect_code(Some("not_found"), answer);
                }
                let goes = |task: &&Task| {
                    let older = task.id.sequence < purge.before.next_sequence;
                    task.queue == purge.queue && task.is_waiting() && older
                };
                let gone: Vec<TaskId> = self.tasks.iter().filter(goes).map(|t| t.id).collect();
                gone.iter().for_each(|id| self.remove(*id));
                self.expect_bulk(gone.len(), 0, answer)
            }
            Command::SetQueue(set) => {
                self.set_limits(set.queue, &set.settings);
                self.undelete(set.queue);
                expect(&Ok(Outcome::Done), answer)
            }
            Command::DeleteQueue(delete) => self.delete_queue(delete.queue, answer),
            Command::EndSession(end) => self.end_session(end, answer),
            Command::ExpireDue => self.expire(answer),
            Command::BeginTerm => {
                self.lease_floor = self.now + LEASE_FLOOR_MS;
                expect(&Ok(Outcome::Done), answer)
            }
            Command::PutOff(put_off) => {
                self.put_off_ms += put_off.claims_ms;
                let floor = self.now + put_off.claims_ms.min(LEASE_FLOOR_MS);
                self.lease_floor = self.lease_floor.max(floor);
                expect(&Ok(Outcome::Done), answer)
            }
            unknown => Err(format!("the model does not know {unknown:?}")),
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

    /// Why a task does not exist.
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
        let starts = self.first_run_at(task).max(self.now);
        let never = task.expires_at.is_some_and(|at| at.0 <= starts);
        let bad = never || task.priority.unwrap_or(5) > PRIORITY_MAX || is_contradiction(task);
        bad.then_some("invalid_argument")
    }

    fn is_full(&self, queue: &str, count: usize) -> bool {
        let limit = self.queues.get(queue).and_then(|queue| queue.settings.max_length);
        let waiting =
            self.tasks.iter().filter(|task| task.queue == queue && task.is_waiting()).count();
        limit.is_some_and(|limit| (waiting + count) as u64 > limit)
    }

    fn add(&mut self, queue: &str, task: &NewTask<'_>, made: Enqueued) -> Result<(), Difference> {
        if made.duplicate || self.known_ids.contains(&made.id) {
            return Err(format!("a new task got an old id: {made:?}"));
        }
        self.known_ids.push(made.id);
        self.queues.entry(queue.to_owned()).or_default();
        let run_at = self.first_run_at(task);
        self.tasks.push(Task {
            id: made.id,
            queue: queue.to_owned(),
            task_type: task.task_type.to_owned(),
            payload: task.body.payload.to_vec(),
            key: task.fairness_key.map(str::to_owned),
            unique: task.unique.as_ref().map(|unique| Hold::new(unique, self.now)),
            priority: task.priority.unwrap_or(5),
            order: 0,
            state: State::Scheduled { run_at },
            attempt: 0,
            failures: 0,
            losses: 0,
            expires_at: task.expires_at.map(|at| at.0),
            retention_ms: task.retention_ms,
            timeout_ms: task.timeout_ms,
            retry: task.retry.clone().unwrap_or_default(),
            last: None,
            follow_ups: Vec::new(),
        });
        self.schedule(made.id, run_at);
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
                let Some(id) = self.best_ready(queue.name, &claim.types) else { break };
                expected.push(id);
                let Some(given) = taken_in_order.next() else { break };
                if given.id != id || given.token.0 <= self.token_last {
                    return Err(format!("expected {id}, got {given:?}"));
                }
                self.token_last = given.token.0;
                self.take(id, given.token.0, claim);
            }
        }
        expect(&expected, &taken.iter().map(|task| task.id).collect())
    }

    /// Gives a ready task to a worker.
    fn take(&mut self, id: TaskId, token: u64, claim: &Claim<'_>) {
        self.serve(id);
        let (now, floor, put_off_ms) = (self.now, self.lease_floor, self.put_off_ms);
        let held = self.change(id, |task| {
            let State::Ready { since } = task.state else { return None };
            task.attempt += 1;
            let mut held = Held {
                token,
                since,
                session: claim.session,
                lease_ms: claim.lease_ms,
                lease_ends_at: now + claim.lease_ms,
                timeout_at: task.timeout_ms.map(|ms| now + ms + TIMEOUT_GRACE_MS),
                ends_at: 0,
                put_off_ms,
                started: claim.begun || claim.session.is_none(),
                cancel_requested: false,
            };
            held.set_end(floor);
            Some(held)
        });
        self.set_state(id, State::Claimed(held.expect("it is ready")), false);
    }

    /// Ends a task and frees its key first; then come the follow-ups.
    fn ack(
        &mut self,
        ack: &Ack<'_>,
        answer: &Result<Outcome, Rejection>,
    ) -> Result<(), Difference> {
        if let Some(task) = self.find(ack.task) {
            let same = task.last == Some((ack.token.0, LastEnd::Acked));
            if same && task.state_name() == TaskStateName::Succeeded {
                let follow_ups = task.follow_ups.clone();
                return expect(&Ok(Outcome::Acked { follow_ups }), answer);
            }
        }
        if let Err(code) = self.held(ack.task, ack.token.0) {
            return expect_code(Some(code), answer);
        }
        let bad = ack.follow_ups.iter().find_map(|next| self.refused(&next.enqueue.task));
        if bad.is_some() {
            return expect_code(bad, answer);
        }
        let Ok(Outcome::Acked { follow_ups }) = answer else {
            return Err(format!("an ack was answered {answer:?}"));
        };
        expect(&ack.follow_ups.len(), &follow_ups.len())?;
        self.change(ack.task, |task| task.follow_ups = follow_ups.clone());
        self.end_attempt(ack.task, LastEnd::Acked);
        self.finish(ack.task, TaskStateName::Succeeded);
        for (next, &id) in ack.follow_ups.iter().zip(follow_ups) {
            let duplicate = self.known_ids.contains(&id);
            self.accept(next.enqueue.queue, &next.enqueue.task, Enqueued { id, duplicate })?;
        }
        Ok(())
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

    /// The answer to the same failure before, if its attempt was the last.
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
        // The last claim goes first, so that tasks that return to the front keep their order.
        claims.reverse();
        for id in claims.into_iter().chain(others) {
            self.pass_deadline(id);
        }
        self.leave_lines();
        for queue in self.queues.keys().cloned().collect::<Vec<_>>() {
            for dead in [false, true] {
                while let Some(id) = self.oldest_to_go(&queue, dead) {
                    self.remove(id);
                }
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of histories against each model in a test run; `TASKYARD_HISTORIES` sets another
    /// one.
    const HISTORIES: u64 = 1_000;

    fn check_many(follow: Follow) {
        let asked = std::env::var("TASKYARD_HISTORIES").ok();
        let count = asked.map_or(HISTORIES, |text| text.parse().expect("a number"));
        for seed in 0..count {
            let _guard = ReportPanic(seed);
            follow(seed).unwrap_or_else(|what| panic!("{}", Failure { seed, what }));
        }
    }

    #[test]
    fn tasks_do_what_their_model_says() {
        check_many(history::check);
    }

    #[test]
    fn flows_do_what_their_model_says() {
        check_many(flows::check);
    }

    /// A retried child was once released before a parent that was reopened after it.
    #[test]
    fn a_retried_child_waits_for_a_parent_that_is_opened_after_it() {
        assert_eq!(flows::check(1_713), Ok(()));
    }

    #[test]
    fn schedules_do_what_their_model_says() {
        check_many(schedules::check);
    }
}
