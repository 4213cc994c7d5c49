//! Election: when a replica campaigns after its leader falls silent. The timeout follows from seed,
//! replica and term, so that a simulation can be repeated.

use crate::{Replica, StateMachine};
use raft::StateRole;

impl<M: StateMachine> Replica<M> {
    /// Counts one tick, and campaigns or sends heartbeats if they are due.
    pub fn tick(&mut self) {
        self.check_stall();
        let leads = self.node.raft.state == StateRole::Leader;
        if !leads && !self.may_campaign() {
            return;
        }
        if !leads && self.may_not_lead() {
            self.count_tick();
            return;
        }
        // Replaces the random timeout that raft has drawn. Raft reads the timeout only here.
        let timeout = election_timeout(self.seed, self.id(), self.term(), self.election_ticks);
        self.node.raft.set_randomized_election_timeout(timeout);
        self.node.tick();
        self.update_leadership();
    }

    /// Tries to become leader now.
    pub fn campaign(&mut self) {
        if self.may_campaign() && !self.may_not_lead() {
            // Raft refuses only while a change of members is unapplied; a later tick tries again.
            let _ = self.node.campaign();
            self.update_leadership();
        }
    }
}

/// Ticks of silence after which a replica campaigns in a term: from `ticks` to just under twice
/// that.
pub(crate) fn election_timeout(seed: u64, id: u64, term: u64, ticks: usize) -> usize {
    let mut mixed = seed;
    for part in [id, term] {
        mixed = mix(mixed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    ticks + (mixed % ticks as u64) as usize
}

/// Spreads one number over all bits (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn election_timeouts_follow_from_seed_replica_and_term_and_spread() {
        let mut seen = std::collections::BTreeSet::new();
        for term in 1..200 {
            for id in 1..=3 {
                let ticks = election_timeout(7, id, term, 10);
                assert!((10..20).contains(&ticks), "{ticks} ticks for {id} in term {term}");
                assert_eq!(ticks, election_timeout(7, id, term, 10));
                seen.insert(ticks);
            }
        }
        assert_eq!(seen.len(), 10, "every timeout in the range is drawn");
    }
}
