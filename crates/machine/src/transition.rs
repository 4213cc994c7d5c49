//! Transition: adds tasks, changes their states and removes them, with every index in step.
//!
//! `transition` is the only way from state to state. No other code moves a task between lanes, and
//! it stops the replica on a step that a task's life does not have.

use crate::life::{Attempt, Ending, Failure, State, Task};
use crate::limits::ATTEMPTS_KEPT_MAX;
use crate::queue::LaneId;
use crate::slab::Slot;
use crate::tally::Standing;
use crate::turn::Turn;
use crate::{AttemptOutcome, EventKind, TaskRef, TaskStateName, Timestamp};

/// The end of a lane at which a task enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// For a task that was there before and spent nothing.
    Front,
    Back,
}

/// Whether a task's life has this step.
fn may_become(from: TaskStateName, to: TaskStateName, in_flow: bool) -> bool {
    use TaskStateName::*;
    match (from, to) {
        // Released, failed because of a parent, expired, or cancelled.
        (Blocked, Ready | Scheduled | Failed | Expired | Cancelled) => in_flow,
        // The flow is retried, and the parents run again first.
        (Failed | Dead | Cancelled | Expired, Blocked) => in_flow,
        // Due, expired, cancelled, or retried by hand.
        (Scheduled, Ready | Expired | Cancelled) => true,
        (Ready, Claimed | Expired | Cancelled) => true,
        // Killed.
        (Scheduled | Ready, Dead | Failed) => true,
        // Debounced again: the task waits for quiet.
        (Ready, Scheduled) => true,
        // Every end of an attempt.
        (Claimed, Ready | Scheduled | Succeeded | Failed | Dead | Cancelled) => true,
        // Retried by hand.
        (Failed | Dead | Cancelled | Expired, Ready) => true,
        _ => false,
    }
}

