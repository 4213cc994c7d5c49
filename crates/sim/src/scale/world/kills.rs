//! Kills: failures of nodes and their return.

use super::{Happening, World};
use crate::scale::node::Input;
use crate::scale::outages::Cause;
use crate::scale::params::{MILLI, Micros, SECOND, Victim};

/// How long workers of a killed gateway need to find another one.
const RECONNECT: Micros = SECOND;
/// The time from a node's return until it gets its leaders back.
const HOME_AFTER: Micros = 2 * SECOND;

impl World {
    pub(super) fn kill(&mut self) {
        let victims: Vec<usize> = match self.params.victim {
            Victim::Node => {
                let leads =
                    |node: &usize| self.leaders.iter().skip(1).any(|leader| *leader == Some(*node));
                let leading: Vec<usize> = (0..self.nodes.len()).filter(leads).collect();
                vec![*self.rng.pick(&leading)]
            }
            Victim::ControlLeader => self.leaders[0].into_iter().collect(),
            Victim::Zone => {
                let zone = self.rng.below(self.params.zones as u64) as usize;
                (0..self.nodes.len()).filter(|&node| self.params.zone(node) == zone).collect()
            }
        };
        for &victim in &victims {
            self.nodes[victim].up = false;
            for group in 0..self.leaders.len() {
                if self.leaders[group] == Some(victim) {
                    let cause = if group == 0 { Cause::ControlKill } else { Cause::Kill };
                    self.outages.begin(group as u64, cause, self.now);
                }
            }
        }
        let up: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].up).collect();
        for victim in victims {
            let workers = self.workers.leave(victim, &up);
            self.at(self.now + RECONNECT, Happening::Reconnect { workers });
            if self.params.victim != Victim::Zone {
                let back_at = self.now + self.params.down_ms * MILLI;
                self.at(back_at, Happening::Revive { node: victim });
            }
        }
    }

    pub(super) fn revive(&mut self, node: usize) {
        self.nodes[node].up = true;
        self.at(self.now + HOME_AFTER, Happening::GoHome { node });
        if std::mem::take(&mut self.nodes[node].stalled) {
            self.turn_over(node);
        } else {
            self.turn(node);
        }
    }

    /// Hands a node's leaders back to it one by one, as the planner would.
    pub(super) fn go_home(&mut self, node: usize) {
        for group in 0..self.homes.len() {
            let Some(leader) = self.leaders[group] else { continue };
            if self.homes[group] != node || leader == node {
                continue;
            }
            let host = self.nodes[leader].host(group as u64);
            if let Some(to) = host.and_then(|host| host.replica_on(node)) {
                self.outages.begin(group as u64, Cause::Handover, self.now);
                self.bring(leader, Input::Transfer { group: group as u64, to });
            }
        }
    }
}
