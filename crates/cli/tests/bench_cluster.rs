//! `taskyard bench --nodes 3`: a cluster beside one node, lost nodes, and refused options.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use crate::yard::{Process, Ran, check_nothing_is_left, taskyard, until};
use rustix::process::Signal;
use serde_json::Value;

/// The benchmark of three nodes, with its folders inside `folder`.
fn bench(folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["bench", "--nodes", "3"]).args(more).current_dir(folder);
    // A setting for the user's own broker must not reach the brokers of this command.
    command.env("TASKYARD_LISTEN", "127.0.0.1:1").stdin(Stdio::null());
    command
}

fn figures(folder: &Path, more: &[&str]) -> Value {
    let ran = Ran::of(bench(folder, more), more);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    check_nothing_is_left(folder);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn three_nodes_are_measured_beside_one() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--tasks", "300", "--seconds", "30", "--rounds", "1", "--rate", "200", "--json"];
    let figures = figures(folder.path(), &more);
    let names = ["enqueue", "execute", "steady: to acknowledged", "steady: to executed"];
    assert_eq!((list(&figures["phases"]).len(), list(&figures["ratios"]).len()), (8, 4));
    // The kernel counts processor time in hundredths of a second; a short phase may take less.
    let cpu = |phase: &Value| phase["broker_cpu_us_per_task"].as_f64().unwrap();
    assert!(list(&figures["phases"]).iter().map(cpu).sum::<f64>() > 0.0, "{figures}");
    for (phases, (name, ratios)) in
        list(&figures["phases"]).chunks(2).zip(names.iter().zip(list(&figures["ratios"])))
    {
        for (phase, nodes) in phases.iter().zip([1, 3]) {
            assert_eq!((&phase["name"], &phase["nodes"]), (&Value::from(*name), &nodes.into()));
            assert_eq!(phase["tasks"], 300, "{phase}");
            let forwarded = phase["forwarded_share"].as_f64().unwrap();
            // Each client begins with its own node, which leads only a third of the shards.
            assert_eq!(forwarded > 0.0, nodes == 3, "{phase}");
        }
        assert_eq!(ratios["name"], *name);
        let speed = |place: usize| phases[place]["per_second"].as_f64().unwrap();
        // The last digit may differ after a conversion to text and back.
        let (told, is) = (ratios["per_second"].as_f64().unwrap(), speed(1) / speed(0));
        assert!((told - is).abs() < is * 1e-9, "{ratios}");
        assert_eq!(ratios["per_second_by_round"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn nodes_that_go_away_cost_no_confirmed_task() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--kills", "1", "--stops", "1", "--rate", "200", "--queues", "12", "--json"];
    let figures = figures(folder.path(), &more);
    let number = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("{name}: {figures}"));
    assert!(number("confirmed") > 100, "{figures}");
    let counts = (number("made"), number("executed"));
    assert_eq!(counts, (number("confirmed"), number("confirmed")), "{figures}");
    assert_eq!((number("lost"), number("made_twice"), number("open")), (0, 0, 0), "{figures}");
    for (after, strikes) in [("kill -9", 1), ("stop", 1)] {
        let of = |what: &str| {
            let mut found =
                list(&figures["outages"]).iter().filter(|times| times["after"] == after);
            let found = found.find(|times| times["what"].as_str().unwrap().starts_with(what));
            found.unwrap_or_else(|| panic!("{after}, {what}: {figures}"))
        };
        let (led, others) = (of("a queue that the node led"), of("any other queue"));
        let count = |times: &Value| times["count"].as_u64().unwrap();
        assert_eq!(count(led) + count(others), 12 * strikes, "{figures}");
        assert!(led["min_ms"].as_u64().unwrap() <= led["max_ms"].as_u64().unwrap(), "{led}");
        assert_eq!(of("until the last")["max_ms"], led["max_ms"], "{figures}");
        assert_eq!(count(of("a queue stands still when the node returns")), 12 * strikes);
        assert_eq!(count(of("from its start")), strikes);
    }
    // An election takes half a second at least.
    let killed = &list(&figures["outages"])[0];
    assert!(killed["max_ms"].as_u64().unwrap() >= 300, "{killed}");
}

#[test]
fn an_interrupted_benchmark_stops_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bench(folder.path(), &["--kills", "100"]);
    let mut process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    // Kept open, because a process that writes to a closed stderr panics.
    let mut stderr = BufReader::new(process.0.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("3 nodes"), "{line}");
    until("the benchmark has made its folder", || fs::read_dir(folder.path()).unwrap().count() > 0);
    process.signal(Signal::TERM);
    assert_eq!(process.code(), Some(1));
    check_nothing_is_left(folder.path());
}

#[test]
fn impossible_measurements_are_refused_with_words() {
    for (arguments, words) in [
        ("--nodes 0", "3 or 5 nodes"),
        ("--nodes 2", "3 or 5 nodes"),
        ("--nodes 3x", "3 or 5 nodes"),
        ("--kills 3", "--nodes 3"),
        ("--nodes 1 --stops 3", "--nodes 3"),
        ("--rounds 3", "--nodes 3"),
        ("--nodes 3 --kills 0", "1..=10000"),
        ("--nodes 3 --remote", "--remote"),
        ("--nodes 3 --restart", "--kills"),
        ("--nodes 3 --kills 3 --tasks 9", "--tasks"),
        ("--nodes 3 --stops 3 --rounds 9", "--rounds"),
        ("--nodes 3 --rate 0", "--rate"),
    ] {
        let typed: Vec<&str> = ["bench"].into_iter().chain(arguments.split(' ')).collect();
        let ran = taskyard(&typed);
        assert_eq!(ran.code, 2, "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments}");
    }
}
