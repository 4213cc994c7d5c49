//! `kill -9` under schedules that fire every second, again and again: each occurrence fires once.

use crate::engine::{Bench, config, eventually, start};
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use taskyard_machine::{Body, CatchUp, Enqueue, NewTask, Overlap, Rhythm, ScheduleSpec, ShardId};
use taskyard_server::{
    Broker,
    broker::ListAsked,
    shard::{Engine, Shards},
};

const CHILD: &str = "TASKYARD_TEST_SCHEDULES_DATA";
const ROUNDS: u64 = 8;
const SCHEDULES: u64 = 12;

fn broker(engine: &Engine, data: &Path) -> Broker {
    Broker::new(engine.shards(), &config(data))
}

/// The process that the test kills: its schedules fire while it takes checkpoints. Run as a test,
/// this does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(data) = std::env::var(CHILD) else { return };
    let engine = start(&config(Path::new(&data)));
    let bench = Bench(engine.shards());
    loop {
        drop(bench.0.backup().await.unwrap());
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

fn spawn(data: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["engine_schedules::child", "--exact", "--nocapture"]).env(CHILD, data);
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn set_all(broker: &Broker) {
    for number in 0..SCHEDULES {
        let queue = format!("queue-{number}");
        let task = NewTask { task_type: "t", ..NewTask::default() };
        let rhythm = match number % 2 {
            0 => Rhythm::Every { ms: 1_000 },
            _ => Rhythm::Cron { expression: "* * * * * *", timezone: "Europe/Berlin" },
        };
        let spec = ScheduleSpec {
            rhythm,
            home: ShardId(0),
            enqueue: Enqueue { queue: &queue, task },
            overlap: Overlap::Allow,
            catch_up: CatchUp::All,
            catch_up_window_ms: 3_600_000,
            jitter_ms: 0,
            start_at: None,
            end_at: None,
            remaining_runs: None,
        };
        broker.set_schedule(&format!("schedule-{number}"), spec).await.unwrap();
    }
}

/// The occurrences of every schedule whose tasks exist, by their headers, with their counts.
async fn fired(broker: &Broker) -> BTreeMap<String, BTreeMap<String, u32>> {
    let mut fired: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    let mut cursor = None;
    loop {
        let asked = ListAsked { cursor, limit: 1_000, with_body: true, ..ListAsked::default() };
        let page = broker.tasks(asked).await.unwrap();
        for found in &page.tasks {
            let body = Body::decode(found.body.as_ref().unwrap()).unwrap();
            let header = |name| body.headers.iter().find(|(key, _)| *key == name).unwrap().1;
            let occurrences = fired.entry(header("taskyard-schedule").into()).or_default();
            *occurrences.entry(header("taskyard-occurrence-at").into()).or_default() += 1;
        }
        cursor = page.cursor;
        if cursor.is_none() {
            return fired;
        }
    }
}

/// Whether no messages between shards are on their way.
async fn is_settled(shards: &Shards) -> bool {
    for shard in 0..shards.count() {
        let owed = shards.read(ShardId(shard), |machine| machine.outgoing(1).len()).await.unwrap();
        if owed > 0 {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_occurrence_fires_once_whenever_the_broker_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    set_all(&broker(&engine, dir.path())).await;
    drop(engine);
    for round in 0..ROUNDS {
        let mut child = spawn(dir.path());
        // Kills fall between two occurrences and on them.
        std::thread::sleep(Duration::from_millis(900 + round * 170));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let engine = start(&config(dir.path()));
    let broker = broker(&engine, dir.path());
    for number in 0..SCHEDULES {
        let name = format!("schedule-{number}");
        broker.pause_schedule(&name, "to count").await.unwrap();
    }
    let shards = engine.shards();
    eventually("all runs are delivered", || is_settled(&shards)).await;
    let fired = fired(&broker).await;
    assert_eq!(fired.len() as u64, SCHEDULES);
    for number in 0..SCHEDULES {
        let name = format!("schedule-{number}");
        let view = broker.schedule(&name).await.unwrap().view;
        let occurrences = &fired[&name];
        assert!(occurrences.values().all(|times| *times == 1), "{name}: {occurrences:?}");
        assert_eq!(occurrences.len() as u64, view.fired, "{name}");
        assert_eq!((view.missed, view.skipped), (0, 0), "{name}");
        // No second between the first and the last is missing.
        let first: jiff::Timestamp = occurrences.keys().next().unwrap().parse().unwrap();
        let last: jiff::Timestamp = occurrences.keys().next_back().unwrap().parse().unwrap();
        let seconds = last.as_second() - first.as_second() + 1;
        assert_eq!(occurrences.len() as i64, seconds, "{name}: {occurrences:?}");
        assert!(seconds > 5, "{name} fired {seconds} times");
    }
}
