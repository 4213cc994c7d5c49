//! Snapshot: the driver fetches and stores a snapshot's state before raft handles its message.

use crate::{Replica, StateMachine};

impl<M: StateMachine> Replica<M> {
    /// Whether this replica needs a snapshot at this index and term: the index is beyond the known
    /// commit index, and the log does not have this entry.
    pub fn wants_snapshot(&self, index: u64, term: u64) -> bool {
        let log = &self.node.raft.raft_log;
        index > log.committed && !log.match_term(index, term)
    }

    /// The machine that a snapshot replaced. The caller drops it, because dropping a large machine
    /// takes time.
    pub fn take_replaced(&mut self) -> Option<M> {
        self.replaced.take()
    }

    /// The index of a snapshot that raft has accepted and that is not persisted yet. Raft accepts
    /// no stale one.
    pub fn pending_snapshot(&self) -> Option<u64> {
        let snapshot = self.node.raft.raft_log.unstable_snapshot().as_ref();
        snapshot.map(|snapshot| snapshot.get_metadata().index)
    }
}
