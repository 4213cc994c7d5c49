//! `tidy`: the house rules that a linter cannot know.
//!
//! Each rule is a function from the tree to findings, in a file of its own with its tests; this
//! file only lists them. A finding names file and line and says what to do.

mod boundaries;
mod codes;
mod commands;
mod comments;
mod dependencies;
mod manifests;
mod markdown;
mod mentions;
mod promises;
mod routes;
mod size;
mod source;
mod tree;
mod whitespace;
mod width;

use anyhow::Result;
use std::{fmt, path::Path};
use tree::Tree;

/// A place that breaks a house rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// The line, from 1.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    boundaries::check,
    codes::check,
    commands::check,
    comments::check,
    dependencies::check,
    manifests::check,
    markdown::check,
    promises::check,
    routes::check,
    size::check,
    whitespace::check,
    width::check,
];

/// Prints all findings; `true` if there are none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("    tidy: {} files, nothing to do", tree.texts().count()),
        n => println!("    tidy: {n} to do"),
    }
    Ok(findings.is_empty())
}
