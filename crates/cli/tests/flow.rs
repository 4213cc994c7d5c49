//! `taskyard flow` as people and scripts use it, against a real broker and a real worker.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use crate::yard::{Process, Ran, Yard, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The command for all tasks: type `bad` fails for good while the file `broken` exists; all other
/// types return their payload.
const EXEC: &str =
    r#"if [ "$TASKYARD_TYPE" = bad ] && [ -e "$FOLDER/broken" ]; then exit 65; fi; cat"#;

const DIAMOND: &str = "\
name: diamond
nodes:
  - {name: fetch, type: http_get, payload: {url: a.jpg}}
  - {name: small, type: resize, payload: 100, depends_on: [fetch]}
  - {name: big, type: resize, payload: 900, depends_on: [fetch]}
  - name: publish
    type: publish
    payload: [done]
    depends_on: [small, big]
";

/// Writes a flow to a file of the yard and returns its path.
fn file(yard: &Yard, name: &str, text: &str) -> String {
    let path = yard.file(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_flow_is_run_to_its_end_and_shown() {
    let yard = Yard::start();
    let _worker = yard.work("default", EXEC, &[]);
    let path = file(&yard, "flow.yaml", DIAMOND);

    let ran = yard.run(&["flow", "run", &path]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("submitted "), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("diamond  succeeded after "), "{}", ran.stdout);
    assert!(lines[0].contains("4 of 4 done"), "{}", ran.stdout);
    assert_eq!(
        lines[1..],
        [
            "",
            "✔    fetch    succeeded  http_get",
            "├─╮",
            "✔ │  small    succeeded  resize",
            "│ ✔  big      succeeded  resize",
            "├─╯",
            "✔    publish  succeeded",
            "",
            "publish returned [\"done\"]",
        ]
    );

    // The same file as JSON, and the answer as JSON.
    let nodes = json!([{"name": "only", "type": "t", "payload": {"n": 1}}]);
    let path = file(&yard, "flow.json", &json!({"name": "one", "nodes": nodes}).to_string());
    let shown = yard.json(&["flow", "run", &path]).remove(0);
    assert_eq!((&shown["name"], &shown["state"]), (&json!("one"), &json!("succeeded")));
    assert_eq!(shown["results"], json!({"only": {"n": 1}}));
    assert_eq!(shown["nodes"][0]["state"], "succeeded");
}

#[test]
fn a_command_is_told_what_its_parents_returned() {
    let yard = Yard::start();
    let exec = r#"case "$TASKYARD_TYPE" in
        large) head -c 60000 /dev/zero | tr '\\0' x;;
        bad) exit 65;;
        tell) printf '{"node": "%s", "parents": %s, "errors": %s}' "$TASKYARD_NODE" "$TASKYARD_PARENTS" "$TASKYARD_PARENT_ERRORS";;
        measure) wc -c <"$TASKYARD_PARENTS_FILE";;
        *) cat;;
    esac"#;
    let _worker = yard.work("default", exec, &[]);
    let text = "\
nodes:
  - {name: one, type: echo, payload: {n: 1}}
  - {name: bad, type: bad}
  - {name: told, type: tell, depends_on: [one, {name: bad, on_failure: ignore}]}
  - {name: large, type: large}
  - {name: huge, type: large}
  - {name: measured, type: measure, depends_on: [large, huge]}
";
    let shown = yard.json(&["flow", "run", &file(&yard, "flow.yaml", text)]).remove(0);
    let told = &shown["results"]["told"];
    assert_eq!((&told["node"], &told["parents"]), (&json!("told"), &json!({"one": {"n": 1}})));
    assert_eq!(told["errors"]["bad"]["state"], "dead", "{shown}");
    assert!(shown["results"]["measured"].as_u64().unwrap() > 120_000, "{shown}");
}

#[test]
fn a_flow_that_fails_exits_with_1_and_is_retried() {
    let yard = Yard::start();
    let _worker = yard.work("default", EXEC, &[]);
    fs::write(yard.file("broken"), "").unwrap();
    let text =
        "nodes:\n  - {name: a, type: bad, payload: 1}\n  - {name: b, type: t, depends_on: [a]}\n";
    let ran = yard.run(&["flow", "run", &file(&yard, "flow.yaml", text)]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("✖  a  dead"), "{}", ran.stdout);
    assert!(ran.stdout.contains("✖  b  failed"), "{}", ran.stdout);
    let advice = ran.stderr.lines().find(|line| line.contains("taskyard flow retry")).unwrap();
    let id = advice.split_whitespace().last().unwrap();

    let dead = yard.json(&["dead", "list", "--flow", id]);
    assert_eq!(dead.len(), 1, "{dead:?}");
    let text = yard.ok(&["task", "get", dead[0]["id"].as_str().unwrap()]);
    assert!(text.contains(&format!("node a of {id}")), "{text}");
    assert_eq!(yard.json(&["flow", "list", "--state", "failed"])[0]["id"], id);

    fs::remove_file(yard.file("broken")).unwrap();
    assert_eq!(yard.ok(&["flow", "retry", id]), format!("{id} is running"));
    let waited = yard.run(&["flow", "wait", id]);
    assert_eq!(waited.code, 0, "{}{}", waited.stdout, waited.stderr);
    assert!(waited.stdout.contains("2 of 2 done"), "{}", waited.stdout);
    assert!(!waited.stdout.contains("failed"), "{}", waited.stdout);
}

