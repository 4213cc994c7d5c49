//! Comments and Markdown wrap at 100 columns, as rustfmt wraps code: prose that needs a wide window
//! is not read in review.
//!
//! Code blocks, tables, and a word that cannot be broken (a link, a path) may be wider.

use super::{Finding, tree::Tree};

/// The width that rustfmt.toml sets for code.
const COLUMNS_MAX: usize = 100;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        let lines: Box<dyn Iterator<Item = (usize, &str)>> = match path {
            _ if path.ends_with(".md") => Box::new(prose(text)),
            _ if path.ends_with(".rs") => Box::new(comments(text)),
            _ => continue,
        };
        for (number, line) in lines.filter(|(_, line)| is_too_wide(line)) {
            let columns = line.chars().count();
            let message = format!("has {columns} columns; wrap it at {COLUMNS_MAX}");
            findings.push(Finding::new(path, number, message));
        }
    }
    findings
}

/// A line that has a space at which it could be broken, unless it says where a link leads.
fn is_too_wide(line: &str) -> bool {
    let text = line.trim_start_matches([' ', '/', '!', '-', '*', '>', '#']);
    let is_reference = text.starts_with('[') && text.contains("]: ");
    line.chars().count() > COLUMNS_MAX && text.contains(' ') && !is_reference
}

/// Lines of a Markdown file outside of code blocks and tables, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_table = line.trim_start().starts_with('|');
        (!is_code && !is_fence && !is_table).then_some((index + 1, line))
    })
}

/// Lines of a Rust file that have only a comment, outside of code blocks and tables of its
/// documentation.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_code = false;
            return None;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        let is_fence = comment.starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence && !comment.starts_with('|')).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_prose_is_found_and_wide_code_tables_and_links_are_not() {
        let wide = "word ".repeat(30);
        let link = format!("https://{}", "a".repeat(120));
        let fits = "a".repeat(49) + " " + &"b".repeat(50);
        for (text, lines) in [
            (wide.clone(), &[1][..]),
            (format!("- {wide}\n> {wide}"), &[1, 2]),
            (format!("```\n{wide}\n```\n{wide}"), &[4]),
            (format!("| {wide} |\n{link}\n- {link}\n[a]: {link}"), &[]),
            (fits, &[]),
        ] {
            assert_eq!(found("docs/a.md", &text), lines, "{text}");
        }
    }

    #[test]
    fn wide_comments_are_found_and_wide_strings_are_not() {
        let wide = "word ".repeat(30);
        for (text, lines) in [
            (format!("//! {wide}\nfn a() {{}} // {wide}"), &[1][..]),
            (format!("    /// {wide}\n    // {wide}"), &[1, 2]),
            (format!("let a = \"{wide}\";"), &[]),
            (format!("//! ```\n//! {wide}\n//! ```\n//! {wide}"), &[4]),
        ] {
            assert_eq!(found("src/a.rs", &text), lines, "{text}");
        }
    }
}
