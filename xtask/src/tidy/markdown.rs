//! Documents point at what exists: local links, their anchors, and paths of the tree in backticks.

use super::{Finding, tree::Tree};

/// Paths in backticks with these beginnings are paths of this tree.
const FOLDERS: &[&str] = &["crates/", "docs/", "xtask/", ".ci/", ".cargo/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line) in prose(text) {
            for target in links(line) {
                if let Some(message) = check_link(tree, path, target) {
                    findings.push(Finding::new(path, number, message));
                }
            }
            for span in backticked(line) {
                let named = span.split("::").next().unwrap_or_default().trim_end_matches('/');
                if is_path(named) && !exists(tree, named) {
                    findings.push(Finding::new(
                        path,
                        number,
                        format!("names {named}: no such path"),
                    ));
                }
            }
        }
    }
    findings
}

/// A path of this tree from its root, or the name of a Rust file in it.
fn is_path(named: &str) -> bool {
    let ours = FOLDERS.iter().any(|folder| named.starts_with(folder)) || named.ends_with(".rs");
    ours && !named.contains(['*', '{', ' ', '<', '$'])
}

fn exists(tree: &Tree, named: &str) -> bool {
    let ending = format!("/{named}");
    tree.has(named) || tree.sources().any(|(path, _)| path.ends_with(&ending))
}

/// Lines outside of code blocks, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The texts in backticks of a line.
pub(super) fn backticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Targets of `[text](target)` outside of backticks.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for plain in line.split('`').step_by(2) {
        let mut rest = plain;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            found.push(target);
            rest = after;
        }
    }
    found
}

fn check_link(tree: &Tree, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { from.to_string() } else { resolve(from, file) };
    if !tree.has(&path) {
        return Some(format!("links to {target}: there is no {path}"));
    }
    let text = tree.text(&path)?;
    let known =
        anchor.is_empty() || prose(text).any(|(_, line)| heading(line) == Some(slug(anchor)));
    (!known).then(|| format!("links to {target}: {path} has no such heading"))
}

/// `target` as seen from the folder of `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchor of a heading, if the line is one.
fn heading(line: &str) -> Option<String> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len() && text.starts_with(' ')).then(|| slug(text.trim()))
}

fn slug(text: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    text.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let other = ("docs/other.md", "# 1. The other\n");
        let tree = Tree::of(&[("docs/a.md", text), other, ("crates/x/src/lib.rs", "//! X.\n")]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn local_links_resolve() {
        for text in [
            "[x](other.md) and [y](../docs/other.md#1-the-other), [z](https://example.com/x)",
            "[lib](../crates/x/src/lib.rs) [root](..)",
            "# Here\n[up](#here)",
            "```\n[x](gone.md)\n```\n`[x](gone.md)`",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
        assert_eq!(
            found("\n[x](gone.md)"),
            ["docs/a.md:2: links to gone.md: there is no docs/gone.md"]
        );
        assert!(found("[x](other.md#gone)")[0].contains("no such heading"));
    }

    #[test]
    fn paths_in_backticks_exist() {
        assert_eq!(found("`crates/x/src/lib.rs`, `crates/*/src`, `crates/x/`, `a/b`"), [""; 0]);
        assert_eq!(found("`crates/y/src/lib.rs::name`").len(), 1);
        assert_eq!(found("`lib.rs`, `src/lib.rs`, `*.rs`"), [""; 0]);
        assert_eq!(found("`gone.rs` and `b.rs`").len(), 2);
    }
}
