//! Comments: every file says what it owns, known debt has an issue, and an exception has a reason.

use super::{Finding, source::Source, tree::Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        findings.extend(opening(path, source));
        findings.extend(debts(path, source));
        findings.extend(exceptions(path, source));
    }
    findings
}

fn opening(path: &str, source: &Source) -> Option<Finding> {
    let opens = source.lines.first().is_some_and(|line| line.comment.starts_with("//!"));
    let message = "does not open with //!; say in two to eight lines what this file owns";
    (!opens).then(|| Finding::new(path, 1, message))
}

fn debts(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in source.numbered() {
        let has_word = |word: &str| {
            line.comment.split(|c: char| !c.is_alphanumeric()).any(|found| found == word)
        };
        if has_word("FIXME") {
            let message = "FIXME on main; repair it, or write the debt down with what removes it";
            findings.push(Finding::new(path, number, message));
        } else if has_word("TODO") && !names_issue(&line.comment) {
            let message = "TODO without an issue; write TODO(#123), or do it";
            findings.push(Finding::new(path, number, message));
        }
    }
    findings
}

fn names_issue(comment: &str) -> bool {
    let after = comment.split_once("TODO(#").map_or("", |(_, after)| after);
    let digits = after.chars().take_while(char::is_ascii_digit).count();
    digits > 0 && after[digits..].starts_with(')')
}

/// An `allow` or `expect` attribute has its reason in it, on its line, or in the line above.
fn exceptions(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        let starts = ["[allow(", "[expect("].iter().any(|attribute| line.code.contains(attribute));
        let above = index.checked_sub(1).map(|index| source.lines[index].comment.as_str());
        let explained = !line.comment.is_empty() || above.is_some_and(|text| !text.is_empty());
        if starts && !explained && !attribute_text(source, index).contains("reason") {
            let message = "lint exception without a reason; add reason = \"...\" or a comment";
            findings.push(Finding::new(path, index + 1, message));
        }
    }
    findings
}

/// The code of an attribute that starts on this line, up to its closing bracket.
fn attribute_text(source: &Source, start: usize) -> String {
    let mut text = String::new();
    for line in &source.lines[start..] {
        text.push_str(&line.code);
        if line.code.contains(']') {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        check(&Tree::of(&[("src/a.rs", text)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn every_file_says_what_it_owns() {
        assert!(found("//! Owns x.\nfn a() {}\n").is_empty());
        for text in ["fn a() {}\n", "// Owns x.\n", "\n//! Owns x.\n", ""] {
            let found = found(text);
            assert!(found.len() == 1 && found[0].starts_with("src/a.rs:1: "), "{text:?} {found:?}");
        }
    }

    #[test]
    fn debts_have_an_issue() {
        assert!(found("//! A.\n// TODO(#12): split.\nlet x = \"TODO\"; // todolist\n").is_empty());
        for text in
            ["//! A.\n// TODO: split.\n", "//! A.\n// TODO(#): x\n", "//! A.\n// FIXME(#1)\n"]
        {
            assert!(found(text)[0].starts_with("src/a.rs:2: "), "{text:?}");
        }
    }

    #[test]
    fn lint_exceptions_have_a_reason() {
        for text in [
            "//! A.\n#[allow(dead_code, reason = \"x\")]\n",
            "//! A.\n#[expect(\n    dead_code,\n    reason = \"x\"\n)]\n",
            "//! A.\n// Why.\n#[allow(dead_code)]\n",
            "//! A.\n#[allow(dead_code)] // Why.\n",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
        assert!(found("//! A.\n\n#![allow(dead_code)]\n")[0].starts_with("src/a.rs:3: "));
    }
}
