//! Outcomes: answers callers after entries are applied, and hands events to their observers.

use super::{
    Checkpoints, ShardLoop,
    local::{State, Waiting},
    spares::SoughtBody,
};
use crate::{
    Error,
    checkpoint::Failure,
    log::group_of,
    shard::{
        CancelledClaim, HandedTask,
        inbox::{Input, ReadFn, Waiter},
        watchers::ended,
    },
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use taskyard_machine::{
    BulkProgress, ClaimToken, ClaimedTask, Command, Event, EventKind, Fail, Machine, Outcome,
    Rejection, Release, SessionId, ShardId, Snooze, TaskError, TaskId, Timestamp, When,
};
use taskyard_replica::{NodeId, Progress, StateMachine};
use tokio::sync::oneshot;

/// How soon a refused end of a session is proposed again.
const END_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a task waits whose body may be on a replica that did not answer.
const BODY_AGAIN_AFTER_MS: u64 = 15_000;

type Outcomes = <State as StateMachine>::Outcome;

/// The answers of a call with several commands, until all are there.
pub(super) struct PartialAnswers {
    answers: Vec<Option<Result<Outcome, Error>>>,
    missing: usize,
    answer: oneshot::Sender<Vec<Result<Outcome, Error>>>,
}

impl PartialAnswers {
    pub(super) fn new(
        commands: usize,
        answer: oneshot::Sender<Vec<Result<Outcome, Error>>>,
    ) -> PartialAnswers {
        PartialAnswers { answers: vec![None; commands], missing: commands, answer }
    }
}

/// Runs a read. A read changes nothing, so that its panic ends only its own call.
fn serve_read(read: ReadFn, machine: &Machine, now: Timestamp) {
    let served = catch_unwind(AssertUnwindSafe(|| read(Ok((machine, now)))));
    if let Err(panic) = served {
        tracing::error!("a read of the state has failed: {}", super::panic_message(panic.as_ref()));
    }
}

impl ShardLoop {
    /// Answers what was applied, then handles the events. In this order, because a claim that got
    /// nothing must be parked before an event can wake it.
    pub(super) fn handle_progress(
        &mut self,
        number: usize,
        progress: Progress<Outcomes>,
        was_leading: bool,
    ) -> Result<(), Failure> {
        let group = self.shards[number].group;
        self.send(group, progress.messages);
        if progress.members_changed {
            // A snapshot may have brought another state.
            let shard = &mut self.shards[number];
            shard.note_members();
            self.memory.note(shard);
        }
        let has_changed = !progress.applied.is_empty();
        for applied in progress.applied {
            let Some(proposal) = applied.proposal else { continue };
            let waiting = self.shards[number].answers_of(proposal);
            for (waiting, outcome) in waiting.into_iter().zip(applied.outcome) {
                self.answer_one(number, waiting, outcome);
            }
        }
        for proposal in progress.dropped {
            for waiting in self.shards[number].answers_of(proposal) {
                self.fail_one(number, waiting, &Error::OutcomeUnknown);
            }
        }
        for read in progress.reads {
            let reading = self.reading;
            let shard = &mut self.shards[number];
            let clock = shard.leading.as_mut().map(|clock| clock.now(reading));
            for read in shard.reads_of(read) {
                let machine = shard.machine();
                serve_read(read, machine, clock.unwrap_or(machine.now()));
            }
        }
        for read in progress.reads_dropped {
            let error = self.not_leader(group);
            for read in self.shards[number].reads_of(read) {
                read(Err(error.clone()));
            }
        }
        if let Some(role) = progress.role {
            self.role_changed(number, role);
        }
        if has_changed {
            let events = std::mem::take(&mut self.shards[number].replica.machine_mut().events);
            self.compare(number, &events)?;
            // Events from before this node led the shard were published by the leader of that time.
            if was_leading {
                self.observe(number, events);
            } else {
                self.follow(number, &events);
            }
            let shard = &mut self.shards[number];
            Checkpoints::note_change(shard, self.reading.monotonic);
            self.memory.note(shard);
        }
        Ok(())
    }

    /// Handles a follower's events: it only lets bodies of ended tasks be evicted.
    fn follow(&mut self, number: usize, events: &[Event]) {
        let bodies = &mut self.shards[number].replica.machine_mut().bodies;
        events.iter().filter_map(|event| ended(&event.kind)).for_each(|task| bodies.cool(task));
    }

    fn observe(&mut self, number: usize, events: Vec<Event>) {
        let shard = &mut self.shards[number];
        let mut cancelled = Vec::new();
        for event in &events {
            if let Some(task) = ended(&event.kind) {
                shard.watchers.task_ended(task);
                shard.replica.machine_mut().bodies.cool(task);
            }
            match &event.kind {
                EventKind::TaskReady(task) => {
                    shard.waiters.wake_for(task.queue.as_str(), &task.task_type);
                }
                // Expired tasks may have been first in their order, and kept a claim from later
                // ones.
                EventKind::TaskExpired(task) => shard.waiters.wake(task.queue.as_str()),
                EventKind::QueueResumed(queue)
                | EventKind::QueueOpened(queue)
                | EventKind::QueueSet(queue) => {
                    shard.waiters.wake(queue.as_str());
                }
                EventKind::TaskCancelRequested(task) => cancelled.push(task.id),
                EventKind::OutgoingQueued(_) => shard.outbox.wake(),
                EventKind::ScheduleMissed(name, count) => {
                    tracing::warn!(
                        "schedule {name} has missed {count} occurrences: they passed while nothing fired"
                    );
                }
                EventKind::SessionEnded(session) => {
                    self.sessions.ended(*session, shard.id);
                    // The session may have claimed tasks in the same turn, after its end.
                    if shard.machine().session_holds(*session) {
                        self.sessions.note_claims(*session, shard.id, self.reading.monotonic);
                    }
                }
                _ => {}
            }
        }
        if shard.waiters.is_woken() || shard.outbox.is_woken() {
            self.activate(number);
        }
        self.tell_cancelled(number, &cancelled);
        self.turn_events.extend(events);
    }

    /// Tells the workers' nodes which claims are cancelled. A worker without a session learns it at
    /// the next extension of its lease.
    fn tell_cancelled(&self, number: usize, tasks: &[TaskId]) {
        let machine = self.shards[number].machine();
        let mut by_node: BTreeMap<Option<NodeId>, Vec<CancelledClaim>> = BTreeMap::new();
        for &task in tasks {
            let claim = machine.task(task).and_then(|view| view.claim);
            // The claim may have ended in the same turn.
            let Some(claim) = claim.filter(|claim| claim.cancel_requested) else { continue };
            let Some(session) = claim.session else { continue };
            let cancelled = CancelledClaim { session, task, token: claim.token };
            let mut nodes: Vec<_> = self.sessions.nodes_of(session).map(Some).collect();
            if nodes.is_empty() {
                nodes.push(None);
            }
            for node in nodes {
                by_node.entry(node).or_default().push(cancelled);
            }
        }
        for (node, claims) in by_node {
            self.handle.cancelled(node, claims);
        }
    }

    fn answer_one(&mut self, number: usize, waiting: Waiting, outcome: Result<Outcome, Rejection>) {
        match waiting {
            Waiting::Call(answer) => drop(answer.send(outcome.map_err(Error::Rejected))),
            Waiting::Part { slot, position } => {
                self.answer_part(slot, position, outcome.map_err(Error::Rejected));
            }
            Waiting::Claim(served) => {
                let shard = &mut self.shards[number];
                let taken = match &outcome {
                    Ok(Outcome::Claimed(tasks)) => {
                        let queue = &served.promised.queue;
                        tasks.iter().filter(|task| task.queue.as_str() == queue).count()
                    }
                    _ => 0,
                };
                shard.waiters.claim_decided(&served.promised, taken as u64);
                match outcome {
                    Ok(Outcome::Claimed(tasks)) if tasks.is_empty() => {
                        shard.waiters.park_again(served.waiter);
                    }
                    Ok(Outcome::Claimed(tasks)) => self.hand_over(number, served.waiter, tasks),
                    Ok(other) => unreachable!("a claim was answered with {other:?}"),
                    Err(rejection) => drop(served.waiter.answer.send(Err(rejection.into()))),
                }
            }
            Waiting::Expiry => {
                let count = match outcome {
                    Ok(Outcome::Expired { count }) => count,
                    _ => 0,
                };
                let shard = &mut self.shards[number];
                let now = shard.machine().now();
                shard.timer.done(count, now);
            }
            Waiting::Firing => {
                let shard = &mut self.shards[number];
                let now = shard.machine().now();
                shard.firing.done(outcome.is_ok(), now);
            }
            Waiting::Mark => self.shards[number].comparison.done(),
            Waiting::SessionEnd(session) => self.session_end_applied(number, session, &outcome),
            Waiting::Deliver { from, sequence } => {
                let to = self.shards[number].id;
                self.delivery_applied(from, to, sequence, outcome);
            }
            Waiting::Delivered { .. } => {
                // There may be more than one command carries.
                self.shards[number].outbox.wake();
                self.activate(number);
            }
            Waiting::Nobody => {}
        }
    }

    fn session_end_applied(
        &mut self,
        number: usize,
        session: SessionId,
        outcome: &Result<Outcome, Rejection>,
    ) {
        let shard = self.shards[number].id;
        match outcome {
            Ok(Outcome::Bulk(BulkProgress { next: Some(_), .. })) => {
                self.sessions.not_ended(session, shard, self.reading.monotonic);
            }
            _ => {
                self.sessions.ended(session, shard);
                if self.shards[number].machine().session_holds(session) {
                    self.sessions.note_claims(session, shard, self.reading.monotonic);
                }
            }
        }
    }

    fn delivery_applied(
        &mut self,
        from: ShardId,
        to: ShardId,
        sequence: u64,
        outcome: Result<Outcome, Rejection>,
    ) {
        let source = usize::from(from.0);
        let Some(shard) = self.shards.get_mut(source) else { return };
        match outcome {
            Ok(_) => shard.outbox.taken(to, sequence),
            Err(rejection) => {
                tracing::error!(
                    "shard {to} rejected message {sequence} of shard {from}: {rejection}; it is sent again"
                );
                shard.outbox.refused(to, self.real);
            }
        }
        self.activate(source);
    }

    /// Ends one wait with an error: this node does not lead the shard, or the command was lost.
    fn fail_one(&mut self, number: usize, waiting: Waiting, error: &Error) {
        let shard = &mut self.shards[number];
        match waiting {
            Waiting::Call(answer) => drop(answer.send(Err(error.clone()))),
            Waiting::Part { slot, position } => {
                self.answer_part(slot, position, Err(error.clone()));
            }
            Waiting::Claim(served) => {
                shard.waiters.claim_decided(&served.promised, 0);
                let _ = served.waiter.answer.send(Err(error.clone()));
            }
            Waiting::Expiry => {
                let now = shard.machine().now();
                shard.timer.done(0, now);
            }
            Waiting::Firing => {
                let now = shard.machine().now();
                shard.firing.done(false, now);
            }
            Waiting::Mark => shard.comparison.done(),
            Waiting::Deliver { from, .. } => {
                let to = shard.id;
                let real = self.real;
                if let Some(source) = self.shards.get_mut(usize::from(from.0)) {
                    source.outbox.refused(to, real);
                }
            }
            Waiting::SessionEnd(session) => {
                let again_at = self.reading.monotonic + END_AGAIN_AFTER;
                self.sessions.not_ended(session, shard.id, again_at);
            }
            Waiting::Delivered { to, up_to } => shard.outbox.taken(to, up_to),
            Waiting::Nobody => {}
        }
    }

    /// Ends all calls, because the replica is about to be removed: the outcome of proposals is
    /// unknown, and reads are redirected.
    pub(super) fn end_calls(&mut self, number: usize) {
        self.redirect_waiting(number);
        let Some(shard) = self.shards.get_mut(number) else { return };
        let (in_flight, reads) = shard.take_in_flight();
        for waiting in in_flight {
            self.fail_one(number, waiting, &Error::OutcomeUnknown);
        }
        self.refuse(number, Vec::new(), reads);
    }

    /// Redirects callers whose commands and reads were not appended.
    pub(super) fn refuse(&mut self, number: usize, refused: Vec<Waiting>, reads: Vec<ReadFn>) {
        let Some(shard) = self.shards.get(number) else { return };
        let error = self.not_leader(shard.group);
        for waiting in refused {
            self.fail_one(number, waiting, &error);
        }
        for read in reads {
            read(Err(error.clone()));
        }
    }

    /// Refuses a command that is too large for the log. The loop's own commands are never that
    /// large, because what they carry was bounded when it came in.
    pub(super) fn refuse_large(&mut self, number: usize, waiting: Waiting, error: &Error) {
        if !waiting.is_asked() {
            let shard = self.shards[number].id;
            tracing::error!("this node's own command to shard {shard} is too large: {error}");
        }
        self.fail_one(number, waiting, error);
    }

    /// Redirects the calls that wait for a shard which this node was about to lead.
    pub(super) fn redirect_waiting(&mut self, number: usize) {
        let Some(shard) = self.shards.get_mut(number) else { return };
        let held = std::mem::take(&mut shard.pending).into_iter().map(|(_, waiting)| waiting);
        let (held, reads) = (held.collect(), std::mem::take(&mut shard.reads));
        self.queued_bytes -= std::mem::take(&mut shard.queued_bytes);
        self.refuse(number, held, reads);
    }

    pub(super) fn answer_part(
        &mut self,
        slot: usize,
        position: usize,
        answer: Result<Outcome, Error>,
    ) {
        let partial = self.partial[slot].as_mut().expect("it is there until all are answered");
        partial.answers[position] = Some(answer);
        partial.missing -= 1;
        self.answer_if_whole(slot);
    }

    pub(super) fn answer_if_whole(&mut self, slot: usize) {
        if let Some(whole) = self.partial[slot].take_if(|partial| partial.missing == 0) {
            self.partial_free.push(slot);
            let _ = whole.answer.send(whole.answers.into_iter().flatten().collect());
        }
    }

    /// Gives a worker its tasks with their bodies. Another thread reads the bodies that are not in
    /// memory first.
    fn hand_over(&mut self, number: usize, waiter: Waiter, tasks: Vec<ClaimedTask>) {
        let shard = &self.shards[number];
        if let Some(session) = waiter.request.session {
            self.sessions.note_claims(session, shard.id, self.reading.monotonic);
        }
        let bodies = &shard.state().bodies;
        let bodies: Vec<Option<Bytes>> = tasks.iter().map(|task| bodies.get(task.id)).collect();
        if bodies.iter().all(Option::is_some) {
            let handed = tasks.into_iter().zip(bodies.into_iter().flatten());
            self.answer_claim(
                waiter,
                handed.map(|(task, body)| HandedTask { task, body }).collect(),
            );
            return;
        }
        let missing = tasks.iter().zip(&bodies).filter(|(_, body)| body.is_none());
        let missing = missing.map(|(task, _)| task.id).collect();
        let inbox = Arc::clone(&self.inbox);
        self.read_bodies(missing, move |read| {
            let mut read = read.into_iter();
            let mut filled = |body: Option<Bytes>| match body {
                Some(body) => SoughtBody::Found(body),
                None => read.next().unwrap_or(SoughtBody::Gone),
            };
            let bodies = bodies.into_iter().map(&mut filled).collect();
            let _ = inbox.push(Input::BodiesRead { waiter, tasks, bodies });
        });
    }

    /// Hands over tasks whose bodies were read. A task may have ended meanwhile, and its body be
    /// gone.
    pub(super) fn bodies_read(
        &mut self,
        mut waiter: Waiter,
        tasks: Vec<ClaimedTask>,
        bodies: Vec<SoughtBody>,
    ) {
        let mut handed = Vec::with_capacity(tasks.len());
        let mut kept_back = None;
        for (task, body) in tasks.into_iter().zip(bodies) {
            let is_claimed = self.is_claimed_under(task.id, task.token);
            match body {
                SoughtBody::Found(body) => {
                    handed.push(HandedTask { task, body });
                    continue;
                }
                SoughtBody::Gone => {}
                SoughtBody::Lost(what) if is_claimed => {
                    self.end_without_body(task.id, task.token, &what)
                }
                SoughtBody::Unanswered(what) if is_claimed => {
                    self.put_off(task.id, task.token, &what);
                }
                SoughtBody::Lost(_) | SoughtBody::Unanswered(_) => {}
            }
            if is_claimed {
                kept_back = Some(task.id.home);
            }
        }
        match kept_back {
            // Nothing is left for this worker, but more tasks may be ready.
            Some(shard_id) if handed.is_empty() => {
                let number = usize::from(shard_id.0);
                let queues = waiter.request.queues.clone();
                let shard = self.shards.get_mut(number).filter(|shard| shard.leading.is_some());
                let Some(shard) = shard else {
                    let _ = waiter.answer.send(Err(self.not_leader(group_of(shard_id))));
                    return;
                };
                // The claim's number is remembered with the lost tasks, and would only return them
                // again.
                waiter.request.number = None;
                shard.waiters.park_again(waiter);
                queues.iter().for_each(|(queue, _)| shard.waiters.wake(queue));
                self.activate(number);
            }
            _ => self.answer_claim(waiter, handed),
        }
    }

    /// Reschedules a claimed task without spending an attempt, because a replica that may have its
    /// body did not answer.
    fn put_off(&mut self, task: TaskId, token: ClaimToken, what: &str) {
        tracing::warn!(
            "the body of task {task} {what}, and a replica that may have the body does not answer; \
             the task is tried again in {BODY_AGAIN_AFTER_MS} ms: bring the other nodes back, and \
             check the disk"
        );
        let until = When::After { ms: BODY_AGAIN_AFTER_MS };
        let snooze = Snooze { task, token, until, push_back_key: false };
        self.command(usize::from(task.home.0), &Command::Snooze(snooze), Waiting::Nobody);
    }

    /// Fails a claimed task whose body can't be read from any replica, because no worker can run
    /// it. A retry of the dead letter reads the body again.
    fn end_without_body(&mut self, task: TaskId, token: ClaimToken, what: &str) {
        tracing::error!(
            "the body of task {task} {what}; the task is a dead letter now: check the disk, and look for \
             the task in a backup"
        );
        let message = format!(
            "the broker could not hand out the task, because its body {what}; retry it once the disk is \
             repaired, or enqueue it again from its source"
        );
        let error = TaskError { error_type: "BodyUnreadable", message: &message, backtrace: "" };
        let fail = Fail { task, token, error, retry_at: None, retryable: false };
        self.command(usize::from(task.home.0), &Command::Fail(fail), Waiting::Nobody);
    }

    fn is_claimed_under(&self, task: TaskId, token: ClaimToken) -> bool {
        let shard = self.shards.get(usize::from(task.home.0));
        let view = shard.and_then(|shard| shard.machine().task(task));
        view.and_then(|view| view.claim).is_some_and(|claim| claim.token == token)
    }

    fn answer_claim(&mut self, waiter: Waiter, handed: Vec<HandedTask>) {
        if let Err(Ok(handed)) = waiter.answer.send(Ok(handed)) {
            let claims: Vec<_> =
                handed.iter().map(|task| (task.task.id, task.task.token)).collect();
            self.release_claims(&claims);
        }
    }

    /// Releases claims whose receiver is gone, so that other workers get the tasks at once.
    pub(super) fn release_claims(&mut self, claims: &[(TaskId, ClaimToken)]) {
        for &(task, token) in claims {
            let number = usize::from(task.home.0);
            self.command(number, &Command::Release(Release { task, token }), Waiting::Nobody);
        }
    }
}
