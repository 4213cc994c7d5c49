//! Progress: counts the standings of a tally's tasks, and enqueues its callbacks.

use crate::tally::{CallbackState, Standing, Step};
use crate::turn::Turn;
use crate::watch::{End, Watch};
use crate::wire::decode;
use crate::{FollowUp, TaskId};

impl Turn<'_> {
    /// Counts a task's change of standing. A message for a forgotten tally changes nothing.
    pub(crate) fn take_standing(&mut self, tally: TaskId, from: Standing, to: Standing) {
        if self.shard.tallies.get(tally).is_none() {
            return;
        }
        let now = self.now;
        self.edit_tally(tally, |tally| {
            tally.counts.take_out(from.counts());
            tally.counts.add(to.counts());
            if tally.is_committed() {
                tally.touched_at = now;
            }
        });
        self.advance(tally);
    }

    /// Records that the callback of a tally has ended. Only success counts, because an operator may
    /// still retry a callback that failed.
    pub(crate) fn callback_ended(&mut self, tally: TaskId, step: Step, end: End) {
        let Some(found) = self.shard.tallies.get(tally) else { return };
        let is_enqueued = found.callback(step).state == CallbackState::Enqueued;
        if end == End::Succeeded && is_enqueued {
            let above = self.settle_step(tally, step);
            self.advance(tally);
            if let Some(above) = above {
                self.advance(above);
            }
        }
    }

    /// Enqueues the callbacks that may now run, of this tally and of the tallies above it.
    pub(crate) fn advance(&mut self, tally: TaskId) {
        let mut next = Some(tally);
        while let Some(tally) = next.take() {
            for step in [Step::Complete, Step::Success] {
                let found = self.shard.tallies.get(tally);
                if found.is_some_and(|found| found.reaches(step)) {
                    next = self.start_callback(tally, step).or(next);
                }
            }
        }
    }

    /// Enqueues the callback of a step. A step without a callback is settled; then this returns the
    /// tally above, whose steps may now be reached.
    fn start_callback(&mut self, tally: TaskId, step: Step) -> Option<TaskId> {
        let now = self.now;
        let follow_up = self.edit_tally(tally, |tally| {
            tally.touched_at = now;
            let callback = tally.callback_mut(step);
            callback.state = CallbackState::Enqueued;
            callback.follow_up.take()
        });
        let Some(bytes) = follow_up else { return self.settle_step(tally, step) };
        let follow_up: FollowUp<'_> = decode(&bytes).expect("it was encoded here");
        let id = self.next_id(follow_up.home);
        self.owe_enqueue(id, &follow_up.enqueue, Some(Watch::Callback { tally, step }));
        None
    }

    /// Settles a step, so that the tally above no longer waits for it; returns the tally above.
    fn settle_step(&mut self, tally: TaskId, step: Step) -> Option<TaskId> {
        let now = self.now;
        let parent = self.edit_tally(tally, |tally| {
            tally.callback_mut(step).state = CallbackState::Succeeded;
            if tally.is_committed() {
                tally.touched_at = now;
            }
            tally.parent
        });
        let parent = parent?;
        self.edit_tally(parent, |parent| {
            *parent.children_before(step) -= 1;
            if parent.is_committed() {
                parent.touched_at = now;
            }
        });
        Some(parent)
    }
}
