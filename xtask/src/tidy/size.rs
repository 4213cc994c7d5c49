//! The size ratchet: small files stay small, and long files are listed with a reason.
//!
//! `xtask/long-files.txt` lists the long files, one per line: the allowed length, the path, and a
//! sentence that says why the file is one thing. The entry of a file that became shorter must be
//! lowered.

use super::{Finding, tree::Tree};

/// Lines that a Rust file may have without an entry in the list.
const LINES_MAX: usize = 600;
/// Lines that a document may have where readers are promised a short one.
const DOCUMENT_LINES_MAX: &[(&str, usize)] = &[("ARCHITECTURE.md", 180)];
/// How much larger than the file's real length an entry may be before it must be lowered.
const SLACK_LINES: usize = 100;
const LIST: &str = "xtask/long-files.txt";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (entries, mut findings) = entries(tree.text(LIST).unwrap_or_default());
    for entry in &entries {
        findings.extend(entry.check(tree));
    }
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs")) {
        let lines = text.lines().count();
        if lines > LINES_MAX && !entries.iter().any(|entry| entry.path == path) {
            let message = format!(
                "has {lines} lines, more than {LINES_MAX}; split it, or say in {LIST} in one \
                 sentence why it is one thing"
            );
            findings.push(Finding::new(path, lines, message));
        }
    }
    for (path, lines_max) in DOCUMENT_LINES_MAX {
        let lines = tree.text(path).map_or(0, |text| text.lines().count());
        if lines > *lines_max {
            let message = format!("has {lines} lines; it is promised to fit in {lines_max}");
            findings.push(Finding::new(path, lines, message));
        }
    }
    findings
}

struct Entry<'a> {
    line: usize,
    lines_max: usize,
    path: &'a str,
}

impl Entry<'_> {
    fn check(&self, tree: &Tree) -> Option<Finding> {
        let Entry { line, lines_max, path } = *self;
        let Some(text) = tree.text(path) else {
            return Some(Finding::new(
                LIST,
                line,
                format!("{path} does not exist; remove its line"),
            ));
        };
        let lines = text.lines().count();
        if lines > lines_max {
            let message = format!(
                "has {lines} lines, more than its {lines_max} in {LIST}; move something out rather \
                 than raise the number"
            );
            return Some(Finding::new(path, lines, message));
        }
        if lines <= LINES_MAX {
            let message = format!("{path} has only {lines} lines now; remove its line");
            return Some(Finding::new(LIST, line, message));
        }
        let message = format!("{path} has only {lines} lines now; lower its number to {lines}");
        (lines + SLACK_LINES < lines_max).then(|| Finding::new(LIST, line, message))
    }
}

fn entries(list: &str) -> (Vec<Entry<'_>>, Vec<Finding>) {
    let (mut entries, mut findings) = (Vec::new(), Vec::new());
    for (index, text) in list.lines().enumerate() {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut parts = text.splitn(3, ' ');
        let number = parts.next().and_then(|number| number.parse().ok());
        match (number, parts.next(), parts.next()) {
            (Some(lines_max), Some(path), Some(reason)) if !reason.trim().is_empty() => {
                entries.push(Entry { line: index + 1, lines_max, path });
            }
            _ => {
                let message = "is not `LINES PATH REASON`; give all three";
                findings.push(Finding::new(LIST, index + 1, message));
            }
        }
    }
    (entries, findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lines: usize, list: &str) -> Vec<String> {
        let text = "x\n".repeat(lines);
        let tree = Tree::of(&[("crates/a/src/b.rs", &text), (LIST, list)]);
        check(&tree).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        assert!(found(600, "").is_empty());
        assert!(found(601, "")[0].contains("has 601 lines, more than 600"));
        assert!(found(700, "# long\n700 crates/a/src/b.rs a flat match\n").is_empty());
        assert!(found(700, "700 crates/a/src/b.rs\n")[0].contains("give all three"));
    }

    #[test]
    fn the_ratchet_only_tightens() {
        let list = "700 crates/a/src/b.rs a flat match\n";
        assert!(found(701, list)[0].contains("more than its 700"));
        assert!(found(650, list).is_empty());
        assert!(found(600, list)[0].contains("remove its line"));
        assert!(
            found(601, "800 crates/a/src/b.rs a table\n")[0].contains("lower its number to 601")
        );
        assert!(found(1, "700 crates/gone.rs a table\n")[0].contains("does not exist"));
    }

    #[test]
    fn the_architecture_fits_in_its_bound() {
        let text = "x\n".repeat(301);
        assert_eq!(check(&Tree::of(&[("ARCHITECTURE.md", &text)])).len(), 1);
    }
}
