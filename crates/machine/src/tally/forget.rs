//! The end of a tally: it is forgotten after a long time without a change, once nothing that it
//! waits for can happen any more.

use crate::TaskId;
use crate::tally::{Stage, Step, Tally};
use crate::turn::Turn;

impl Turn<'_> {
    /// Handles the tally whose time is over, if there is one.
    pub(crate) fn tally_due(&mut self) -> bool {
        let first = self.shard.tallies.first_to_expire();
        let Some((_, id)) = first.filter(|&(at, _)| at <= self.now) else { return false };
        let tally = self.shard.tallies.get(id).expect("it was just found");
        let (now, waits) = (self.now, tally.waits_for_something());
        match tally.stage {
            Stage::Reopened => {
                // The client that reopened the tally is gone, and the callback that was accepted
                // must still run.
                self.edit_tally(id, |tally| {
                    (tally.stage, tally.touched_at) = (Stage::Committed, now);
                });
                self.advance(id);
            }
            Stage::Open | Stage::Committed if waits => {
                self.edit_tally(id, |tally| tally.touched_at = now);
            }
            Stage::Open | Stage::Committed => self.forget_tally(id),
        }
        true
    }

    /// If the tally was never committed, its parent stops waiting for it, because the tally was
    /// never declared complete. Otherwise the parent keeps waiting, because the awaited tasks have
    /// not ended.
    fn forget_tally(&mut self, id: TaskId) {
        let tally = self.shard.tallies.remove(id).expect("it was just found");
        let Some(parent) = tally.parent else { return };
        self.edit_tally(parent, |parent| {
            parent.children -= 1;
            for step in [Step::Complete, Step::Success] {
                if tally.stage == Stage::Open && !tally.callback(step).is_settled() {
                    *parent.children_before(step) -= 1;
                }
            }
        });
        self.advance(parent);
    }
}

impl Tally {
    /// Whether tallies below it are kept, or tasks are still to run. Both are bounded, and so are
    /// the tallies kept for them. Tasks of an uncommitted tally do not count.
    fn waits_for_something(&self) -> bool {
        self.children > 0 || (self.is_committed() && self.counts.not_run > 0)
    }
}
