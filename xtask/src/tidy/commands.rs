//! Cargo commands in documents name packages and test binaries that exist.

use super::{Finding, tree::Tree};
use std::collections::BTreeSet;
use toml::{Table, Value};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.texts().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    let manifests: Vec<Table> = manifests.filter_map(|(_, text)| text.parse().ok()).collect();
    let packages: BTreeSet<&str> =
        manifests.iter().filter_map(|table| table.get("package")?.get("name")?.as_str()).collect();
    let tests = manifests.iter().filter_map(|table| table.get("test")?.as_array()).flatten();
    let tests: BTreeSet<&str> =
        tests.filter_map(|test| test.get("name").and_then(Value::as_str)).collect();
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| line.contains("cargo ")) {
            for (option, known) in [("-p", &packages), ("--test", &tests)] {
                for name in arguments(line, option).filter(|name| !known.contains(name)) {
                    let message = format!("names {option} {name}: there is no such thing");
                    findings.push(Finding::new(path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// The values of an option in the cargo commands of a line. A value in capitals is a placeholder,
/// and `cargo xtask check -p` takes folders too.
fn arguments<'a>(line: &'a str, option: &str) -> impl Iterator<Item = &'a str> {
    let commands = line.split("cargo ").skip(1).filter(|command| !command.starts_with("xtask "));
    let words = commands.flat_map(|command| {
        let words: Vec<&str> = command.split(['`', ' ', '|']).collect();
        words.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
    });
    let arguments = words.filter(move |(word, _)| *word == option).map(|(_, argument)| argument);
    arguments.filter(|argument| !argument.is_empty() && *argument != argument.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_packages_and_test_binaries_that_exist() {
        let manifest = "[package]\nname = \"taskyard-cli\"\n[[test]]\nname = \"cli\"\n";
        let found = |text: &str| {
            let files = [("docs/a.md", text), ("crates/cli/Cargo.toml", manifest)];
            check(&Tree::of(&files)).iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        for text in [
            "`cargo nextest run -p taskyard-cli --test cli x::`",
            "```\ncargo check -p NAME --test NAME\ncargo xtask check -p cli\n```",
            "grep -p nothing",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
        let text = "`cargo test -p taskyard-cly`, `cargo test -p taskyard-cli --test server`";
        assert_eq!(
            found(text),
            [
                "docs/a.md:1: names -p taskyard-cly: there is no such thing",
                "docs/a.md:1: names --test server: there is no such thing",
            ]
        );
    }
}
