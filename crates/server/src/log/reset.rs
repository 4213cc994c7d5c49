//! Reset: ends a group's log as a whole, because a snapshot has replaced it or its replica was
//! removed.
//!
//! raft-engine remembers its command for this while a file may have older entries. Writes to the
//! group later in the same batch count.

use super::{Batch, GONE_KEY};
use raft_engine::Command;
use taskyard_replica::eraftpb;

impl Batch {
    /// Drops the whole log of the group and begins it anew after `index`, because a snapshot up to
    /// there has replaced it. Later entries that do not follow the snapshot must go too, because
    /// they would count in elections.
    pub(crate) fn reset(
        &mut self,
        group: u64,
        replica: u64,
        index: u64,
        state: &eraftpb::HardState,
    ) {
        self.0.add_command(group, Command::Clean);
        self.replica(group, replica);
        self.hard_state(group, state);
        self.cut(group, index);
    }

    /// Forgets a group, except for the id of this node's replica: an old map must not bring the
    /// replica back, empty, without memory of its votes.
    pub(crate) fn forget(&mut self, group: u64, replica: u64) {
        self.0.add_command(group, Command::Clean);
        self.put(group, GONE_KEY, replica.to_le_bytes().to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GroupState, Log, tests::*};
    use super::*;
    use std::sync::Arc;

    /// A follower's tail may reach beyond the snapshot that replaces it, and is no part of the
    /// group's history.
    #[test]
    fn a_reset_log_has_no_earlier_entries_even_after_a_purge() {
        let dir = tempfile::tempdir().unwrap();
        let log = small(dir.path());
        let (quiet, hot, removed) = (1, 2, 3);
        let mut index = 1;
        let mut write_hot = || write_files(&log, hot, &mut index, 12);
        write(&log, quiet, 2..=50);
        write(&log, removed, 2..=9);
        write_hot();
        write(&log, quiet, 51..=60);
        let hard_state = eraftpb::HardState { term: 4, vote: 2, commit: 30, ..Default::default() };
        let mut reset = Batch::default();
        reset.reset(quiet, 1, 30, &hard_state);
        reset.append(quiet, &[entry(31, 10)]);
        reset.forget(removed, 6);
        log.write(&mut reset).unwrap();
        let expected = || GroupState {
            hard_state: Some(hard_state.clone()),
            cut: 30,
            entries: Some((31, 31)),
            replica: Some(1),
            gone: 0,
        };
        assert_eq!(log.group(quiet).unwrap(), expected());
        write_hot();
        write_hot();
        assert_eq!(log.group(quiet).unwrap(), expected());
        drop(log);

        let log = Arc::new(small(dir.path()));
        assert_eq!(log.group(quiet).unwrap(), expected());
        assert_eq!(log.group(removed).unwrap(), GroupState { gone: 6, ..GroupState::default() });
        write(&log, quiet, 32..=33);
        drop(log);
        assert_eq!(indexes(&Arc::new(small(dir.path())), quiet), [31, 32, 33]);
    }

    #[test]
    fn a_log_is_reset_at_any_moment() {
        for (written, at) in [(2..=5, 9), (2..=9, 5), (2..=9, 9)] {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path()).unwrap();
            write(&log, 3, written.clone());
            let hard_state = eraftpb::HardState { term: 2, commit: at, ..Default::default() };
            let mut batch = Batch::default();
            batch.reset(3, 1, at, &hard_state);
            log.write(&mut batch).unwrap();
            drop(log);
            let log = Arc::new(Log::open(dir.path()).unwrap());
            let expected = GroupState {
                hard_state: Some(hard_state),
                cut: at,
                entries: None,
                replica: Some(1),
                gone: 0,
            };
            assert_eq!(log.group(3).unwrap(), expected, "{written:?} reset at {at}");
            write(&log, 3, at + 1..=at + 2);
            assert_eq!(log.group(3).unwrap().entries, Some((at + 1, at + 2)));
        }
    }
}
