//! The lines of a flow's picture: each is a node, or many similar nodes.
//!
//! Nodes are similar if they have the same type and queue, and similar parents and children.
//! Similar nodes are at the same depth of the flow, so that lines never wait for each other,
//! however nodes are folded.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use taskyard::{TaskState, flow::FlowDetails};

/// This many similar nodes become one line.
const FOLD_MIN: usize = 5;

/// The parts of a node that a picture needs.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) queue: String,
    pub(super) state: TaskState,
    /// The number of unfinished tasks that the node added.
    pub(super) added_open: u32,
    pub(super) error: Option<String>,
    /// Positions of the nodes above this one in the picture.
    pub(super) parents: Vec<usize>,
}

/// One line of a picture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Positions of the nodes of this line.
    pub(super) members: Vec<usize>,
    /// Positions of the lines above this one.
    pub(super) parents: Vec<usize>,
}

/// The nodes of a flow. A node is drawn before the nodes that it added, and these before its
/// dependents, because the dependents wait for them too.
pub(super) fn items(flow: &FlowDetails) -> Vec<Item> {
    let places: HashMap<&str, usize> =
        flow.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
    let adders: Vec<Option<usize>> = flow
        .nodes
        .iter()
        .map(|node| node.added_by.as_deref().and_then(|name| places.get(name).copied()))
        .collect();
    let parents: Vec<Vec<usize>> = flow
        .nodes
        .iter()
        .map(|node| {
            let named = node.depends_on.iter().map(|parent| parent.name.as_str());
            named.filter_map(|name| places.get(name).copied()).collect()
        })
        .collect();
    let parents = drawn_after(&parents, &adders);
    let item = |(node, parents): (&taskyard::flow::NodeDetails, Vec<usize>)| Item {
        name: node.name.clone(),
        kind: node.kind.clone(),
        queue: node.queue.clone(),
        state: node.state,
        added_open: node.added_open,
        error: node.error.as_ref().map(ToString::to_string),
        parents,
    };
    flow.nodes.iter().zip(parents).map(item).collect()
}

/// The nodes above each node in the picture, from its parents and the node that added it.
fn drawn_after(depends_on: &[Vec<usize>], adders: &[Option<usize>]) -> Vec<Vec<usize>> {
    let has_dependents: BTreeSet<usize> = depends_on.iter().flatten().copied().collect();
    // The last nodes that each node added: those without dependents.
    let mut added_last: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (node, adder) in adders.iter().enumerate() {
        if let Some(adder) = adder.filter(|_| !has_dependents.contains(&node)) {
            added_last.entry(adder).or_default().push(node);
        }
    }
    // The ends of a node: the node itself, or the ends of the nodes that it added.
    let ends = |node: usize| {
        let mut ends = BTreeSet::new();
        let mut work = vec![node];
        while let Some(node) = work.pop() {
            match added_last.get(&node) {
                Some(added) => work.extend(added),
                None => drop(ends.insert(node)),
            }
        }
        ends
    };
    let mut known: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut after = Vec::with_capacity(depends_on.len());
    for (node, parents) in depends_on.iter().enumerate() {
        let mut drawn: BTreeSet<usize> = BTreeSet::new();
        for &parent in parents {
            drawn.extend(known.entry(parent).or_insert_with(|| ends(parent)).iter().copied());
        }
        // A node after another addition of the same node comes after that node already.
        let follows = parents.iter().any(|&parent| adders[parent] == adders[node]);
        if let Some(adder) = adders[node].filter(|_| !follows) {
            drawn.insert(adder);
        }
        after.push(drawn.into_iter().collect());
    }
    after
}

/// Each node as its own line.
pub(super) fn unfolded(items: &[Item]) -> Vec<Row> {
    let row =
        |(index, item): (usize, &Item)| Row { members: vec![index], parents: item.parents.clone() };
    items.iter().enumerate().map(row).collect()
}

