//! A flow as its file says it, in YAML or JSON: the object that `POST /v1/flows` takes.
//!
//! Every mistake is reported with its line, all of them at once, before anything is sent.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::Read,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use taskyard::{Flow, NewTask, flow::OnFailure};

use crate::{enqueue::line, remote::usage, values};

/// More than a flow may hold on the wire.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What a flow of 10,000 nodes with all their options has of scalars, lists and maps.
const YAML_NODES_MAX: usize = 2_000_000;
/// Mistakes that are shown; the rest is counted.
const PROBLEMS_MAX: usize = 20;
/// Names shown of a cycle.
const CYCLE_NAMES_MAX: usize = 20;

/// Reads the flow in a file; `-` is stdin.
pub(crate) fn read(path: &str) -> Result<Flow> {
    let mut text = String::new();
    let read = match path {
        "-" => std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text),
        path => File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)),
    };
    let shown = if path == "-" { "stdin" } else { path };
    let bytes = read.with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(bytes as u64 <= FILE_BYTES_MAX, "{shown} is larger than any flow may be");
    parse(&text).map_err(|problems| {
        let more = problems.len().saturating_sub(PROBLEMS_MAX);
        let mut lines: Vec<String> = problems
            .into_iter()
            .take(PROBLEMS_MAX)
            .map(|Problem { line, what }| format!("{shown}:{line}: {what}"))
            .collect();
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        usage(lines.join("\n       "))
    })
}

/// A mistake and its line, from 1.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    line: usize,
    what: String,
}

/// The file as a whole; its nodes are still text.
struct Outline {
    name: String,
    retention_ms: Option<u64>,
    nodes: Vec<(usize, String)>,
}

/// One node.
struct Node {
    line: usize,
    name: String,
    depends_on: Vec<Parent>,
    task: NewTask,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a name, or an object with name and on_failure")]
enum Parent {
    Name(String),
    Edge(Edge),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edge {
    name: String,
    #[serde(default)]
    on_failure: OnFailure,
}

impl Parent {
    fn name(&self) -> &str {
        match self {
            Parent::Name(name) | Parent::Edge(Edge { name, .. }) => name,
        }
    }

    fn on_failure(&self) -> OnFailure {
        match self {
            Parent::Name(_) => OnFailure::Fail,
            Parent::Edge(edge) => edge.on_failure,
        }
    }
}

fn parse(text: &str) -> Result<Flow, Vec<Problem>> {
    let json = text.trim_start().starts_with('{');
    let outline = if json { outline_of_json(text) } else { outline_of_yaml(text) };
    let outline = outline.map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let mut nodes = Vec::with_capacity(outline.nodes.len());
    for (line, json) in &outline.nodes {
        match parse_node(*line, json) {
            Ok(node) => nodes.push(node),
            Err(error) => problems.push(Problem { line: *line, what: format!("{error:#}") }),
        }
    }
    if outline.nodes.is_empty() {
        problems.push(Problem { line: 1, what: "the flow has no nodes: give at least one".into() });
    }
    // Names of nodes that could not be read would be missed by others.
    if problems.is_empty() {
        problems = check(&nodes);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut flow = Flow::new(outline.name);
    if let Some(retention) = outline.retention_ms {
        flow = flow.retention(std::time::Duration::from_millis(retention));
    }
    for node in nodes {
        let mut added = flow.add(node.name, node.task);
        for parent in &node.depends_on {
            added = added.depends_on(parent.name(), parent.on_failure());
        }
    }
    Ok(flow)
}

fn outline_of_json(text: &str) -> Result<Outline, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body<'a> {
        #[serde(default)]
        name: String,
        retention_ms: Option<u64>,
        #[serde(borrow)]
        nodes: Vec<&'a RawValue>,
    }
    let body: Body<'_> = serde_json::from_str(text)
        .map_err(|error| Problem { line: error.line().max(1), what: unplaced(&error) })?;
    // Nodes come in order, so that one walk over the text counts the lines.
    let (mut line, mut counted) = (1, 0);
    let place = |node: &&RawValue| {
        let start = node.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text[counted..start].matches('\n').count();
        counted = start;
        (line, node.get().to_owned())
    };
    let nodes = body.nodes.iter().map(place).collect();
    Ok(Outline { name: body.name, retention_ms: body.retention_ms, nodes })
}

/// What serde_json says, without the place: it is said in another way.
fn unplaced(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or_else(|| text.clone(), str::to_owned)
}

fn outline_of_yaml(text: &str) -> Result<Outline, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(default)]
        name: String,
        retention_ms: Option<u64>,
        nodes: Vec<serde_saphyr::Spanned<Value>>,
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `no` and `on` are words; only true and false are not.
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_nodes: YAML_NODES_MAX, max_events: 2 * YAML_NODES_MAX },
    };
    let body: Body = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line()).max(1);
        Problem { line: usize::try_from(line).unwrap_or(1), what: error.to_string() }
    })?;
    let node = |node: &serde_saphyr::Spanned<Value>| {
        let line = usize::try_from(node.referenced.line()).unwrap_or(1);
        (line, node.value.to_string())
    };
    let nodes = body.nodes.iter().map(node).collect();
    Ok(Outline { name: body.name, retention_ms: body.retention_ms, nodes })
}

