//! Session: the claims of a worker and its unconfirmed answers, without any I/O.
//!
//! Invariants: a worker holds a claim from its receipt until the broker has confirmed the answer.
//! Every beat and every hello names all held claims, so that none is released by mistake. An
//! unconfirmed answer is sent again on every new stream, and the broker recognises it by the
//! claim's token. The broker never gets credit for more tasks than there are free slots.

mod drive;
mod report;

use crate::{CancelReason, Error};
use prost::Message;
use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};
use taskyard_proto::v1::{self, answer::Answer, broker_message, worker_message};
use tokio::sync::oneshot;

pub(crate) use drive::{Plan, start};
pub(crate) use report::{ClaimKey, Report, Reports, Slot, Stopper};

/// The most answers in one message: enough to share its cost, few enough to be read at once.
const ANSWERS_MAX: usize = 1_000;
/// The most bytes of answers in one message; a larger answer goes alone.
const ANSWERS_BYTES_MAX: usize = 1 << 20;

/// A task to run, and the handle that stops it.
#[derive(Debug)]
pub(crate) struct Assigned {
    pub(crate) task: v1::ClaimedTask,
    pub(crate) stopper: Stopper,
}

/// Whether the session claims tasks, and whether it will leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Quiet,
    Stopping,
}

/// The requests in a message of the broker.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) run: Vec<Assigned>,
    pub(crate) asked: Option<Phase>,
}

/// The claims of a worker and its unconfirmed answers.
#[derive(Debug)]
pub(crate) struct Session {
    /// All of the hello but its claims; the session's secret once there is one.
    hello: v1::Hello,
    phase: Phase,
    /// Ordered by task and then token, so that the claims of one task are neighbours.
    held: BTreeMap<ClaimKey, Held>,
    /// The number of attempts that have not ended.
    running: usize,
    /// The number of taken slots: attempts, and threads that outlive their attempt.
    busy: u32,
    owed: BTreeMap<u64, Owed>,
    next_number: u64,
    /// Numbers of answers to send, in order.
    unsent: VecDeque<u64>,
    /// Numbers of answers that the broker could not decide on, to send again a little later.
    undecided: Vec<u64>,
    started: Vec<v1::HeldClaim>,
    beat: bool,
    /// The number of tasks received on this stream.
    received: u64,
    /// The number of tasks that the broker may send on this stream in all, as last sent.
    granted: u64,
}

#[derive(Debug)]
struct Held {
    stopper: Stopper,
    ended: bool,
    progress: Option<v1::TaskProgress>,
    progress_owed: bool,
}

/// An unconfirmed answer.
#[derive(Debug)]
struct Owed {
    key: ClaimKey,
    answer: Answer,
    /// Whether the log already has a warning about this answer.
    complained: bool,
    saved: Option<oneshot::Sender<Result<(), Error>>>,
}

impl Session {
    pub(crate) fn new(hello: v1::Hello) -> Session {
        Session {
            hello,
            phase: Phase::Running,
            held: BTreeMap::new(),
            running: 0,
            busy: 0,
            owed: BTreeMap::new(),
            next_number: 1,
            unsent: VecDeque::new(),
            undecided: Vec::new(),
            started: Vec::new(),
            beat: false,
            received: 0,
            granted: 0,
        }
    }

    /// The first message of a new stream. Unconfirmed messages of the last stream follow it.
    pub(crate) fn hello(&mut self) -> v1::WorkerMessage {
        self.received = 0;
        self.granted = 0;
        self.undecided.clear();
        self.unsent = self.owed.keys().copied().collect();
        self.started = self.claims(|held| !held.ended);
        // An order holds on every node to which the session moves.
        let state = self.state().into();
        let hello = v1::Hello { held: self.claims(|_| true), state, ..self.hello.clone() };
        message(worker_message::Message::Hello(hello))
    }

