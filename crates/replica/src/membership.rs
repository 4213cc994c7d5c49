//! Membership: voters, learners, and how far each of them has come.
//!
//! A change of one member takes effect when it is applied. A change of several goes through a joint
//! configuration, in which both the old and the new voters must agree; the leader ends that
//! configuration without a request. Only one change is in progress at a time. A leader that loses
//! its vote steps down.

use crate::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};
use crate::{NotLeader, Replica, Role, Room, StateMachine};
use raft::StateRole;

/// One change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a new replica or a learner a voter.
    AddVoter(u64),
    /// Makes a new replica or a voter a learner, which gets the log and has no vote.
    AddLearner(u64),
    /// Removes a voter or learner from the group.
    Remove(u64),
}

/// Why a change was not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// This replica does not lead; the caller asks the leader.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// An earlier change is not applied yet.
    #[error("another change of members is under way; wait until it is done")]
    InProgress,
    /// The change is empty, or names replica 0.
    #[error("a change of members must name replicas, from 1")]
    Invalid,
}

/// The members of a group, each list in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The replicas that vote.
    pub voters: Vec<u64>,
    /// The replicas that follow without a vote.
    pub learners: Vec<u64>,
    /// The old voters while a change of several members is under way.
    pub outgoing: Vec<u64>,
}

/// The progress of one member, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The member.
    pub id: u64,
    /// The last entry that the member is known to have on disk.
    pub matched: u64,
    /// The number of entries that the member lacks.
    pub lag: u64,
    /// Whether the member has some of the log and was heard within an election timeout. A new
    /// member is not active before its first message, even if it lacks little.
    pub active: bool,
    /// The room on the member's disk, as last reported.
    pub room: Room,
}

impl<M: StateMachine> Replica<M> {
    /// Proposes a change of members. A change of several goes through a joint configuration.
    pub fn propose_conf_change(&mut self, changes: &[Change]) -> Result<(), ChangeRefused> {
        let Role::Leader { .. } = self.role() else {
            return Err(NotLeader { leader: self.known_leader() }.into());
        };
        if self.node.raft.has_pending_conf() || !self.conf_state.voters_outgoing.is_empty() {
            return Err(ChangeRefused::InProgress);
        }
        if changes.is_empty() || changes.iter().any(|change| single(*change).node_id == 0) {
            return Err(ChangeRefused::Invalid);
        }
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Auto);
        change.mut_changes().extend(changes.iter().map(|change| single(*change)));
        self.node
            .propose_conf_change(Vec::new(), change)
            .map_err(|_| ChangeRefused::NotLeader(NotLeader { leader: None }))
    }

    /// The members as of the last applied entry.
    pub fn members(&self) -> Members {
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let state: &ConfState = self.conf_state();
        Members {
            voters: sorted(&state.voters),
            learners: sorted(&state.learners),
            outgoing: sorted(&state.voters_outgoing),
        }
    }

    /// The index at which the members last changed. A plan for this leader and these members is out
    /// of date once this index or the leader's term has changed.
    pub fn members_since(&self) -> u64 {
        self.members_since
    }

    /// The progress of every member, by id; empty unless this replica leads.
    pub fn peers(&self) -> Vec<PeerProgress> {
        let Role::Leader { .. } = self.role() else { return Vec::new() };
        let last = self.last_index();
        let mut peers: Vec<PeerProgress> = (self.node.raft.prs().iter())
            .map(|(&id, progress)| PeerProgress {
                id,
                matched: progress.matched,
                lag: last.saturating_sub(progress.matched),
                // Raft counts a new member as active before its first message.
                active: id == self.id() || (progress.recent_active && progress.matched > 0),
                room: self.room_of(id),
            })
            .collect();
        peers.sort_unstable_by_key(|peer| peer.id);
        peers
    }

    pub(crate) fn members_have_changed(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
        self.members_since = self.applied();
        self.members_changed = true;
    }

    pub(crate) fn apply_members(&mut self, change: &ConfChangeV2) {
        // An impossible change, such as one that leaves no voter, fails on every replica alike.
        if let Ok(state) = self.node.apply_conf_change(change) {
            let votes =
                state.voters.contains(&self.id()) || state.voters_outgoing.contains(&self.id());
            self.members_have_changed(state);
            if !votes && self.node.raft.state == StateRole::Leader {
                // Raft would keep leading, refuse every proposal, and keep the others from an
                // election.
                let term = self.term();
                self.node.raft.become_follower(term, raft::INVALID_ID);
            }
        }
    }

    /// Ends a joint configuration, because raft ends it only under the leader that entered it.
    pub(crate) fn leave_joint(&mut self) {
        let joint = !self.conf_state.voters_outgoing.is_empty();
        if joint && self.node.raft.state == StateRole::Leader && !self.node.raft.has_pending_conf()
        {
            // Raft refuses during a hand-over of leadership; the next ready tries again.
            let _ = self.node.propose_conf_change(Vec::new(), ConfChangeV2::default());
        }
    }

    fn known_leader(&self) -> Option<u64> {
        match self.role() {
            Role::Leader { .. } => Some(self.id()),
            Role::Follower { leader, .. } => leader,
        }
    }
}

fn single(change: Change) -> ConfChangeSingle {
    let (kind, id) = match change {
        Change::AddVoter(id) => (ConfChangeType::AddNode, id),
        Change::AddLearner(id) => (ConfChangeType::AddLearnerNode, id),
        Change::Remove(id) => (ConfChangeType::RemoveNode, id),
    };
    let mut single = ConfChangeSingle { node_id: id, ..Default::default() };
    single.set_change_type(kind);
    single
}