/// Takes a node apart: its place in the flow, and the task that remains.
fn parse_node(line: usize, json: &str) -> Result<Node> {
    let mut fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(json).ok().context("a node is an object with name and type")?;
    let name = fields.remove("name").context("a node has no name: name every node of the flow")?;
    let name: String =
        serde_json::from_str(name.get()).ok().context("the name of a node is text")?;
    anyhow::ensure!(!name.is_empty(), "a node has an empty name: name every node of the flow");
    let in_node = || format!("node {name:?}");
    let depends_on = match fields.remove("depends_on") {
        Some(parents) => serde_json::from_str(parents.get())
            .map_err(|error| anyhow::anyhow!("depends_on: {}", unplaced(&error)))
            .with_context(in_node)?,
        None => Vec::new(),
    };
    let task = serde_json::to_string(&fields)?;
    let task =
        line::parse_task(&task).map_err(|error| match error.downcast_ref::<serde_json::Error>() {
            Some(json) => anyhow::anyhow!("{}", unplaced(json)),
            None => error,
        });
    Ok(Node { line, task: task.with_context(in_node)?, depends_on, name })
}

/// Names are given once, dependencies exist, and nothing waits for itself.
fn check(nodes: &[Node]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, Node { line, name, .. }) in nodes.iter().enumerate() {
        if let Some(first) = places.insert(name, index) {
            let first = nodes[first].line;
            let what = format!("node {name:?} is named like the one in line {first}");
            problems.push(Problem { line: *line, what });
        }
    }
    for node in nodes {
        let mut seen = Vec::new();
        for parent in node.depends_on.iter().map(Parent::name) {
            let wrong = if parent == node.name {
                Some("depends on itself".to_owned())
            } else if !places.contains_key(parent) {
                // Looking for what was meant takes time: not for more than is shown.
                let known = places.keys().copied().take_while(|_| problems.len() < PROBLEMS_MAX);
                let meant = values::nearest(parent, known);
                let meant = meant.map(|meant| format!("; did you mean {meant:?}?"));
                let meant = meant.unwrap_or_default();
                Some(format!("depends on {parent:?}, which is no node of the flow{meant}"))
            } else if seen.contains(&parent) {
                Some(format!("depends on {parent:?} twice"))
            } else {
                None
            };
            seen.push(parent);
            if let Some(wrong) = wrong {
                let what = format!("node {:?} {wrong}", node.name);
                problems.push(Problem { line: node.line, what });
            }
        }
    }
    if problems.is_empty() {
        problems.extend(cycle(nodes, &places));
    }
    problems
}