    /// The broker's first message on a stream.
    pub(crate) fn welcome(&mut self, session_secret: Vec<u8>) {
        self.hello.session_secret = session_secret;
        self.beat = true;
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.hello.session_secret.is_empty()
    }

    /// The broker does not know the session any more; the next hello opens another.
    pub(crate) fn forget(&mut self) {
        self.hello.session_secret.clear();
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Changes the phase, from running to quiet to stopping and never back.
    pub(crate) fn enter(&mut self, phase: Phase) {
        if self.phase == Phase::Running || phase == Phase::Stopping {
            self.beat |= self.phase != phase;
            self.phase = phase;
        }
    }

    /// Attempts that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Whether the broker has confirmed all answers.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    pub(crate) fn stop_all(&self, reason: CancelReason) {
        self.held.values().for_each(|held| held.stopper.stop(reason));
    }

    pub(crate) fn receive(&mut self, message: broker_message::Message) -> Received {
        let mut received = Received::default();
        match message {
            broker_message::Message::Welcome(welcome) => self.welcome(welcome.session_secret),
            broker_message::Message::Tasks(tasks) => {
                let run = tasks.tasks.into_iter().filter_map(|task| self.take(task));
                received.run = run.collect();
            }
            broker_message::Message::Replies(replies) => {
                replies.replies.into_iter().for_each(|reply| self.settle(reply));
            }
            broker_message::Message::Orders(orders) => {
                received.asked = match orders.state() {
                    v1::WorkerState::Quiet => Some(Phase::Quiet),
                    v1::WorkerState::Stopping => Some(Phase::Stopping),
                    v1::WorkerState::Running | v1::WorkerState::Lost => None,
                };
                for claim in orders.cancel {
                    self.stop(&claim.into(), CancelReason::Requested);
                }
                for claim in orders.lost {
                    self.stop(&claim.into(), CancelReason::Lost);
                }
            }
        }
        received
    }

