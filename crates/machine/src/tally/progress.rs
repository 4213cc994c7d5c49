//! How a tally moves on: what its tasks tell, and what follows from it.

use crate::tally::{CallbackState, Standing, Step};
use crate::turn::Turn;
use crate::watch::{End, Watch};
use crate::wire::decode;
use crate::{FollowUp, TaskId};

impl Turn<'_> {
    /// A task of a tally stands elsewhere than before. A tally that is no longer kept is told in vain.
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

    /// A task that followed from a tally has ended. Only its success counts: until then, whatever became
    /// of it, somebody may retry it.
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

    /// Enqueues what now follows from a tally, and from those above it if it held them back.
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

    /// Enqueues what follows from a step. Where nothing does, the step is settled: gives the tally above,
    /// which may go on then.
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

    /// Nothing more comes of a step: the tally above no longer waits for it. Gives that one.
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
