//! The account of the control group: its entries are the same everywhere, and its map is sound.
//!
//! Invariants: each term has one leader; a committed entry never changes; states are equal after
//! the same entry; a replica id is used once; a node has one replica of a group; a number belongs
//! to one node.

use super::Violation;
use crate::control::Decided;
use crate::rng::hash;
use std::collections::{BTreeMap, BTreeSet};
use taskyard_replica::{Control, NodeId};

#[derive(Debug, Default)]
pub(crate) struct ControlAccount {
    /// For each index: the term, and hashes of the entry and of the state after it.
    committed: BTreeMap<u64, (u64, u64, u64)>,
    leaders: BTreeMap<u64, u64>,
    /// The newest state of any replica.
    newest: Control,
    /// The node of every replica that ever existed, by group.
    homes: BTreeMap<(u64, u64), NodeId>,
    /// Replicas that were removed from the map.
    ended: BTreeSet<(u64, u64)>,
    /// The place of every node that ever existed.
    places: BTreeMap<NodeId, usize>,
    removed: BTreeSet<NodeId>,
    /// Nodes that were given up, removed or not.
    pub(crate) given_up: BTreeSet<NodeId>,
}

impl ControlAccount {
    pub(crate) fn newest(&self) -> &Control {
        &self.newest
    }

    /// The present or past place of a replica. The first replica of a group is at the founder's
    /// place.
    pub(crate) fn place_of(&self, group: u64, replica: u64) -> Option<usize> {
        match self.homes.get(&(group, replica)) {
            Some(node) => self.places.get(node).copied(),
            None => (replica == 1).then_some(0),
        }
    }

    pub(crate) fn leads(&mut self, term: u64, replica: u64) -> Result<(), Violation> {
        let leader = *self.leaders.entry(term).or_insert(replica);
        if leader != replica {
            return Err(format!(
                "replicas {leader} and {replica} both lead the control group in term {term}"
            ));
        }
        Ok(())
    }

    /// Checks an applied entry. The first replica to apply it sets its meaning.
    pub(crate) fn applied(
        &mut self,
        place: usize,
        index: u64,
        term: u64,
        decided: &Decided,
    ) -> Result<(), Violation> {
        let at = || format!("node {place}, control group, entry {index}");
        let committed = (term, hash(&decided.data), hash(&decided.after.encode()));
        if let Some(first) = self.committed.get(&index) {
            if (first.0, first.1) != (committed.0, committed.1) {
                return Err(format!("{}: a committed entry changed", at()));
            }
            if first.2 != committed.2 {
                return Err(format!("{}: replicas' states differ", at()));
            }
            return Ok(());
        }
        if self.committed.keys().next_back().is_some_and(|&last| last > index) {
            return Err(format!("{}: an entry appeared behind the last one", at()));
        }
        self.committed.insert(index, committed);
        self.judge(&decided.after).map_err(|violation| format!("{}: {violation}", at()))?;
        self.newest = decided.after.clone();
        Ok(())
    }

    fn judge(&mut self, after: &Control) -> Result<(), Violation> {
        if after.rules() < self.newest.rules() {
            return Err(format!("rules fell from {} to {}", self.newest.rules(), after.rules()));
        }
        for (&id, node) in after.nodes() {
            if after.has_given_up(id) {
                self.given_up.insert(id);
                continue;
            }
            let place = node.address.parse().map_err(|_| format!("node {id} has no place"))?;
            if self.given_up.contains(&id) {
                return Err(format!("node {id} was given up and is in use again"));
            }
            if *self.places.entry(id).or_insert(place) != place || self.removed.contains(&id) {
                return Err(format!("number {id} was given to two nodes"));
            }
        }
        let gone = self.newest.nodes().keys().filter(|id| !after.nodes().contains_key(id));
        self.removed.extend(gone);
        for group in after.groups() {
            let mut nodes = BTreeSet::new();
            for at in after.replicas(group) {
                let home = *self.homes.entry((group, at.replica)).or_insert(at.node);
                if home != at.node || self.ended.contains(&(group, at.replica)) {
                    return Err(format!("replica {} of group {group} was used twice", at.replica));
                }
                if !nodes.insert(at.node) {
                    return Err(format!("node {} holds group {group} twice", at.node));
                }
            }
            let let_go = self.newest.replicas(group).iter();
            let let_go = let_go.filter(|at| !after.replicas(group).contains(at));
            self.ended.extend(let_go.map(|at| (group, at.replica)));
        }
        Ok(())
    }
}