    pub(crate) fn report(&mut self, report: Report) {
        match report {
            Report::Ended { key, answer } => self.ended(key, answer),
            Report::SlotFree => self.busy = self.busy.saturating_sub(1),
            Report::Progress { key, progress } => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.progress = Some(progress);
                }
            }
            Report::Checkpoint { key, state, saved } => self.checkpoint(key, state, saved),
            Report::Quiet => self.enter(Phase::Quiet),
            Report::Stop => self.enter(Phase::Stopping),
            Report::Abandon => {
                self.enter(Phase::Stopping);
                // The handlers are dropped, and the goodbye releases their tasks.
                self.stop_all(CancelReason::Lost);
            }
        }
    }

    /// Puts all held claims into the next message, so that their leases are renewed.
    pub(crate) fn beat(&mut self) {
        self.beat = true;
    }

    /// Sends undecided answers again, and the progress that handlers reported since the last time.
    pub(crate) fn catch_up(&mut self) {
        self.unsent.extend(mem::take(&mut self.undecided));
        let mut reports = Vec::new();
        for (key, held) in self.held.iter_mut().filter(|(_, held)| !held.ended) {
            if !held.progress_owed && held.progress.is_some() {
                held.progress_owed = true;
                reports.push((key.clone(), held.progress.take()));
            }
        }
        for (key, progress) in reports {
            let extend = v1::ExtendRequest { progress, ..extend(&key) };
            self.owe(key, Answer::Extend(extend), None);
        }
    }

    /// The next message to send, if there is one. `rss_bytes` goes into beats.
    ///
    /// Answers go before credits, because a freed slot must not be filled before its task is
    /// reported as finished.
    pub(crate) fn outgoing(
        &mut self,
        rss_bytes: impl FnOnce() -> u64,
    ) -> Option<v1::WorkerMessage> {
        use worker_message::Message;
        if !self.started.is_empty() {
            let claims = mem::take(&mut self.started);
            return Some(message(Message::Started(v1::Started { claims })));
        }
        if !self.unsent.is_empty() {
            return Some(message(Message::Answers(self.answers())));
        }
        let budget = self.budget();
        if budget != self.granted {
            self.granted = budget;
            let credits = v1::Credits { free: self.free(), tasks_received: self.received };
            return Some(message(Message::Credits(credits)));
        }
        if mem::take(&mut self.beat) {
            let (held, rss_bytes) = (self.claims(|_| true), rss_bytes());
            let beat = v1::Beat { held, rss_bytes, state: self.state().into() };
            return Some(message(Message::Beat(beat)));
        }
        None
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.started.is_empty()
            || !self.unsent.is_empty()
            || self.budget() != self.granted
            || self.beat
    }

    fn state(&self) -> v1::WorkerState {
        match self.phase {
            Phase::Running => v1::WorkerState::Running,
            Phase::Quiet => v1::WorkerState::Quiet,
            Phase::Stopping => v1::WorkerState::Stopping,
        }
    }

    fn free(&self) -> u32 {
        match self.phase {
            Phase::Running => self.hello.slots.saturating_sub(self.busy),
            Phase::Quiet | Phase::Stopping => 0,
        }
    }

    /// The number of tasks that the broker may send on this stream in all. It grows when a slot
    /// becomes free, and stays the same when a task arrives.
    fn budget(&self) -> u64 {
        self.received + u64::from(self.free())
    }

    /// Accepts a task to run, or to release because the worker is leaving.
    fn take(&mut self, task: v1::ClaimedTask) -> Option<Assigned> {
        self.received += 1;
        let key = ClaimKey::of(&task);
        if self.held.contains_key(&key) {
            return None;
        }
        self.lose_older(&key);
        let (stopper, leaving) = (Stopper::new(), self.phase == Phase::Stopping);
        let held =
            Held { stopper: stopper.clone(), ended: leaving, progress: None, progress_owed: false };
        self.held.insert(key.clone(), held);
        if leaving {
            let release = v1::ReleaseRequest { id: key.id.clone(), claim_token: key.token };
            self.owe(key, Answer::Release(release), None);
            return None;
        }
        self.running += 1;
        self.busy += 1;
        self.started.push(key.to_wire());
        Some(Assigned { task, stopper })
    }

    /// Stops older claims of a task that still run here, because its new claim proves that they are
    /// lost.
    fn lose_older(&self, key: &ClaimKey) {
        let oldest = ClaimKey { id: key.id.clone(), token: 0 };
        for held in self.held.range(&oldest..key).map(|(_, held)| held) {
            held.stopper.stop(CancelReason::Lost);
        }
    }

    fn stop(&self, key: &ClaimKey, reason: CancelReason) {
        if let Some(held) = self.held.get(key) {
            held.stopper.stop(reason);
        }
    }

    fn ended(&mut self, key: ClaimKey, answer: Option<Answer>) {
        let Some(held) = self.held.get_mut(&key) else { return };
        if !mem::replace(&mut held.ended, true) {
            self.running -= 1;
        }
        self.started.retain(|claim| claim.id != key.id || claim.claim_token != key.token);
        match answer {
            Some(answer) => self.owe(key, answer, None),
            None => {
                self.held.remove(&key);
            }
        }
    }

    fn checkpoint(
        &mut self,
        key: ClaimKey,
        state: Vec<u8>,
        saved: oneshot::Sender<Result<(), Error>>,
    ) {
        let Some(held) = self.held.get_mut(&key) else { return };
        let progress = held.progress.take();
        let extend = v1::ExtendRequest { progress, resume_state: Some(state), ..extend(&key) };
        self.owe(key, Answer::Extend(extend), Some(saved));
    }

    fn owe(
        &mut self,
        key: ClaimKey,
        answer: Answer,
        saved: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let number = self.next_number;
        self.next_number += 1;
        self.owed.insert(number, Owed { key, answer, complained: false, saved });
        self.unsent.push_back(number);
    }

    /// The answers to send next, up to a full message.
    fn answers(&mut self) -> v1::Answers {
        let mut answers = Vec::new();
        let mut bytes = 0;
        while let Some(number) = self.unsent.front() {
            if let Some(owed) = self.owed.get(number) {
                let answer = v1::Answer { number: *number, answer: Some(owed.answer.clone()) };
                bytes += answer.encoded_len();
                let full = answers.len() == ANSWERS_MAX || bytes > ANSWERS_BYTES_MAX;
                if full && !answers.is_empty() {
                    break;
                }
                answers.push(answer);
            }
            self.unsent.pop_front();
        }
        v1::Answers { answers }
    }

    /// Handles the broker's reply to an answer.
    fn settle(&mut self, reply: v1::AnswerReply) {
        let Some(mut owed) = self.owed.remove(&reply.number) else { return };
        if let Some(held) = self.held.get_mut(&owed.key)
            && matches!(owed.answer, Answer::Extend(_))
            && owed.saved.is_none()
        {
            held.progress_owed = false;
        }
        let Some(error) = reply.error.map(Error::from_item) else {
            return self.accepted(owed, reply.extend.is_some_and(|extend| extend.cancel_requested));
        };
        // A full disk or queue is no fault of a finished task, whose work must not be done again.
        let finished = matches!(owed.answer, Answer::Ack(_));
        if error.is_undecided() || (finished && error.may_pass()) {
            if !mem::replace(&mut owed.complained, true) {
                tracing::warn!(task = owed.key.id, %error, "not taken yet; it is sent again");
            }
            self.owed.insert(reply.number, owed);
            self.undecided.push(reply.number);
            return;
        }
        self.refused(owed, error);
    }

    fn accepted(&mut self, owed: Owed, cancel_requested: bool) {
        if let Answer::Extend(_) = owed.answer {
            if cancel_requested {
                self.stop(&owed.key, CancelReason::Requested);
            }
            if let Some(saved) = owed.saved {
                let _ = saved.send(Ok(()));
            }
        } else {
            self.held.remove(&owed.key);
        }
    }

    fn refused(&mut self, owed: Owed, error: Error) {
        let Owed { key, answer, saved, .. } = owed;
        let gone = matches!(error.code(), "claim_lost" | "already_finished" | "not_found");
        match answer {
            Answer::Extend(_) => {
                if gone {
                    self.stop(&key, CancelReason::Lost);
                }
                if let Some(saved) = saved {
                    let _ = saved.send(Err(error));
                }
            }
            // A problem of the result or the follow-ups must show, and not wait for the end of the
            // lease.
            Answer::Ack(_) if !gone => {
                tracing::error!(task = key.id, %error, "the broker refused a task's result");
                let message = format!("the broker refused the result: {error}");
                let refusal = v1::TaskError {
                    r#type: error.code().to_string(),
                    message,
                    backtrace: String::new(),
                };
                let fail = v1::FailRequest {
                    id: key.id.clone(),
                    claim_token: key.token,
                    error: Some(refusal),
                    ..v1::FailRequest::default()
                };
                self.owe(key, Answer::Fail(fail), None);
            }
            Answer::Ack(_) | Answer::Fail(_) | Answer::Release(_) | Answer::Snooze(_) => {
                tracing::warn!(task = key.id, %error, "what became of a task came too late");
                self.held.remove(&key);
            }
        }
    }

    fn claims(&self, which: impl Fn(&Held) -> bool) -> Vec<v1::HeldClaim> {
        self.held.iter().filter(|(_, held)| which(held)).map(|(key, _)| key.to_wire()).collect()
    }
}

fn extend(key: &ClaimKey) -> v1::ExtendRequest {
    v1::ExtendRequest { id: key.id.clone(), claim_token: key.token, ..v1::ExtendRequest::default() }
}

fn message(message: worker_message::Message) -> v1::WorkerMessage {
    v1::WorkerMessage { message: Some(message) }
}

#[cfg(test)]
mod tests;
