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

    /// Cuts a node off from the others: both ways, only what it sends, or only what it receives.
    /// Clients stay with it now and then, so that a cut-off leader is still asked.
    pub(crate) fn cut_off(&mut self, node: usize, nodes: usize, clients: usize) {
        let directions = self.rng.below(3);
        let mut others: Vec<Party> =
            (0..nodes).filter(|&other| other != node).map(Party::Node).collect();
        if self.rng.chance(500) {
            others.extend((0..clients).map(Party::Client));
        }
        for other in others {
            if directions != 1 {
                self.cut.insert((Party::Node(node), other));
            }
            if directions != 2 {
                self.cut.insert((other, Party::Node(node)));
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
}
