//! Stall: a leader whose entries do not reach its peers, though its peers are there.
//!
//! Heartbeats are small: a leader whose uplink is saturated keeps its office with them, while the
//! entries behind them stand still. Such a leader steps down where others can elect one of
//! themselves, and does not campaign for a while. When nobody else leads in that time, it campaigns
//! again.

use crate::{Replica, Room, StateMachine};
use raft::StateRole;

/// Election timeouts after which an entry that is not committed yet ends its leader's office.
const STALLS_AFTER: usize = 20;
/// Election timeouts for which a leader that stalled does not campaign, the first time.
const RESTS_FOR_MIN: usize = 120;
/// The longest such rest: each is twice as long as the one before.
const RESTS_FOR_MAX: usize = 64 * RESTS_FOR_MIN;
/// Election timeouts in which nobody else was heard to lead: then others can't.
const LEADERLESS_FOR_MAX: usize = 6;
/// A leader that did not stall for so many times its last rest has recovered.
const RECOVERED_AFTER: usize = 2;

/// How long entries have waited, and what came of it. Everything is counted in ticks.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// An entry that was not committed when it was last looked at, and for how long.
    oldest: Option<(u64, usize)>,
    /// What is left of the time in which this replica does not campaign.
    rest: usize,
    /// How long nobody was heard to lead in that time.
    leaderless: usize,
    /// The last rest from its beginning; 0 if there was none, or it is long over.
    last_rest: usize,
    /// How long this replica has led since.
    led: usize,
}

impl Stall {
    /// A leader's tick. Says for how long the oldest entry has waited.
    fn led(&mut self, last: u64, committed: u64) -> usize {
        self.led += 1;
        if self.led >= RECOVERED_AFTER * self.last_rest {
            self.last_rest = 0;
        }
        let waits = self.oldest.filter(|(index, _)| *index > committed);
        self.oldest = match waits {
            Some((index, waited)) => Some((index, waited + 1)),
            None => (last > committed).then_some((last, 0)),
        };
        self.oldest.map_or(0, |(_, waited)| waited)
    }

    /// A tick of a replica that does not lead.
    fn followed(&mut self, leader_is_known: bool, election_ticks: usize) {
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
    /// Whether this replica has stepped down because its entries did not reach its peers, and
    /// leaves leading to others.
    pub fn rests(&self) -> bool {
        self.stall.rest > 0
    }

    /// Counts a tick, and steps down if that is of use.
    pub(crate) fn look_at_stall(&mut self) {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            // Raft forgets a silent leader only when this replica campaigns, which it does not.
            let is_silent = raft.election_elapsed >= self.election_ticks;
            let is_known = raft.leader_id != raft::INVALID_ID && !is_silent;
            return self.stall.followed(is_known, self.election_ticks);
        }
        if !self.can_commit() {
            // Not the uplink is to blame but full disks, with which nobody else could lead either.
            self.stall.oldest = None;
            return;
        }
        let waited = self.stall.led(self.last_index(), self.commit());
        if waited >= STALLS_AFTER * self.election_ticks && self.others_could_lead() {
            self.stall.begin_rest(self.election_ticks);
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.update_leadership();
        }
    }

    /// Whether the other voters that are heard are enough to elect one of themselves that has all
    /// that is committed, and room for more. Where they are not, stepping down would only hold up
    /// those that are behind.
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
        assert_eq!(stall.led(7, 7), 0, "all is committed");
        for waited in 0..5 {
            assert_eq!(stall.led(9 + waited, 7), waited as usize);
        }
        assert_eq!(stall.led(20, 9), 0, "what was there first is committed");
        assert_eq!(stall.led(30, 19), 1);
        assert_eq!(stall.led(30, 20), 0);
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
                stall.followed(true, TICKS);
            }
            assert_eq!(stall.rest, 0);
            assert!((0..100).all(|_| stall.led(1, 1) == 0));
        }
        assert_eq!(rests, [120, 240, 480, 960, 1_920, 3_840, 7_680, 7_680]);
        for _ in 0..2 * 7_680 * TICKS {
            let _ = stall.led(1, 1);
        }
        stall.begin_rest(TICKS);
        assert_eq!(stall.rest / TICKS, 120);
    }

    #[test]
    fn a_rest_ends_when_nobody_else_leads() {
        let mut stall = Stall::default();
        stall.begin_rest(TICKS);
        for _ in 1..LEADERLESS_FOR_MAX * TICKS {
            stall.followed(false, TICKS);
        }
        assert!(stall.rest > 0);
        stall.followed(true, TICKS);
        (1..LEADERLESS_FOR_MAX * TICKS).for_each(|_| stall.followed(false, TICKS));
        assert!(stall.rest > 0, "somebody led in between");
        stall.followed(false, TICKS);
        assert_eq!(stall.rest, 0);
    }
}
