//! Groups: the present and past members of each group, as replicas apply them, and all votes.
//!
//! Invariants: a replica votes once per term; a removed replica sends nothing any more; a new voter
//! already has the group's state.

use crate::invariants::Violation;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use taskyard_replica::Members;
use taskyard_replica::eraftpb::{Message, MessageType};

/// The memberships of one group.
#[derive(Debug)]
pub(crate) struct Group {
    /// The last memberships, newest last. An entry is decided if a majority of any of these few had
    /// it.
    recent: VecDeque<Members>,
    /// Index of the entry that made the newest membership.
    index: u64,
    /// The vote of each replica in each term.
    votes: BTreeMap<(u64, u64), u64>,
    /// Replicas that were removed with all their data.
    ended: BTreeSet<u64>,
    pub(crate) changes: u64,
}

const RECENT_MAX: usize = 4;

impl Group {
    pub(crate) fn new() -> Group {
        let members = Members { voters: vec![1], ..Members::default() };
        Group {
            recent: VecDeque::from([members]),
            index: 0,
            votes: BTreeMap::new(),
            ended: BTreeSet::new(),
            changes: 0,
        }
    }

    pub(crate) fn newest(&self) -> &Members {
        self.recent.back().expect("there is always one")
    }

    /// Handles an applied membership. Returns the replicas that have become voters.
    pub(crate) fn changed(&mut self, index: u64, members: Members) -> Vec<u64> {
        if index <= self.index || members == *self.newest() {
            return Vec::new();
        }
        let before = self.newest();
        let known = |id: &u64| before.voters.contains(id) || before.outgoing.contains(id);
        let new = members.voters.iter().copied().filter(|id| !known(id)).collect();
        self.index = index;
        self.changes += 1;
        self.recent.push_back(members);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        new
    }

    /// Whether enough replicas satisfy `holds` to decide: a majority of the old voters and of the
    /// new ones.
    pub(crate) fn decides(&self, holds: impl Fn(u64) -> bool) -> bool {
        let majority =
            |voters: &[u64]| voters.iter().filter(|id| holds(**id)).count() * 2 > voters.len();
        self.recent.iter().any(|members| {
            majority(&members.voters)
                && (members.outgoing.is_empty() || majority(&members.outgoing))
        })
    }

    /// Handles the creation of an empty replica.
    pub(crate) fn begun(&self, replica: u64) -> Result<(), Violation> {
        match self.ended.contains(&replica) {
            true => Err(format!("replica {replica} was removed and comes back")),
            false => Ok(()),
        }
    }

    pub(crate) fn ended(&mut self, replica: u64) {
        self.ended.insert(replica);
    }

    /// Checks a message that a replica sends.
    pub(crate) fn said(&mut self, message: &Message) -> Result<(), Violation> {
        let Message { from, term, to, .. } = *message;
        // A follower passes on who is to lead in the heir's name: the heir itself says nothing.
        let is_passed_on = message.get_msg_type() == MessageType::MsgTransferLeader;
        if self.ended.contains(&from) && !is_passed_on {
            return Err(format!("replica {from} was removed and speaks in term {term}"));
        }
        let candidate = match message.get_msg_type() {
            MessageType::MsgRequestVote => from,
            MessageType::MsgRequestVoteResponse if !message.reject => to,
            _ => return Ok(()),
        };
        let first = *self.votes.entry((from, term)).or_insert(candidate);
        if first != candidate {
            return Err(format!(
                "replica {from} voted for {first} and for {candidate} in term {term}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
        let mut message = Message { from, to, term, ..Message::default() };
        message.set_msg_type(kind);
        message
    }

    #[test]
    fn a_second_vote_in_a_term_is_found() {
        let vote = MessageType::MsgRequestVoteResponse;
        let mut group = Group::new();
        assert_eq!(group.said(&message(vote, 3, 1, 5)), Ok(()));
        assert_eq!(group.said(&message(vote, 3, 1, 5)), Ok(()), "the same answer again");
        assert_eq!(group.said(&message(vote, 3, 2, 6)), Ok(()));
        let mut refused = message(vote, 3, 2, 5);
        refused.reject = true;
        assert_eq!(group.said(&refused), Ok(()));
        let found = group.said(&message(vote, 3, 2, 5)).unwrap_err();
        assert_eq!(found, "replica 3 voted for 1 and for 2 in term 5");
        // A replica that asks for votes has voted for itself.
        assert!(group.said(&message(MessageType::MsgRequestVote, 3, 1, 5)).is_err());
    }

    #[test]
    fn a_removed_replica_that_speaks_is_found() {
        let mut group = Group::new();
        group.ended(2);
        let heartbeat = message(MessageType::MsgHeartbeatResponse, 2, 1, 5);
        let found = group.said(&heartbeat).unwrap_err();
        assert_eq!(found, "replica 2 was removed and speaks in term 5");
        assert!(group.begun(2).is_err() && group.begun(3).is_ok());
    }

    /// Found by seeds 267 and 331: a planner that had not yet heard of the removal wanted the
    /// replica to lead.
    #[test]
    fn a_request_that_a_removed_replica_lead_is_not_its_own_word() {
        let mut group = Group::new();
        group.ended(5);
        assert_eq!(group.said(&message(MessageType::MsgTransferLeader, 5, 1, 6)), Ok(()));
        assert!(group.said(&message(MessageType::MsgAppendResponse, 5, 1, 6)).is_err());
    }

    #[test]
    fn a_joint_membership_decides_by_both_majorities() {
        let mut group = Group::new();
        let joint = Members { voters: vec![2, 3, 4], learners: vec![], outgoing: vec![1] };
        assert_eq!(group.changed(7, joint.clone()), [2, 3, 4]);
        assert_eq!(group.changed(7, joint), [0u64; 0], "another replica has come so far");
        group.recent.pop_front();
        assert!(group.decides(|id| id != 4));
        assert!(!group.decides(|id| id != 1), "the old voters have a say");
        assert!(!group.decides(|id| id < 3), "and so have the new ones");
    }
}
