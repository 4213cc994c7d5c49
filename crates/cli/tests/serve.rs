//! The broker as a process: how it starts, what it refuses to start with, and how it stops.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::yard::{Process, Ran, Yard, serve, serve_at, serve_with_faktory, taskyard, until};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn acknowledged_tasks_survive_kill_9() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "a", "41"]);
    yard.broker.signal(Signal::KILL);
    let yard = yard.restart();
    assert_eq!(yard.task(&id)["payload"], 41);
}

/// All paths in `folder`, including `folder`, that other users than the owner can access.
fn open_to_others(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::metadata(&path).unwrap();
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if meta.permissions().mode() & 0o077 != 0 {
            found.push(path);
        }
    }
    found
}

#[test]
fn data_of_a_broker_is_for_its_owner_alone() {
    let yard = Yard::start();
    yard.ok(&["enqueue", "a", "41"]);
    let data = yard.file("data");
    assert!(fs::read_dir(data.join("state")).unwrap().count() > 0);
    assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());
    let backup = yard.file("backup");
    yard.ok(&["backup", backup.to_str().unwrap()]);
    assert_eq!(open_to_others(&backup), Vec::<PathBuf>::new());
    let restored = yard.file("restored");
    yard.ok(&["restore", backup.to_str().unwrap(), "--data", restored.to_str().unwrap()]);
    assert_eq!(open_to_others(&restored), Vec::<PathBuf>::new());
}

#[test]
fn acknowledged_jobs_of_faktory_clients_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let broker = serve_with_faktory(&folder.path().join("data"));
    let (yard, started) = Yard::start_and_tell(folder, broker);
    let address = started["faktory"].as_str().unwrap().replace("tcp://", "");
    let mut socket = BufReader::new(TcpStream::connect(address).unwrap());
    let mut call = |line: String, lines: usize| {
        writeln!(socket.get_mut(), "{line}").unwrap();
        let mut reply = String::new();
        for _ in 0..lines {
            socket.read_line(&mut reply).unwrap();
        }
        reply
    };
    assert!(call("HELLO {\"v\":2}".to_owned(), 2).ends_with("+OK\r\n"));
    let job = |n: u32| {
        format!(r#"{{"jid":"job-number-{n}","jobtype":"t","queue":"q{}","args":[]}}"#, n % 3)
    };
    for n in 0..20 {
        assert_eq!(call(format!("PUSH {}", job(n)), 1), "+OK\r\n");
    }
    let many: Vec<String> = (20..40).map(job).collect();
    assert_eq!(call(format!("PUSHB [{}]", many.join(",")), 2), "$2\r\n{}\r\n");
    yard.broker.signal(Signal::KILL);
    let queues = yard.restart().json(&["queue", "list"]);
    let ready: u64 = queues.iter().map(|queue| queue["ready"].as_u64().unwrap()).sum();
    assert_eq!(ready, 40, "{queues:?}");
}

#[test]
fn a_broker_stops_when_asked_and_at_once_when_asked_twice() {
    let mut yard = Yard::start();
    yard.ok(&["enqueue", "a"]);
    yard.broker.signal(Signal::TERM);
    assert_eq!(yard.broker.code(), Some(0));
    let mut yard = yard.restart();
    yard.broker.signal(Signal::INT);
    yard.broker.signal(Signal::TERM);
    // The graceful stop or the second signal ends the broker, whichever is quicker.
    assert!(matches!(yard.broker.code(), Some(0 | 1)));
}

/// Whether a process handles SIGTERM itself.
fn minds_its_end(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    caught & (1 << (Signal::TERM.as_raw() - 1)) != 0
}

#[test]
fn a_broker_that_is_asked_to_stop_while_it_starts_ends_well_and_keeps_everything() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "a", "41"]);
    yard.broker.signal(Signal::KILL);
    let Yard { broker, folder, .. } = yard;
    drop(broker);
    for data in ["data", "new"] {
        for _ in 0..5 {
            let mut broker = Process(serve(&folder.path().join(data)).spawn().unwrap());
            until("the broker handles SIGTERM", || minds_its_end(&broker));
            broker.signal(Signal::TERM);
            assert_eq!(broker.code(), Some(0), "{data}");
        }
    }
    let mut new = serve(&folder.path().join("new"));
    let mut new = Process(new.stdout(Stdio::piped()).spawn().unwrap());
    assert!(first_line(&mut new).contains("\"url\""), "what was begun is taken up");
    assert_eq!(Yard::start_in(folder).task(&id)["payload"], 41);
}

#[test]
fn a_node_that_is_asked_to_stop_while_it_waits_for_its_cluster_ends_well_and_joins_later() {
    let folder = tempfile::tempdir().unwrap();
    let (log, data) = (folder.path().join("log"), folder.path().join("data"));
    let join = |address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0"]);
        command
            .args(["--faktory", "none", "--log", "info", "--join", address, "--data"])
            .arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    // A port that nobody listens on.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut waiting =
        Process(join(&nobody).stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    let has_said = |words: &str| fs::read_to_string(&log).unwrap().contains(words);
    until("the broker waits for a cluster", || has_said("waits for a cluster to join"));
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.code(), Some(0));
    assert!(has_said("stopped before the broker was up"));

    let mut founder =
        Process(serve(&folder.path().join("founder")).stdout(Stdio::piped()).spawn().unwrap());
    let started: Value = serde_json::from_str(&first_line(&mut founder)).unwrap();
    let mut joined = Process(join(started["peer"].as_str().unwrap()).spawn().unwrap());
    let joined: Value = serde_json::from_str(&first_line(&mut joined)).unwrap();
    assert_eq!(joined["node"], 2);
}

