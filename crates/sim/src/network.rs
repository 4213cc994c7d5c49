//! Network: the fate of a message: delayed, so that messages overtake each other; lost; delivered
//! twice; or stopped by a cut, which may be open in one direction.

use crate::rng::Rng;
use std::collections::BTreeSet;

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    Node(usize),
    Client(usize),
}

/// The conditions between the parties of one run.
#[derive(Debug)]
pub(crate) struct Network {
    rng: Rng,
    /// Directions that are cut.
    cut: BTreeSet<(Party, Party)>,
    lost_per_mille: u64,
    twice_per_mille: u64,
    late_per_mille: u64,
}

impl Network {
    /// A random network: some lose many messages, some only delay.
    pub(crate) fn new(mut rng: Rng, faults: bool) -> Network {
        let mut up_to = |per_mille: u64| if faults { rng.below(per_mille + 1) } else { 0 };
        let (lost_per_mille, twice_per_mille, late_per_mille) = (up_to(60), up_to(60), up_to(120));
        Network { rng, cut: BTreeSet::new(), lost_per_mille, twice_per_mille, late_per_mille }
    }

    /// The delays in ms of all copies of a message; empty if it is lost.
    pub(crate) fn send(&mut self, from: Party, to: Party) -> Vec<u64> {
        if self.cut.contains(&(from, to)) || self.rng.chance(self.lost_per_mille) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.rng.chance(self.twice_per_mille));
        (0..copies).map(|_| self.delay()).collect()
    }

    fn delay(&mut self) -> u64 {
        let late = self.rng.chance(self.late_per_mille);
        if late { self.rng.between(20, 800) } else { self.rng.between(1, 8) }
    }

    /// Cuts something: one node from all others, the nodes into two sides, or the link between two
    /// nodes that both still reach the others. Half of the time the earlier cuts stay.
    pub(crate) fn cut(&mut self, nodes: usize, clients: usize) {
        if self.rng.chance(500) {
            self.heal_cuts();
        }
        let node = self.rng.below(nodes as u64) as usize;
        match self.rng.below(10) {
            0..4 => self.cut_off(node, nodes, clients),
            4..7 => self.split(nodes, clients),
            _ => {
                let other = self.rng.below(nodes as u64) as usize;
                self.between(&[Party::Node(node)], &[Party::Node(other)]);
            }
        }
    }

    /// Sometimes clients stay with the node, so that a leader that is cut off still gets calls.
    fn cut_off(&mut self, node: usize, nodes: usize, clients: usize) {
        let mut others: Vec<Party> =
            (0..nodes).filter(|&other| other != node).map(Party::Node).collect();
        if self.rng.chance(500) {
            others.extend((0..clients).map(Party::Client));
        }
        self.between(&[Party::Node(node)], &others);
    }

    /// Puts every party on one of two sides.
    fn split(&mut self, nodes: usize, clients: usize) {
        let everybody = (0..nodes).map(Party::Node).chain((0..clients).map(Party::Client));
        let (left, right): (Vec<_>, Vec<_>) = everybody.partition(|_| self.rng.chance(500));
        self.between(&left, &right);
    }

    /// Cuts the messages from these to those, from those to these, or both.
    fn between(&mut self, these: &[Party], those: &[Party]) {
        let directions = self.rng.below(3);
        for (&one, &other) in
            these.iter().flat_map(|one| those.iter().map(move |other| (one, other)))
        {
            if directions != 1 {
                self.cut.insert((one, other));
            }
            if directions != 2 {
                self.cut.insert((other, one));
            }
        }
    }

    pub(crate) fn heal_cuts(&mut self) {
        self.cut.clear();
    }

    /// From now on every message arrives once and soon.
    pub(crate) fn heal(&mut self) {
        self.heal_cuts();
        (self.lost_per_mille, self.twice_per_mille, self.late_per_mille) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healed_network_delivers_everything_once() {
        let mut network = Network::new(Rng::new(3), true);
        network.cut_off(0, 3, 2);
        network.heal();
        for _ in 0..1_000 {
            assert_eq!(network.send(Party::Node(0), Party::Node(1)).len(), 1);
        }
    }

    #[test]
    fn cuts_come_in_all_directions() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let mut network = Network::new(Rng::new(seed), false);
            network.cut_off(0, 3, 0);
            let out = network.send(Party::Node(0), Party::Node(1)).is_empty();
            let back = network.send(Party::Node(1), Party::Node(0)).is_empty();
            assert!(!network.send(Party::Node(1), Party::Node(2)).is_empty(), "the others talk");
            seen.insert((out, back));
        }
        assert_eq!(seen, BTreeSet::from([(true, true), (true, false), (false, true)]));
    }

    /// For five nodes: the number of pairs that are cut both ways, and the nodes cut off from all
    /// others.
    #[test]
    fn cuts_come_in_all_shapes() {
        let (mut splits, mut links, mut several) = (0, 0, 0);
        for seed in 0..200 {
            let mut network = Network::new(Rng::new(seed), false);
            network.cut(5, 0);
            let is_cut = |one: usize, other: usize| {
                let (one, other) = (Party::Node(one), Party::Node(other));
                network.cut.contains(&(one, other)) || network.cut.contains(&(other, one))
            };
            let pairs = (0..5).flat_map(|one| (0..one).map(move |other| (one, other)));
            match pairs.filter(|&(one, other)| is_cut(one, other)).count() {
                // Two against three.
                6 => splits += 1,
                1 => links += 1,
                _ => {}
            }
            let before = network.cut.clone();
            network.cut(5, 0);
            several += usize::from(network.cut.is_superset(&before) && network.cut != before);
        }
        assert!(splits > 10 && links > 10 && several > 10, "{splits} {links} {several}");
    }
}
