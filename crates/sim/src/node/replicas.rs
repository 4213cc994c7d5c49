//! The replicas of a node: those that its own copy of the map names. A node asks to join, reports
//! to the control group's leader, and leaves when it was removed.
//!
//! Invariant: the map may be old, because a starting node reads it from the beginning of its log. A
//! replica that the map does not know yet therefore stays, and an earlier replica of this node does
//! not come back.

use super::{Life, Node, Peer, group_of};
use crate::control::{GroupReport, Status};
use crate::invariants::Violation;
use crate::sabotage::Sabotage;
use taskyard_replica::{Change, Control, NodeId};

/// The interval at which a node reports, or asks to join.
const STATUS_MS: u64 = 200;

impl Node {
    /// Creates and removes replicas as the map says.
    pub(super) fn follow_map(&mut self, now: u64) -> Result<(), Violation> {
        let Some(node) = self.disk.node() else { return Ok(()) };
        let Some(control) = self.control() else { return Ok(()) };
        if control.was_removed(node) {
            self.retire();
            return Ok(());
        }
        let reuses = self.config.sabotage == Sabotage::ReplicaIdsReused;
        let (mut ended, mut begun) = (Vec::new(), Vec::new());
        for shard in 0..self.config.shards {
            let group = group_of(shard);
            let named = control.replica_on(group, node);
            let here = self.disk.replica(group);
            let over = here.filter(|&here| is_over(control, group, here, node));
            let new = named.filter(|&named| reuses || !self.disk.has_held(group, named));
            if over.is_some() {
                ended.push(shard);
            }
            if let (Some(new), true) = (new, here.is_none() || over.is_some()) {
                begun.push((shard, new));
            }
        }
        ended.into_iter().for_each(|shard| self.forget(shard));
        for (shard, replica) in begun {
            self.disk.assign(group_of(shard), replica);
            self.output.lives.push((group_of(shard), replica, Life::Begun));
            let host = self.open(shard, now)?;
            self.process.as_mut().map(|process| process.hosts.insert(shard, host));
        }
        Ok(())
    }

    /// Removes a replica that is no longer in the map, with all its data.
    fn forget(&mut self, shard: u16) {
        let group = group_of(shard);
        self.end(group);
        self.before_crash.remove(&shard);
        if let Some(process) = &mut self.process {
            process.hosts.remove(&shard);
            for (_, readies) in &mut process.in_flight {
                readies.retain(|(of, _)| *of != group);
            }
        }
    }

    fn end(&mut self, group: u64) {
        let ended = self.disk.replica(group).map(|replica| (group, replica, Life::Ended));
        self.output.lives.extend(ended);
        self.disk.forget(group);
    }

    /// Ends a removed node for good.
    pub(super) fn retire(&mut self) {
        (0..self.config.shards).for_each(|shard| self.forget(shard));
        self.end(0);
        self.retired = true;
        self.boot += 1;
        self.process = None;
    }

    /// Asks to join, or reports.
    pub(super) fn report(&mut self, now: u64) {
        let due = self.process.as_ref().is_some_and(|process| now >= process.reports_at);
        let (Some(process), true) = (&mut self.process, due) else { return };
        process.reports_at = now + STATUS_MS;
        let Some(node) = self.disk.node() else {
            let to = self.rng.below(self.places_max as u64) as usize;
            let join = Peer::Join { place: self.config.id, rules_max: self.rules_max };
            self.output.peers.push((to, join));
            return;
        };
        let Some(control) = &process.control else { return };
        if control.leads() {
            return;
        }
        let leader = control.leader().and_then(|replica| self.route(0, replica));
        // A removed node may follow a node that has long forgotten it.
        let places = self.places();
        let to = leader.filter(|_| !self.rng.chance(200)).unwrap_or(*self.rng.pick(&places));
        let status = self.status(node, now);
        self.output.peers.push((to, Peer::Status(Box::new(status))));
    }

    pub(super) fn status(&self, node: NodeId, now: u64) -> Status {
        let process = self.process.iter();
        let shards = process.clone().flat_map(|process| &process.hosts);
        let shards = shards.map(|(&shard, host)| (group_of(shard), GroupReport::by(&host.replica)));
        let control = process.filter_map(|process| process.control.as_ref());
        let control = control.map(|control| (0, GroupReport::by(&control.replica)));
        let leads = control.chain(shards).filter_map(|(group, report)| Some((group, report?)));
        let rules_max = self.config.sabotage.of_reported_rules(self.rules_max);
        Status { node, at: now, rules_max, leads: leads.collect() }
    }

    /// Gives a node its number and its first replica.
    pub(super) fn welcome(&mut self, node: NodeId, replica: u64) -> Result<(), Violation> {
        if self.disk.node().is_none() {
            self.disk.enter(node);
            self.disk.assign(0, replica);
            let control = self.open_control()?;
            self.process.as_mut().map(|process| process.control.insert(control));
        }
        Ok(())
    }

    pub(crate) fn control(&self) -> Option<&Control> {
        self.process.as_ref()?.control.as_ref().map(|control| control.state())
    }

    /// This node's report about a group, if it leads the group.
    pub(crate) fn group_report(&self, group: u64) -> Option<GroupReport> {
        let process = self.process.as_ref()?;
        match group.checked_sub(1) {
            None => GroupReport::by(&process.control.as_ref()?.replica),
            Some(shard) => GroupReport::by(&process.hosts.get(&(shard as u16))?.replica),
        }
    }

    /// The last index that the state of a group has applied here.
    pub(crate) fn applied(&self, group: u64) -> u64 {
        let process = self.process.as_ref();
        let applied = process.and_then(|process| match group.checked_sub(1) {
            None => process.control.as_ref().map(|control| control.replica.applied()),
            Some(shard) => process.hosts.get(&(shard as u16)).map(|host| host.replica.applied()),
        });
        applied.unwrap_or(0)
    }

    /// Proposes a change of members, unless the members have changed since it was planned.
    pub(super) fn change_members(&mut self, group: u64, fence: (u64, u64), changes: &[Change]) {
        if self.group_report(group).map(|report| (report.term, report.since)) != Some(fence) {
            return;
        }
        let Some(process) = &mut self.process else { return };
        // Refused while another change is in progress; then it is planned again.
        let _ = match group.checked_sub(1).map(|shard| shard as u16) {
            None => process.control.as_mut().map(|it| it.replica.propose_conf_change(changes)),
            Some(shard) => {
                let host = process.hosts.get_mut(&shard);
                host.map(|host| host.replica.propose_conf_change(changes))
            }
        };
    }

    /// Passes a request to join to the leader of the control group, which alone can accept it.
    pub(super) fn let_in(&mut self, place: usize, rules_max: u16) {
        let Some(process) = &mut self.process else { return };
        let Some(control) = &mut process.control else { return };
        if control.leads() {
            control.let_in(place, rules_max, &mut self.output);
            return;
        }
        let leader = control.leader().and_then(|replica| self.route(0, replica));
        self.output.peers.extend(leader.map(|to| (to, Peer::Join { place, rules_max })));
    }

    pub(super) fn hear(&mut self, from: usize, status: Status, now: u64) {
        let Some(control) = self.control_mut() else { return };
        if control.state().was_removed(status.node) {
            self.output.peers.push((from, Peer::Removed { node: status.node }));
            return;
        }
        control.hear(status, now);
    }
}

/// Whether the map once had a replica on this node and no longer has it.
fn is_over(control: &Control, group: u64, replica: u64, node: NodeId) -> bool {
    replica < control.replica_next(group) && control.replica_on(group, node) != Some(replica)
}
