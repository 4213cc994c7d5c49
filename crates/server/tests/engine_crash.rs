//! `kill -9` under load, again and again: every confirmed task exists once, and no acked task comes
//! back.

use crate::engine::{Bench, config, start};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use taskyard_machine::{TaskId, TaskStateName};

const CHILD: &str = "TASKYARD_TEST_CRASH_DATA";
const ROUNDS: u64 = 20;

/// The process that the test kills: it works and prints each confirmed task. Run as a test, this
/// does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(data) = std::env::var(CHILD) else { return };
    let engine = start(&config(Path::new(&data)));
    let mut clients = Vec::new();
    for client in 0..4 {
        let bench = Bench(engine.shards());
        clients.push(tokio::spawn(async move {
            let queue = format!("queue-{client}");
            loop {
                let ids = bench.enqueue_many(&queue, 20, &[client; 600]).await;
                tell("enqueued", &ids);
                let mut acked = Vec::new();
                for task in bench.claim(&queue, 10, Duration::ZERO).await {
                    bench.ack(task.task.id, task.task.token).await.unwrap();
                    acked.push(task.task.id);
                }
                tell("acked", &acked);
            }
        }));
    }
    // Checkpoints and log cuts happen meanwhile.
    let bench = Bench(engine.shards());
    loop {
        drop(bench.0.backup().await.unwrap());
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

fn tell(what: &str, ids: &[TaskId]) {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    // One write per line, so that the parent never reads half a line as a whole line.
    let line = format!("{what} {}\n", ids.join(" "));
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn spawn(data: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["engine_crash::child", "--exact", "--nocapture"]).env(CHILD, data);
    child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn nothing_confirmed_is_lost_or_doubled() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut acked: BTreeMap<TaskId, bool> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child = spawn(&data);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut budget = 5 + (round * 37) % 60;
        let mut take = |line: String| {
            let (what, ids) = line.split_once(' ').unwrap_or_default();
            for id in ids.split_whitespace().filter_map(|id| id.parse().ok()) {
                match what {
                    "enqueued" => assert_eq!(acked.insert(id, false), None, "{id} twice"),
                    "acked" => drop(acked.insert(id, true)),
                    _ => {}
                }
            }
        };
        while budget > 0 {
            take(lines.next().expect("the child works").unwrap());
            budget -= 1;
        }
        child.kill().unwrap();
        // Tasks that the process confirmed before its death count too. Its last line may be torn.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let whole = rest.len().saturating_sub(1);
        rest.into_iter().take(whole).for_each(&mut take);
        child.wait().unwrap();
    }
    let engine = start(&config(&data));
    let bench = Bench(engine.shards());
    let mut claimed = BTreeSet::new();
    for (id, was_acked) in &acked {
        let task = bench.task(*id).await;
        let state = task.as_ref().map(|task| task.state);
        if *was_acked {
            assert_eq!(state, Some(TaskStateName::Succeeded), "{id} was acked");
        } else {
            assert!(state.is_some(), "{id} was confirmed and is gone");
        }
        if state == Some(TaskStateName::Claimed) {
            claimed.insert(*id);
        }
    }
    for queue in 0..4 {
        let queue = format!("queue-{queue}");
        loop {
            let handed = bench.claim(&queue, 1_000, Duration::ZERO).await;
            if handed.is_empty() {
                break;
            }
            for task in handed {
                assert!(claimed.insert(task.task.id), "{} was handed out twice", task.task.id);
                assert_ne!(acked.get(&task.task.id), Some(&true), "an acked task came back");
                assert!(!task.body.is_empty());
            }
        }
    }
    println!("{} confirmed, {} of them acked", acked.len(), acked.values().filter(|a| **a).count());
}
