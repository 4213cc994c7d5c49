//! Task: everything that the state knows about one task, and its place in its life cycle.
//!
//! A waiting task takes under a hundred bytes. Rare parts are behind `extra`, the parts of a claim
//! are in the state `Claimed`, and past attempts are in a chain.

use crate::flow::Membership;
use crate::limits::PROGRESS_MESSAGE_BYTES_MAX;
use crate::names::NameId;
use crate::replay::ClaimKey;
use crate::slab::Slot;
use crate::unique::Hold;
use crate::watch::Watch;
use crate::wire::{wire_struct, wire_words};
use crate::{
    AttemptOutcome, ClaimToken, DeathReason, FlowMember, ParentResult, Progress, RetryPolicy,
    SessionId, TaskError, TaskId, TaskStateName, Timestamp,
};
use std::num::NonZeroU32;
use std::sync::Arc;

/// One task, without its body.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) queue: Slot,
    pub(crate) task_type: NameId,
    /// Neighbours in the lane; no part of the image.
    pub(crate) previous: Slot,
    pub(crate) next: Slot,
    /// The place in the lane, by which lanes are sorted. Unique on the shard.
    pub(crate) order: u64,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) state: State,
    pub(crate) body_bytes: u32,
    pub(crate) body_checksum: u32,
    /// The number of claims so far, released ones not counted.
    pub(crate) attempt: u32,
    /// Failures that count against the retry policy.
    pub(crate) failures: u16,
    /// Losses that count towards quarantine.
    pub(crate) losses: u8,
    pub(crate) priority: u8,
    /// The newest ended attempt, with a link to the one before.
    pub(crate) last_attempt: Option<Box<Attempt>>,
    pub(crate) extra: Option<Box<Extra>>,
}

/// The state of a task, with the facts that exist in that state alone.
#[derive(Debug)]
pub(crate) enum State {
    /// The task waits for its parents in a flow.
    Blocked,
    /// The task waits for a moment: a delay, a retry, a snooze.
    Scheduled { run_at: Timestamp },
    /// The task may be claimed, since the moment given.
    Ready { since: Timestamp },
    /// A worker holds the task.
    Claimed(Box<ClaimState>),
    /// The task has ended and is kept for its retention.
    Finished { ending: Ending, at: Timestamp },
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    Dead,
    Cancelled,
    Expired,
}

/// A live claim.
#[derive(Clone, Debug)]
pub(crate) struct ClaimState {
    pub(crate) token: ClaimToken,
    pub(crate) worker: NameId,
    pub(crate) session: Option<SessionId>,
    /// The session's number for the claim, if the session can send the claim again.
    pub(crate) sequence: Option<u64>,
    pub(crate) claimed_at: Timestamp,
    /// The length of the lease, also for renewals.
    pub(crate) lease_ms: u64,
    pub(crate) lease_expires_at: Timestamp,
    /// When the broker ends the attempt because its run time is over.
    pub(crate) timeout_at: Option<Timestamp>,
    /// When the claim ends without an answer: at the end of its lease or timeout, after the lease
    /// floor.
    pub(crate) ends_at: Timestamp,
    /// The part of `Counters::put_off_ms` that this claim's times already include.
    pub(crate) put_off_ms: u64,
    /// When the task became ready, for the case that it is released.
    pub(crate) ready_since: Timestamp,
    /// Whether the worker has begun: it renewed or extended the claim, or has no session that would
    /// report the beginning.
    pub(crate) engaged: bool,
    pub(crate) cancel_requested: bool,
}

/// An ended attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) attempt: u32,
    pub(crate) outcome: AttemptOutcome,
    pub(crate) token: ClaimToken,
    pub(crate) worker: Arc<str>,
    pub(crate) claimed_at: Timestamp,
    pub(crate) ended_at: Timestamp,
    /// When the failed task was to be retried.
    pub(crate) retry_at: Option<Timestamp>,
    pub(crate) error: Option<Box<Failure>>,
    pub(crate) previous: Option<Box<Attempt>>,
}

/// The error of an attempt.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) error_type: Box<str>,
    pub(crate) message: Box<str>,
    pub(crate) backtrace: Box<str>,
}

