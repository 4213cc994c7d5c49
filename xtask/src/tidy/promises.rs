//! Every promise in `docs/guarantees.md` is proved by a test that exists.
//!
//! A promise is a heading `## 1. ...`. Its tests are named below it as `path/to/file.rs::name`, or
//! as the path of a script that a test runs.

use super::{
    Finding,
    markdown::{backticked, prose},
    source::Source,
    tree::Tree,
};

const GUARANTEES: &str = "docs/guarantees.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(GUARANTEES) else {
        return vec![Finding::new(GUARANTEES, 1, "is missing; it names the test of each promise")];
    };
    let mut findings = Vec::new();
    let mut open: Option<(usize, &str)> = None;
    let unproved = |promise: Option<(usize, &str)>| {
        promise.map(|(line, title)| {
            let message = format!("{title:?} names no test; add `path/to/file.rs::test_name`");
            Finding::new(GUARANTEES, line, message)
        })
    };
    for (number, line) in prose(text) {
        if line.starts_with("## ") {
            findings.extend(unproved(open.take()));
            open = is_promise(line).then_some((number, line));
        }
        for span in backticked(line) {
            match span.split_once(".rs::") {
                Some((file, name)) => match proves(tree, &format!("{file}.rs"), name) {
                    Ok(()) => open = None,
                    Err(message) => findings.push(Finding::new(GUARANTEES, number, message)),
                },
                None if span.contains("/tests/scripts/") && tree.has(span) => open = None,
                None => {}
            }
        }
    }
    findings.extend(unproved(open));
    findings
}

/// `## 7. Title`.
fn is_promise(heading: &str) -> bool {
    let rest = heading.trim_start_matches("## ");
    let digits = rest.chars().take_while(char::is_ascii_digit).count();
    digits > 0 && rest[digits..].starts_with(". ")
}

fn proves(tree: &Tree, path: &str, name: &str) -> Result<(), String> {
    let source = tree.source(path).ok_or(format!("names {path}: no such file"))?;
    match has_test(source, name) {
        true => Ok(()),
        false => Err(format!("names the test {name}: {path} has no such test function")),
    }
}

/// Whether there is a function of that name under a test attribute.
fn has_test(source: &Source, name: &str) -> bool {
    let declares = |code: &str| {
        let after = code.split_once("fn ").map_or("", |(_, after)| after);
        after.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    source.lines.iter().enumerate().any(|(index, line)| {
        let above = source.lines[..index].iter().rev();
        let mut attributes = above.take_while(|line| {
            let code = line.code.trim();
            code.starts_with("#[") || code.is_empty() && !line.comment.is_empty()
        });
        declares(&line.code) && attributes.any(|line| line.code.contains("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: (&str, &str) = (
        "crates/server/tests/crash.rs",
        "//! Crash.\n#[tokio::test]\n// Slow.\nasync fn survives() {}\nfn helper() {}\n",
    );

    fn found(text: &str) -> Vec<String> {
        let script = ("crates/machine/tests/scripts/ack.txt", "ack\n");
        check(&Tree::of(&[(GUARANTEES, text), TESTS, script]))
            .iter()
            .map(Finding::to_string)
            .collect()
    }

    #[test]
    fn a_promise_names_a_test_that_exists() {
        let proved =
            "## 1. Kept\n\n- `crates/server/tests/crash.rs::survives`\n\n## Not a promise\n";
        assert_eq!(found(proved), [""; 0]);
        let script = "## 2. Kept\n`crates/machine/tests/scripts/ack.txt`\n";
        assert_eq!(found(script), [""; 0]);
        assert!(
            found("# Guarantees\n## 1. Kept\nWords.\n## 2. Too\n")[0]
                .starts_with("docs/guarantees.md:2: ")
        );
        assert_eq!(found("## 1. Kept\nWords.\n## 2. Too\n").len(), 2);
    }

    #[test]
    fn a_test_that_is_gone_or_is_no_test_is_found() {
        for (reference, reason) in [
            ("crates/server/tests/crash.rs::gone", "no such test function"),
            ("crates/server/tests/crash.rs::helper", "no such test function"),
            ("crates/server/tests/crash.rs::surv", "no such test function"),
            ("crates/server/tests/gone.rs::survives", "no such file"),
        ] {
            let found = found(&format!("## 1. Kept\n- `{reference}`\n"));
            assert!(found.iter().any(|finding| finding.contains(reason)), "{reference}: {found:?}");
        }
    }
}
