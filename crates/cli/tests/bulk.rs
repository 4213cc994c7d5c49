//! Tasks from a file: every line is enqueued, or reported and kept.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::yard::{Process, Yard};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_file_that_cannot_be_read_ends_the_command() {
    let yard = Yard::start();
    let folder = yard.folder.path().to_str().unwrap().to_owned();
    for more in [&[][..], &["--batch"]] {
        let ran = yard.run(&[&["enqueue", "a", "--file", &folder][..], more].concat());
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("cannot read {folder}")), "{}", ran.stderr);
    }
}

/// Lines for a full queue, and one for another queue.
fn lines_for_a_full_queue(yard: &Yard) -> String {
    yard.ok(&["queue", "set", "full", "--max-length", "3"]);
    let mut lines: String =
        (1..=6).map(|n| format!("{{\"payload\": {n}, \"queue\": \"full\"}}\n")).collect();
    lines += "{\"payload\": 7, \"queue\": \"other\"}\n";
    let file = yard.file("tasks.jsonl");
    fs::write(&file, lines).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn lines_refused_for_want_of_room_are_told_and_kept_and_can_be_sent_again() {
    let yard = Yard::start();
    let file = lines_for_a_full_queue(&yard);
    let refused = yard.file("refused.jsonl");
    let refused = refused.to_str().unwrap();
    let enqueue = ["enqueue", "n", "--patience", "300ms", "--json", "--refused", refused, "--file"];
    let ran = yard.run(&[&enqueue[..], &[&file]].concat());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for part in ["waiting for room", "line 4: queue full holds its limit of 3 tasks", refused] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // The seventh line may have been in flight when the fourth was refused.
    let counts: Value = serde_json::from_str(&ran.stdout).unwrap();
    let others = yard.json(&["task", "list", "--queue", "other"]).len();
    assert_eq!(counts["accepted"], json!(3 + others));
    let kept = fs::read_to_string(refused).unwrap();
    assert_eq!(kept.lines().count(), 4 - others, "{kept}");

    yard.ok(&["queue", "set", "full", "--max-length", "6"]);
    let again = yard.file("again.jsonl");
    fs::rename(refused, &again).unwrap();
    let ran = yard.run(&[&enqueue[..], &[again.to_str().unwrap()]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut payloads: Vec<u64> = yard
        .json(&["task", "list", "--payload"])
        .iter()
        .map(|task| task["payload"].as_u64().unwrap())
        .collect();
    payloads.sort();
    assert_eq!(payloads, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_bulk_enqueue_waits_for_room_and_goes_on() {
    let yard = Yard::start();
    let file = lines_for_a_full_queue(&yard);
    let mut child = yard
        .command(&["enqueue", "n", "--json", "--file", &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("line 4: ") && said.contains("waiting for room"), "{said}");
    yard.ok(&["queue", "set", "full", "--max-length", "100"]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts, json!({"accepted": 7, "duplicate": 0, "refused": 0}));
}

#[test]
fn refused_lines_are_kept_even_if_the_rest_is_killed() {
    let yard = Yard::start();
    let file = lines_for_a_full_queue(&yard);
    fs::write(&file, format!("rubbish\n{}", fs::read_to_string(&file).unwrap())).unwrap();
    let refused = yard.file("refused.jsonl");
    let arguments = ["enqueue", "n", "--refused", refused.to_str().unwrap(), "--file", &file];
    let mut child = Process(yard.command(&arguments).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(child.0.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("waiting for room")));
    child.signal(Signal::KILL);
    child.code();
    assert_eq!(fs::read_to_string(refused).unwrap(), "rubbish\n");
}
