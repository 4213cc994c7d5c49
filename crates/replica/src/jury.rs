//! Jury: decides which replica is wrong when states differ.
//!
//! At a mark in a group's log, each replica keeps a digest of its state. The leader attests its
//! digest through the log. A replica with another digest then attests its own, and after it all
//! others do. A replica is wrong when a majority of the voters agree on another digest. This holds
//! for the leader too, because its state may be the wrong one. Without a majority no replica stops,
//! because stopping would take a shard away and repair nothing. A lone voter is the majority of its
//! group, but proves nothing against a learner: two different digests do not show which one is
//! wrong.

use crate::Members;
use std::collections::BTreeMap;

/// The digest that one replica attests for a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The mark.
    pub mark: u64,
    /// The replica that attests.
    pub replica: u64,
    /// The digest of its state at the mark.
    pub digest: u64,
}

/// The verdict after a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This replica has nothing to do.
    Agreed,
    /// The replicas differ, so that this one must attest its own digest.
    Speak,
    /// This replica is wrong and must stop.
    Wrong {
        /// The voters that agree on another digest.
        others: Vec<u64>,
        /// The digest of those voters.
        digest: u64,
    },
}

/// The statements about the newest mark, as one replica has read them from the log.
#[derive(Debug, Default)]
pub struct Jury {
    mark: u64,
    said: BTreeMap<u64, u64>,
    /// Whether this replica has attested its digest, or got the verdict to do so.
    has_spoken: bool,
}

impl Jury {
    /// Handles a statement from the log. `me` is this replica, `own` its digest at the mark, and
    /// `members` are the present members of the group.
    pub fn judge(&mut self, me: u64, own: u64, said: Statement, members: &Members) -> Verdict {
        if said.mark < self.mark {
            return Verdict::Agreed;
        }
        if said.mark > self.mark {
            *self = Jury { mark: said.mark, ..Jury::default() };
        }
        self.said.insert(said.replica, said.digest);
        self.has_spoken |= said.replica == me && said.digest == own;
        if let Some((digest, others)) = self.majority(members)
            && digest != own
        {
            return Verdict::Wrong { others, digest };
        }
        let is_disputed = self.said.values().any(|digest| *digest != own);
        if is_disputed && !self.has_spoken {
            self.has_spoken = true;
            return Verdict::Speak;
        }
        Verdict::Agreed
    }

    /// The digest on which more than half of the voters agree, with these voters. While members
    /// change there is no majority; a later mark decides.
    fn majority(&self, members: &Members) -> Option<(u64, Vec<u64>)> {
        if !members.outgoing.is_empty() {
            return None;
        }
        let mut by_digest: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for voter in &members.voters {
            if let Some(digest) = self.said.get(voter) {
                by_digest.entry(*digest).or_default().push(*voter);
            }
        }
        let agree = |voters: &[u64]| voters.len() >= 2 && voters.len() * 2 > members.voters.len();
        by_digest.into_iter().find(|(_, voters)| agree(voters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: u64 = 7;
    const ASTRAY: u64 = 8;

    fn members(voters: &[u64], learners: &[u64]) -> Members {
        Members { voters: voters.to_vec(), learners: learners.to_vec(), outgoing: vec![] }
    }

    /// Lets a group compare digests: the leader attests first, then each replica whose verdict says
    /// so. Returns the replicas that are found wrong.
    fn compare(members: &Members, leader: u64, has: impl Fn(u64) -> u64, deaf: &[u64]) -> Vec<u64> {
        let everybody = members.voters.iter().chain(&members.learners).copied();
        let hears = everybody.filter(|replica| !deaf.contains(replica));
        let mut juries: BTreeMap<u64, Jury> = hears.map(|id| (id, Jury::default())).collect();
        let mut log = vec![leader];
        let mut wrong = Vec::new();
        let mut read = 0;
        while let Some(&replica) = log.get(read) {
            read += 1;
            assert!(log.len() <= 2 * juries.len(), "it never ends: {log:?}");
            let said = Statement { mark: 1, replica, digest: has(replica) };
            juries.retain(|&me, jury| match jury.judge(me, has(me), said, members) {
                Verdict::Agreed => true,
                Verdict::Speak => {
                    log.push(me);
                    true
                }
                Verdict::Wrong { digest, others } => {
                    assert!(digest != has(me) && !others.contains(&me));
                    wrong.push(me);
                    false
                }
            });
        }
        wrong
    }

    #[test]
    fn a_replica_that_differs_from_the_majority_is_wrong_even_if_it_leads() {
        let has = |astray: u64| move |id: u64| if id == astray { ASTRAY } else { RIGHT };
        for voters in [&[1, 2, 3][..], &[1, 2, 3, 4, 5]] {
            let group = members(voters, &[9]);
            for &leader in voters {
                assert_eq!(compare(&group, leader, |_| RIGHT, &[]), [0; 0]);
                for astray in voters.iter().copied().chain([9]) {
                    let wrong = compare(&group, leader, has(astray), &[]);
                    assert_eq!(wrong, [astray], "{leader} leads {voters:?}");
                }
            }
        }
    }

    #[test]
    fn without_a_majority_no_replica_stops() {
        let group = members(&[1, 2, 3], &[]);
        for leader in [1, 2] {
            let has = |id| if id == 1 { ASTRAY } else { RIGHT };
            assert_eq!(compare(&group, leader, has, &[3]), [0; 0], "{leader} leads, 3 is down");
            assert_eq!(compare(&group, leader, |id| id, &[]), [0; 0], "all differ");
        }
        let lone = members(&[2], &[1]);
        assert_eq!(compare(&lone, 2, |id| id, &[]), [0; 0], "one word against one");
        let joint = Members { outgoing: vec![1, 2, 4], ..group };
        let has = |id| if id == 1 { ASTRAY } else { RIGHT };
        assert_eq!(compare(&joint, 2, has, &[]), [0; 0], "members change");
    }

    #[test]
    fn only_the_leader_attests_while_all_agree_and_old_marks_are_ignored() {
        let group = members(&[1, 2, 3], &[]);
        let mut jury = Jury::default();
        let mut judge = |mark, replica, digest| {
            jury.judge(3, RIGHT, Statement { mark, replica, digest }, &group)
        };
        assert_eq!(judge(4, 1, RIGHT), Verdict::Agreed);
        assert_eq!(judge(3, 2, ASTRAY), Verdict::Agreed, "it is over");
        assert_eq!(judge(4, 2, ASTRAY), Verdict::Speak);
        assert_eq!(judge(4, 2, ASTRAY), Verdict::Agreed, "it has spoken");
        assert_eq!(judge(5, 2, ASTRAY), Verdict::Speak, "of the next one it has not");
        // A statement from before this replica was repaired is not its digest now.
        assert_eq!(judge(6, 3, ASTRAY), Verdict::Speak);
        assert_eq!(judge(6, 3, RIGHT), Verdict::Agreed);
    }
}
