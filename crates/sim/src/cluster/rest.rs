//! Rest: when a healed cluster is at rest, and what must then be true: each group has one leader,
//! replicas are where the planner wants them and equal byte for byte, and every task has ended.

use super::World;
use crate::invariants::Violation;
use crate::node::{Node, group_of};
use crate::shard::first_difference;
use taskyard_replica::{Control, NodeId, Seen};

impl World {
    pub(super) fn check_states(&mut self) -> Result<(), Violation> {
        for node in &self.nodes {
            for shard in 0..self.options.shards {
                node.check(shard)
                    .map_err(|what| format!("node {}, shard {shard}: {what}", node.id()))?;
            }
        }
        Ok(())
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.workload.is_quiet() && self.unrest().is_empty()
    }

    /// The first thing that is not at rest, in words; empty if everything is.
    pub(super) fn unrest(&self) -> String {
        if let Some(schedule) = self.oracle.stuck_schedule() {
            return format!("schedule {schedule} does not fire");
        }
        for group in 0..=u64::from(self.options.shards) {
            let leaders =
                self.nodes.iter().filter(|node| node.group_report(group).is_some()).count();
            if leaders != 1 {
                return format!("group {group} has {leaders} leaders");
            }
        }
        let map = self.unrest_of_map();
        if !map.is_empty() {
            return map;
        }
        if !self.workload.is_quiet() {
            return "clients still hold tasks".into();
        }
        (0..self.options.shards)
            .map(|shard| self.unrest_of(shard))
            .find(|it| !it.is_empty())
            .unwrap_or_default()
    }

    fn unrest_of(&self, shard: u16) -> String {
        let members = self.members(group_of(shard));
        for node in &members {
            let unrest = node.unrest(shard);
            if !unrest.is_empty() {
                return format!("node {}, shard {shard}: {unrest}", node.id());
            }
        }
        let applied: Vec<u64> = members.iter().map(|node| node.applied(group_of(shard))).collect();
        if applied.iter().any(|index| *index != applied[0]) {
            return format!("shard {shard} is applied up to {applied:?}");
        }
        String::new()
    }

    /// Checks that the map is what the planner wants, and that every node has it.
    fn unrest_of_map(&self) -> String {
        let control = self.oracle.control.newest();
        let places: Vec<usize> =
            control.nodes().values().filter_map(|node| node.address.parse().ok()).collect();
        for (place, node) in self.nodes.iter().enumerate() {
            let is_in = places.contains(&place);
            let belongs = self.is_in_use(place);
            if is_in != belongs {
                return format!("node {place} is in the map: {is_in}, but in use: {belongs}");
            }
            if belongs && node.control() != Some(control) {
                return format!("node {place} has another map");
            }
        }
        if let Some(id) = control.nodes().keys().find(|id| control.has_given_up(**id)) {
            return format!("node number {id} was given up and is in the map");
        }
        let steps = control.next_steps(&self.seen());
        if steps.is_empty() { String::new() } else { format!("the planner wants {steps:?}") }
    }

    /// Whether a node belongs to the cluster, or will. A node that was removed while it was down
    /// may know no other node that could tell it.
    pub(super) fn is_in_use(&self, place: usize) -> bool {
        let node = &self.nodes[place];
        let control = self.oracle.control.newest();
        let leaves = |id: NodeId| control.was_removed(id) || control.has_given_up(id);
        !node.retired && !self.lost[place] && !node.disk.node().is_some_and(leaves)
    }

    /// The truth about the cluster, which no single node can see.
    fn seen(&self) -> Seen {
        let control = self.oracle.control.newest();
        let report = |group: u64| self.nodes.iter().find_map(|node| node.group_report(group));
        let groups = 0..=u64::from(self.options.shards);
        let lives = |id: &NodeId| {
            let place = control.nodes().get(id).and_then(|node| node.address.parse().ok());
            place.is_some_and(|place: usize| self.nodes[place].is_up())
        };
        let nodes = || control.nodes().keys().copied();
        Seen {
            groups: groups.filter_map(|group| Some((group, report(group)?.seen))).collect(),
            alive: nodes().filter(|id| lives(id)).collect(),
            gone: nodes().filter(|id| !lives(id)).collect(),
            ..Seen::default()
        }
    }

    /// The nodes with the voters of a group.
    fn members(&self, group: u64) -> Vec<&Node> {
        let voters = self.groups[group as usize].newest().voters.iter();
        let places = voters.filter_map(|replica| self.oracle.control.place_of(group, *replica));
        places.map(|place| &self.nodes[place]).collect()
    }

    pub(super) fn check_end(&mut self) -> Result<(), Violation> {
        self.check_states()?;
        for shard in 0..self.options.shards {
            let members = self.members(group_of(shard));
            let first = members[0].machine(shard).ok_or("a node is down")?;
            let records = first.records();
            for node in &members {
                let machine = node.machine(shard).ok_or("a node is down")?;
                self.oracle.check_present(shard, machine)?;
                self.oracle.check_schedules(shard, machine)?;
                let other = machine.records();
                if records != other {
                    let difference = first_difference(&records, &other);
                    let (left, right) = (members[0].id(), node.id());
                    return Err(format!(
                        "nodes {left} and {right} differ on shard {shard}: {difference}"
                    ));
                }
            }
        }
        let in_use = (0..self.nodes.len()).filter(|&place| self.is_in_use(place));
        let maps = in_use.filter_map(|place| self.nodes[place].control().map(Control::encode));
        let maps: Vec<Vec<u8>> = maps.collect();
        if maps.iter().any(|map| *map != maps[0]) {
            return Err("nodes differ in their maps".into());
        }
        self.oracle.check_end()
    }
}
