//! The error codes in `docs/protocol.md` are those in the code, and the other way round.
//!
//! In code, a code is a string that a function named `code` returns in machine or server. In the
//! document, it is the first cell of a row in the table under the heading `## Error codes`.

use super::{
    Finding,
    markdown::{backticked, prose},
    source::Source,
    tree::Tree,
};
use std::collections::BTreeMap;

const PROTOCOL: &str = "docs/protocol.md";
const HEADING: &str = "## Error codes";
const CRATES: &[&str] = &["crates/machine/src/", "crates/server/src/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PROTOCOL) else {
        return vec![Finding::new(PROTOCOL, 1, "is missing; it lists every error code")];
    };
    let documented = documented(text);
    let mut used = BTreeMap::new();
    for (path, source) in tree.sources() {
        if CRATES.iter().any(|start| path.starts_with(start)) {
            used.extend(codes(source).into_iter().map(|(code, line)| (code, (path, line))));
        }
    }
    let mut findings = Vec::new();
    for (code, (path, line)) in &used {
        if !documented.contains_key(code.as_str()) {
            let message =
                format!("answers {code}, which {PROTOCOL} does not list under {HEADING:?}");
            findings.push(Finding::new(path, *line, message));
        }
    }
    for (code, line) in documented.iter().filter(|(code, _)| !used.contains_key(**code)) {
        let message =
            format!("lists {code}, which no function `code` in machine or server answers");
        findings.push(Finding::new(PROTOCOL, *line, message));
    }
    findings
}

/// Codes in the table, each with its line.
fn documented(text: &str) -> BTreeMap<&str, usize> {
    let mut inside = false;
    let mut found = BTreeMap::new();
    for (number, line) in prose(text) {
        if line.starts_with("## ") {
            inside = line == HEADING;
        }
        let first_cell = line.strip_prefix("| `").and_then(|_| backticked(line).next());
        if let Some(code) = first_cell.filter(|code| inside && is_code(code)) {
            found.insert(code, number);
        }
    }
    found
}

/// String literals in the bodies of functions named `code`, each with its line.
fn codes(source: &Source) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut depth: Option<usize> = None;
    for (number, line) in source.numbered().filter(|(_, line)| !line.test) {
        let starts = line.code.contains("fn code(") && line.code.contains("&'static str");
        if depth.is_none() && !starts {
            continue;
        }
        let opened = line.code.matches('{').count();
        let closed = line.code.matches('}').count();
        let now = (depth.unwrap_or(0) + opened).saturating_sub(closed);
        let codes = line.strings.iter().filter(|text| is_code(text));
        found.extend(codes.map(|code| (code.clone(), number)));
        depth = (now > 0).then_some(now);
    }
    found
}

fn is_code(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! R.\nimpl R {\n    pub fn code(&self) -> &'static str {\n        match self {\n            \
                        R::A { .. } => \"not_found\",\n            R::B => \"queue_full\",\n        }\n    }\n\
                        \x20   fn other(&self) -> &'static str { \"word\" }\n}\n";

    fn found(table: &str) -> Vec<String> {
        let text =
            format!("# Protocol\n| `word` |\n## Error codes\n{table}\n## More\n| `more` |\n");
        let tree = Tree::of(&[("crates/machine/src/rejection.rs", CODE), (PROTOCOL, &text)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn document_and_code_list_the_same() {
        assert_eq!(
            found("| code | status |\n|---|---|\n| `not_found` | 404 |\n| `queue_full` | 429 |"),
            [""; 0]
        );
    }

    #[test]
    fn a_code_missing_on_either_side_is_found() {
        assert_eq!(
            found("| `not_found` | 404 |\n| `gone` | 410 |"),
            [
                "crates/machine/src/rejection.rs:6: answers queue_full, which docs/protocol.md does not \
                 list under \"## Error codes\"",
                "docs/protocol.md:5: lists gone, which no function `code` in machine or server answers",
            ]
        );
    }
}
