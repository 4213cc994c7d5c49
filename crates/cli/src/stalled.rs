//! Reports why an awaited task does not run: no worker listens on its queue, or the queue is
//! paused. Such a wait may last for ever, and the broker knows the reason.
//!
//! A failed question must not end the wait, so that its error is ignored.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use taskyard::{FlowHandle, TaskId, TaskState, WaitReason};

use crate::remote::{Remote, SILENCE_MAX};

/// The time between two questions after the first.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// When a waiting command asks for the reason, and the reasons that it has reported.
pub(crate) struct Stalled {
    next_look: Instant,
    said: BTreeSet<String>,
}

impl Stalled {
    /// A wait that begins now.
    pub(crate) fn new() -> Stalled {
        Stalled { next_look: Instant::now() + SILENCE_MAX, said: BTreeSet::new() }
    }

    /// The time until the next question.
    pub(crate) fn due_in(&self) -> Duration {
        self.next_look.saturating_duration_since(Instant::now())
    }

    /// Asks about a task, if it is time; returns a new reason.
    pub(crate) async fn look_at_task(&mut self, remote: &Remote, id: &TaskId) -> Vec<String> {
        if !self.is_due() {
            return Vec::new();
        }
        let reasons = remote.client.why(id).await.unwrap_or_default();
        self.new_words(&reasons)
    }

    /// Asks about the runnable tasks of a flow, one per queue, if it is time; returns new reasons.
    pub(crate) async fn look_at_flow(&mut self, remote: &Remote, flow: &FlowHandle) -> Vec<String> {
        if !self.is_due() {
            return Vec::new();
        }
        let Ok(details) = flow.status().await else { return Vec::new() };
        let mut one_of_each_queue = BTreeMap::new();
        for node in details.nodes {
            if node.state == TaskState::Ready {
                one_of_each_queue.entry(node.queue).or_insert(node.task_id);
            }
        }
        let mut words = Vec::new();
        for id in one_of_each_queue.into_values() {
            words.extend(self.new_words(&remote.client.why(id).await.unwrap_or_default()));
        }
        words
    }

    /// Whether it is time to ask; if so, sets the time of the next question.
    fn is_due(&mut self) -> bool {
        let due = self.due_in().is_zero();
        if due {
            self.next_look = Instant::now() + LOOK_EVERY;
        }
        due
    }

    fn new_words(&mut self, reasons: &[WaitReason]) -> Vec<String> {
        let words = reasons.iter().filter_map(|reason| {
            let advice = advice(&reason.code)?;
            Some(format!("{}: {advice}; still waiting", reason.message))
        });
        words.filter(|words| self.said.insert(words.clone())).collect()
    }
}

/// The advice for a reason that does not end by itself.
fn advice(code: &str) -> Option<&'static str> {
    match code {
        "queue_paused" => Some("resume it with taskyard queue resume"),
        "no_worker" => Some("start a worker, as with taskyard work"),
        "no_worker_for_type" => Some("start a worker for it, as with taskyard work --type"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_does_not_end_by_itself_is_said_once() {
        let reason = |code: &str, message: &str| {
            let mut reason = WaitReason::default();
            (reason.code, reason.message) = (code.to_owned(), message.to_owned());
            reason
        };
        let reasons = [
            reason("no_worker", "no worker listens on queue q now"),
            reason("ahead", "1 task is ahead of it"),
        ];
        let mut stalled = Stalled::new();
        let said = stalled.new_words(&reasons);
        assert_eq!(said.len(), 1);
        for part in ["listens on queue q", "taskyard work", "still waiting"] {
            assert!(said[0].contains(part), "{said:?}");
        }
        assert!(stalled.new_words(&reasons).is_empty(), "once");
        let foreign = stalled.new_words(&[reason("no_worker_for_type", "none takes type t")]);
        assert!(foreign[0].contains("work --type"), "{foreign:?}");
        let paused = stalled.new_words(&[reason("queue_paused", "queue q is paused")]);
        assert!(paused[0].contains("queue resume"), "{paused:?}");
    }

    #[test]
    fn the_first_look_comes_after_the_silence_that_a_person_bears() {
        let mut stalled = Stalled::new();
        assert!(!stalled.is_due() && stalled.due_in() <= SILENCE_MAX);
        stalled.next_look = Instant::now();
        assert!(stalled.is_due() && !stalled.is_due());
    }
}
