//! The facts of a run, one word per kind, so that a test sees that all kinds occur.

use taskyard_machine::{Event, EventKind, Outcome, Rejection};

/// The word for a kind of event.
pub(super) fn word_for(event: &Event) -> &'static str {
    match event.kind {
        EventKind::TaskEnqueued(_) => "enqueued",
        EventKind::TaskReplaced(..) => "replaced",
        EventKind::TaskReady(_) => "ready",
        EventKind::TaskBlocked(_) => "blocked again",
        EventKind::TaskClaimed(..) => "claimed",
        EventKind::TaskProgressed(..) => "progressed",
        EventKind::TaskSucceeded(..) => "succeeded",
        EventKind::TaskRetrying(..) => "retrying",
        EventKind::TaskSnoozed(..) => "snoozed",
        EventKind::TaskFailed(_) => "failed",
        EventKind::TaskDied(_, reason) => reason.as_str(),
        EventKind::TaskLost(_) => "lost",
        EventKind::TaskCancelRequested(_) => "cancel requested",
        EventKind::TaskCancelled(_) => "cancelled",
        EventKind::TaskExpired(_) => "expired",
        EventKind::TaskRemoved(_) => "removed",
        EventKind::QueuePaused(_) => "paused",
        EventKind::QueueResumed(_) => "resumed",
        EventKind::QueueOpened(_) => "opened",
        EventKind::QueueSet(_) => "set",
        EventKind::QueueDeleted(_) => "deleted",
        EventKind::SessionEnded(_) => "session ended",
        EventKind::FlowSubmitted(_) => "flow submitted",
        EventKind::FlowEnded(..) => "flow ended",
        EventKind::ScheduleFired { .. } => "schedule fired",
        EventKind::ScheduleSkipped(..) => "schedule skipped",
        EventKind::ScheduleMissed(..) => "schedule missed",
        EventKind::OutgoingQueued(_) => "outgoing",
        EventKind::DigestMarked { .. } => "marked",
        EventKind::DigestAttested { .. } => "attested",
    }
}

/// The word for a kind of answer: a rejection's code, or whether it was accepted or known.
pub(super) fn answer_word(outcome: &Result<Outcome, Rejection>) -> &'static str {
    match outcome {
        Err(rejection) => rejection.code(),
        Ok(Outcome::Enqueued(enqueued)) if enqueued.duplicate => "duplicate",
        Ok(Outcome::Taken) => "taken",
        Ok(_) => "accepted",
    }
}