/// Many similar nodes as one line.
pub(super) fn folded(items: &[Item]) -> Vec<Row> {
    let order = order(&items.iter().map(|item| &*item.parents).collect::<Vec<_>>());
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    for (index, item) in items.iter().enumerate() {
        item.parents.iter().for_each(|&parent| children[parent].push(index));
    }
    // Similar by parents, then also by children.
    let mut before: Vec<usize> = vec![0; items.len()];
    let mut kinds = HashMap::new();
    for &index in &order {
        let item = &items[index];
        let parents: BTreeSet<usize> = item.parents.iter().map(|&parent| before[parent]).collect();
        let next = kinds.len();
        before[index] = *kinds.entry((&item.kind, &item.queue, parents)).or_insert(next);
    }
    let mut alike: Vec<usize> = vec![0; items.len()];
    let mut kinds = HashMap::new();
    for &index in order.iter().rev() {
        let after: BTreeSet<usize> = children[index].iter().map(|&child| alike[child]).collect();
        let next = kinds.len();
        alike[index] = *kinds.entry((before[index], after)).or_insert(next);
    }
    let mut counts: HashMap<usize, usize> = HashMap::new();
    alike.iter().for_each(|kind| *counts.entry(*kind).or_default() += 1);

    let mut rows: Vec<Row> = Vec::new();
    let mut shared: HashMap<usize, usize> = HashMap::new();
    let mut row_of: Vec<usize> = vec![0; items.len()];
    for index in 0..items.len() {
        let kind = alike[index];
        let row = match shared.get(&kind) {
            Some(&row) => row,
            None => {
                rows.push(Row { members: Vec::new(), parents: Vec::new() });
                if counts[&kind] >= FOLD_MIN {
                    shared.insert(kind, rows.len() - 1);
                }
                rows.len() - 1
            }
        };
        rows[row].members.push(index);
        row_of[index] = row;
    }
    for row in &mut rows {
        let parents = row.members.iter().flat_map(|&member| &items[member].parents);
        let parents: BTreeSet<usize> = parents.map(|&parent| row_of[parent]).collect();
        row.parents = parents.into_iter().collect();
    }
    rows
}

/// An order in which each line comes after its parents, and as soon as possible, so that branches
/// are drawn one after the other.
pub(super) fn order(parents: &[&[usize]]) -> Vec<usize> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    let mut waits_for: Vec<usize> = parents.iter().map(|parents| parents.len()).collect();
    for (index, parents) in parents.iter().enumerate() {
        parents.iter().for_each(|&parent| children[parent].push(index));
    }
    let mut next: Vec<usize> = (0..parents.len()).rev().filter(|&at| waits_for[at] == 0).collect();
    let mut order = Vec::with_capacity(parents.len());
    while let Some(index) = next.pop() {
        order.push(index);
        for &child in children[index].iter().rev() {
            waits_for[child] -= 1;
            if waits_for[child] == 0 {
                next.push(child);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, kind: &str, parents: &[usize]) -> Item {
        Item {
            name: name.to_owned(),
            kind: kind.to_owned(),
            queue: "q".to_owned(),
            state: TaskState::Ready,
            added_open: 0,
            error: None,
            parents: parents.to_vec(),
        }
    }

    #[test]
    fn many_equal_children_are_one_line() {
        let mut items = vec![item("split", "split", &[])];
        items.extend((1..=1_000).map(|n| item(&format!("part-{n}"), "part", &[0])));
        items.push(item("join", "join", &(1..=1_000).collect::<Vec<_>>()));
        let rows = folded(&items);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].members.len(), 1_000);
        assert_eq!((&rows[1].parents, &rows[2].parents), (&vec![0], &vec![1]));
        assert_eq!(unfolded(&items).len(), 1_002);
    }

    #[test]
    fn equal_branches_fold_step_by_step() {
        let mut items = vec![item("start", "start", &[])];
        for n in 0..6 {
            items.push(item(&format!("a-{n}"), "a", &[0]));
            items.push(item(&format!("b-{n}"), "b", &[1 + 2 * n]));
        }
        let rows = folded(&items);
        assert_eq!(rows.iter().map(|row| row.members.len()).collect::<Vec<_>>(), [1, 6, 6]);
        assert_eq!(rows[2].parents, [1]);
    }

    #[test]
    fn few_or_different_nodes_stay_by_themselves() {
        let mut items: Vec<Item> = (0..4).map(|n| item(&format!("a-{n}"), "a", &[])).collect();
        assert_eq!(folded(&items).len(), 4);
        // One of the six nodes has a child, so that it is not similar to the others.
        items.extend((4..7).map(|n| item(&format!("a-{n}"), "a", &[])));
        items.push(item("b", "b", &[6]));
        assert_eq!(folded(&items).len(), 3);
    }

    #[test]
    fn a_long_chain_of_one_type_stays_a_chain() {
        let chain: Vec<Item> = (0..10_000_usize)
            .map(|n| item(&n.to_string(), "a", n.checked_sub(1).as_slice()))
            .collect();
        assert_eq!(folded(&chain).len(), 10_000);
    }

    #[test]
    fn added_nodes_stand_between_their_adder_and_its_dependents() {
        // 0 added 2 and 3, 3 after 2; 1 comes after 0. 2 added 4.
        let depends_on = [vec![], vec![0], vec![], vec![2], vec![]];
        let adders = [None, None, Some(0), Some(0), Some(2)];
        let after = drawn_after(&depends_on, &adders);
        assert_eq!(after, [vec![], vec![3], vec![0], vec![4], vec![2]]);
    }

    #[test]
    fn branches_are_told_one_after_the_other() {
        let parents: [&[usize]; 6] = [&[], &[0], &[0], &[1], &[2], &[3, 4]];
        assert_eq!(order(&parents), [0, 1, 3, 2, 4, 5]);
    }
}
