//! Faults of a broker and its workers, with real processes: a stop under load, killed or frozen
//! workers, and tasks that kill their workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::yard::{Process, Yard, processes_of, serve_at, until};
use rustix::process::Signal;
use serde_json::json;
use taskyard::{Client, Fail, TaskContext, Worker};
use taskyard_proto::v1::{AckRequest, ClaimRequest, QueueWeight, taskyard_client::TaskyardClient};
use tonic::transport::Endpoint;

/// Enqueues until the broker is gone; collects the ids of confirmed tasks.
async fn produce(url: String, confirmed: Arc<Mutex<BTreeSet<String>>>) {
    let patience = Duration::from_secs(2);
    let client = Client::builder([url]).timeout(patience).connect_timeout(patience);
    let client = client.build().unwrap();
    while let Ok(task) = client.task("count", &1).await {
        confirmed.lock().unwrap().insert(task.id().to_string());
    }
}

/// Claims and acks by hand until the broker is gone; collects the ids of accepted acks.
async fn consume(url: String, acked: Arc<Mutex<BTreeSet<String>>>) {
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = TaskyardClient::new(channel);
    loop {
        let queues = vec![QueueWeight { name: "default".into(), weight: 0 }];
        let (worker, lease_ms) = ("by hand".into(), 60_000);
        let claim =
            ClaimRequest { queues, max: 5, lease_ms, wait_ms: 1_000, worker, types: vec![] };
        let Ok(claimed) = client.claim(claim).await else { return };
        for task in claimed.into_inner().tasks {
            let (id, claim_token) = (task.id, task.claim_token);
            let ack = AckRequest { id: id.clone(), claim_token, ..AckRequest::default() };
            if client.ack(ack).await.is_err() {
                return;
            }
            acked.lock().unwrap().insert(id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_loses_nothing_and_ends_within_the_grace() {
    let grace = Duration::from_secs(10);
    let mut yard = Yard::start();
    let confirmed = Arc::new(Mutex::new(BTreeSet::new()));
    let producers: Vec<_> =
        (0..4).map(|_| tokio::spawn(produce(yard.url.clone(), Arc::clone(&confirmed)))).collect();
    // When the broker stops, this worker has an open stream with answers on their way.
    let ran = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&ran);
    let handler = move |context: TaskContext| {
        seen.lock().unwrap().insert(context.id().to_string());
        std::future::ready(Ok::<_, Fail>(()))
    };
    let client = Client::connect(&yard.url).await.unwrap();
    let worker = Worker::builder(&client).concurrency(4).handler("count", handler).build().unwrap();
    let worker = tokio::spawn(worker.run());
    let acked = Arc::new(Mutex::new(BTreeSet::new()));
    let consumer = tokio::spawn(consume(yard.url.clone(), Arc::clone(&acked)));
    let many = |set: &Mutex<BTreeSet<String>>, count| set.lock().unwrap().len() >= count;
    until("there is load", || many(&confirmed, 200) && many(&ran, 50) && many(&acked, 50));

    yard.broker.signal(Signal::TERM);
    let asked = Instant::now();
    assert_eq!(yard.broker.code(), Some(0));
    assert!(asked.elapsed() < grace, "it took {:?}", asked.elapsed());
    worker.abort();
    for producer in producers {
        producer.await.unwrap();
    }
    consumer.await.unwrap();

    let yard = yard.restart();
    let found = yard.json(&["task", "list", "--limit", "1000000"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let states: BTreeMap<String, String> =
        found.iter().map(|task| (text(&task["id"]), text(&task["state"]))).collect();
    assert_eq!(found.len(), states.len(), "no task is there twice");
    let confirmed = confirmed.lock().unwrap();
    let lost: Vec<&String> = confirmed.iter().filter(|id| !states.contains_key(*id)).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
    for id in acked.lock().unwrap().iter() {
        assert_eq!(states[id], "succeeded", "the ack of {id} was accepted");
    }
    // A task may run again if its ack was not accepted; it is never lost.
    for id in ran.lock().unwrap().iter() {
        assert!(["succeeded", "claimed", "ready"].contains(&states[id].as_str()), "{}", states[id]);
    }
}

#[test]
fn the_100_tasks_of_a_killed_worker_run_elsewhere_within_20_seconds() {
    let yard = Yard::start();
    let tasks = yard.file("tasks.jsonl");
    fs::write(&tasks, "{\"type\": \"hold\"}\n".repeat(100)).unwrap();
    yard.ok(&["enqueue", "--file", tasks.to_str().unwrap(), "--queue", "q"]);
    let began = |who: &str| {
        let files = fs::read_dir(yard.folder.path()).unwrap().flatten();
        files.filter(|file| file.file_name().to_str().unwrap().starts_with(who)).count()
    };
    let slots = ["--concurrency", "100"];
    let first = yard.work("q", "touch $FOLDER/first-$TASKYARD_ID; exec sleep 1000", &slots);
    until("the first worker runs all tasks", || began("first-") == 100);
    let _second = yard.work("q", "touch $FOLDER/second-$TASKYARD_ID", &slots);
    until("the second worker is listed", || yard.json(&["worker", "list"]).len() == 2);
    // Only the death of the first worker may free its tasks.
    let now = yard.json(&["task", "list", "--queue", "q", "--state", "claimed", "-n", "200"]);
    assert_eq!(now.len(), 100);

    first.signal(Signal::KILL);
    let killed = Instant::now();
    until("the second worker has run all tasks", || began("second-") == 100);
    assert!(killed.elapsed() < Duration::from_secs(20), "it took {:?}", killed.elapsed());
}

#[test]
fn a_broker_that_stands_still_takes_no_task_from_a_live_worker() {
    let yard = Yard::start();
    let hold = "touch $FOLDER/began-$TASKYARD_ID; until [ -e $FOLDER/go ]; do sleep 0.1; done";
    let _worker = yard.work("q", hold, &["--concurrency", "8"]);
    let ids: Vec<String> = (0..8).map(|_| yard.ok(&["enqueue", "a", "--queue", "q"])).collect();
    let began = |id: &String| yard.file(&format!("began-{id}")).exists();
    until("all eight tasks run", || ids.iter().all(began));

    yard.broker.signal(Signal::STOP);
    // Longer than the silence after which a session ends.
    std::thread::sleep(Duration::from_secs(20));
    yard.broker.signal(Signal::CONT);

    // When this task is due, all leases and sessions that were due to end have ended.
    let later = yard.ok(&["enqueue", "a", "--queue", "else", "--delay", "5s"]);
    yard.until_state(&later, "ready");
    fs::write(yard.file("go"), "").unwrap();
    for id in &ids {
        let task = yard.until_state(id, "succeeded");
        assert_eq!((&task["attempt"], &task["losses"]), (&json!(1), &json!(0)), "{task}");
    }
}

#[test]
fn a_task_that_kills_its_workers_is_quarantined() {
    let yard = Yard::start();
    let id = yard.ok(&["enqueue", "poison", "--queue", "q"]);
    // The parent of its supervisor is the worker.
    let poison = "kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat); sleep 1000";
    for death in 1..=3 {
        let mut worker = yard.work("q", poison, &["--no-pid-namespace"]);
        assert_eq!(worker.code(), None, "worker {death} was killed");
    }
    let task = yard.until_state(&id, "dead");
    assert_eq!(task["death_reason"], "its workers died", "{task}");
    assert_eq!(task["losses"], 3, "{task}");
    assert_eq!(yard.json(&["dead", "list", "--queue", "q"])[0]["id"], id);
    until("the processes of the task are gone", || processes_of(&id) == 0);
}

/// A worker whose log goes to a file.
fn logging_worker(yard: &Yard, exec: &str, log: &str, more: &[&str]) -> Process {
    let mut arguments = vec!["work", "--queue", "q", "--exec", exec, "--log-format", "json"];
    arguments.extend(more);
    let mut command = yard.command(&arguments);
    command.env("FOLDER", yard.folder.path()).env_remove("RUST_LOG");
    Process(command.stderr(File::create(yard.file(log)).unwrap()).spawn().unwrap())
}

/// Waits until the log has a line with this message, and returns it.
fn logged(yard: &Yard, log: &str, message: &str) -> serde_json::Value {
    let find = || {
        let text = fs::read_to_string(yard.file(log)).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        lines.into_iter().find(|line| line["message"].as_str().unwrap_or("").contains(message))
    };
    until(&format!("{log} says {message:?}"), || find().is_some());
    find().unwrap()
}

#[test]
fn a_command_whose_lease_is_lost_is_killed() {
    let yard = Yard::start();
    let hold = "touch $FOLDER/ready; exec sleep 1000";
    let mut frozen = logging_worker(&yard, hold, "frozen.log", &[]);
    let id = yard.ok(&["enqueue", "a", "--queue", "q"]);
    until("the command runs", || yard.file("ready").exists());
    frozen.signal(Signal::STOP);
    let _other = yard.work("q", "echo done by another", &[]);
    assert_eq!(
        yard.ok(&["task", "result", &id, "--wait", "--wait-for", "50s"]),
        "\"done by another\""
    );
    assert!(processes_of(&id) > 0, "the command must still run");
    frozen.signal(Signal::CONT);
    until("the processes of the task are gone", || processes_of(&id) == 0);
    assert!(frozen.0.try_wait().unwrap().is_none(), "the worker itself must go on");
    let line = logged(&yard, "frozen.log", "the lease was lost");
    assert_eq!((&line["id"], &line["type"]), (&json!(id), &json!("a")), "{line}");
}

#[test]
fn the_log_of_a_worker_says_how_each_task_ended() {
    let yard = Yard::start();
    let exec = r#"case $TASKYARD_TYPE in
        good) ;;
        bad) exit 65 ;;
        weak) exit 3 ;;
        slow) exec sleep 1000 ;;
    esac"#;
    let _worker = logging_worker(&yard, exec, "work.log", &["--kill-grace", "100ms"]);
    for kind in ["good", "bad", "weak"] {
        yard.ok(&["enqueue", kind, "--queue", "q"]);
    }
    yard.ok(&["enqueue", "slow", "--queue", "q", "--timeout", "300ms"]);
    for (message, kind) in
        [("succeeded", "good"), ("failed for good", "bad"), ("failed", "weak"), ("timeout", "slow")]
    {
        until(&format!("{kind}: {message}"), || {
            let text = fs::read_to_string(yard.file("work.log")).unwrap();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).any(
                |line: serde_json::Value| {
                    line["type"] == kind && line.to_string().contains(message)
                },
            )
        });
    }
}

#[test]
fn a_worker_waits_for_a_broker_that_is_not_there_yet() {
    let mut yard = Yard::start();
    yard.broker.signal(Signal::TERM);
    assert_eq!(yard.broker.code(), Some(0));
    let mut worker = logging_worker(&yard, "echo hello", "early.log", &[]);
    logged(&yard, "early.log", "waiting until a broker is there");
    assert!(worker.0.try_wait().unwrap().is_none(), "the worker must wait for a broker");
    let address = yard.url.trim_start_matches("http://").to_owned();
    let mut broker = serve_at(&yard.file("data"), &address);
    yard.broker = Process(broker.stdout(Stdio::null()).spawn().unwrap());
    logged(&yard, "early.log", "waiting for tasks");
    assert_eq!(yard.ok(&["enqueue", "a", "--queue", "q", "--wait"]), "\"hello\"");
    worker.signal(Signal::TERM);
    assert_eq!(worker.code(), Some(0));
}
