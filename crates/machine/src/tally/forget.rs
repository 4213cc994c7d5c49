//! The end of a tally: one is forgotten when nobody has touched it for long, and nothing that it waits for
//! can come any more.

use crate::TaskId;
use crate::tally::{Stage, Step, Tally};
use crate::turn::Turn;

impl Turn<'_> {
    /// Looks at the tally whose time is over, if there is one.
    pub(crate) fn tally_due(&mut self) -> bool {
        let first = self.shard.tallies.first_to_expire();
        let Some((_, id)) = first.filter(|&(at, _)| at <= self.now) else { return false };
        let tally = self.shard.tallies.get(id).expect("it was just found");
        let (now, waits) = (self.now, tally.waits_for_something());
        match tally.stage {
            Stage::Reopened => {
                // Whoever added to it is gone, and what was accepted before must follow.
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

    /// The one above stops to wait for it if it was never committed, for then nobody said that it was whole;
    /// else it waits on, since what it waits for has not come.
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
    /// Tallies below it that are kept, or tasks that are still to run: they are bounded, and so is what is
    /// kept for them. Tasks of one that was never committed are nobody's.
    fn waits_for_something(&self) -> bool {
        self.children > 0 || (self.is_committed() && self.counts.not_run > 0)
    }
}
