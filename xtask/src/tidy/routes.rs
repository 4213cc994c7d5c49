//! The HTTP routes in `docs/protocol.md` are those that the server has, and the other way round.
//!
//! In code they are the lines of the `routes!` table. In the document they are `METHOD /path` in
//! backticks.

use super::{
    Finding,
    markdown::{backticked, prose},
    source::Source,
    tree::Tree,
};
use std::collections::BTreeMap;

const PROTOCOL: &str = "docs/protocol.md";
const TABLE: &str = "crates/server/src/front/http.rs";
const METHODS: &[&str] = &["GET", "POST", "PUT", "DELETE"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let served = tree.source(TABLE).map(served).unwrap_or_default();
    let documented = tree.text(PROTOCOL).map(documented).unwrap_or_default();
    let mut findings = Vec::new();
    if served.is_empty() {
        let message = format!("has no routes! table; tell {} where it is", file!());
        findings.push(Finding::new(TABLE, 1, message));
    }
    for (route, line) in served.iter().filter(|(route, _)| !documented.contains_key(*route)) {
        findings.push(Finding::new(TABLE, *line, format!("{route} is not in {PROTOCOL}")));
    }
    for (route, line) in documented.iter().filter(|(route, _)| !served.contains_key(*route)) {
        findings.push(Finding::new(PROTOCOL, *line, format!("{route} is no route in {TABLE}")));
    }
    findings
}

/// Lines such as `post "/v1/claims" claims::claim;`.
fn served(source: &Source) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (number, line) in source.numbered().filter(|(_, line)| !line.test) {
        let method = line.code.split_whitespace().next().unwrap_or_default().to_uppercase();
        let ends = line.code.ends_with(';');
        if let ([path], true) = (line.strings.as_slice(), ends && METHODS.contains(&&*method)) {
            found.insert(format!("{method} {path}"), number);
        }
    }
    found
}

fn documented(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (number, line) in prose(text) {
        for span in backticked(line) {
            let Some((method, path)) = span.split_once(" /") else { continue };
            let path = path.split('?').next().unwrap_or_default();
            if METHODS.contains(&method) {
                found.entry(format!("{method} /{path}")).or_insert(number);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str) -> Vec<String> {
        let table = "//! H.\nroutes! {\n    post \"/v1/claims\" claims::claim;\n    get \
                     \"/v1/tasks/{id}\" tasks::task;\n}\nfn a() { let x = \"/v1\"; }\n";
        let tree = Tree::of(&[(TABLE, table), (PROTOCOL, document)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn document_and_table_list_the_same() {
        assert_eq!(found("`POST /v1/claims`\nand `GET /v1/tasks/{id}?wait_ms=`\n"), [""; 0]);
    }

    #[test]
    fn a_route_missing_on_either_side_is_found() {
        assert_eq!(
            found("`POST /v1/claims`\n`GET /v1/gone`\n"),
            [
                "crates/server/src/front/http.rs:4: GET /v1/tasks/{id} is not in docs/protocol.md",
                "docs/protocol.md:2: GET /v1/gone is no route in crates/server/src/front/http.rs",
            ]
        );
    }
}
