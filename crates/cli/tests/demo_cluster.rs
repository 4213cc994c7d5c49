//! `taskyard demo --nodes 3`: the demo kills a node, loses no task, and leaves no process behind.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use crate::yard::{Process, Ran, check_nothing_is_left, taskyard};
use rustix::process::Signal;
use serde_json::Value;

/// The demo, with its folder inside `folder`.
fn demo(folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["demo", "--nodes", "3"]).args(more).env("TMPDIR", folder);
    // A setting for the user's own broker must not reach the brokers of this command.
    command.env("TASKYARD_LISTEN", "127.0.0.1:1").stdin(Stdio::null());
    command
}

#[test]
fn a_killed_node_costs_no_confirmed_task() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Ran::of(demo(folder.path(), &["--json"]), &["demo"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
    let number = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert_eq!((number("nodes"), number("lost"), number("open")), (3, 0, 0), "{summary}");
    assert_eq!(number("made_twice"), 0, "{summary}");
    assert!((1..=3).contains(&number("killed_node")), "{summary}");
    assert!(number("killed_led") > 0, "{summary}");
    assert!(number("confirmed") > 100, "{summary}");
    assert!(number("executed") >= number("confirmed"), "{summary}");
    assert!(number("longest_pause_ms") > 0 && number("caught_up_ms") > 0, "{summary}");
    check_nothing_is_left(folder.path());
}

#[test]
fn an_interrupted_demo_stops_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process(demo(folder.path(), &[]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    // The first line comes when all nodes were started.
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("3 processes"), "{line}");
    process.signal(Signal::INT);
    assert_eq!(process.code(), Some(1));
    check_nothing_is_left(folder.path());
}

#[test]
fn a_cluster_that_cannot_lose_a_node_is_refused_with_words() {
    let ran = taskyard(&["demo", "--nodes", "2"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("3 or 5 nodes"), "{}", ran.stderr);
}
