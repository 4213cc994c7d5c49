//! Mover: what the control group's leader does with replicas: lets a new one in as a learner, waits
//! until it has caught up, swaps it for a voter in one joint change, and removes what was let go.
//!
//! Invariant: it decides by the newest membership that any replica has applied. Replica ids are never
//! used twice, so who was let go once is gone for good.

use crate::cluster::World;
use crate::invariants::Violation;
use crate::node::node_of;
use std::collections::{BTreeSet, VecDeque};
use taskyard_replica::{Change, Members};

/// The memberships of one shard's group.
#[derive(Debug)]
pub(crate) struct Group {
    /// The newest last; an entry counts if one of these few held a majority for it.
    recent: VecDeque<Members>,
    /// Index of the entry that made the newest.
    index: u64,
    ever: BTreeSet<u64>,
    pub(crate) changes: u64,
}

const RECENT_MAX: usize = 4;

impl Group {
    pub(crate) fn new(voters: usize) -> Group {
        let voters: Vec<u64> = (1..=voters as u64).collect();
        let ever = voters.iter().copied().collect();
        let members = Members { voters, ..Members::default() };
        Group { recent: VecDeque::from([members]), index: 0, ever, changes: 0 }
    }

    pub(crate) fn newest(&self) -> &Members {
        self.recent.back().expect("there is always one")
    }

    /// A replica has applied a membership.
    pub(crate) fn changed(&mut self, index: u64, members: Members) {
        if index > self.index && members != *self.newest() {
            self.index = index;
            self.changes += 1;
            self.ever.extend(all(&members));
            self.recent.push_back(members);
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
        }
    }

    /// Whether enough replicas satisfy `holds` to decide: a majority, of old and new voters both.
    pub(crate) fn decides(&self, holds: impl Fn(u64) -> bool) -> bool {
        let majority =
            |voters: &[u64]| voters.iter().filter(|id| holds(**id)).count() * 2 > voters.len();
        self.recent.iter().any(|members| {
            majority(&members.voters)
                && (members.outgoing.is_empty() || majority(&members.outgoing))
        })
    }

    fn was_let_go(&self, replica: u64) -> bool {
        self.ever.contains(&replica) && !all(self.newest()).any(|id| id == replica)
    }
}

fn all(members: &Members) -> impl Iterator<Item = u64> {
    [&members.voters, &members.learners, &members.outgoing].into_iter().flatten().copied()
}

impl World {
    /// One step of one shard's move.
    pub(crate) fn move_replicas(&mut self) -> Result<(), Violation> {
        for shard in 0..self.options.shards {
            self.remove_let_go(shard);
        }
        let shard = self.rng.below(u64::from(self.options.shards)) as u16;
        let Some(leader) = self.nodes.iter().position(|node| node.leads(shard)) else {
            return Ok(());
        };
        let Some(members) = self.nodes[leader].members(shard) else { return Ok(()) };
        if !members.outgoing.is_empty() {
            return Ok(());
        }
        match members.learners.first() {
            Some(&learner) => self.promote(shard, leader, &members, learner),
            None if !self.is_healing() => self.let_in(shard, leader, &members)?,
            None => {}
        }
        Ok(())
    }

    fn remove_let_go(&mut self, shard: u16) {
        for node in 0..self.nodes.len() {
            let here = self.nodes[node].replica_id(shard);
            if here.is_some_and(|replica| self.groups[usize::from(shard)].was_let_go(replica)) {
                self.note("let go", [node as u64, u64::from(shard), 0]);
                self.nodes[node].forget(shard);
            }
        }
    }

    fn promote(&mut self, shard: u16, leader: usize, members: &Members, learner: u64) {
        let own = self.nodes[leader].replica_id(shard);
        let others: Vec<u64> =
            members.voters.iter().copied().filter(|id| Some(*id) != own).collect();
        if others.is_empty() || !self.nodes[leader].has_caught_up(shard, learner) {
            return;
        }
        let victim = *self.rng.pick(&others);
        let swap = [Change::AddVoter(learner), Change::Remove(victim)];
        if self.nodes[leader].change_members(shard, &swap) {
            self.note("swap", [u64::from(shard), learner, victim]);
        }
    }

    fn let_in(&mut self, shard: u16, leader: usize, members: &Members) -> Result<(), Violation> {
        let busy: BTreeSet<usize> = all(members).map(node_of).collect();
        let free: Vec<usize> = (0..self.nodes.len()).filter(|node| !busy.contains(node)).collect();
        if free.is_empty() {
            return Ok(());
        }
        let node = *self.rng.pick(&free);
        let Some(replica) = self.nodes[node].join(shard, self.now)? else { return Ok(()) };
        if self.nodes[leader].change_members(shard, &[Change::AddLearner(replica)]) {
            self.note("let in", [u64::from(shard), replica, 0]);
        }
        Ok(())
    }
}
