//! Graph: checks the shape of a flow: unique names, known dependencies, no cycle.

use crate::enqueue::{at_most_bytes, no_controls, parse_queue};
use crate::flow::Edge;
use crate::limits::{FLOW_EDGES_MAX, FLOW_NAME_BYTES_MAX, FLOW_NODES_MAX};
use crate::rejection::at_most;
use crate::{FlowNode, Rejection};
use std::collections::BTreeMap;

/// The most names that an error shows of a cycle.
const CYCLE_NAMES_SHOWN: usize = 20;

/// The names that new nodes may depend on.
pub(crate) struct Known<'a> {
    /// The number of a node that is already in the flow.
    pub(crate) existing: &'a dyn Fn(&str) -> Option<u32>,
    /// Nodes and edges that are already in the flow.
    pub(crate) nodes: u32,
    pub(crate) edges: u32,
}

/// Checks all that depends neither on the time nor on a shard's state, so that the sender of a flow
/// in parts can check the flow before sending the first part.
pub fn check_flow(nodes: &[FlowNode<'_>]) -> Result<(), Rejection> {
    if nodes.is_empty() {
        return Err(Rejection::invalid("the flow has no nodes; give at least one"));
    }
    for node in nodes {
        check_node(node)?;
    }
    resolve(nodes, &Known { existing: &|_| None, nodes: 0, edges: 0 }).map(drop)
}

/// Checks a flow's or a node's name.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Rejection> {
    at_most_bytes(what, name.len(), FLOW_NAME_BYTES_MAX)?;
    no_controls(what, name)
}

/// Checks one node by itself.
pub(crate) fn check_node(node: &FlowNode<'_>) -> Result<(), Rejection> {
    if node.name.is_empty() {
        return Err(Rejection::invalid("a node has no name; name every node of a flow"));
    }
    check_name("the name of a node", node.name)?;
    let named =
        |rejection| Rejection::InNode { node: node.name.into(), rejection: Box::new(rejection) };
    parse_queue(node.enqueue.queue).map_err(named)?;
    if node.enqueue.task.request_id.is_some() {
        let what = "it has a request_id, which might be another task's; leave it out";
        return Err(named(Rejection::invalid(what)));
    }
    if node.enqueue.task.unique.is_some() {
        let what = "it has a unique key, which another task might hold; leave it out";
        return Err(named(Rejection::invalid(what)));
    }
    node.enqueue.task.check_shape().map_err(named)
}

