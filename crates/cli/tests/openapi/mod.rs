//! Compares `GET /openapi.json` with the broker. For every operation, schemathesis sends requests
//! that the document allows and requests that it forbids, and checks the answers.
//!
//! The broker must accept allowed requests as well-formed, must refuse forbidden requests, and must
//! answer no 5xx. Each answer must match the document. `rules.py` has our own rules for refusals
//! that no schema can predict.

use std::{path::Path, process::Command};

use crate::yard::{Yard, needs::Need, packages};

/// The requests of each kind for each operation. All requests take half a minute.
const EXAMPLES: &str = "12";

#[test]
fn every_operation_does_as_its_document_says() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi");
    let installed = packages::from_pypi("schemathesis", &sources.join("schemathesis.txt"));
    let packages = match installed {
        Ok(packages) => packages,
        Err(why) => return Need::Python.skip(format!("schemathesis can't be installed: {why}")),
    };
    let yard = Yard::start();
    let path = std::env::join_paths([&packages, &sources]).unwrap();
    let mut schemathesis = Command::new("python3");
    schemathesis.args(["-m", "schemathesis.cli", "run", &format!("{}/openapi.json", yard.url)]);
    schemathesis.args(["--phases", "fuzzing", "--max-examples", EXAMPLES]);
    // Every run sends the same requests, and failures are reported without shrinking.
    schemathesis.args(["--generation-deterministic", "--no-shrink", "--continue-on-failure"]);
    // `rules.py` replaces this check, because no schema can express all refusals.
    schemathesis.args(["--exclude-checks", "positive_data_acceptance"]);
    schemathesis.args(["--suppress-health-check", "all", "--warnings", "off", "--no-color"]);
    schemathesis.env("PYTHONPATH", path).env("SCHEMATHESIS_HOOKS", "rules");
    schemathesis.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(yard.folder.path());
    let ran = schemathesis.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let summary = said.find("= SUMMARY =").map_or("no summary", |at| &said[at..]);
    println!("{summary}");
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    // A run without any test succeeds too, so check the counts.
    let counted = |word: &str| {
        let line =
            summary.lines().find_map(|line| line.trim().strip_prefix(word)?.strip_prefix(": "));
        line.map(|count| count.split('/').next().unwrap_or_default().to_owned())
    };
    let (selected, tested) = (counted("Selected"), counted("Tested"));
    assert!(
        selected.is_some_and(|count| count.len() > 1) && tested == counted("Selected"),
        "{summary}"
    );
}