impl Turn<'_> {
    /// Moves a task to another state.
    pub(crate) fn transition(&mut self, slot: Slot, to: State, place: Place) {
        let task = self.task(slot);
        let (from, next) = (task.state.name(), to.name());
        assert!(
            may_become(from, next, task.is_in_flow()),
            "task {} can't go from {from} to {next}",
            task.id
        );
        let queue = task.queue;
        self.shard.unlink(slot);
        let order = self.shard.next_order(place);
        let left = self.shard.edit(slot, |task| {
            task.order = order;
            std::mem::replace(&mut task.state, to)
        });
        if let State::Claimed(claim) = left {
            self.shard.names.release(claim.worker);
        }
        self.settle_key(slot, from);
        self.shard.link(slot, place);
        if let State::Finished { ending, .. } = self.task(slot).state {
            self.shard.edit_queue(queue, |queue| queue.totals.count(ending));
        }
    }

    /// Makes a waiting or claimed task ready: now, or at `run_at`.
    pub(crate) fn schedule(&mut self, slot: Slot, run_at: Timestamp) {
        if run_at > self.now {
            self.transition(slot, State::Scheduled { run_at }, Place::Back);
        } else {
            self.make_ready(slot, self.now, Place::Back);
        }
    }

    pub(crate) fn make_ready(&mut self, slot: Slot, since: Timestamp, place: Place) {
        self.transition(slot, State::Ready { since }, place);
        self.emit_task(slot, EventKind::TaskReady);
    }

    /// Ends a task, and removes tasks that the queue's retention does not keep. The caller must not
    /// use the slot afterwards, because the removed task may be this one.
    pub(crate) fn finish(
        &mut self,
        slot: Slot,
        ending: Ending,
        fact: impl FnOnce(TaskRef) -> EventKind,
    ) {
        self.transition(slot, State::Finished { ending, at: self.now }, Place::Back);
        self.emit_task(slot, fact);
        self.notify_watcher(slot);
        let task = self.task(slot);
        let (queue, lane) = (task.queue, LaneId::of(task));
        if LaneId::RETAINED.contains(&lane) {
            self.trim(queue, lane);
        }
    }

    /// Removes the oldest tasks of a lane that is longer than its queue keeps. New settings may
    /// have made the lane far too long, so that this step is bounded to two per new task;
    /// `ExpireDue` removes the rest.
    fn trim(&mut self, queue: Slot, lane: LaneId) {
        for _ in 0..2 {
            let found = self.shard.queues.get(queue);
            if found.lane(lane).length <= found.retention(lane).0 {
                return;
            }
            self.remove_task(found.lane(lane).head);
        }
    }

    /// Records how the current attempt of a claimed task ended. The caller changes the state next.
    pub(crate) fn end_attempt(
        &mut self,
        slot: Slot,
        outcome: AttemptOutcome,
        error: Option<Box<Failure>>,
        retry_at: Option<Timestamp>,
    ) {
        let task = self.task(slot);
        let claim = task.claim().unwrap_or_else(|| panic!("task {} is not claimed", task.id));
        let ended = Box::new(Attempt {
            attempt: task.attempt,
            outcome,
            token: claim.token,
            worker: self.shard.names.get(claim.worker).clone(),
            claimed_at: claim.claimed_at,
            ended_at: self.now,
            retry_at,
            error,
            previous: None,
        });
        self.shard.edit(slot, |task| task.push_attempt(ended, ATTEMPTS_KEPT_MAX));
        // A lost attempt may never have begun; see `lose.rs`.
        if outcome.has_failed() && outcome != AttemptOutcome::Lost {
            self.notify_tally(slot, Standing::Failed);
        }
    }

    /// Adds a new task, in its first state.
    pub(crate) fn add_task(&mut self, mut task: Task) -> Slot {
        let (id, queue) = (task.id, task.queue);
        task.order = self.shard.next_order(Place::Back);
        self.shard.task_heap_bytes += task.heap_bytes() as u64;
        if let Some(key) = task.key() {
            self.shard.name_key(key);
        }
        let slot = self.shard.tasks.insert(task);
        self.shard.ids.insert(id, slot);
        self.shard.digest_new_task(slot);
        self.take_key(slot);
        self.shard.link(slot, Place::Back);
        self.shard.edit_queue(queue, |queue| queue.totals.enqueued += 1);
        slot
    }

    /// Removes a task without a claim from the state.
    pub(crate) fn remove_task(&mut self, slot: Slot) {
        assert!(self.task(slot).claim().is_none(), "task {} is claimed", self.task(slot).id);
        if self.task(slot).finished_at().is_none() {
            self.notify_watcher(slot);
        }
        self.emit_task(slot, EventKind::TaskRemoved);
        self.shard.unlink(slot);
        if !self.task(slot).state.name().is_finished() {
            self.keep_window(slot);
        }
        self.shard.keep_image(slot);
        let (task, stored) = self.shard.tasks.remove(slot);
        self.shard.digest_removed_task(task.id);
        self.shard.ids.remove(task.id);
        self.shard.names.release(task.task_type);
        self.shard.task_heap_bytes -= task.heap_bytes() as u64;
        if stored {
            self.shard.cut.removed.push(task.id);
        }
        if let Some(key) = task.key() {
            self.shard.unname_key(key);
        }
        self.shard.refresh_queue_due(task.queue);
        self.shard.note_shrunk(task.queue);
        self.payloads.remove(task.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_succeeded_or_claimed_task_makes_no_invalid_transition() {
        use TaskStateName::*;
        for to in TaskStateName::ALL {
            assert!(!may_become(Succeeded, to, true), "succeeded is for good, not {to}");
            assert!(!may_become(to, Blocked, false), "only a flow blocks, not {to}");
            assert!(!may_become(Blocked, to, false), "only a flow lets go, not {to}");
        }
        let may_become = |from, to| may_become(from, to, true);
        assert!(!may_become(Scheduled, Claimed), "only a ready task is claimed");
        assert!(!may_become(Blocked, Claimed) && !may_become(Blocked, Succeeded));
        assert!(!may_become(Claimed, Blocked) && !may_become(Ready, Blocked));
        assert!(!may_become(Dead, Claimed) && !may_become(Claimed, Claimed));
        assert!(!may_become(Claimed, Expired), "only a waiting task expires");
    }
}
