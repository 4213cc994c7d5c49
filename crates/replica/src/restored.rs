//! Restored: the state with which a replica starts, and whether its parts fit together.

use crate::{LogReader, eraftpb};

/// The contents of the disk; empty for a new replica that joins a group.
///
/// A crash during the installation of a snapshot may leave a log that does not connect to the
/// checkpoint: it neither begins right after `applied` nor has an entry of `applied_term` there.
/// The driver drops such a log, on disk too, and starts from the checkpoint alone.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Term, vote, commit.
    pub hard_state: eraftpb::HardState,
    /// Voters and learners at `applied`.
    pub conf_state: eraftpb::ConfState,
    /// Index of the checkpoint from which the state machine was built, 0 if there is none.
    pub applied: u64,
    /// Term of the entry at `applied`.
    pub applied_term: u64,
    /// Index of the first entry in the log, if it is at or before `applied`; lagging peers get
    /// entries from there. 0 if the log begins after `applied`.
    pub first_index: u64,
    /// Index of the last entry in the log; `applied` if there is none after it.
    pub last_index: u64,
}

impl Restored {
    /// A new group of these voters. Every voter starts with this same value.
    pub fn first(voters: &[u64]) -> Restored {
        let conf_state = eraftpb::ConfState { voters: voters.to_vec(), ..Default::default() };
        Restored { conf_state, ..Restored::default() }.at_its_beginning()
    }

    /// Sets the first index and term of a group that has voters and no checkpoint.
    pub(crate) fn at_its_beginning(mut self) -> Restored {
        if self.applied == 0 && !self.conf_state.voters.is_empty() {
            (self.applied, self.applied_term) = (1, 1);
            self.last_index = self.last_index.max(1);
            self.hard_state.term = self.hard_state.term.max(1);
        }
        self
    }

    /// The hard state to start from. A checkpoint may be ahead of the commit index, which is
    /// persisted late.
    pub(crate) fn checked_hard_state(&self, id: u64) -> Result<eraftpb::HardState, Error> {
        let mut hard_state = self.hard_state.clone();
        hard_state.commit = hard_state.commit.max(self.applied);
        if hard_state.commit > self.last_index {
            let (commit, last) = (hard_state.commit, self.last_index);
            let what = format!("entries up to {commit} were committed, but it ends at {last}");
            return Err(Error::BrokenLog { id, what });
        }
        if hard_state.term < self.applied_term {
            let (term, applied_term) = (hard_state.term, self.applied_term);
            let what =
                format!("its term is {term}, but an entry of term {applied_term} was applied");
            return Err(Error::BrokenLog { id, what });
        }
        Ok(hard_state)
    }

    /// Index and term just before the first entry that can be sent to peers.
    pub(crate) fn readable_from(&self, id: u64, log: &dyn LogReader) -> Result<(u64, u64), Error> {
        if self.first_index == 0 || self.first_index >= self.applied {
            return Ok((self.applied, self.applied_term));
        }
        // The term before the first entry is unknown, so that this entry serves only for its term.
        let term = log.term(self.first_index).ok_or_else(|| Error::BrokenLog {
            id,
            what: format!("its first entry, {}, can't be read", self.first_index),
        })?;
        Ok((self.first_index, term))
    }
}

/// Why a replica cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is outside its bounds.
    #[error("replica can't be configured: {what}")]
    Config {
        /// The setting and its bound.
        what: String,
    },
    /// The parts on disk do not fit together, because something that was synced is missing.
    #[error(
        "log of replica {id} is broken: {what}; restore this node's disk or replace the replica"
    )]
    BrokenLog {
        /// The replica.
        id: u64,
        /// What does not fit.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Replica, StateMachine};

    struct NoLog;

    impl LogReader for NoLog {
        fn entries(&self, from: u64, to: u64, _bytes_max: u64) -> Vec<eraftpb::Entry> {
            unreachable!("entries {from} to {to} are not there")
        }

        fn term(&self, _index: u64) -> Option<u64> {
            None
        }
    }

    struct Nothing;

    impl StateMachine for Nothing {
        type Outcome = ();
        fn apply(&mut self, _index: u64, _data: &[u8]) {}
    }

    fn start(restored: Restored) -> Result<Replica<Nothing>, Error> {
        let config = Config {
            id: 1,
            seed: 0,
            heartbeat_ticks: 2,
            election_ticks: 10,
            entry_bytes_max: 1 << 20,
        };
        Replica::new(&config, restored, Box::new(NoLog), Nothing)
    }

    #[test]
    fn a_log_that_lost_synced_entries_is_refused() {
        let restored = |commit, last_index, first_index| {
            let mut restored = Restored::first(&[1, 2, 3]);
            restored.hard_state.commit = commit;
            (restored.applied, restored.applied_term) = (5, 1);
            (restored.last_index, restored.first_index) = (last_index, first_index);
            restored
        };
        for (commit, last, first, what) in [
            (9, 7, 0, "entries up to 9 were committed, but it ends at 7"),
            (0, 4, 0, "entries up to 5 were committed, but it ends at 4"),
            (5, 7, 0, "its last entry, 7, can't be read"),
            (5, 5, 3, "its first entry, 3, can't be read"),
        ] {
            let error = start(restored(commit, last, first)).err();
            let expected = Error::BrokenLog { id: 1, what: what.into() };
            assert_eq!(error, Some(expected));
        }
        assert!(start(restored(3, 5, 0)).is_ok(), "a checkpoint may be ahead of the stored commit");
    }

    #[test]
    fn a_bad_configuration_is_refused() {
        let config = Config {
            id: 1,
            seed: 0,
            heartbeat_ticks: 10,
            election_ticks: 10,
            entry_bytes_max: 1 << 20,
        };
        let error = Replica::new(&config, Restored::first(&[1]), Box::new(NoLog), Nothing).err();
        assert!(matches!(error, Some(Error::Config { .. })), "{error:?}");
    }
}
