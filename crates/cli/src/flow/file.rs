//! A flow in a file, in YAML or JSON: the object that `POST /v1/flows` takes.
//!
//! Every mistake is reported with its line, all of them at once, before anything is sent.

mod graph;
mod located;

use std::{collections::BTreeSet, fs::File, io::Read};

use anyhow::{Context, Result};
use graph::check;
use located::{Located, unplaced};
use serde::{Deserialize, de::DeserializeOwned};
use taskyard::{Flow, NewTask, flow::OnFailure};

use crate::{enqueue::line, output::shorten, remote::usage, values};

/// Larger than any flow on the wire.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The number of mistakes that are shown; the others are counted.
const PROBLEMS_MAX: usize = 20;
/// The shown length of a wrong value.
const VALUE_CHARS_MAX: usize = 40;

/// The fields of a flow, and their types.
const FLOW_FIELDS: [(&str, &str); 3] =
    [("name", "text"), ("retention_ms", MILLISECONDS), ("nodes", "a list of nodes")];
/// The fields of a node, and their types.
const NODE_FIELDS: [(&str, &str); 17] = [
    ("name", "text"),
    ("type", "text"),
    ("queue", "text"),
    ("depends_on", "a list of names, or of objects with name and on_failure"),
    ("payload", "JSON"),
    ("payload_base64", "text in base64"),
    ("content_type", "text"),
    ("headers", "an object of texts"),
    ("priority", "a number from 0 to 9"),
    ("delay_ms", MILLISECONDS),
    ("run_at", "a moment like 2031-05-01T09:30:00Z"),
    ("expires_at", "a moment like 2031-05-01T09:30:00Z"),
    ("retry", "an object with policy and its options"),
    ("timeout_ms", MILLISECONDS),
    ("retention_ms", MILLISECONDS),
    ("tags", "a list of texts"),
    ("fairness_key", "text"),
];
const MILLISECONDS: &str = "a number of milliseconds";
/// Fields of tasks that tasks of a flow may not have.
const NOT_IN_FLOWS: [&str; 2] = ["request_id", "unique"];
const NO_NODES: &str = "the flow has no nodes: give at least one";
/// Fields that exclude each other.
const EITHER_OR: [(&str, &str); 2] = [("payload", "payload_base64"), ("delay_ms", "run_at")];

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

/// The readable parts of a flow.
#[derive(Default)]
struct Outline {
    name: String,
    retention_ms: Option<u64>,
    nodes: Vec<Node>,
}

/// The readable parts of a node.
struct Node {
    line: usize,
    name: Option<String>,
    depends_on: Vec<Parent>,
    task: Option<NewTask>,
}

/// A dependency: the name of a parent.
struct Parent {
    line: usize,
    name: String,
    on_failure: OnFailure,
}

fn parse(text: &str) -> Result<Flow, Vec<Problem>> {
    let mut reader = Reader::default();
    let outline = reader.flow(text);
    reader.problems.extend(check(&outline.nodes));
    if !reader.problems.is_empty() {
        reader.problems.sort_by_key(|problem| problem.line);
        return Err(reader.problems);
    }
    let mut flow = Flow::new(outline.name);
    if let Some(retention) = outline.retention_ms {
        flow = flow.retention(std::time::Duration::from_millis(retention));
    }
    for Node { name, task, depends_on, .. } in outline.nodes {
        let (Some(name), Some(task)) = (name, task) else { continue };
        let mut added = flow.add(name, task);
        for parent in depends_on {
            added = added.depends_on(parent.name.as_str(), parent.on_failure);
        }
    }
    Ok(flow)
}

