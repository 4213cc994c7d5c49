//! Snapshots on their way in: the driver has the state here before raft may ask for it.

use crate::{Replica, StateMachine};

impl<M: StateMachine> Replica<M> {
    /// Whether a snapshot at this index and term would bring anything: it is ahead of what is known to be
    /// committed, and the log does not lead there.
    pub fn wants_snapshot(&self, index: u64, term: u64) -> bool {
        let log = &self.node.raft.raft_log;
        index > log.committed && !log.match_term(index, term)
    }

    /// The machine whose place a snapshot took: a large one is not dropped in no time.
    pub fn take_replaced(&mut self) -> Option<M> {
        self.replaced.take()
    }

    /// The index of a snapshot that was taken from a message and is not persisted yet: a stale one is
    /// ignored.
    pub fn pending_snapshot(&self) -> Option<u64> {
        let snapshot = self.node.raft.raft_log.unstable_snapshot().as_ref();
        snapshot.map(|snapshot| snapshot.get_metadata().index)
    }
}
