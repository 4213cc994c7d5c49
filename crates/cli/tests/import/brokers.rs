//! Imports between real brokers. One Taskyard broker plays the old server, because Taskyard speaks
//! Faktory's protocol.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use serde_json::value::RawValue;
use taskyard_cli::faktory::{Connection, Url, Who};

use crate::{
    faktory::Fake,
    yard::{Process, Ran, Yard, serve_with_faktory_at, until},
};

/// A broker and its address for Faktory clients.
struct Broker {
    /// Keeps the broker running.
    _yard: Yard,
    url: String,
}

/// The fields of a job, verbatim.
type Fields = BTreeMap<String, Box<RawValue>>;

impl Broker {
    fn start() -> Broker {
        Broker::start_at("127.0.0.1:0")
    }

    fn start_at(faktory: &str) -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let command = serve_with_faktory_at(&folder.path().join("data"), faktory);
        let (yard, started) = Yard::start_and_tell(folder, command);
        let url = started["faktory"].as_str().unwrap().to_owned();
        Broker { _yard: yard, url }
    }

    fn connect(&self, wid: Option<&str>) -> (tokio::runtime::Runtime, Connection) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let who = Who { wid: wid.map(str::to_owned), labels: Vec::new() };
        let url: Url = self.url.parse().unwrap();
        let connection = runtime.block_on(Connection::open(&url, &who)).unwrap();
        (runtime, connection)
    }

    fn push(&self, jobs: &[String]) {
        let (runtime, mut connection) = self.connect(None);
        for job in jobs {
            runtime.block_on(connection.push(job.as_bytes())).unwrap();
        }
    }

    /// Fetches all jobs of these queues.
    fn drain(&self, queues: &[&str]) -> Vec<Fields> {
        let (runtime, mut connection) = self.connect(Some("drain"));
        let queues: Vec<String> = queues.iter().map(|&name| name.to_owned()).collect();
        let mut jobs = Vec::new();
        while let Some(json) = runtime.block_on(connection.fetch(&queues)).unwrap() {
            let fields: Fields = serde_json::from_slice(&json).unwrap();
            let jid: String = serde_json::from_str(fields["jid"].get()).unwrap();
            runtime.block_on(connection.ack(&jid)).unwrap();
            jobs.push(fields);
        }
        jobs
    }

    /// The numbers of waiting and fetched jobs.
    fn waiting_and_held(&self) -> (u64, u64) {
        let (runtime, mut connection) = self.connect(None);
        let info = runtime.block_on(connection.info()).unwrap();
        (info.queues.values().sum(), info.working)
    }
}

fn command(old: &str, target: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["import", "faktory", old, "--into", target]).args(more);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command
}

fn job(queue: &str, number: usize) -> String {
    format!(
        r#"{{"jid":"job-{number:08}","queue":"{queue}","jobtype":"t","args":[{number}, 12345678901234567890123,1.50],"created_at":"2031-05-01T09:30:00Z","reserve_for":90,"retry":3,"Ünknown":{{"a":1e400,"b":[ ]}},"custom":{{"x":"é\n"}}}}"#
    )
}

/// Checks that each of these jobs exists once, with unchanged fields.
fn check_equal(found: Vec<Fields>, pushed: &[String]) {
    assert_eq!(found.len(), pushed.len());
    let by_jid = |fields: Fields| (fields["jid"].get().to_owned(), fields);
    let found: BTreeMap<String, Fields> = found.into_iter().map(by_jid).collect();
    assert_eq!(found.len(), pushed.len(), "each once");
    for job in pushed {
        let expected: Fields = serde_json::from_str(job).unwrap();
        let fields = &found[expected["jid"].get()];
        for (name, value) in &expected {
            assert_eq!(fields[name].get(), value.get(), "{name} of {job}");
        }
    }
}

#[test]
fn jobs_move_from_broker_to_broker_as_they_are() {
    let (old, target) = (Broker::start(), Broker::start());
    let queues = ["default", "mail", "low"];
    let pushed: Vec<String> = (0..60).map(|number| job(queues[number % 3], number)).collect();
    old.push(&pushed);
    let ran = Ran::of(command(&old.url, &target.url, &[]), &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.ends_with("moved 60 jobs\n"), "{}", ran.stdout);
    assert_eq!(old.waiting_and_held(), (0, 0));
    assert_eq!(target.waiting_and_held(), (60, 0));
    check_equal(target.drain(&queues), &pushed);
}

#[test]
fn an_import_that_is_killed_and_run_again_moves_each_job_once() {
    const JOBS: usize = 600;
    let (old, target) = (Broker::start(), Broker::start());
    let pushed: Vec<String> = (0..JOBS).map(|number| job("default", number)).collect();
    old.push(&pushed);
    let mut killed = Process(command(&old.url, &target.url, &[]).spawn().unwrap());
    until("some jobs are moved", || target.waiting_and_held().0 > 20);
    killed.0.kill().unwrap();
    assert_eq!(killed.code(), None, "the import ended before it was killed");
    until("the jobs that the import had fetched wait again", || old.waiting_and_held().1 == 0);
    assert!(old.waiting_and_held().0 > 0);
    let ran = Ran::of(command(&old.url, &target.url, &[]), &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(old.waiting_and_held(), (0, 0));
    assert_eq!(target.waiting_and_held(), (JOBS as u64, 0));
    check_equal(target.drain(&["default"]), &pushed);
}

#[test]
fn a_cluster_is_known_by_any_of_its_addresses() {
    let both = Broker::start_at("0.0.0.0:0");
    both.push(&[job("default", 0)]);
    let at = |address: &str| both.url.replace("0.0.0.0", address);
    for other in ["127.0.0.2", "localhost"] {
        let ran = Ran::of(command(&at("127.0.0.1"), &at(other), &[]), &[]);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("are the same server"), "{}", ran.stderr);
    }
    assert_eq!(both.waiting_and_held(), (1, 0));
}

#[test]
fn jobs_that_the_target_can_not_take_are_refused_for_their_own_sake() {
    let long =
        format!(r#"{{"jid":"long-00001","jobtype":"t","args":["{}"]}}"#, "x".repeat(16 << 20));
    let expired = |number: usize| {
        format!(
            r#"{{"jid":"expired-{number:04}","jobtype":"t","args":[],"custom":{{"expires_at":"2020-01-01T00:00:00Z"}}}}"#
        )
    };
    let jobs = [long].into_iter().chain((0..25).map(expired)).chain([job("default", 0)]);
    let old = Fake::with_jobs(jobs.map(|job| ("default", job)));
    let target = Broker::start();
    let ran = Ran::of(command(&old.url(), &target.url, &["--connections", "1"]), &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for words in [
        "job long-00001 of queue default was refused: it has 16777",
        "job expired-0000 of queue default was refused: expires_at 2020-01-01T00:00:00",
        "26 jobs were refused",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert_eq!((old.acked_and_reserved(), target.waiting_and_held()), ((1, 26), (1, 0)));
}