/// A reader that goes on after a mistake, so that all mistakes are reported at once.
#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn complain(&mut self, line: usize, what: impl Into<String>) {
        self.problems.push(Problem { line, what: what.into() });
    }

    fn flow(&mut self, text: &str) -> Outline {
        let mut outline = Outline::default();
        let file = match Located::parse(text) {
            Ok(file) => file,
            Err(problem) => {
                self.problems.push(problem);
                return outline;
            }
        };
        let Some(fields) = file.fields() else {
            self.complain(1, "a flow is an object with nodes");
            return outline;
        };
        let mut has_nodes = false;
        for (name, value) in self.known("the flow", fields, &FLOW_FIELDS) {
            let (line, json) = (value.line, value.json());
            let wrong = match name.as_str() {
                "nodes" => {
                    has_nodes = true;
                    value.items().map(|nodes| self.nodes(line, nodes, &mut outline)).is_none()
                }
                "name" => misread(&json, &mut outline.name),
                _ => misread(&json, &mut outline.retention_ms),
            };
            if wrong {
                self.complain(line, format!("the flow: {}", must_be(&name, &json, &FLOW_FIELDS)));
            }
        }
        if !has_nodes {
            self.complain(1, NO_NODES);
        }
        outline
    }

    fn nodes(&mut self, line: usize, nodes: Vec<Located<'_>>, outline: &mut Outline) {
        if nodes.is_empty() {
            self.complain(line, NO_NODES);
        }
        for node in nodes {
            outline.nodes.extend(self.node(node));
        }
    }

    /// Reads a node: its place in the flow, and its task.
    fn node(&mut self, located: Located<'_>) -> Option<Node> {
        let line = located.line;
        let Some(fields) = located.fields() else {
            self.complain(line, "a node is an object with name and type");
            return None;
        };
        let before = self.problems.len();
        let name = self.node_name(line, &fields);
        let who =
            name.as_ref().map_or_else(|| "a node".to_owned(), |name| format!("node {name:?}"));
        let mut node = Node { line, name, depends_on: Vec::new(), task: None };
        let mut given = BTreeSet::new();
        let mut members = Vec::new();
        for (field, value) in self.known(&who, fields, &NODE_FIELDS) {
            given.insert(field.clone());
            match field.as_str() {
                "name" => {}
                "depends_on" => node.depends_on = self.parents(&who, value),
                _ => members.extend(self.task_field(&who, &field, &value)),
            }
        }
        if !given.contains("type") {
            self.complain(line, format!("{who}: it has no type: name the function that runs it"));
        }
        for (one, other) in
            EITHER_OR.iter().filter(|(a, b)| given.contains(*a) && given.contains(*b))
        {
            self.complain(line, format!("{who}: it has both {one} and {other}: keep one"));
        }
        if self.problems.len() == before {
            match line::parse_task(&format!("{{{}}}", members.join(","))) {
                Ok(task) => node.task = Some(task),
                Err(error) => self.complain(line, format!("{who}: {error:#}")),
            }
        }
        Some(node)
    }

    fn node_name(&mut self, line: usize, fields: &[(String, Located<'_>)]) -> Option<String> {
        let Some((_, value)) = fields.iter().find(|(field, _)| field == "name") else {
            self.complain(line, "a node has no name: name every node of the flow");
            return None;
        };
        match serde_json::from_str::<String>(&value.json()) {
            Err(_) => self.complain(value.line, "the name of a node is text"),
            Ok(name) if name.is_empty() => {
                self.complain(value.line, "a node has an empty name: name every node of the flow");
            }
            Ok(name) => return Some(name),
        }
        None
    }

    /// Checks one field of a task by itself, and returns it as JSON.
    fn task_field(&mut self, who: &str, field: &str, value: &Located<'_>) -> Option<String> {
        let json = value.json();
        let member = format!("{field:?}:{json}");
        let alone = match field {
            "type" => format!("{{{member}}}"),
            _ => format!("{{\"type\":\"t\",{member}}}"),
        };
        let Err(error) = line::parse_task(&alone) else { return Some(member) };
        let what = match error.downcast_ref::<serde_json::Error>() {
            Some(error) if field == "retry" => format!("retry: {}", unplaced(error)),
            Some(_) => must_be(field, &json, &NODE_FIELDS),
            None => format!("{error:#}"),
        };
        self.complain(value.line, format!("{who}: {what}"));
        None
    }

    fn parents(&mut self, who: &str, value: Located<'_>) -> Vec<Parent> {
        let (line, json) = (value.line, value.json());
        let Some(items) = value.items() else {
            if json != "null" {
                let what = must_be("depends_on", &json, &NODE_FIELDS);
                self.complain(line, format!("{who}: {what}"));
            }
            return Vec::new();
        };
        let mut parents = Vec::new();
        for item in items {
            let (line, json) = (item.line, item.json());
            match serde_json::from_str(&json) {
                Ok(Edge::Name(name)) => {
                    parents.push(Parent { line, name, on_failure: OnFailure::Fail });
                }
                Ok(Edge::Policy { name, on_failure }) => {
                    parents.push(Parent { line, name, on_failure });
                }
                Err(_) => self.complain(
                    line,
                    format!(
                        "{who}: depends_on has {}: give a name, or an object with name and \
                         on_failure (fail, ignore or run)",
                        shorten(&json, VALUE_CHARS_MAX)
                    ),
                ),
            }
        }
        parents
    }

    /// The known fields; of a field that is given twice, the first.
    fn known<'a>(
        &mut self,
        who: &str,
        fields: Vec<(String, Located<'a>)>,
        table: &[(&str, &str)],
    ) -> Vec<(String, Located<'a>)> {
        let mut known: Vec<(String, Located<'a>)> = Vec::with_capacity(fields.len());
        for (field, value) in fields {
            let names = || table.iter().map(|(name, _)| *name);
            if known.iter().any(|(other, _)| *other == field) {
                self.complain(value.line, format!("{who}: {field} is given twice"));
            } else if names().any(|name| name == field) {
                known.push((field, value));
            } else if NOT_IN_FLOWS.contains(&field.as_str()) {
                let what =
                    format!("{who}: no {field} in a flow, where another task might stand for it");
                self.complain(value.line, what);
            } else {
                let meant = match values::nearest(&field, names()) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
                };
                self.complain(value.line, format!("{who}: {field:?} is not known; {meant}"));
            }
        }
        known
    }
}

/// A dependency as a node names it.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Edge {
    Name(String),
    Policy {
        name: String,
        #[serde(default)]
        on_failure: OnFailure,
    },
}

/// The message about a field with a value of the wrong type.
fn must_be(field: &str, json: &str, table: &[(&str, &str)]) -> String {
    let wanted = table.iter().find(|(name, _)| *name == field).map_or("known", |(_, what)| what);
    format!("{field} is {}; it must be {wanted}", shorten(json, VALUE_CHARS_MAX))
}

/// Reads a value; returns whether it has the wrong type.
fn misread<T: DeserializeOwned>(json: &str, place: &mut T) -> bool {
    serde_json::from_str(json).map(|value| *place = value).is_err()
}

#[cfg(test)]
mod tests;