fn first_line(process: &mut Process) -> String {
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line
}

#[test]
fn a_data_directory_serves_one_broker() {
    let yard = Yard::start();
    let ran = Ran::of(serve(&yard.file("data")), &["serve"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains(yard.file("data").to_str().unwrap()), "{}", ran.stderr);
}

#[test]
fn a_broker_that_all_can_reach_warns() {
    let folder = tempfile::tempdir().unwrap();
    for (address, warns) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let log = folder.path().join("log");
        let mut command = serve_at(&folder.path().join("data"), address);
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut broker = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(broker.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        broker.signal(Signal::TERM);
        assert_eq!(broker.code(), Some(0));
        let log = fs::read_to_string(log).unwrap();
        assert_eq!(log.contains("no authentication"), warns, "{log}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let yard = Yard::start();
    let address = yard.url.trim_start_matches("http://");
    let data = yard.file("other");
    let ran = taskyard(&[
        "serve",
        "--listen",
        address,
        "--faktory",
        "none",
        "--data",
        data.to_str().unwrap(),
    ]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(address), "{}", ran.stderr);
}

#[test]
fn a_bad_configuration_exits_with_2_and_names_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taskyard.toml");
    fs::write(&file, "listn = \"127.0.0.1:0\"\nshards = \"many\"\ndata = 5\n").unwrap();
    let ran = taskyard(&["serve", "--config", file.to_str().unwrap(), "--peer", ":7401"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    let file = file.display();
    for part in [
        "error: --peer: \":7401\" has no host; write 127.0.0.1:7401".to_owned(),
        format!("{file}:1: listn: there is no such key; did you mean listen?"),
        format!("{file}:2: shards: \"many\" is not a number"),
        format!("{file}:3: data: 5 is no text"),
    ] {
        let is_told = ran.stderr.lines().any(|line| line.trim_start().starts_with(&part));
        assert!(is_told, "{part}: {}", ran.stderr);
    }
}

#[test]
fn a_log_in_json_is_json_from_the_first_line_to_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("taskyard.toml"), folder.path().join("log"));
    let lines = |text: &str| -> Vec<Value> {
        let read = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {text}"));
        text.lines().map(read).collect()
    };
    fs::write(&file, "log_format = \"json\"\nlog = \"info\"\nlisten = \"localhost:0\"\n").unwrap();
    let serve = |data: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        command.args([
            "serve",
            "--peer",
            "127.0.0.1:0",
            "--faktory",
            "localhost:0",
            "--shards",
            "4",
        ]);
        command.args(["--disk-reserve", "1M", "--data"]).arg(folder.path().join(data));
        command.arg("--config").arg(&file).env_remove("RUST_LOG").env_remove("TASKYARD_URL");
        command.stdin(Stdio::null());
        command
    };
    let mut broker = serve("data");
    let mut broker = Process(broker.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    until("the broker listens", || fs::read_to_string(&log).unwrap().contains("\"listening\""));
    // A second broker on this directory can't start, and reports this in the same format.
    let ran = Ran::of(serve("data"), &["serve"]);
    assert_eq!(ran.code, 1);
    let last = lines(&ran.stderr).pop().unwrap();
    assert!(last["message"].as_str().unwrap().contains("is in use by another"), "{last}");
    assert_eq!((&last["level"], &last["code"]), (&Value::from("ERROR"), &Value::from("failed")));
    broker.signal(Signal::TERM);
    assert_eq!(broker.code(), Some(0));
    let log = lines(&fs::read_to_string(&log).unwrap());
    let listening = log.iter().find(|line| line["message"] == "listening").unwrap();
    for (key, start) in [("url", "http://127.0.0.1:"), ("faktory", "tcp://127.0.0.1:")] {
        assert!(listening[key].as_str().unwrap().starts_with(start), "{listening}");
    }
    assert_eq!(log.last().unwrap()["message"], "stopped");
    // Mistakes in a file, an unknown argument, and a missing file.
    fs::write(&file, "log_format = \"json\"\nshards = 0\nzone = 1\n").unwrap();
    for (wrong, code) in [
        (&["--config", file.to_str().unwrap()][..], "invalid_argument"),
        (&["--nonsense", "--log-format", "json"], "invalid_argument"),
        (&["--config", "/no/such/file", "--log-format=json"], "failed"),
    ] {
        let ran = taskyard(&[&["serve"], wrong].concat());
        let told = lines(&ran.stderr);
        assert_eq!((told.len(), &told[0]["code"]), (1, &Value::from(code)), "{}", ran.stderr);
        assert_eq!(ran.code, if code == "failed" { 1 } else { 2 });
    }
}

#[test]
fn a_number_of_shards_that_the_directory_does_not_have_is_refused() {
    let mut yard = Yard::start();
    yard.broker.signal(Signal::TERM);
    assert_eq!(yard.broker.code(), Some(0));
    let serve = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0"]);
        command.args(["--faktory", "none", "--log", "warn", "--data"]);
        command.arg(yard.file("data")).args(more).stdin(Stdio::null());
        command
    };
    let ran = Ran::of(serve(&["--shards", "64"]), &["serve"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("has 4 shards, not 64: the number is fixed"), "{}", ran.stderr);
    let mut plain = Process(serve(&[]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(plain.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"url\""), "it starts: {line}");
}
