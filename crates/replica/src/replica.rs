//! Replica: one group's consensus without I/O: a raft-rs `RawNode` and a state machine.
//!
//! Inputs: proposals, peer messages, ticks, "persisted". Outputs: entries to persist, messages to
//! send before and after the sync, outcomes. Nothing in it can wait, so nothing in it can deadlock.
//! The server drives it with real disks and sockets, the simulator with fake ones.

use raft::eraftpb;

/// What a group agrees on.
pub trait StateMachine {
    /// The answer to one entry.
    type Outcome;
    /// Decides one committed entry. Every replica calls it with the same entries in the same order.
    fn apply(&mut self, index: u64, data: &[u8]) -> Self::Outcome;
}

/// Reads back entries of the log that are no longer cached here (for a lagging peer, after a restart).
pub trait LogReader: Send {
    /// Entries `[from, to)`, at least one, stopping before `bytes_max` is passed (but never empty).
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<eraftpb::Entry>;
    /// The term of one entry.
    fn term(&self, index: u64) -> Option<u64>;
}

/// Who this replica is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Replica id in its group, from 1; never reused after a disk is lost.
    pub id: u64,
    /// Seeds the election timeouts (with replica and term), so that a simulation replays.
    pub seed: u64,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Least ticks of silence before an election; at most twice that.
    pub election_ticks: usize,
}

/// What was found on disk; empty for a new replica.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Term, vote, commit.
    pub hard_state: eraftpb::HardState,
    /// Voters and learners at `applied`.
    pub conf_state: eraftpb::ConfState,
    /// Index and term up to which the state machine is already built (the checkpoint's), 0 if none.
    pub applied: u64,
    /// Term of the entry at `applied`.
    pub applied_term: u64,
    /// Index of the last entry in the log; `applied` if there is none after it.
    pub last_index: u64,
}

/// Where a replica stands in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Decides. `ready` once its own first entry is applied: from then on its reads and times are right.
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

/// One applied entry.
#[derive(Debug)]
pub struct Applied<O> {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The number it was proposed under here in this term; `None` if proposed elsewhere or before.
    pub proposal: Option<u64>,
    /// What it did.
    pub outcome: O,
}

/// What the driver must do, in this order: send `messages_now`; persist `entries` and `hard_state`
/// (syncing if `must_sync`); call [`Replica::persisted`] with `number`.
#[derive(Debug)]
pub struct Ready {
    /// Hand it back to [`Replica::persisted`].
    pub number: u64,
    /// To append (replacing what the log holds from the first one's index on).
    pub entries: Vec<eraftpb::Entry>,
    /// To store with them.
    pub hard_state: Option<eraftpb::HardState>,
    /// Whether the vote, term or entries must be on disk before going on.
    pub must_sync: bool,
    /// May be sent before the sync (a leader's appends).
    pub messages_now: Vec<eraftpb::Message>,
    /// A snapshot to install, received from the leader.
    pub snapshot: Option<eraftpb::Snapshot>,
}

/// What came of it once persisted.
#[derive(Debug)]
pub struct Progress<O> {
    /// To send now that the sync is done.
    pub messages: Vec<eraftpb::Message>,
    /// Entries that were committed and have been applied, in order.
    pub applied: Vec<Applied<O>>,
    /// Proposal numbers that will never be answered: lost with leadership.
    pub dropped: Vec<u64>,
    /// Reads (by the number given to [`Replica::read`]) that may now be served from the state.
    pub reads: Vec<u64>,
    /// Reads that were lost with leadership.
    pub reads_dropped: Vec<u64>,
    /// The new role, if it changed.
    pub role: Option<Role>,
}
