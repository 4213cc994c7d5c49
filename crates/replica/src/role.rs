//! Role: who decides for a group, and what is told to those who ask somebody else.

/// Where a replica stands in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Decides. It was elected and has applied everything from before its term: its state is the
    /// newest there is, and the time it stamps can follow from it.
    Leader {
        /// Its term.
        term: u64,
    },
    /// Follows `leader`, if it knows one.
    Follower {
        /// Its term.
        term: u64,
        /// Whom it follows.
        leader: Option<u64>,
    },
}

/// The proposal was not appended: this replica does not lead. Safe to send elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead its shard")]
pub struct NotLeader {
    /// Who does, if known.
    pub leader: Option<u64>,
}

/// Why a proposal was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeRefused {
    /// Safe to send elsewhere.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// No message could carry the entry, here or elsewhere.
    #[error("the entry has {bytes} bytes, and a message between replicas carries {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// See [`Config::entry_bytes_max`](crate::Config::entry_bytes_max).
        bytes_max: usize,
    },
}
