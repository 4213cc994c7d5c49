//! LogAge: how far back the node's log is kept for one shard.
//!
//! All shards write to one log, and a file of the log is freed once no shard needs an entry in the
//! file. So the age of an entry is what all shards have written since. Positions are bytes written
//! to the log since the node started.

use std::collections::VecDeque;

/// Cuts that are closer together share a mark.
const MARK_EVERY_BYTES: u64 = 1 << 20;

/// What one shard keeps of the log.
#[derive(Debug)]
pub(crate) struct LogAge {
    /// Where the log stood at the last cut.
    checkpointed_at: u64,
    /// Each mark: the index of a cut, and the log's position then; oldest first. The shard keeps
    /// the entries after the first mark.
    marks: VecDeque<(u64, u64)>,
}

impl LogAge {
    /// For a shard whose log begins after `index`, at `position` or later.
    pub(crate) fn new(index: u64, position: u64) -> LogAge {
        LogAge { checkpointed_at: position, marks: VecDeque::from([(index, position)]) }
    }

    /// Notes the cut of the next checkpoint.
    pub(crate) fn checkpoint(&mut self, index: u64, position: u64) {
        self.checkpointed_at = position;
        let last = self.marks.back().map_or(0, |(_, position)| *position);
        if position >= last + MARK_EVERY_BYTES {
            self.marks.push_back((index, position));
        }
    }

    /// Notes that the log up to `index` is dropped.
    pub(crate) fn cut(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|(next, _)| *next <= index) {
            self.marks.pop_front();
        }
    }

    /// Where the log stood at the last cut of a checkpoint.
    pub(crate) fn checkpointed_at(&self) -> u64 {
        self.checkpointed_at
    }

    /// Log bytes written since the last cut of a checkpoint.
    pub(crate) fn since_checkpoint(&self, position: u64) -> u64 {
        position.saturating_sub(self.checkpointed_at)
    }

    /// Log bytes written since the oldest entry that the shard keeps, or more.
    pub(crate) fn kept(&self, position: u64) -> u64 {
        let oldest = self.marks.front().map_or(position, |(_, position)| *position);
        position.saturating_sub(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_age_is_that_of_the_oldest_entry_kept_or_a_little_more() {
        let mut age = LogAge::new(10, 100 * MIB);
        assert_eq!((age.kept(150 * MIB), age.since_checkpoint(150 * MIB)), (50 * MIB, 50 * MIB));
        age.checkpoint(20, 200 * MIB);
        age.checkpoint(30, 200 * MIB + 1);
        age.checkpoint(40, 300 * MIB);
        assert_eq!(age.since_checkpoint(310 * MIB), 10 * MIB);
        for (cut, kept) in [(15, 300), (20, 200), (30, 200), (39, 200), (40, 100), (50, 100)] {
            age.cut(cut);
            assert_eq!(age.kept(400 * MIB), kept * MIB, "cut at {cut}");
        }
    }
}
