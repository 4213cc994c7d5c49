//! Every dependency of the workspace has its line in `docs/decisions/dependencies.md`, and no line
//! outlives its dependency.

use super::{
    Finding,
    markdown::{backticked, prose},
    tree::Tree,
};
use std::collections::BTreeMap;
use toml::{Table, Value};

const MANIFEST: &str = "Cargo.toml";
const DOCUMENT: &str = "docs/decisions/dependencies.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let text = tree.text(MANIFEST).unwrap_or_default();
    let declared = match text.parse::<Table>() {
        Ok(table) => declared(&table),
        Err(error) => return vec![Finding::new(MANIFEST, 1, format!("is not TOML: {error}"))],
    };
    let argued: BTreeMap<&str, usize> = prose(tree.text(DOCUMENT).unwrap_or_default())
        .filter(|(_, line)| line.starts_with("| `"))
        .filter_map(|(number, line)| Some((backticked(line).next()?, number)))
        .collect();
    let mut findings = Vec::new();
    for name in declared.iter().filter(|name| !argued.contains_key(name.as_str())) {
        let line = text.lines().position(|line| line.starts_with(&format!("{name} ")));
        let message = format!("{name} has no line in {DOCUMENT}; say there what it is for");
        findings.push(Finding::new(MANIFEST, line.map_or(1, |index| index + 1), message));
    }
    for (name, line) in argued.iter().filter(|(name, _)| !declared.iter().any(|d| d == *name)) {
        let message = format!("{name} is no dependency of the workspace; remove its line");
        findings.push(Finding::new(DOCUMENT, *line, message));
    }
    findings
}

/// Foreign crates in `[workspace.dependencies]`.
fn declared(manifest: &Table) -> Vec<String> {
    let table = manifest.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let entries = table.and_then(Value::as_table).into_iter().flatten();
    let foreign = entries.filter(|(_, settings)| settings.get("path").is_none());
    foreign.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str) -> Vec<String> {
        let manifest =
            "[workspace.dependencies]\nours = { path = \"crates/ours\" }\ntokio = \"1\"\n";
        let tree = Tree::of(&[(MANIFEST, manifest), (DOCUMENT, document)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_dependency_is_argued_once() {
        assert_eq!(found("| `tokio` | server | sockets |\n"), [""; 0]);
        assert!(found("")[0].starts_with("Cargo.toml:3: tokio has no line"));
        assert!(found("| `tokio` |\n| `serde` |\n")[0].contains("serde is no dependency"));
    }
}