/// Takes away what waits for nothing until nothing is left; from what can't be taken away, going from
/// parent to parent comes around.
fn cycle(nodes: &[Node], places: &HashMap<&str, usize>) -> Option<Problem> {
    let parents = |index: usize| {
        nodes[index].depends_on.iter().filter_map(|parent| places.get(parent.name()).copied())
    };
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut waits_for: Vec<usize> = Vec::with_capacity(nodes.len());
    for index in 0..nodes.len() {
        waits_for.push(parents(index).count());
        parents(index).for_each(|parent| dependents[parent].push(index));
    }
    let mut free: Vec<usize> = (0..nodes.len()).filter(|&at| waits_for[at] == 0).collect();
    while let Some(index) = free.pop() {
        for &dependent in &dependents[index] {
            waits_for[dependent] -= 1;
            if waits_for[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    let mut path = vec![(0..nodes.len()).find(|&at| waits_for[at] > 0)?];
    loop {
        let last = *path.last()?;
        let next = parents(last).find(|&parent| waits_for[parent] > 0)?;
        if let Some(start) = path.iter().position(|&at| at == next) {
            path.drain(..start);
            break;
        }
        path.push(next);
    }
    // From parent to child, as work would flow, from the node that stands first in the file.
    path.reverse();
    let first = path.iter().enumerate().min_by_key(|(_, index)| **index)?.0;
    path.rotate_left(first);
    let shown = path.iter().take(CYCLE_NAMES_MAX).map(|&at| nodes[at].name.as_str());
    let mut names: Vec<&str> = shown.collect();
    names.extend((path.len() > CYCLE_NAMES_MAX).then_some("..."));
    names.push(&nodes[path[0]].name);
    let what = format!("nodes wait for each other: {}", names.join(" -> "));
    Some(Problem { line: nodes[path[0]].line, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mistakes in a file, as `line: what`.
    fn problems(text: &str) -> Vec<String> {
        let problems = parse(text).expect_err(text);
        problems.into_iter().map(|Problem { line, what }| format!("{line}: {what}")).collect()
    }

    /// What a node became.
    fn shown(text: &str) -> String {
        format!("{:?}", parse(text).map_err(|problems| format!("{problems:?}")).unwrap())
    }

    const YAML: &str = "\
name: thumbnails
retention_ms: 60000
nodes:
  - name: fetch
    type: http_get
    queue: net
    payload: {url: 'https://example.com/a.jpg', tries: 3}
  - name: small
    type: resize
    payload: [100, 80.5, no, null, true]
    retry: {policy: fixed, max_attempts: 3, delay_ms: 1000}
    depends_on: [fetch]
  - name: publish
    type: publish
    depends_on:
      - small
      - name: fetch
        on_failure: run
";

    #[test]
    fn yaml_and_json_say_the_same() {
        let json = r#"{
            "name": "thumbnails", "retention_ms": 60000, "nodes": [
                {"name": "fetch", "type": "http_get", "queue": "net",
                 "payload": {"tries": 3, "url": "https://example.com/a.jpg"}},
                {"name": "small", "type": "resize", "payload": [100, 80.5, "no", null, true],
                 "retry": {"policy": "fixed", "max_attempts": 3, "delay_ms": 1000},
                 "depends_on": ["fetch"]},
                {"name": "publish", "type": "publish",
                 "depends_on": ["small", {"name": "fetch", "on_failure": "run"}]}
            ]}"#;
        let describe = |text: &str| {
            let outline =
                if text.starts_with('{') { outline_of_json(text) } else { outline_of_yaml(text) };
            let outline = outline.map_err(|problem| problem.what).unwrap();
            let nodes = outline.nodes.iter().map(|(_, json)| {
                let json: Value = serde_json::from_str(json).unwrap();
                json.to_string()
            });
            (outline.name, outline.retention_ms, nodes.collect::<Vec<_>>())
        };
        assert_eq!(describe(YAML), describe(json));
        assert!(shown(YAML).contains("len: 3"), "{}", shown(YAML));
        assert_eq!(shown(YAML), shown(json));
    }

    #[test]
    fn numbers_of_a_json_file_keep_all_their_digits() {
        let node = r#"{"name": "a", "type": "t", "payload": 1.50}"#;
        let task = parse_node(1, node).unwrap().task;
        assert!(format!("{task:?}").contains("1.50"), "{task:?}");
    }

    #[test]
    fn every_mistake_has_its_line_and_names() {
        for (text, expected) in [
            ("nodes: []\n", &["1: the flow has no nodes: give at least one"][..]),
            ("nodes:\n  - type: t\n", &["2: a node has no name: name every node of the flow"]),
            ("nodes:\n  - 7\n", &["2: a node is an object with name and type"]),
            (
                "nodes:\n  - {name: a}\n  - {name: b, type: t, priority: 12}\n",
                &[
                    "2: node \"a\": it has no type: name the function that does it",
                    "3: node \"b\": priority 12 is not 0 to 9",
                ],
            ),
            (
                "nodes:\n  - {name: a, type: t}\n  - {name: a, type: t}\n",
                &["3: node \"a\" is named like the one in line 2"],
            ),
            (
                "nodes:\n  - {name: fetch, type: t}\n  - {name: b, type: t, depends_on: [fetsh, b]}\n",
                &[
                    "3: node \"b\" depends on \"fetsh\", which is no node of the flow; did you mean \"fetch\"?",
                    "3: node \"b\" depends on itself",
                ],
            ),
            (
                "nodes:\n  - {name: a, type: t}\n  - {name: b, type: t, depends_on: [a, {name: a, on_failure: run}]}\n",
                &["3: node \"b\" depends on \"a\" twice"],
            ),
            (
                "nodes:
  - {name: start, type: t}
  - {name: a, type: t, depends_on: [start, c]}
  - {name: b, type: t, depends_on: [a]}
  - {name: c, type: t, depends_on: [b]}
  - {name: end, type: t, depends_on: [c]}
",
                &["3: nodes wait for each other: a -> b -> c -> a"],
            ),
        ] {
            assert_eq!(problems(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_flow_at_all_says_where() {
        for (text, line, part) in [
            ("", 1, ""),
            ("name: a\nnodes: 7\n", 2, "sequence"),
            ("name: a\nnode: []\n", 2, "node"),
            ("name: a\nnodes:\n  - {name: a, type: [}\n", 3, ""),
            ("{\"nodes\":\n [\n {]}", 3, "key must be a string"),
            ("{\"node\": []}", 1, "node"),
            ("nodes:\n  - name: a\n    type: t\n    type: u\n", 4, "duplicate"),
            ("nodes:\n  - name: a\n    type: t\n    pripority: 1\n", 2, "pripority"),
            (
                "nodes:\n  - {name: a, type: t, depends_on: [{name: b, on_failure: no}]}\n",
                2,
                "name and on_failure",
            ),
        ] {
            let found = parse(text).expect_err(text);
            assert_eq!(found[0].line, line, "{text}: {found:?}");
            assert!(found[0].what.contains(part), "{text}: {found:?}");
        }
    }

    #[test]
    fn the_flows_of_the_documents_are_flows() {
        let document = include_str!("../../../../docs/flows.md");
        let blocks: Vec<&str> = document.split("```yaml\n").skip(1).collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            let text = block.split("```").next().unwrap_or_default();
            assert!(parse(text).is_ok(), "{:?}", parse(text));
        }
    }

    #[test]
    fn the_largest_flow_is_read() {
        let mut text = "nodes:\n".to_owned();
        for number in 0..10_000 {
            text += &format!("  - name: n{number}\n    type: t\n    queue: q\n    tags: [a, b]\n");
            text += "    retry: {policy: fixed, delay_ms: 5, max_attempts: 3}\n";
            text += "    payload: {a: 1, b: [1, 2, 3], c: {d: e, f: g}}\n";
            if number > 0 {
                text += &format!("    depends_on: [n{}]\n", number - 1);
            }
        }
        assert!(shown(&text).contains("len: 10000"));
    }

    #[test]
    fn anchors_spare_repetition_and_bombs_are_refused() {
        let text = "nodes:\n  - &one {name: a, type: t, priority: 3}\n  - {<<: *one, name: b}\n";
        assert!(shown(text).contains("len: 2"));
        let mut bomb =
            "nodes:\n  - {name: a, type: t, payload: &a0 [x, x, x, x, x, x, x, x, x]}\n".to_owned();
        for number in 1..12 {
            let alias = format!("*a{}", number - 1);
            let aliases = vec![alias; 9].join(", ");
            bomb += &format!("  - {{name: n{number}, type: t, payload: &a{number} [{aliases}]}}\n");
        }
        assert!(parse(&bomb).is_err());
    }
}
