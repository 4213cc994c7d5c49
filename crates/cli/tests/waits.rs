//! Commands that wait for a task or a flow: how they end, and their messages meanwhile.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::yard::{Process, Yard};

#[test]
fn a_wait_that_was_too_short_says_so() {
    let yard = Yard::start();
    let ran = yard.run(&["enqueue", "a", "--wait", "--wait-for", "100ms"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("is still ready after 100ms; wait longer"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("--wait"), "{}", ran.stderr);
    let id = yard.json(&["task", "list"])[0]["id"].as_str().unwrap().to_owned();
    assert!(yard.run(&["task", "result", &id]).stderr.contains("with --wait"));
}

#[test]
fn a_wait_says_after_a_while_that_nobody_listens_and_goes_on() {
    let yard = Yard::start();
    let flow = yard.file("flow.json");
    fs::write(&flow, r#"{"nodes": [{"name": "a", "type": "t", "queue": "flow-queue"}]}"#).unwrap();
    let later = yard.ok(&["enqueue", "a", "\"7\"", "--queue", "result-queue"]);
    let end = ["--wait-for", "60s"];
    let waits = [
        ("wait-queue", &["enqueue", "a", "7", "--queue", "wait-queue", "--wait"][..]),
        ("result-queue", &["task", "result", &later, "--wait"]),
        ("flow-queue", &["flow", "run", flow.to_str().unwrap()]),
        ("script-queue", &["enqueue", "a", "--queue", "script-queue", "--wait", "--json"]),
    ]
    .map(|(queue, arguments)| {
        let mut command = yard.command(&[arguments, &end].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        (queue, Process(command.spawn().unwrap()))
    });
    for (queue, mut waiting) in waits {
        let mut stderr = BufReader::new(waiting.0.stderr.take().unwrap());
        let mut said = String::new();
        let expected = format!("no worker listens on queue {queue} now: start a worker");
        while !said.contains(&expected) {
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{queue}: it ended: {said}");
        }
        let _worker = yard.work(queue, "cat", &[]);
        assert_eq!(waiting.code(), Some(0), "{queue}");
    }
}
