//! Watchers: calls that wait for a task or a flow to end.

use super::inbox::{Answer, TicketId};
use crate::Error;
use std::collections::HashMap;
use taskyard_machine::{EventKind, TaskId};

#[derive(Default)]
pub(crate) struct Watchers {
    waiting: HashMap<TaskId, Vec<(TicketId, Answer<bool>)>>,
}

impl Watchers {
    pub(crate) fn watch(&mut self, task: TaskId, ticket: TicketId, answer: Answer<bool>) {
        self.waiting.entry(task).or_default().push((ticket, answer));
    }

    pub(crate) fn unwatch(&mut self, task: TaskId, ticket: TicketId) {
        if let Some(waiting) = self.waiting.get_mut(&task) {
            waiting.retain(|(other, _)| *other != ticket);
            if waiting.is_empty() {
                self.waiting.remove(&task);
            }
        }
    }

    /// Answers the calls that wait for this task.
    pub(crate) fn task_ended(&mut self, task: TaskId) {
        if self.waiting.is_empty() {
            return;
        }
        for (_, answer) in self.waiting.remove(&task).unwrap_or_default() {
            let _ = answer.send(Ok(true));
        }
    }

    /// Answers all calls: with an error if this node no longer leads, otherwise that there was no
    /// end so far.
    pub(crate) fn end(&mut self, why: Option<&Error>) {
        for (_, answer) in self.waiting.drain().flat_map(|(_, waiting)| waiting) {
            let _ = answer.send(why.cloned().map_or(Ok(false), Err));
        }
    }
}

/// The task or flow that an event ends, if it ends one.
pub(crate) fn ended(event: &EventKind) -> Option<TaskId> {
    match event {
        EventKind::TaskSucceeded(task, _)
        | EventKind::TaskFailed(task)
        | EventKind::TaskDied(task, _)
        | EventKind::TaskCancelled(task)
        | EventKind::TaskExpired(task)
        | EventKind::TaskRemoved(task) => Some(task.id),
        EventKind::FlowEnded(flow, _) => Some(*flow),
        EventKind::TaskEnqueued(_)
        | EventKind::TaskReplaced(..)
        | EventKind::TaskReady(_)
        | EventKind::TaskBlocked(_)
        | EventKind::TaskClaimed(..)
        | EventKind::TaskProgressed(..)
        | EventKind::TaskRetrying(..)
        | EventKind::TaskSnoozed(..)
        | EventKind::TaskLost(_)
        | EventKind::TaskCancelRequested(_)
        | EventKind::QueuePaused(_)
        | EventKind::QueueResumed(_)
        | EventKind::QueueOpened(_)
        | EventKind::QueueSet(_)
        | EventKind::QueueDeleted(_)
        | EventKind::SessionEnded(_)
        | EventKind::FlowSubmitted(_)
        | EventKind::ScheduleFired { .. }
        | EventKind::ScheduleSkipped(..)
        | EventKind::ScheduleMissed(..)
        | EventKind::OutgoingQueued(_)
        | EventKind::DigestMarked { .. }
        | EventKind::DigestAttested { .. } => None,
    }
}