/// The rare parts of a task. Each part has a pointer of its own, so that a task with one of them
/// does not pay for the others.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) terms: Option<Box<Terms>>,
    pub(crate) left: Option<Box<Left>>,
    /// The receiver of a message about the task's end.
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) unique: Option<Box<Hold>>,
    /// The task's fairness key; the image names the key by its id.
    pub(crate) key: Option<KeySlot>,
    /// The task's place in its flow.
    pub(crate) flow: Option<Box<Membership>>,
}

/// The slot of a key as a number that is never 0, so that `None` takes no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeySlot(NonZeroU32);

impl KeySlot {
    pub(crate) fn new(slot: Slot) -> KeySlot {
        KeySlot(NonZeroU32::MIN.saturating_add(slot))
    }

    pub(crate) fn slot(self) -> Slot {
        self.0.get() - 1
    }
}

/// The options with which the task was enqueued.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) discard_dead: bool,
    pub(crate) retention_ms: Option<u64>,
    pub(crate) retry: Option<Box<RetryPolicy>>,
    pub(crate) tags: Box<[Box<str>]>,
}

/// The data that the task's attempts left behind.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) progress: Option<(u8, Box<str>)>,
    pub(crate) resume_state: Option<Box<[u8]>>,
    pub(crate) result: Option<Box<[u8]>>,
    pub(crate) death: Option<DeathReason>,
    pub(crate) follow_ups: Box<[TaskId]>,
}

wire_words!(Ending { 1 => Succeeded, 2 => Failed, 3 => Dead, 4 => Cancelled, 5 => Expired });
wire_words!(DeathReason { 1 => AttemptsSpent, 2 => NotRetryable, 3 => Quarantined, 4 => Killed });
wire_words!(AttemptOutcome {
    1 => Succeeded, 2 => Failed, 3 => Lost, 4 => Released, 5 => Snoozed, 6 => Cancelled, 7 => TimedOut,
});
wire_struct!(Failure { error_type, message, backtrace });
wire_struct!(Terms { expires_at, timeout_ms, lease_ms, discard_dead, retention_ms, retry, tags });
wire_struct!(Left { progress, resume_state, result, death, follow_ups });

impl State {
    pub(crate) fn name(&self) -> TaskStateName {
        match self {
            State::Blocked => TaskStateName::Blocked,
            State::Scheduled { .. } => TaskStateName::Scheduled,
            State::Ready { .. } => TaskStateName::Ready,
            State::Claimed(_) => TaskStateName::Claimed,
            State::Finished { ending, .. } => match ending {
                Ending::Succeeded => TaskStateName::Succeeded,
                Ending::Failed => TaskStateName::Failed,
                Ending::Dead => TaskStateName::Dead,
                Ending::Cancelled => TaskStateName::Cancelled,
                Ending::Expired => TaskStateName::Expired,
            },
        }
    }
}

impl Task {
    pub(crate) fn terms(&self) -> Option<&Terms> {
        self.extra.as_ref()?.terms.as_deref()
    }

    pub(crate) fn left(&self) -> Option<&Left> {
        self.extra.as_ref()?.left.as_deref()
    }

    /// The slot of the task's fairness key.
    pub(crate) fn key(&self) -> Option<Slot> {
        self.extra.as_ref()?.key.map(KeySlot::slot)
    }

