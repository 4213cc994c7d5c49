//! No trailing whitespace, and a line end at the end of every file: differences show only changes.

use super::{Finding, tree::Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(Finding::new(path, index + 1, "ends in whitespace; remove it"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            let lines = text.lines().count();
            findings.push(Finding::new(path, lines, "ends without a line end; add one"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_whitespace_and_missing_line_ends_are_found() {
        for (text, lines) in
            [("a\n\nb\n", &[][..]), ("a \nb\t\nc\r\nd\n", &[1, 2, 3]), ("a\nb", &[2]), ("", &[])]
        {
            let tree = Tree::of(&[("docs/a.md", text)]);
            let found: Vec<usize> = check(&tree).iter().map(|finding| finding.line).collect();
            assert_eq!(found, lines, "{text:?}");
        }
    }
}
