//! Stall: a leader steps down if its entries do not reach its reachable peers.
//!
//! A leader whose uplink is saturated stays leader, because its small heartbeats still arrive,
//! while its entries do not. Such a leader steps down if the others can elect a leader among
//! themselves, and rests: it does not campaign for a while. If no other replica leads during the
//! rest, the replica campaigns again.

use crate::{Replica, Room, StateMachine};
use raft::StateRole;

/// The number of election timeouts after which an uncommitted entry makes its leader step down.
const STALLS_AFTER: usize = 20;
/// The number of election timeouts of the first rest.
const RESTS_FOR_MIN: usize = 120;
/// The longest rest, because each rest is twice as long as the one before.
const RESTS_FOR_MAX: usize = 64 * RESTS_FOR_MIN;
/// The number of election timeouts without another leader after which a rest ends, because the
/// others evidently cannot elect one.
const LEADERLESS_FOR_MAX: usize = 6;
/// A leader has recovered once it led without a stall for this many times its last rest.
const RECOVERED_AFTER: usize = 2;

/// The wait of uncommitted entries, and the rests that followed. All times are in ticks.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// The index of an uncommitted entry, and how long it has waited.
    oldest: Option<(u64, usize)>,
    /// The remaining time of the present rest.
    rest: usize,
    /// How long this replica has known no leader during the rest.
    leaderless: usize,
    /// The full length of the last rest; 0 if there was none, or the leader has recovered.
    last_rest: usize,
    /// How long this replica has led since the last rest.
    led_for: usize,
}

impl Stall {
    /// Counts a tick of a leader. Returns how long the oldest uncommitted entry has waited.
    fn tick_leading(&mut self, last: u64, committed: u64) -> usize {
        self.led_for += 1;
        if self.led_for >= RECOVERED_AFTER * self.last_rest {
            self.last_rest = 0;
        }
        let waits = self.oldest.filter(|(index, _)| *index > committed);
        self.oldest = match waits {
            Some((index, waited)) => Some((index, waited + 1)),
            None => (last > committed).then_some((last, 0)),
        };
        self.oldest.map_or(0, |(_, waited)| waited)
    }

    /// Counts a tick of a replica that does not lead.
    fn tick_following(&mut self, leader_is_known: bool, election_ticks: usize) {
        self.oldest = None;
        self.rest = self.rest.saturating_sub(1);
        self.leaderless = if leader_is_known { 0 } else { self.leaderless + 1 };
        if self.leaderless >= LEADERLESS_FOR_MAX * election_ticks {
            self.rest = 0;
        }
    }

    fn begin_rest(&mut self, election_ticks: usize) {
        let (least, longest) = (RESTS_FOR_MIN * election_ticks, RESTS_FOR_MAX * election_ticks);
        let rest = (self.last_rest * 2).clamp(least, longest);
        *self = Stall { rest, last_rest: rest, ..Stall::default() };
    }
}

impl<M: StateMachine> Replica<M> {
    /// Whether this replica has stepped down because its entries did not reach its peers, and does
    /// not campaign now.
    pub fn rests(&self) -> bool {
        self.stall.rest > 0
    }

    /// Counts a tick. Steps down if entries stall and the others can elect a leader.
    pub(crate) fn check_stall(&mut self) {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            // Raft forgets a silent leader only when this replica campaigns, which it does not.
            let is_silent = raft.election_elapsed >= self.election_ticks;
            let is_known = raft.leader_id != raft::INVALID_ID && !is_silent;
            return self.stall.tick_following(is_known, self.election_ticks);
        }
        if !self.can_commit() {
            // The cause is full disks, not the uplink, so that no other replica could lead either.
            self.stall.oldest = None;
            return;
        }
        let waited = self.stall.tick_leading(self.last_index(), self.commit());
        if waited >= STALLS_AFTER * self.election_ticks && self.others_could_lead() {
            self.stall.begin_rest(self.election_ticks);
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.update_leadership();
        }
    }

    /// Whether the active voters without this one can elect a leader that has all committed entries
    /// and room for more. If they cannot, stepping down would only delay members that are behind.
    fn others_could_lead(&self) -> bool {
        let (members, me, committed) = (self.members(), self.id(), self.commit());
        let matched = |id: &u64| {
            let progress = self.node.raft.prs().get(*id).filter(|_| *id != me)?;
            progress.recent_active.then_some(progress.matched)
        };
        let is_active = |id: &u64| matched(id).is_some();
        let elects = |voters: &[u64]| {
            let active = voters.iter().filter(|id| is_active(id)).count();
            voters.is_empty() || active > voters.len() / 2
        };
        let could_lead = |id: &u64| {
            matched(id).is_some_and(|matched| matched >= committed)
                && self.room_of(*id) != Room::Full
        };
        elects(&members.voters)
            && elects(&members.outgoing)
            && members.voters.iter().any(could_lead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: usize = 10;

    #[test]
    fn an_entry_waits_until_it_is_committed_and_later_ones_do_not_renew_its_time() {
        let mut stall = Stall::default();
        assert_eq!(stall.tick_leading(7, 7), 0, "all is committed");
        for waited in 0..5 {
            assert_eq!(stall.tick_leading(9 + waited, 7), waited as usize);
        }
        assert_eq!(stall.tick_leading(20, 9), 0, "the oldest entry is committed");
        assert_eq!(stall.tick_leading(30, 19), 1);
        assert_eq!(stall.tick_leading(30, 20), 0);
    }

    #[test]
    fn each_rest_is_twice_as_long_until_the_leader_has_recovered() {
        let mut stall = Stall::default();
        let mut rests = Vec::new();
        for _ in 0..8 {
            stall.begin_rest(TICKS);
            rests.push(stall.rest / TICKS);
            for _ in 0..stall.rest {
                assert!(stall.rest > 0);
                stall.tick_following(true, TICKS);
            }
            assert_eq!(stall.rest, 0);
            assert!((0..100).all(|_| stall.tick_leading(1, 1) == 0));
        }
        assert_eq!(rests, [120, 240, 480, 960, 1_920, 3_840, 7_680, 7_680]);
        for _ in 0..2 * 7_680 * TICKS {
            let _ = stall.tick_leading(1, 1);
        }
        stall.begin_rest(TICKS);
        assert_eq!(stall.rest / TICKS, 120);
    }

    #[test]
    fn a_rest_ends_when_nobody_else_leads() {
        let mut stall = Stall::default();
        stall.begin_rest(TICKS);
        for _ in 1..LEADERLESS_FOR_MAX * TICKS {
            stall.tick_following(false, TICKS);
        }
        assert!(stall.rest > 0);
        stall.tick_following(true, TICKS);
        (1..LEADERLESS_FOR_MAX * TICKS).for_each(|_| stall.tick_following(false, TICKS));
        assert!(stall.rest > 0, "somebody led in between");
        stall.tick_following(false, TICKS);
        assert_eq!(stall.rest, 0);
    }
}