    pub(crate) fn left_mut(&mut self) -> &mut Left {
        self.extra.get_or_insert_default().left.get_or_insert_default()
    }

    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        self.terms()?.expires_at
    }

    /// Where a dead letter stands among those of its shard, by the time of its death.
    pub(crate) fn died(&self) -> (Timestamp, TaskId) {
        (self.finished_at().expect("a dead letter has ended"), self.id)
    }

    pub(crate) fn finished_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Finished { at, .. } => Some(at),
            _ => None,
        }
    }

    pub(crate) fn claim(&self) -> Option<&ClaimState> {
        match &self.state {
            State::Claimed(claim) => Some(claim),
            _ => None,
        }
    }

    /// The name of the claim that got this task, with which its session may send the claim again.
    pub(crate) fn claim_key(&self) -> Option<ClaimKey> {
        let claim = self.claim()?;
        Some(ClaimKey { session: claim.session?, sequence: claim.sequence? })
    }

    pub(crate) fn claim_mut(&mut self) -> Option<&mut ClaimState> {
        match &mut self.state {
            State::Claimed(claim) => Some(claim),
            _ => None,
        }
    }

    /// When something is due for the task itself. The retention of a queue's finished tasks is not
    /// included, because the queue has one deadline for all of them.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Scheduled { run_at } => {
                Some(self.expires_at().map_or(*run_at, |at| at.min(*run_at)))
            }
            State::Blocked | State::Ready { .. } => self.expires_at(),
            State::Claimed(claim) => Some(claim.ends_at),
            State::Finished { ending: Ending::Dead, .. } => None,
            State::Finished { at, .. } => {
                let own = self.terms()?.retention_ms?;
                // The flow keeps its finished tasks and decides when they are removed.
                let own = (!self.is_in_flow()).then_some(own)?;
                Some(at.plus_ms(own))
            }
        }
    }

    /// Whether a scheduled task waits because its last attempt failed, timed out or was lost. A
    /// retry by hand starts anew, so that earlier failures do not count.
    pub(crate) fn is_retrying(&self) -> bool {
        let last = self.last_attempt.as_ref().map(|attempt| attempt.outcome);
        last.is_some_and(AttemptOutcome::has_failed) && (self.failures > 0 || self.losses > 0)
    }

    pub(crate) fn is_in_flow(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.flow.is_some())
    }

    /// The flow of the task.
    pub(crate) fn flow_id(&self) -> Option<TaskId> {
        match self.extra.as_ref()?.watch.as_deref()? {
            Watch::Flow { flow, .. } => Some(*flow),
            Watch::Schedule { .. } | Watch::Tally { .. } | Watch::Callback { .. } => None,
        }
    }

    /// The task's place in its flow.
    pub(crate) fn flow_member(&self) -> Option<FlowMember> {
        let membership = self.extra.as_ref()?.flow.as_ref()?;
        Some(FlowMember {
            flow: self.flow_id()?,
            node: membership.name.clone(),
            failed_parent: membership.failed_parent.clone(),
        })
    }

    /// The results of the task's parents.
    pub(crate) fn parents(&self) -> &[ParentResult] {
        let flow = self.extra.as_ref().and_then(|extra| extra.flow.as_ref());
        flow.map_or(&[], |flow| &flow.parents)
    }

    /// Ended attempts, newest first.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        let newest = self.last_attempt.as_deref();
        std::iter::successors(newest, |attempt| attempt.previous.as_deref())
    }

    /// Adds the newest attempt, and forgets the oldest beyond `kept_max`.
    pub(crate) fn push_attempt(&mut self, mut attempt: Box<Attempt>, kept_max: usize) {
        attempt.previous = self.last_attempt.take();
        let mut oldest = &mut attempt;
        for _ in 1..kept_max {
            match oldest.previous {
                Some(ref mut previous) => oldest = previous,
                None => break,
            }
        }
        oldest.previous = None;
        self.last_attempt = Some(attempt);
    }

    /// The newest error.
    pub(crate) fn last_error(&self) -> Option<&Failure> {
        self.attempts().find_map(|attempt| attempt.error.as_deref())
    }

    /// Bytes that the task takes beside its slot.
    pub(crate) fn heap_bytes(&self) -> usize {
        let claim = self.claim().map_or(0, |_| size_of::<ClaimState>());
        let attempts: usize = self.attempts().map(Attempt::bytes).sum();
        claim + attempts + self.extra.as_ref().map_or(0, |extra| extra.bytes())
    }
}

impl Attempt {
    fn bytes(&self) -> usize {
        let error = self.error.as_ref().map_or(0, |error| {
            size_of::<Failure>()
                + error.error_type.len()
                + error.message.len()
                + error.backtrace.len()
        });
        size_of::<Attempt>() + error
    }
}

impl Extra {
    fn bytes(&self) -> usize {
        let terms = self.terms.as_ref().map_or(0, |terms| terms.bytes());
        let left = self.left.as_ref().map_or(0, |left| left.bytes());
        let watch = self.watch.as_ref().map_or(0, |_| size_of::<Watch>());
        let unique = self.unique.as_ref().map_or(0, |hold| hold.bytes());
        let flow = self.flow.as_ref().map_or(0, |flow| flow.bytes());
        size_of::<Extra>() + terms + left + watch + unique + flow
    }
}

