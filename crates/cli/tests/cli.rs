//! The binary as people and scripts use it, against a real broker: its output and exit codes.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

use crate::yard::{Process, Ran, Yard, taskyard, until};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn wrong_usage_exits_with_2_and_says_so_on_stderr() {
    let yard = Yard::start();
    yard.ok(&["enqueue", "a", "--queue", "q"]);
    for arguments in [
        &["no-such-command"][..],
        &["enqueue"],
        &["enqueue", "a", "--priority", "12"],
        &["enqueue", "a", "--delay", "-5s"],
        &["enqueue", "a", "not json"],
        &["enqueue", ""],
        &["enqueue", "a", "--queue", "no queue"],
        &["enqueue", "a", "--at", "9999-01-01T00:00:00Z"],
        &["task", "get", "no-id"],
        &["task", "result", "no-id"],
        &["task", "cancel", "no-id"],
        &["queue", "purge", "q"],
        &["dead", "discard", "--all"],
        &["dead", "discard", "--queue", "q"],
        &["task", "list", "--state", "asleep"],
        &["dead", "retry"],
        &["dead", "discard"],
        &["queue", "set", "q"],
        &["queue", "set", "q", "--dedup-window", "1s"],
        &["enqueue", "a", "--retry", "never", "--max-attempts", "5"],
        &["enqueue", "a", "--queue", ""],
        &["enqueue", "a", "--request-id", ""],
        &["enqueue", "a", r#""\ud800""#],
        &["task", "list", "--queue", ""],
        &["dead", "retry", "--queue", ""],
        &["dead", "discard", "--queue", "", "--yes"],
        &["work", "--queue", "", "--exec", "cat"],
    ] {
        let ran = yard.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn mistakes_are_told_in_the_words_that_were_typed() {
    let yard = Yard::start();
    yard.ok(&["enqueue", "a", "--queue", "q"]);
    let data = yard.file("other");
    let data = data.to_str().unwrap();
    for (arguments, part, absent) in [
        (&["enqueue", "a", "--delay", "-5s"][..], "\"-5s\" is not a duration", "unexpected"),
        (&["enqueue", "a", "--priority", "-1"], "-1 is not in 0..=9", "unexpected"),
        (&["enqueue", "--delay", "1s"], "Usage: taskyard enqueue", "--server"),
        (&["serve", "--data", data, "--payload-max", "9M"], "--payload-max is", "bytes_max"),
        (&["queue", "purge", "q"], "--yes", "removed"),
        (&["dead", "discard", "--all"], "--yes", "discarded"),
    ] {
        let ran = yard.run(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains(absent), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_broker_that_is_not_there_exits_with_1_and_says_what_to_do() {
    let ran = taskyard(&["queue", "list", "--server", "http://127.0.0.1:1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    for part in ["http://127.0.0.1:1", "taskyard serve", "--server"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    let ran = taskyard(&["queue", "list", "--server", "http://127.0.0.1:1", "--json"]);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, &error["code"]), (1, &json!("unavailable")));
}

#[test]
fn wrong_usage_is_told_in_json_too() {
    for (arguments, part) in [
        (&["enqueue", "--json"][..], "Usage"),
        (&["task", "list", "-n", "0", "--json"], "\"0\" is not a whole number from 1"),
    ] {
        let ran = taskyard(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}");
        let error: Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!(error["code"], "invalid_argument");
        assert!(error["detail"].as_str().unwrap().contains(part), "{error}");
    }
}

#[test]
fn a_server_with_a_path_is_refused() {
    let ran = taskyard(&["queue", "list", "--server", "http://127.0.0.1:7400/queues"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    for part in ["http://127.0.0.1:7400/queues", "/queues", "path"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn each_of_several_tasks_is_changed_whatever_becomes_of_the_others() {
    let yard = Yard::start();
    let good = yard.ok(&["enqueue", "a", "--delay", "1h"]);
    let gone = format!("{}{}", &good[..25], if good.ends_with('v') { 'u' } else { 'v' });
    for (verb, state) in [("cancel", "cancelled"), ("retry", "ready")] {
        let ran = yard.run(&["task", verb, "bad", &gone, &good]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert_eq!(yard.task(&good)["state"], state);
        assert!(ran.stdout.contains(&good), "{}", ran.stdout);
        for part in ["error: id \"bad\" is not a task id", &gone, "2 of 3 tasks"] {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
    }
}

#[test]
fn moments_are_taken_as_http_takes_them() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "a", "--at", "1950-01-01T00:00:00Z"]);
    assert_eq!(yard.task(&id)["state"], "ready");
    let ran = yard.run(&["enqueue", "a", "--at", "9999-12-31T23:59:59Z"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("more than ten years ahead"), "{}", ran.stderr);
}

#[test]
fn a_task_is_enqueued_looked_at_and_listed() {
    let yard = Yard::start();
    let options = ["--queue", "mail", "--priority", "8", "--tag", "new", "--header", "trace=x"];
    let mut arguments = vec!["enqueue", "send_mail", r#"{"to": "ada"}"#, "--timeout", "5m"];
    arguments.extend(options);
    let id = yard.ok(&arguments);

    let task = yard.task(&id);
    for (name, value) in [
        ("id", json!(id)),
        ("type", json!("send_mail")),
        ("queue", json!("mail")),
        ("state", json!("ready")),
        ("priority", json!(8)),
        ("payload", json!({"to": "ada"})),
        ("tags", json!(["new"])),
        ("headers", json!({"trace": "x"})),
        ("timeout_ms", json!(300_000)),
    ] {
        assert_eq!(task[name], value, "{name} of {task}");
    }
    let enqueued_at = task["enqueued_at"].as_str().unwrap();
    assert!(enqueued_at.starts_with("20") && enqueued_at.ends_with('Z'), "{enqueued_at}");

    let text = yard.ok(&["task", "get", &id]);
    assert!(text.contains("send_mail in queue mail") && !text.contains('\x1b'), "{text}");
    assert_eq!(yard.json(&["task", "list", "--queue", "mail", "--tag", "new"])[0]["id"], id);
    assert!(yard.json(&["task", "list", "--queue", "other"]).is_empty());

    let text = yard.ok(&["task", "list"]);
    assert!(!text.contains("PAYLOAD") && !text.contains("ada"), "{text}");
    let text = yard.ok(&["task", "list", "--payload"]);
    assert!(text.contains("PAYLOAD") && text.contains(r#"{"to": "ada"}"#), "{text}");

    let ran = yard.run(&["task", "get", "00000000000000000000000000"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
}

#[test]
fn payloads_come_from_files_and_stdin_and_need_not_be_json() {
    let yard = Yard::start();
    let file = yard.file("payload.json");
    fs::write(&file, "[1, 2.50]").unwrap();
    let id = yard.ok(&["enqueue", "a", &format!("@{}", file.display())]);
    assert_eq!(yard.task(&id)["payload"], json!([1, 2.5]));

    let arguments = ["enqueue", "a", "-", "--raw", "--content-type", "text/plain", "--json"];
    let mut child =
        yard.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\xffhi").unwrap();
    let answer = child.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let task = yard.task(answer["id"].as_str().unwrap());
    assert_eq!(task["payload_base64"], "/2hp");
    assert_eq!(task["content_type"], "text/plain");
}

#[test]
fn a_unique_key_is_answered_replaced_or_refused() {
    let yard = Yard::start();
    let by_page = |page: &str, more: &[&str]| {
        let payload = format!("{{\"page\": {page}, \"at\": \"{}\"}}", more.len());
        let mut arguments = vec!["enqueue", "index", &payload, "--unique-by", "type,payload.page"];
        arguments.extend(more);
        yard.run(&arguments)
    };
    let first = by_page("3", &[]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let again = by_page("3", &["--on-conflict", "replace"]);
    assert_eq!((again.code, &again.stdout), (0, &first.stdout), "{}", again.stderr);
    assert!(again.stderr.contains("no task was added"), "{}", again.stderr);
    let id = first.stdout.trim();
    let task = yard.json(&["task", "get", id]).remove(0);
    assert_eq!((&task["payload"]["at"], &task["unique"]["held"]), (&json!("2"), &json!(true)));
    assert!(yard.ok(&["task", "get", id]).contains("holds key sha256:"));
    let refused = by_page("3", &["--on-conflict", "reject", "--json"]);
    let error: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!((refused.code, &error["code"]), (1, &json!("not_unique")));
    assert!(error["detail"].as_str().unwrap().contains(id), "{error}");
    assert_ne!(by_page("4", &["--debounce", "10s"]).stdout, first.stdout);
    let nameless = yard.run(&["enqueue", "index", "--debounce", "10s"]);
    assert_eq!(nameless.code, 2, "{}", nameless.stderr);
    assert!(nameless.stderr.contains("--unique-key"), "{}", nameless.stderr);
}

#[test]
fn text_of_producers_and_handlers_cannot_control_a_terminal() {
    let yard = Yard::start();
    let _worker = yard.work("q", r"printf '\033]0;error\007' >&2; exit 65", &[]);
    let header = "h=\u{1b}]0;header\u{7}";
    let id = yard.ok(&["enqueue", "a", "-q", "q", "--header", header]);
    yard.until_state(&id, "dead");
    let got = yard.run(&["task", "get", &id]);
    let result = yard.run(&["task", "result", &id]);
    for (said, part) in
        [(&got.stdout, "]0;header"), (&got.stdout, "]0;error"), (&result.stderr, "]0;error")]
    {
        assert!(said.contains(part), "{said:?}");
        assert!(!said.contains(['\u{1b}', '\u{7}']), "{said:?}");
    }
}

#[test]
fn a_request_id_enqueues_once() {
    let yard = Yard::start();
    let first = yard.json(&["enqueue", "a", "--request-id", "one"]).remove(0);
    let second = yard.json(&["enqueue", "a", "--request-id", "one"]).remove(0);
    assert_eq!(first["id"], second["id"]);
    assert_eq!((first.get("duplicate"), &second["duplicate"]), (None, &json!(true)));
}

#[test]
fn tasks_can_be_cancelled_and_delayed() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "a", "--delay", "1h"]);
    let task = yard.task(&id);
    assert_eq!(task["state"], "scheduled");
    assert!(task["run_at"].is_string());
    assert_eq!(yard.json(&["task", "cancel", &id])[0]["state"], "cancelled");
    assert_eq!(yard.task(&id)["state"], "cancelled");
    let ran = yard.run(&["task", "result", &id]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("cancelled"), "{}", ran.stderr);
}

#[test]
fn a_file_of_tasks_is_taken_line_by_line() {
    let yard = Yard::start();
    let file = yard.file("tasks.jsonl");
    let mut lines = String::new();
    for number in 0..500 {
        lines += &format!(
            "{{\"type\": \"n\", \"payload\": {number}, \"request_id\": \"r{}\"}}\n",
            number % 400
        );
    }
    lines += "\n{\"type\": \"n\", \"priority\": 12}\n{\"type\"\n{\"type\": \"n\", \"colour\": 1}\n";
    fs::write(&file, lines).unwrap();
    let ran = yard.run(&["enqueue", "--file", file.to_str().unwrap(), "--queue", "bulk", "--json"]);
    assert_eq!(ran.code, 1);
    let counts: Value = serde_json::from_str(&ran.stdout).unwrap();
    let refused_lines = [[502, 504]];
    assert_eq!(
        counts,
        json!({"accepted": 400, "duplicate": 100, "refused": 3, "refused_lines": refused_lines})
    );
    for part in ["line 502: ", "line 503: ", "line 504: ", "colour"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    assert_eq!(yard.json(&["queue", "get", "bulk"])[0]["ready"], 400);
    let first = yard.json(&["task", "list", "--queue", "bulk", "--limit", "3", "--payload"]);
    assert_eq!(first.len(), 3, "no more than asked for");
}

#[test]
fn a_batch_is_all_or_nothing() {
    let yard = Yard::start();
    let batch = |lines: &str| {
        let mut child = yard
            .command(&["enqueue", "a", "--file", "-", "--batch", "--queue", "b", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(batch("{}\n{\"payload\": 2}\n").0, 0);
    assert_eq!(yard.json(&["queue", "get", "b"])[0]["ready"], 2);
    for bad in ["{\"oops\": 1}", "{\"priority\": 77}", "{\"queue\": \"c\"}"] {
        let (code, stderr) = batch(&format!("{{}}\n{bad}\n\n{bad}\n"));
        assert_ne!(code, 0, "{bad}");
        for part in ["line 2: ", "line 4: ", "2 bad lines"] {
            assert!(stderr.contains(part), "{bad}: {stderr}");
        }
        assert!(stderr.contains("nothing was enqueued"), "{stderr}");
    }
    assert_eq!(yard.json(&["queue", "get", "b"])[0]["ready"], 2);
}

#[test]
fn queues_are_paused_set_and_purged() {
    let yard = Yard::start();
    for _ in 0..3 {
        yard.ok(&["enqueue", "a", "--queue", "q"]);
    }
    assert_eq!(yard.json(&["queue", "pause", "q"])[0], json!({"queue": "q", "paused": true}));
    let queue = yard.json(&["queue", "list"]).remove(0);
    assert_eq!(
        (&queue["name"], &queue["ready"], &queue["paused"]),
        (&json!("q"), &json!(3), &json!(true))
    );
    yard.ok(&["queue", "resume", "q"]);

    yard.ok(&["queue", "set", "q", "--max-length", "4", "--retry", "fixed", "--retry-delay", "2s"]);
    yard.ok(&["queue", "set", "q", "--retention", "2d"]);
    let settings = yard.json(&["queue", "get", "q"]).remove(0)["settings"].clone();
    assert_eq!(settings["max_length"], 4);
    assert_eq!(settings["retention_ms"], 172_800_000);
    assert_eq!(
        (&settings["retry"]["policy"], &settings["retry"]["delay_ms"]),
        (&json!("fixed"), &json!(2_000))
    );
    yard.ok(&["enqueue", "a", "--queue", "q"]);
    let ran = yard.run(&["enqueue", "a", "--queue", "q"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("limit of 4"), "{}", ran.stderr);
    yard.ok(&["queue", "set", "q", "--unset", "max-length"]);
    yard.ok(&["enqueue", "a", "--queue", "q"]);

    assert_eq!(yard.json(&["queue", "purge", "q", "--yes"])[0]["removed"], 5);
    assert_eq!(yard.json(&["queue", "get", "q"])[0]["ready"], 0);
}

/// The answer to a GET of `path` over HTTP.
fn http(yard: &Yard, path: &str) -> Value {
    ask_http(yard, "GET", path, "")
}

pub(crate) fn ask_http(yard: &Yard, method: &str, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(yard.url.trim_start_matches("http://")).unwrap();
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {body}"))
}

#[test]
fn an_attempt_of_a_worker_without_a_name_is_told_without_one() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "a", "-q", "q", "--retry", "never"]);
    let claimed = ask_http(&yard, "POST", "/v1/claims", r#"{"queues": ["q"]}"#);
    let token = &claimed["tasks"][0]["claim_token"];
    let shown = yard.ok(&["task", "get", &id]);
    assert!(shown.contains("  a worker without a name, since "), "{shown}");
    let fail = format!(r#"{{"claim_token": {token}, "error": {{"type": "E", "message": "m"}}}}"#);
    ask_http(&yard, "POST", &format!("/v1/tasks/{id}/fail"), &fail);
    let shown = yard.ok(&["task", "get", &id]);
    let attempt = shown.lines().last().unwrap();
    assert!(attempt.contains("failed after ") && attempt.ends_with("s: E: m"), "{attempt}");
}

#[test]
fn json_is_the_same_as_over_http() {
    let yard = Yard::start();
    let exec = "[ $TASKYARD_TYPE = bad ] && exit 65; touch $FOLDER/runs; exec sleep 1000";
    let _worker = yard.work("q", exec, &["--name", "w1"]);
    let bad = yard.ok(&["enqueue", "bad", "{\"n\": 1.50}", "--queue", "q", "--tag", "x"]);
    yard.until_state(&bad, "dead");
    let runs = yard.ok(&["enqueue", "a", "--queue", "q", "--timeout", "1h"]);
    until("the task runs", || yard.file("runs").exists());
    let later = yard.ok(&["enqueue", "a", "--queue", "q", "--delay", "1h", "--header", "h=1"]);
    // A beat may renew the lease at any moment.
    let without_lease = |mut task: Value| {
        if let Some(claim) = task["claim"].as_object_mut() {
            claim.remove("lease_expires_at").unwrap();
        }
        if task["claim"].is_null() {
            task.as_object_mut().unwrap().remove("claim");
        }
        task
    };
    for id in [bad, runs, later] {
        let over_http = http(&yard, &format!("/v1/tasks/{id}"));
        assert_eq!(without_lease(yard.task(&id)), without_lease(over_http));
    }
    let listed = yard.json(&["task", "list", "--queue", "q"]).into_iter().map(without_lease);
    let Value::Array(over_http) = http(&yard, "/v1/tasks?queue=q&order=newest")["tasks"].take()
    else {
        panic!("no list")
    };
    let over_http: Vec<Value> = over_http.into_iter().map(without_lease).collect();
    assert_eq!(listed.collect::<Vec<_>>(), over_http);
    assert_eq!(json!(yard.json(&["queue", "list"])), http(&yard, "/v1/queues")["queues"]);
    let still = |mut worker: Value| {
        let worker = worker.as_object_mut().unwrap();
        worker.remove("beat_at");
        worker.remove("rss_bytes");
        worker.clone()
    };
    let over_http = http(&yard, "/v1/workers")["workers"][0].clone();
    assert_eq!(still(yard.json(&["worker", "list"]).remove(0)), still(over_http));
}

#[test]
fn a_list_into_a_closed_pipe_ends_quietly() {
    let yard = Yard::start();
    for _ in 0..200 {
        yard.ok(&["enqueue", "a", "--tag", "a-tag-to-fill-the-pipe"]);
    }
    let mut child = yard
        .command(&["task", "list", "--limit", "1000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}

#[test]
fn workers_are_listed_and_stopped() {
    let yard = Yard::start();
    let mut worker = yard.work("q", "cat", &["--name", "w1", "--concurrency", "3"]);
    until("the worker is listed", || !yard.json(&["worker", "list"]).is_empty());
    let listed = yard.json(&["worker", "list"]).remove(0);
    for (name, value) in [
        ("name", json!("w1")),
        ("slots", json!(3)),
        ("queues", json!(["q"])),
        ("pid", json!(worker.0.id())),
        ("state", json!("running")),
    ] {
        assert_eq!(listed[name], value, "{name} of {listed}");
    }
    yard.ok(&["worker", "stop", listed["id"].as_str().unwrap()]);
    assert_eq!(worker.code(), Some(0));
    assert_eq!(yard.run(&["worker", "stop", "nobody"]).code, 1);
}

#[test]
fn a_backup_becomes_a_broker_again() {
    let yard = Yard::start();
    let ids: Vec<String> = (0..20)
        .map(|number| {
            yard.ok(&["enqueue", "a", &number.to_string(), "--queue", &format!("q{}", number % 5)])
        })
        .collect();
    let file = yard.file("yard.backup");
    let file = file.to_str().unwrap();
    let saved = yard.json(&["backup", file]).remove(0);
    assert_eq!(saved["shards"], 4);
    let ran = yard.run(&["backup", file]);
    assert_eq!(ran.code, 2, "a file is not replaced by accident: {}", ran.stderr);

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let restored = taskyard(&["restore", file, "--data", data.to_str().unwrap()]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    let again = taskyard(&["restore", file, "--data", data.to_str().unwrap()]);
    assert_eq!(again.code, 1, "a directory is not written over: {}", again.stderr);

    let copy = Yard::start_in(folder);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(copy.task(id)["payload"], number);
    }
    fs::write(yard.file("junk"), b"not a backup").unwrap();
    let data = yard.file("junk-data");
    let junk = taskyard(&[
        "restore",
        yard.file("junk").to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
    ]);
    assert_eq!(junk.code, 1, "{}", junk.stderr);
}

#[test]
fn the_demo_runs_by_itself() {
    let ran = taskyard(&["demo", "--duration", "6s", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(summary["flows"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["scheduled"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["exports_at_once"], 2, "their queue's limit: {summary}");
    assert!(summary["executed"].as_u64().unwrap() > 100, "{summary}");
    assert!(summary["retries"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["dead"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(
        summary["enqueued"],
        summary["executed"].as_u64().unwrap() + summary["dead"].as_u64().unwrap()
    );
}

#[test]
fn bench_measures_a_broker_of_its_own_and_its_return_from_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    let arguments = ["bench", "--tasks", "500", "--seconds", "20", "--restart", "--json"];
    command.args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    let ran = Ran::of(command, &arguments);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let figures: Value = serde_json::from_str(&ran.stdout).unwrap();
    for phase in figures["phases"].as_array().unwrap() {
        assert_eq!(phase["tasks"], 500, "{phase}");
        assert!(phase["per_second"].as_f64().unwrap() > 0.0, "{phase}");
    }
    assert!(figures["restart_ms"].is_u64(), "{figures}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it cleans up after itself");
}

#[test]
fn bench_measures_a_broker_over_faktorys_wire() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    let arguments = ["bench", "--faktory", "--tasks", "200", "--connections", "4", "--json"];
    command.args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    let ran = Ran::of(command, &arguments);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let figures: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(figures["connections"], 4, "{figures}");
    let phases = figures["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["push", "fetch and ack", "push, fetch, ack"]);
    for phase in phases {
        assert_eq!(phase["tasks"], 200, "{phase}");
        assert!(phase["per_second"].as_f64().unwrap() > 0.0, "{phase}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it cleans up after itself");
}

#[test]
fn the_demo_stays_until_it_is_stopped() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["demo", "--duration", "100ms", "--keep"]).stdout(Stdio::piped());
    let mut demo = Process(command.spawn().unwrap());
    let mut stdout = std::io::BufReader::new(demo.0.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("Your own:") {
        let read = std::io::BufRead::read_line(&mut stdout, &mut text).unwrap();
        assert_ne!(read, 0, "it ended: {text}");
    }
    let url = text.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let ran = taskyard(&["queue", "list", "--json", "--server", url]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    demo.signal(Signal::INT);
    assert_eq!(demo.code(), Some(0));
}