/// The parents of each new node by number. New nodes get the numbers after the known ones.
pub(crate) fn resolve(
    nodes: &[FlowNode<'_>],
    known: &Known<'_>,
) -> Result<Vec<Box<[Edge]>>, Rejection> {
    let total = known.nodes as usize + nodes.len();
    at_most("the number of nodes in the flow", total as u64, FLOW_NODES_MAX as u64)?;
    let edges: usize = nodes.iter().map(|node| node.depends_on.len()).sum();
    let edges = known.edges as usize + edges;
    at_most("the number of dependencies in the flow", edges as u64, FLOW_EDGES_MAX as u64)?;
    let mut numbers = BTreeMap::new();
    for (number, node) in (known.nodes..).zip(nodes) {
        if numbers.insert(node.name, number).is_some() || (known.existing)(node.name).is_some() {
            return Err(Rejection::invalid(format!(
                "two nodes of the flow are named {:?}; give each its own name",
                node.name
            )));
        }
    }
    let number = |name: &str| numbers.get(name).copied().or_else(|| (known.existing)(name));
    let parents = nodes.iter().map(|node| parents_of(node, &number));
    let parents = parents.collect::<Result<Vec<_>, _>>()?;
    check_acyclic(nodes, &parents, known.nodes)?;
    Ok(parents)
}

fn parents_of(
    node: &FlowNode<'_>,
    number: &impl Fn(&str) -> Option<u32>,
) -> Result<Box<[Edge]>, Rejection> {
    let mut seen = BTreeMap::new();
    let mut parents = Vec::with_capacity(node.depends_on.len());
    for dependency in &node.depends_on {
        let (name, on_failure) = (dependency.name, dependency.on_failure);
        if name == node.name {
            return Err(Rejection::invalid(format!("node {name:?} depends on itself")));
        }
        let Some(parent) = number(name) else {
            return Err(Rejection::invalid(format!(
                "node {:?} depends on {name:?}, which is no node of the flow",
                node.name
            )));
        };
        if seen.insert(parent, ()).is_some() {
            let text = format!("node {:?} depends on {name:?} twice", node.name);
            return Err(Rejection::invalid(text));
        }
        parents.push(Edge { node: parent, on_failure });
    }
    Ok(parents.into_boxed_slice())
}

/// Removes nodes without dependencies until nothing changes. The nodes that are left are in a cycle
/// or depend on one.
fn check_acyclic(
    nodes: &[FlowNode<'_>],
    parents: &[Box<[Edge]>],
    first: u32,
) -> Result<(), Rejection> {
    let inner = |edge: &Edge| edge.node.checked_sub(first).map(|position| position as usize);
    let mut waits_for: Vec<usize> = Vec::with_capacity(nodes.len());
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (position, edges) in parents.iter().enumerate() {
        let mut count = 0;
        for parent in edges.iter().filter_map(inner) {
            dependents[parent].push(position);
            count += 1;
        }
        waits_for.push(count);
    }
    let mut free: Vec<usize> = (0..nodes.len()).filter(|&at| waits_for[at] == 0).collect();
    let mut left = nodes.len();
    while let Some(position) = free.pop() {
        left -= 1;
        for &dependent in &dependents[position] {
            waits_for[dependent] -= 1;
            if waits_for[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    if left == 0 {
        return Ok(());
    }
    // A walk from any remaining node to a remaining parent, again and again, ends in a cycle.
    let mut at = (0..nodes.len()).find(|&at| waits_for[at] > 0).expect("some are left");
    let mut place: BTreeMap<usize, usize> = BTreeMap::new();
    let mut path = Vec::new();
    while let std::collections::btree_map::Entry::Vacant(entry) = place.entry(at) {
        entry.insert(path.len());
        path.push(at);
        let mut left = parents[at].iter().filter_map(inner).filter(|&parent| waits_for[parent] > 0);
        at = left.next().expect("what is left waits for something that is left");
    }
    let mut names: Vec<&str> = path[place[&at]..].iter().map(|&at| nodes[at].name).collect();
    // The error names parents before their dependents.
    names.reverse();
    let start = names.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(at, _)| at);
    names.rotate_left(start);
    let shown = names.iter().take(CYCLE_NAMES_SHOWN).copied().collect::<Vec<_>>().join(" -> ");
    let more = if names.len() > CYCLE_NAMES_SHOWN { " -> ..." } else { "" };
    Err(Rejection::invalid(format!(
        "the flow has a cycle: {shown}{more} -> {}; take one dependency out",
        names[0]
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dependency, Enqueue, NewTask, OnConflict, OnFailure, ShardId, Unique};

    fn node<'a>(name: &'a str, depends_on: &[&'a str]) -> FlowNode<'a> {
        let task = NewTask { task_type: "t", ..NewTask::default() };
        let dependency = |&name: &&'a str| Dependency { name, on_failure: OnFailure::Fail };
        FlowNode {
            name,
            home: ShardId(0),
            enqueue: Enqueue { queue: "q", task },
            depends_on: depends_on.iter().map(dependency).collect(),
            on_failure: OnFailure::Fail,
        }
    }

    fn told(nodes: &[FlowNode<'_>]) -> String {
        check_flow(nodes).unwrap_err().to_string()
    }

    #[test]
    fn a_diamond_is_a_flow() {
        let nodes = [node("d", &["b", "c"]), node("b", &["a"]), node("c", &["a"]), node("a", &[])];
        assert_eq!(check_flow(&nodes), Ok(()));
    }

    #[test]
    fn an_invalid_flow_is_rejected_with_the_names() {
        assert_eq!(told(&[]), "the flow has no nodes; give at least one");
        for (nodes, text) in [
            (vec![node("", &[])], "a node has no name"),
            (vec![node("a\n", &[])], "the name of a node has the control character"),
            (vec![node("a", &[]), node("a", &[])], "two nodes of the flow are named \"a\""),
            (vec![node("a", &["x"])], "node \"a\" depends on \"x\", which is no node of the flow"),
            (vec![node("a", &["a"])], "node \"a\" depends on itself"),
            (vec![node("a", &[]), node("b", &["a", "a"])], "node \"b\" depends on \"a\" twice"),
            (
                vec![node("c", &["b"]), node("b", &["a"]), node("a", &["b"]), node("r", &[])],
                "the flow has a cycle: a -> b -> a; take one dependency out",
            ),
            (
                vec![node("a", &["c"]), node("b", &["a"]), node("c", &["b"]), node("z", &["a"])],
                "the flow has a cycle: a -> b -> c -> a",
            ),
        ] {
            let told = told(&nodes);
            assert!(told.contains(text), "{told} lacks {text}");
        }
    }

    #[test]
    fn a_bad_task_names_its_node() {
        let mut bad = node("a", &[]);
        bad.enqueue.task.priority = Some(12);
        assert!(told(&[bad.clone()]).starts_with("node \"a\": priority is 12"), "{}", told(&[bad]));
        let mut bad = node("a", &[]);
        bad.enqueue.queue = "no spaces";
        assert!(told(&[bad]).starts_with("node \"a\": "));
        let mut bad = node("a", &[]);
        bad.enqueue.task.request_id = Some("r");
        assert!(told(&[bad]).starts_with("node \"a\": it has a request_id"));
        let mut bad = node("b", &["a"]);
        bad.enqueue.task.unique = Some(Box::new(Unique {
            key: "k".into(),
            until: None,
            window_ms: None,
            on_conflict: OnConflict::Existing,
            debounce_ms: None,
        }));
        assert!(told(&[node("a", &[]), bad]).starts_with("node \"b\": it has a unique key"));
    }

    #[test]
    fn the_bounds_are_named() {
        let names: Vec<String> = (0..=FLOW_NODES_MAX).map(|number| number.to_string()).collect();
        let nodes: Vec<FlowNode<'_>> = names.iter().map(|name| node(name, &[])).collect();
        assert!(told(&nodes).contains("nodes in the flow is 10001; at most 10000"));
        let wide: Vec<&str> = names[..400].iter().map(String::as_str).collect();
        let mut nodes: Vec<FlowNode<'_>> = wide.iter().map(|name| node(name, &[])).collect();
        nodes.extend(names[400..651].iter().map(|name| node(name, &wide)));
        assert!(told(&nodes).contains("dependencies in the flow is 100400; at most 100000"));
        let long = "x".repeat(FLOW_NAME_BYTES_MAX + 1);
        assert!(told(&[node(&long, &[])]).contains("the name of a node has 129 bytes"));
    }

    #[test]
    fn a_long_cycle_is_shown_in_part() {
        let names: Vec<String> = (0..50).map(|number| format!("n{number:02}")).collect();
        let chained = (0..50).map(|at| node(&names[at], &[]));
        let mut nodes: Vec<FlowNode<'_>> = chained.collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            let name = &names[(at + 49) % 50];
            node.depends_on = vec![Dependency { name, on_failure: OnFailure::Fail }];
        }
        let told = told(&nodes);
        assert!(told.contains("n00 -> n01 -> n02"), "{told}");
        assert!(told.contains("n19 -> ... -> n00"), "{told}");
    }
}
