//! `taskyard cluster ...` with impossible or refused commands: messages and exit codes. 2 means a
//! mistake in the command line, 1 a failure.

use std::process::{Command, Stdio};

use crate::yard::{Process, Yard, serve, until};
use serde_json::{Value, json};

/// A cluster of one node.
fn alone() -> Yard {
    let yard = Yard::start();
    yard.ok(&["cluster", "status", "--wait", "--timeout", "60s"]);
    yard
}

/// A cluster of two nodes; the second one is the returned process.
fn two() -> (Yard, Process) {
    let yard = alone();
    let peer = status(&yard)["nodes"][0]["peer_address"].as_str().unwrap().to_owned();
    // The number of shards comes from the cluster.
    let like = serve(&yard.file("second"));
    let arguments: Vec<_> = like.get_args().collect();
    let at = arguments.iter().position(|argument| *argument == "--shards").unwrap();
    let mut command = Command::new(like.get_program());
    command.args(&arguments[..at]).args(&arguments[at + 2..]).args(["--join", &peer]);
    let second = Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    yard.ok(&["cluster", "status", "--wait", "--nodes", "2", "--timeout", "60s"]);
    (yard, second)
}

fn status(yard: &Yard) -> Value {
    yard.json(&["cluster", "status"]).remove(0)
}

#[test]
fn mistakes_in_the_command_line_exit_with_2() {
    let yard = alone();
    for (arguments, part) in [
        (&["cluster", "replication", "2"][..], "a shard has 1, 3 or 5 replicas, not 2"),
        (&["cluster", "replication", "300"], "a shard has 1, 3 or 5 replicas, not 300"),
        (&["cluster", "replication", "few"], "few"),
        (&["cluster", "status", "--nodes", "3"], "--wait"),
        (&["cluster", "status", "--timeout", "5s"], "--wait"),
        (&["cluster", "status", "--check", "--watch"], "--watch"),
        (&["cluster", "status", "--wait", "--timeout", "-5s"], "\"-5s\" is not a duration"),
        (&["cluster", "drain", "one"], "\"one\" names no node"),
        (&["cluster", "drain", "1", "--timeout", "5s"], "--wait"),
        (&["cluster", "transfer", "-1", "1"], "-1"),
        (&["cluster", "transfer", "70000", "1"], "shard \"70000\" is not a number"),
        (&["cluster", "remove", "7", "--force"], "--yes"),
    ] {
        let ran = yard.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn missing_items_exit_with_1_and_are_named() {
    let yard = alone();
    for arguments in [
        &["cluster", "drain", "9"][..],
        &["cluster", "undrain", "9"],
        &["cluster", "remove", "9"],
        &["cluster", "remove", "9", "--force", "--yes"],
        &["cluster", "transfer", "0", "9"],
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let ran = yard.run(&arguments);
        let error: Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!((ran.code, &error["code"]), (1, &json!("not_found")), "{arguments:?}");
        let words = "there is no node 9; `taskyard cluster status` lists them";
        assert_eq!(error["detail"], words, "{arguments:?}");
    }
    let ran = yard.run(&["cluster", "transfer", "4", "1"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("there is no shard 4; this cluster has 4, from 0"),
        "{}",
        ran.stderr
    );
    let ran = yard.run(&["cluster", "drain", "10.0.0.9:7401"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("there is no node at 10.0.0.9:7401"), "{}", ran.stderr);
}

#[test]
fn refused_changes_exit_with_1_as_a_conflict() {
    let yard = alone();
    let conflict = |yard: &Yard, arguments: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let ran = yard.run(&arguments);
        let error: Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!((ran.code, &error["code"]), (1, &json!("conflict")), "{arguments:?}: {error}");
        error["detail"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        conflict(&yard, &["cluster", "drain", "1"]),
        "node 1 can't be drained: it is the only node in use; add a node first"
    );
    let words = conflict(&yard, &["cluster", "remove", "1"]);
    assert!(words.contains("node 1 still holds a replica of"), "{words}");
    drop(yard);

    let (yard, mut second) = two();
    // With two nodes each shard has one replica, on either.
    let shards = status(&yard)["shards"].as_array().unwrap().clone();
    let there = shards.iter().position(|shard| shard["replicas"][0]["node"] == 2).unwrap();
    let words = conflict(&yard, &["cluster", "transfer", &there.to_string(), "1"]);
    let expected =
        format!("node 1 has no vote in shard {there}, so it can't lead it; choose one of nodes 2");
    assert_eq!(words, expected);
    let words = conflict(&yard, &["cluster", "remove", "2", "--force", "--yes"]);
    assert!(words.starts_with("node 2 is up; empty it with"), "{words}");

    let ran = yard.run(&["cluster", "drain", "2", "--wait", "--timeout", "60s"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("node 2 is empty"), "{}", ran.stderr);
    let ran = yard.run(&["cluster", "remove", "2"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("node 2 is removed; its process ends by itself"), "{}", ran.stderr);
    until("the process ends by itself", || second.0.try_wait().unwrap().is_some());
}

#[test]
fn a_wait_says_what_it_waits_for_and_ends() {
    let (yard, mut second) = two();
    let ran = yard.run(&["cluster", "status", "--check"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let ran = yard.run(&["cluster", "status", "--wait", "--nodes", "3", "--timeout", "300ms"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("waiting: there are 2 nodes, not 3"), "{}", ran.stderr);
    let end = "gave up after 300ms: there are 2 nodes, not 3; wait longer with --timeout";
    assert!(ran.stderr.contains(end), "{}", ran.stderr);

    second.0.kill().unwrap();
    second.0.wait().unwrap();
    until("the node is seen to be down", || status(&yard)["nodes"][1]["state"] == "down");
    let ran = yard.run(&["cluster", "status", "--check"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("node 2 does not answer"), "{}", ran.stdout);
    assert!(ran.stderr.contains("the cluster is not well: "), "{}", ran.stderr);
    let ran = yard.run(&["cluster", "status", "--wait", "--timeout", "1s", "--json"]);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, &error["code"]), (1, &json!("failed")));
    assert!(error["detail"].as_str().unwrap().contains("node 2 does not answer"), "{error}");
    // The drain of a node that is down never ends.
    let ran = yard.run(&["cluster", "drain", "2", "--wait", "--timeout", "1s"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("waiting: node 2 still has"), "{}", ran.stderr);
    assert!(ran.stderr.contains("gave up after 1s: node 2 still has"), "{}", ran.stderr);
}

#[test]
fn the_status_in_json_has_these_members() {
    let yard = alone();
    let status = status(&yard);
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(
        keys(&status),
        ["cluster_id", "control", "nodes", "replication", "rules", "seen_by", "shards"]
    );
    for key in
        ["address", "id", "leads", "peer_address", "replicas", "rules_max", "state", "version"]
    {
        assert!(!status["nodes"][0][key].is_null(), "{key} in {}", status["nodes"][0]);
    }
    for key in ["id", "leader", "replicas", "term"] {
        assert!(!status["shards"][3][key].is_null(), "{key} in {}", status["shards"][3]);
    }
    for key in ["lag", "match", "node", "replica", "role"] {
        let replica = &status["shards"][0]["replicas"][0];
        assert!(!replica[key].is_null(), "{key} in {replica}");
    }
}
