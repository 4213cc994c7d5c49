//! The rules between the nodes of a file: names are unique, dependencies exist, and there is no
//! cycle.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Node, PROBLEMS_MAX, Parent, Problem};
use crate::values;

/// The number of shown names of a cycle.
const CYCLE_NAMES_MAX: usize = 20;

/// Checks names, dependencies and cycles.
pub(super) fn check(nodes: &[Node]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let Some(name) = &node.name else { continue };
        let first = *places.entry(name).or_insert(index);
        if first != index {
            let first = nodes[first].line;
            let what = format!("node {name:?} is named like the one in line {first}");
            problems.push(Problem { line: node.line, what });
        }
    }
    // A node with an unreadable name may be the missing parent.
    let all_named = nodes.iter().all(|node| node.name.is_some());
    for node in nodes {
        let Some(name) = &node.name else { continue };
        let mut seen = BTreeSet::new();
        for Parent { line, name: parent, .. } in &node.depends_on {
            let wrong = if parent == name {
                "depends on itself".to_owned()
            } else if !seen.insert(parent) {
                format!("depends on {parent:?} twice")
            } else if all_named && !places.contains_key(parent.as_str()) {
                // The search for a similar name is slow, so that only shown mistakes get one.
                let known = places.keys().copied().take_while(|_| problems.len() < PROBLEMS_MAX);
                let meant = values::nearest(parent, known);
                let meant = meant.map(|meant| format!("; did you mean {meant:?}?"));
                let meant = meant.unwrap_or_default();
                format!("depends on {parent:?}, which is no node of the flow{meant}")
            } else {
                continue;
            };
            problems.push(Problem { line: *line, what: format!("node {name:?} {wrong}") });
        }
    }
    problems.extend(cycles(nodes, &places));
    problems
}

/// Removes nodes without open dependencies until none is left. Among nodes that can't be removed, a
/// walk from parent to parent finds a cycle. The cycle is reported and removed too, until there is
/// none.
fn cycles(nodes: &[Node], places: &HashMap<&str, usize>) -> Vec<Problem> {
    let parents = |index: usize| {
        let named = nodes[index].depends_on.iter();
        // A node that depends on itself was reported before.
        named
            .filter_map(|parent| places.get(parent.name.as_str()).copied())
            .filter(move |&at| at != index)
    };
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut waits_for: Vec<usize> = Vec::with_capacity(nodes.len());
    for index in 0..nodes.len() {
        waits_for.push(parents(index).count());
        parents(index).for_each(|parent| dependents[parent].push(index));
    }
    let mut free: Vec<usize> = (0..nodes.len()).filter(|&at| waits_for[at] == 0).collect();
    let mut gone = vec![false; nodes.len()];
    let mut problems = Vec::new();
    let mut first_left = 0;
    loop {
        free.iter().for_each(|&index| gone[index] = true);
        while let Some(index) = free.pop() {
            for &dependent in &dependents[index] {
                waits_for[dependent] -= 1;
                if waits_for[dependent] == 0 && !gone[dependent] {
                    gone[dependent] = true;
                    free.push(dependent);
                }
            }
        }
        while first_left < nodes.len() && gone[first_left] {
            first_left += 1;
        }
        if first_left == nodes.len() {
            return problems;
        }
        let path = way_around(first_left, |at| parents(at).find(|&parent| !gone[parent]));
        problems.push(around(nodes, &path));
        free = path;
    }
}

/// The nodes of a cycle, from parent to child.
fn way_around(from: usize, parent_left: impl Fn(usize) -> Option<usize>) -> Vec<usize> {
    let mut path = vec![from];
    let mut seen = BTreeMap::from([(from, 0)]);
    while let Some(next) = parent_left(path[path.len() - 1]) {
        if let Some(&start) = seen.get(&next) {
            path.drain(..start);
            break;
        }
        seen.insert(next, path.len());
        path.push(next);
    }
    path.reverse();
    path
}

fn around(nodes: &[Node], path: &[usize]) -> Problem {
    // The cycle begins with its first node in the file.
    let first = path.iter().enumerate().min_by_key(|(_, index)| **index).map_or(0, |(at, _)| at);
    let (after, before) = (&path[first..], &path[..first]);
    let name = |&at: &usize| nodes[at].name.as_deref().unwrap_or_default();
    let mut names: Vec<&str> = after.iter().chain(before).take(CYCLE_NAMES_MAX).map(name).collect();
    names.extend((path.len() > CYCLE_NAMES_MAX).then_some("..."));
    names.push(name(&path[first]));
    let what = format!("nodes wait for each other: {}", names.join(" -> "));
    Problem { line: nodes[path[first]].line, what }
}
