//! The faults of a run, and their end.

use super::{Happening, World};
use crate::invariants::Violation;
use crate::sabotage::ASTRAY;

/// How long a group may still shrink to a single voter after this was planned.
const SINGLE_MS_MAX: u64 = 10_000;

impl World {
    pub(super) fn fault(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(100) {
            0..22 => self.crash(node),
            22..26 => (0..self.nodes.len()).for_each(|node| self.crash(node)),
            26..44 => {
                self.note("cut", [0; 3]);
                self.network.cut(self.nodes.len(), self.wakes.len());
            }
            44..60 => self.network.heal_cuts(),
            60..70 => self.jump(node),
            70..77 => {
                let ms = self.rng.between(500, 6_000);
                self.note("slow disk", [node as u64, ms, 0]);
                self.nodes[node].slow_until = self.now + ms;
            }
            77..80 => {
                self.note("failing disk", [node as u64, 0, 0]);
                self.nodes[node].disk_fails = true;
            }
            80..85 => self.lose(node),
            85..92 => {
                let ms = self.rng.between(200, 5_000);
                self.note("pause", [node as u64, ms, 0]);
                self.nodes[node].paused_until = self.now + ms;
            }
            _ => {
                let group = self.rng.below(u64::from(self.options.shards) + 1);
                let to = *self.rng.pick(&self.groups[group as usize].newest().voters);
                self.note("transfer", [node as u64, group, to]);
                self.nodes[node].transfer(group, to);
            }
        }
    }

    /// Sets a clock wrong by minutes, in either direction.
    fn jump(&mut self, node: usize) {
        let jump = self.rng.between(0, 600_000) as i64 - 300_000;
        self.note("clock", [node as u64, jump.unsigned_abs(), 0]);
        let offset = &mut self.nodes[node].wall_offset;
        *offset = (*offset + jump).clamp(-3_600_000, 180_000);
    }

    pub(super) fn crash(&mut self, node: usize) {
        if self.nodes[node].is_up() {
            self.note("crash", [node as u64, 0, 0]);
            self.nodes[node].crash();
            self.went_down(node);
        }
    }

    /// Schedules the restart of a process that has ended.
    pub(super) fn went_down(&mut self, node: usize) {
        self.crashes += 1;
        let after_ms = self.rng.between(50, 4_000);
        self.at(after_ms, Happening::Restart { node });
    }

    /// Loses a disk for good, and with it the node; a new node replaces it.
    fn lose(&mut self, node: usize) {
        if self.may_lose(node) {
            self.note("lost", [node as u64, 0, 0]);
            self.nodes[node].crash();
            self.lost[node] = true;
            self.losses += 1;
            let after_ms = self.rng.between(100, 8_000);
            self.add_node(after_ms);
        }
    }

    /// Handles a node that stopped because its state differs from a majority's. Only the sabotaged
    /// node may do so; it is given up, and a new node replaces it.
    pub(super) fn stopped(&mut self, node: usize, why: &str) -> Result<(), Violation> {
        self.note("stopped", [node as u64, 0, 0]);
        if !self.options.sabotage.leads_astray() || node != ASTRAY {
            return Err(format!("node {node} stops and is right: {why}"));
        }
        self.nodes[node].crash();
        self.lost[node] = true;
        self.stopped += 1;
        self.add_node(1_000);
        Ok(())
    }

    /// Whether a disk may be lost now. No promise survives the loss of a majority of disks, so that
    /// only one is lost at a time, after every group has had three or more voters for a while.
    pub(super) fn may_lose(&self, node: usize) -> bool {
        let control = self.oracle.control.newest();
        let is_lost = |place: &str| place.parse().is_ok_and(|place: usize| self.lost[place]);
        let safe = |group: u64| {
            let members = self.groups[group as usize].newest();
            let on_lost = |replica: &u64| {
                let place = self.oracle.control.place_of(group, *replica);
                place.is_none_or(|place| self.lost[place])
            };
            members.outgoing.is_empty()
                && members.voters.len() >= 3
                && control.target(group).len() >= 3
                && !members.voters.iter().any(on_lost)
        };
        // A snapshot of the sabotaged replica would count as right if one disk less disagreed.
        !self.options.sabotage.leads_astray()
            && !self.lost[node]
            && !self.nodes[node].retired
            && self.now > self.single_at + SINGLE_MS_MAX
            && !control.nodes().values().any(|node| is_lost(&node.address))
            && !control
                .nodes()
                .keys()
                .any(|id| control.has_given_up(*id) || self.mistaken.contains(id))
            && (0..=u64::from(self.options.shards)).all(safe)
    }

    pub(super) fn heal(&mut self) {
        self.note("heal", [0; 3]);
        self.healing = true;
        self.network.heal();
        self.workload.drain();
        self.oracle.heal();
        let newest = self.nodes.iter().map(|node| node.rules_max).max().unwrap_or_default();
        for node in 0..self.nodes.len() {
            // An operator who has begun an upgrade finishes it.
            if self.nodes[node].rules_max < newest {
                self.crash(node);
                self.nodes[node].rules_max = newest;
            }
            self.nodes[node].heal();
            self.at(1, Happening::Restart { node });
        }
    }
}
