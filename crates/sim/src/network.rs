//! Network: what becomes of a message: delayed, so that messages overtake each other; lost;
//! delivered twice; or held up by a cut, which may let one direction through.

use crate::rng::Rng;
use std::collections::BTreeSet;

/// Who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    Node(usize),
    Client(usize),
}

/// How messages fare between the parties of one run.
#[derive(Debug)]
pub(crate) struct Network {
    rng: Rng,
    /// Directions that let nothing through.
    cut: BTreeSet<(Party, Party)>,
    lost_per_mille: u64,
    twice_per_mille: u64,
    late_per_mille: u64,
}

impl Network {
    /// A network of its own kind: some lose a lot, some only delay.
    pub(crate) fn new(mut rng: Rng, faults: bool) -> Network {
        let mut up_to = |per_mille: u64| if faults { rng.below(per_mille + 1) } else { 0 };
        let (lost_per_mille, twice_per_mille, late_per_mille) = (up_to(60), up_to(60), up_to(120));
        Network { rng, cut: BTreeSet::new(), lost_per_mille, twice_per_mille, late_per_mille }
    }

    /// After how many ms each copy of a message arrives; empty if it is lost.
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

    /// Cuts something: one node off from all others, the nodes into two sides, or the link between two
    /// nodes that both still reach the rest. Half of the time beside the cuts that there are.
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

    /// Clients stay with the node now and then, so that a cut-off leader is still asked.
    fn cut_off(&mut self, node: usize, nodes: usize, clients: usize) {
        let mut others: Vec<Party> =
            (0..nodes).filter(|&other| other != node).map(Party::Node).collect();
        if self.rng.chance(500) {
            others.extend((0..clients).map(Party::Client));
        }
        self.between(&[Party::Node(node)], &others);
    }

    /// Everybody is on one of two sides.
    fn split(&mut self, nodes: usize, clients: usize) {
        let everybody = (0..nodes).map(Party::Node).chain((0..clients).map(Party::Client));
        let (left, right): (Vec<_>, Vec<_>) = everybody.partition(|_| self.rng.chance(500));
        self.between(&left, &right);
    }

    /// Cuts what these send to those, what those send to these, or both.
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

    /// From here on everything arrives, once and soon.
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

    /// Of five nodes: how many pairs are cut both ways, and who is cut off from everybody.
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
