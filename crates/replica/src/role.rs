//! Role: which replica leads a group, and how others answer callers.

/// The role of a replica in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads. The replica was elected and has applied everything from before its term. Its state is
    /// therefore the newest there is, and it may stamp times that follow from this state.
    Leader {
        /// The leader's term.
        term: u64,
    },
    /// Follows `leader`, if it knows one.
    Follower {
        /// The follower's term.
        term: u64,
        /// The leader.
        leader: Option<u64>,
    },
}

/// The proposal was not appended, because this replica does not lead. The caller may send it to
/// another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead its shard")]
pub struct NotLeader {
    /// The leader, if known.
    pub leader: Option<u64>,
}

/// Why a proposal was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeRefused {
    /// The caller may send the proposal to another replica.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// No message between replicas can carry the entry, whichever replica leads.
    #[error("the entry has {bytes} bytes, and a message between replicas carries {bytes_max}")]
    TooLarge {
        /// The length of the entry.
        bytes: usize,
        /// See [`Config::entry_bytes_max`](crate::Config::entry_bytes_max).
        bytes_max: usize,
    },
}
