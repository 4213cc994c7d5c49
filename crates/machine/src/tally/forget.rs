//! The end of a tally: one is forgotten when nobody has touched it for long.

use crate::tally::Step;
use crate::turn::Turn;

impl Turn<'_> {
    /// Forgets the tally whose time is over, if there is one. The one above stops to wait for it if it was
    /// never committed, for then nobody said that it was whole; else it waits on, since what it
    /// waits for has not come.
    pub(crate) fn forget_tally(&mut self) -> bool {
        let first = self.shard.tallies.first_to_expire();
        let Some((_, id)) = first.filter(|&(at, _)| at <= self.now) else { return false };
        let tally = self.shard.tallies.remove(id).expect("it was just found");
        let parent = tally.parent.filter(|&parent| self.shard.tallies.get(parent).is_some());
        if let Some(parent) = parent {
            self.edit_tally(parent, |parent| {
                parent.children -= 1;
                for step in [Step::Complete, Step::Success] {
                    if !tally.committed && !tally.callback(step).is_settled() {
                        *parent.children_before(step) -= 1;
                    }
                }
            });
            self.advance(parent);
        }
        true
    }
}
