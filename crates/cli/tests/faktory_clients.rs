//! Unchanged foreign Faktory clients against our broker. Clients push jobs one by one and in bulk.
//! Workers fetch, acknowledge, fail and retry them, and obey `taskyard worker quiet` and `stop`.
//!
//! `clients.rs` installs the clients in pinned versions; the scripts beside it use them. Each
//! script runs as `SCRIPT push URL` and `SCRIPT work URL FOLDER`. All scripts do the same work, so
//! that one test covers all clients.

mod clients;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use crate::yard::{Process, Yard, needs::Need, serve_with_faktory, until};
use clients::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

const PASSWORD: &str = "open-sesame";

#[test]
fn pyfaktory_pushes_and_works() {
    tell("pyfaktory", Need::Python, PASSWORD);
}

#[test]
fn faktory_from_pypi_pushes_and_works() {
    tell("pypi-faktory", Need::Python, "");
}

#[test]
fn faktory_worker_from_npm_pushes_and_works() {
    tell("npm", Need::Node, PASSWORD);
}

fn tell(client: &str, need: Need, password: &str) {
    match Client::install(client, need) {
        Ok(client) => Story::begin(client, password).tell(),
        Err(why) => need.skip(format!("{client} can't be installed: {why}")),
    }
}

struct Story {
    client: Client,
    yard: Yard,
    url: String,
}

impl Story {
    fn begin(client: Client, password: &str) -> Story {
        let folder = tempfile::tempdir().unwrap();
        let mut broker = serve_with_faktory(&folder.path().join("data"));
        let mut in_url = String::new();
        if !password.is_empty() {
            broker.env("TASKYARD_FAKTORY_PASSWORD", password);
            in_url = format!(":{password}@");
        }
        let mut broker = Process(broker.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(broker.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).expect("the broker prints its address");
        let told = |name: &str| started[name].as_str().unwrap().to_owned();
        let url = told("faktory").replace("tcp://", &format!("tcp://{in_url}"));
        Story { client, yard: Yard { broker, url: told("url"), folder }, url }
    }

    fn tell(&self) {
        self.push("first");
        assert_eq!(self.queue()["enqueued_total"], 5, "one, three in bulk, and one that will fail");
        let mut worker = self.work();
        until("four jobs have run", || self.count("succeeded_total") == 4);
        assert_eq!(
            self.ran(),
            ["bulk-0", "bulk-1", "bulk-2", "one"],
            "each once, with its arguments"
        );
        until("one job has failed", || self.count("retrying") == 1);
        self.check_the_failure_and_run_it_again();
        self.push("held");
        until("one job runs", || self.yard.file("held").exists());
        self.quiet_and_stop(&mut worker);
    }

    fn check_the_failure_and_run_it_again(&self) {
        let waiting = self.yard.json(&["task", "list", "--state", "scheduled"]);
        let [failed] = waiting.as_slice() else { panic!("{waiting:?}") };
        let id = failed["id"].as_str().unwrap();
        let failed = self.yard.task(id);
        assert!(failed.to_string().contains("not at the first time"), "{failed}");
        self.yard.ok(&["task", "retry", id]);
        until("the failed job has run again", || self.count("succeeded_total") == 5);
        assert_eq!(self.count("failed_total"), 1);
    }

    /// A quiet worker finishes its jobs and fetches no more; a stopped one ends.
    fn quiet_and_stop(&self, worker: &mut Worker) {
        let id = self.worker_id(worker.0.id());
        self.yard.ok(&["worker", "quiet", &id]);
        until("the client knows that it is quiet", || self.yard.file("quiet").exists());
        self.push("late");
        fs::write(self.yard.file("release"), "").unwrap();
        until("the running job is acknowledged", || self.count("succeeded_total") == 6);
        self.yard.ok(&["worker", "stop", &id]);
        until("the client ends", || worker.0.try_wait().unwrap().is_some());
        assert_eq!((self.count("ready"), self.count("claimed")), (1, 0), "the late job must wait");
        assert!(!self.ran().contains(&"late".to_owned()));
    }

    fn push(&self, what: &str) {
        let ran = self.client.command().args(["push", &self.url, what]).output().unwrap();
        assert!(ran.status.success(), "push {what}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    fn work(&self) -> Worker {
        let mut command = self.client.command();
        command.args(["work", &self.url]).arg(self.yard.folder.path());
        Worker(command.stdin(Stdio::null()).process_group(0).spawn().unwrap())
    }

    /// The broker's id for the client's worker.
    fn worker_id(&self, pid: u32) -> String {
        let workers = self.yard.json(&["worker", "list"]);
        let found = workers.iter().find(|worker| worker["pid"] == pid);
        let found = found.unwrap_or_else(|| panic!("no process {pid}: {workers:?}"));
        found["id"].as_str().unwrap().to_owned()
    }

    fn queue(&self) -> Value {
        let queues = self.yard.json(&["queue", "list"]);
        queues.into_iter().find(|queue| queue["name"] == "foreign").unwrap_or_default()
    }

    fn count(&self, name: &str) -> u64 {
        self.queue()[name].as_u64().unwrap_or_default()
    }

    /// The worker's output, a line for each job, in alphabetical order.
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.yard.file("ran")).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

/// A worker of a foreign client, with its child processes.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The program of a client, without its arguments.
impl Client {
    fn command(&self) -> Command {
        let mut command = Command::new(self.runtime);
        command.arg(&self.script).env(self.path_variable, &self.folder);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("FAKTORY_URL");
        command
    }
}