impl Terms {
    fn bytes(&self) -> usize {
        size_of::<Terms>()
            + self.retry.as_ref().map_or(0, |_| size_of::<RetryPolicy>())
            + self.tags.iter().map(|tag| size_of::<Box<str>>() + tag.len()).sum::<usize>()
    }
}

impl Left {
    fn bytes(&self) -> usize {
        size_of::<Left>()
            + self.progress.as_ref().map_or(0, |(_, message)| message.len())
            + self.resume_state.as_ref().map_or(0, |state| state.len())
            + self.result.as_ref().map_or(0, |result| result.len())
            + size_of_val(&*self.follow_ups)
    }
}

impl Failure {
    /// Keeps an error, cut to `bytes_max` in all. The backtrace is cut first, the type last.
    pub(crate) fn cut(error: &TaskError<'_>, bytes_max: usize) -> Failure {
        let TaskError { error_type, message, backtrace } = error.cut(bytes_max);
        Failure {
            error_type: error_type.into(),
            message: message.into(),
            backtrace: backtrace.into(),
        }
    }
}

impl<'a> TaskError<'a> {
    /// The error, cut to `bytes_max` in all. The backtrace is cut first, the type last.
    pub fn cut(&self, bytes_max: usize) -> TaskError<'a> {
        let error_type = prefix(self.error_type, bytes_max);
        let message = prefix(self.message, bytes_max - error_type.len());
        let backtrace = prefix(self.backtrace, bytes_max - error_type.len() - message.len());
        TaskError { error_type, message, backtrace }
    }
}

impl<'a> Progress<'a> {
    /// The progress, with its message cut to `PROGRESS_MESSAGE_BYTES_MAX`.
    pub fn cut(&self) -> Progress<'a> {
        Progress { message: prefix(self.message, PROGRESS_MESSAGE_BYTES_MAX), ..*self }
    }
}

/// The longest beginning of a text that fits and ends at a character boundary.
pub(crate) fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;
    use crate::slab::{NO_SLOT, Slab};

    fn task() -> Task {
        let id = TaskId { incarnation: 0, home: ShardId(0), origin: ShardId(0), sequence: 0 };
        Task {
            id,
            queue: 0,
            task_type: crate::names::Names::default().intern("t"),
            previous: NO_SLOT,
            next: NO_SLOT,
            order: 0,
            enqueued_at: Timestamp(0),
            state: State::Ready { since: Timestamp(0) },
            body_bytes: 0,
            body_checksum: 0,
            attempt: 0,
            failures: 0,
            losses: 0,
            priority: 5,
            last_attempt: None,
            extra: None,
        }
    }

    #[test]
    fn a_waiting_task_is_under_a_hundred_bytes() {
        assert_eq!(Slab::<Task>::VALUE_BYTES, 96);
        assert_eq!(task().heap_bytes(), 0);
    }

    #[test]
    fn only_the_newest_attempts_are_kept() {
        let mut task = task();
        for attempt in 1..=5 {
            let ended = Attempt {
                attempt,
                outcome: AttemptOutcome::Failed,
                token: ClaimToken(attempt.into()),
                worker: "w".into(),
                claimed_at: Timestamp(0),
                ended_at: Timestamp(0),
                retry_at: None,
                error: None,
                previous: None,
            };
            task.push_attempt(Box::new(ended), 3);
        }
        let kept: Vec<u32> = task.attempts().map(|attempt| attempt.attempt).collect();
        assert_eq!(kept, [5, 4, 3]);
    }

    #[test]
    fn errors_are_cut_at_characters_backtrace_first() {
        let error = TaskError { error_type: "io", message: "weiß", backtrace: "main.rs" };
        let cut = |bytes_max| {
            let failure = Failure::cut(&error, bytes_max);
            [failure.error_type, failure.message, failure.backtrace].map(String::from)
        };
        assert_eq!(cut(100), ["io", "weiß", "main.rs"]);
        assert_eq!(cut(9), ["io", "weiß", "ma"]);
        assert_eq!(cut(6), ["io", "wei", "m"]);
        assert_eq!(cut(1), ["i", "", ""]);
    }
}