#[test]
fn a_detached_flow_is_looked_at_listed_and_cancelled() {
    let yard = Yard::start();
    let mut text = "name: wide\nnodes:\n  - {name: split, type: split}\n".to_owned();
    for number in 1..=1_000 {
        text += &format!("  - {{name: part-{number}, type: part, depends_on: [split]}}\n");
    }
    let path = file(&yard, "flow.yaml", &text);
    let id = yard.ok(&["flow", "run", "--detach", &path]);
    assert!(!id.contains(' '), "{id}");

    let status = yard.ok(&["flow", "status", &id]);
    let lines: Vec<&str> = status.lines().collect();
    assert!(lines[0].contains("running") && lines[0].contains("0 of 1001 done"), "{status}");
    assert_eq!(lines[2..], ["●  split           ready", "○  1,000 × part-*  1,000 blocked"]);
    let all = yard.ok(&["flow", "status", &id, "--all"]);
    assert!(all.contains("part-777   blocked") && all.lines().count() > 1_000, "{all}");
    let shown = yard.json(&["flow", "status", &id]).remove(0);
    assert_eq!(shown["nodes"].as_array().unwrap().len(), 1_001);
    let list = yard.ok(&["flow", "list", "--name", "wide"]);
    assert!(list.contains(&id) && list.contains("0 of 1001 done"), "{list}");
    assert_eq!(yard.json(&["task", "list", "--flow", &id, "--limit", "2000"]).len(), 1_001);

    // A wait for a flow without workers ends after `--wait-for`, and the flow goes on.
    let waited = yard.run(&["flow", "wait", &id, "--wait-for", "50ms"]);
    assert_eq!((waited.code, waited.stdout.as_str()), (1, ""));
    assert!(waited.stderr.contains("goes on"), "{}", waited.stderr);

    yard.ok(&["flow", "cancel", &id]);
    let waited = yard.run(&["flow", "wait", &id]);
    assert_eq!(waited.code, 1);
    assert!(waited.stdout.contains("1,000 cancelled"), "{}", waited.stdout);
    assert!(waited.stderr.contains("ended as cancelled"), "{}", waited.stderr);
    let missing = yard.run(&["flow", "status", "00000000000000000000000000"]);
    assert_eq!(missing.code, 1, "{}", missing.stderr);
}

#[test]
fn mistakes_in_a_file_are_told_with_their_lines_before_anything_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flow.yaml");
    let path = path.to_str().unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        // No broker listens at this address.
        command.args(["flow", "run", path, "--server", "http://127.0.0.1:1"]);
        Ran::of(command, &[])
    };
    for (text, parts) in [
        (
            "nodes:\n  - {name: a, type: t, depends_on: [b]}\n  - {name: a, type: t}\n",
            &[":2:", ":3:", "\"a\"", "\"b\""][..],
        ),
        (
            "nodes:\n  - {name: a, type: t, depends_on: [b]}\n  - {name: b, type: t, depends_on: [a]}\n",
            &[":2:", "a -> b -> a"],
        ),
        ("name: x\nnodes: [\n", &["flow.yaml:"]),
    ] {
        fs::write(path, text).unwrap();
        let ran = run();
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
        for part in parts {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
    }
    fs::remove_file(path).unwrap();
    let ran = run();
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("cannot read") && ran.stderr.contains("flow.yaml"),
        "{}",
        ran.stderr
    );
}

#[test]
fn refused_calls_change_nothing() {
    let yard = Yard::start();
    let text = "nodes:\n  - {name: a, type: t, queue: 'no queue'}\n";
    let ran = yard.run(&["flow", "run", &file(&yard, "flow.yaml", text)]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("\"a\""), "{}", ran.stderr);
    assert!(yard.json(&["flow", "list"]).is_empty());
}

#[test]
fn an_interrupt_stops_the_waiting_and_not_the_flow() {
    let yard = Yard::start();
    let path = file(&yard, "flow.yaml", DIAMOND);
    let mut command = yard.command(&["flow", "run", &path]);
    command.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut running = Process(command.spawn().unwrap());
    let mut stderr = BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let id = line.trim().strip_prefix("submitted ").unwrap().to_owned();
    // The command prints its flow before it catches signals, and then polls the broker.
    until("the command waits", || is_catching(&running));
    running.signal(Signal::INT);
    assert_eq!(running.code(), Some(1));
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("taskyard flow status {id}")), "{said}");
    let shown: Value = yard.json(&["flow", "status", &id]).remove(0);
    assert_eq!(shown["state"], "running");
}

/// Whether a process handles an interrupt itself.
fn is_catching(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
}
