//! `taskyard worker` through any node, with real worker processes, while a node is killed.

use crate::{
    cluster::nodes::{NODES, Nodes},
    yard::{Process, Ran, until},
};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

const BROKER: &str = env!("CARGO_BIN_EXE_taskyard");

fn taskyard(servers: &[String], arguments: &[&str]) -> Command {
    let mut command = Command::new(BROKER);
    command.args(arguments).env("TASKYARD_URL", servers.join(",")).env("NO_COLOR", "1");
    command.stdin(Stdio::null());
    command
}

/// Runs a command against one node.
fn run(nodes: &Nodes, asked: usize, arguments: &[&str]) -> Ran {
    Ran::of(taskyard(&[nodes.urls()[asked].clone()], arguments), arguments)
}

fn listed(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn place_and_state(nodes: &Nodes, asked: usize, id: &str) -> Option<(u64, String)> {
    let workers = listed(&run(nodes, asked, &["worker", "list", "--json"]));
    let found = workers.iter().find(|worker| worker["id"] == id)?;
    Some((found["node"].as_u64()?, found["state"].as_str()?.to_owned()))
}

#[test]
fn workers_are_listed_and_ordered_through_any_node_and_stay_quiet_when_theirs_is_killed() {
    let mut nodes = Nodes::form(NODES);
    let urls = nodes.urls();
    let work = ["work", "--queue", "q", "--exec", "cat", "--name", "w", "--log", "warn"];
    let servers = [urls[0].clone(), urls[1].clone()];
    let mut worker = Process(taskyard(&servers, &work).spawn().unwrap());
    until("the worker is listed", || {
        listed(&run(&nodes, 2, &["worker", "list", "--json"])).len() == 1
    });
    let seen = listed(&run(&nodes, 2, &["worker", "list", "--json"])).remove(0);
    assert_eq!((&seen["node"], &seen["state"]), (&json!(1), &json!("running")));
    let id = seen["id"].as_str().unwrap();
    let table = run(&nodes, 1, &["worker", "list"]);
    assert!(table.stdout.contains(id) && table.stdout.contains("NODE"), "{}", table.stdout);
    assert_eq!(table.stderr, "", "all have answered");

    let quiet = run(&nodes, 2, &["worker", "quiet", id]);
    assert_eq!(quiet.code, 0, "{}", quiet.stderr);
    assert_eq!(place_and_state(&nodes, 1, id), Some((1, "quiet".to_owned())));

    // The worker's node is killed. The worker resumes at another node and stays quiet there.
    nodes.kill(0);
    let mut was_running = false;
    until("the worker is quiet at node 2", || {
        let now = place_and_state(&nodes, 2, id);
        was_running |= now.as_ref().is_some_and(|(_, state)| state == "running");
        now == Some((2, "quiet".to_owned()))
    });
    assert!(!was_running, "the worker was running in between");
    let enqueue = run(&nodes, 1, &["enqueue", "t", "--queue", "q"]);
    assert_eq!(enqueue.code, 0, "{}", enqueue.stderr);
    let task = enqueue.stdout.trim();

    // The list reports that it is incomplete, to people and to scripts.
    let list = run(&nodes, 2, &["worker", "list"]);
    assert_eq!(list.stderr, "node 1 did not answer: its workers are not listed\n");
    let list = run(&nodes, 2, &["worker", "list", "--json"]);
    assert_eq!(list.stderr, "{\"missing_nodes\":[1]}\n");

    let shown = run(&nodes, 1, &["task", "get", task, "--json"]);
    assert_eq!(listed(&shown)[0]["state"], "ready", "nobody took it");
    let stop = run(&nodes, 2, &["worker", "stop", id]);
    assert_eq!(stop.code, 0, "{}", stop.stderr);
    assert_eq!(worker.code(), Some(0));
}
