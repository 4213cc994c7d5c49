//! Checkpoints: the exact state at their cut; bodies spill and come back; disk space returns.

use crate::engine;

use crate::engine::{Bench, config, eventually, manual, request, start};
use std::{path::Path, time::Duration};
use taskyard_machine::{
    Body, Command, EncodedCommand, EnqueueCut, Fail, PurgeQueue, Release, Retry, ShardId,
    TaskError, TaskStateName, Timestamp,
};

const NOW: Duration = Duration::ZERO;

/// The digest of every shard's whole state; also checks its invariants.
async fn state(bench: &Bench) -> Vec<u64> {
    let mut hashes = Vec::new();
    for shard in (0..bench.0.count()).map(ShardId) {
        let read = bench.0.read(shard, |machine| {
            machine.check().unwrap();
            machine.state_hash()
        });
        hashes.push(read.await.unwrap());
    }
    hashes
}

/// Checkpoints all shards, without moving the clock.
async fn checkpoint(bench: &Bench) {
    drop(bench.0.backup().await.unwrap());
}

/// A random mix of everything that changes a task, from a seed.
async fn work(bench: &Bench, mut seed: u64, steps: usize) {
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let queues = ["a", "b", "c", "d", "e", "f"];
    for _ in 0..steps {
        let queue = queues[draw(6) as usize];
        if draw(3) == 0 {
            bench.enqueue_many(queue, 1 + draw(40) as usize, &[7; 50]).await;
            continue;
        }
        for handed in bench.claim(queue, 1 + draw(30) as u32, NOW).await {
            let (task, token) = (handed.task.id, handed.task.token);
            let error = TaskError { error_type: "Oops", message: "again", backtrace: "" };
            let command = match draw(5) {
                0 => Command::Release(Release { task, token }),
                1 => Command::Fail(Fail { task, token, error, retry_at: None, retryable: false }),
                2 => Command::Fail(Fail { task, token, error, retry_at: None, retryable: true }),
                3 => continue,
                _ => {
                    bench.ack(task, token).await.unwrap();
                    continue;
                }
            };
            bench.0.propose(task.home, EncodedCommand::new(&command), false).await.unwrap();
        }
    }
}

/// Works during checkpoints, crashes, and compares the state after the restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_the_very_state_that_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let (config, _clock) = manual(dir.path());
    let mut engine = start(&config);
    for round in 0..4 {
        let bench = Bench(engine.shards());
        let working = Bench(engine.shards());
        let working = tokio::spawn(async move { work(&working, round, 60).await });
        while !working.is_finished() {
            checkpoint(&bench).await;
        }
        working.await.unwrap();
        work(&bench, 1_000 + round, 20).await;
        let left = state(&bench).await;
        drop(engine);
        engine = start(&config);
        let bench = Bench(engine.shards());
        assert_eq!(state(&bench).await, left, "round {round}");
    }
}

#[tokio::test]
async fn an_edited_body_counts_before_and_after_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let id = bench.enqueue("mail", b"first").await;
    checkpoint(&bench).await;
    let claimed = bench.claim("mail", 1, NOW).await;
    let (task, token) = (id, claimed[0].task.token);
    let error = TaskError::default();
    let fail = Fail { task, token, error, retry_at: None, retryable: false };
    bench.command("mail", &Command::Fail(fail)).await.unwrap();
    assert_eq!(bench.task(id).await.unwrap().state, TaskStateName::Dead);
    let body = Body { payload: b"edited", ..Body::default() };
    bench.command("mail", &Command::Retry(Retry { task, body: Some(body) })).await.unwrap();
    assert_eq!(bench.payload(id).await.unwrap(), b"edited");
    drop(engine);
    let engine = start(&config);
    let bench = Bench(engine.shards());
    assert_eq!(bench.payload(id).await.unwrap(), b"edited", "from the log");
    checkpoint(&bench).await;
    drop(engine);
    let engine = start(&config);
    let bench = Bench(engine.shards());
    assert_eq!(bench.payload(id).await.unwrap(), b"edited", "from the checkpoint");
    let claimed = bench.claim("mail", 1, NOW).await;
    assert_eq!(Body::decode(&claimed[0].body).unwrap().payload, b"edited");
}

/// Enqueues ten times the memory budget: bodies spill, and every claim gets the right body.
#[tokio::test]
async fn bodies_spill_past_the_budget_and_are_read_back_for_claims() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.memory_bytes_max = 16 << 20;
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let payload = |n: usize| vec![n as u8; 256 << 10];
    let mut ids = Vec::new();
    for n in 0..640 {
        // The node refuses enqueues until a checkpoint allows it to evict bodies.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let payload = payload(n);
            let body = Body { payload: &payload, ..Body::default() };
            let task = taskyard_machine::NewTask { task_type: "t", body, ..Default::default() };
            match bench.try_enqueue("mail", task).await {
                Ok(id) => break ids.push(id),
                Err(error) => assert_eq!(error.code(), "limit_exceeded", "{error}"),
            }
            assert!(tokio::time::Instant::now() < deadline, "memory never returned");
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(ids.len(), 640);
    let mut seen = 0;
    while seen < ids.len() {
        for handed in bench.claim("mail", 16, Duration::from_secs(20)).await {
            assert_eq!(handed.task.id, ids[seen]);
            assert_eq!(Body::decode(&handed.body).unwrap().payload, payload(seen));
            bench.ack(handed.task.id, handed.task.token).await.unwrap();
            seen += 1;
        }
    }
}

fn bytes_in(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Fills and empties the node several times. The directory must not keep removed tasks.
#[tokio::test]
async fn disk_space_returns_when_tasks_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let mut largest = 0;
    for cycle in 0..6 {
        for _ in 0..16 {
            bench.enqueue_many("mail", 256, &[cycle; 16 << 10]).await;
        }
        checkpoint(&bench).await;
        largest = largest.max(bytes_in(dir.path()));
        let before = EnqueueCut { next_sequence: u64::MAX, now: Timestamp(u64::MAX) };
        let purge = Command::PurgeQueue(PurgeQueue { queue: "mail", before, after: None });
        while bench.ready("mail").await > 0 {
            bench.command("mail", &purge).await.unwrap();
        }
        checkpoint(&bench).await;
    }
    // 64 MiB of bodies per cycle, 384 MiB in all, go through log, journal and tables.
    println!("largest {} MiB", largest >> 20);
    eventually("state/ is small", async || bytes_in(&dir.path().join("state")) < 160 << 20).await;
    println!("left {} MiB", bytes_in(dir.path()) >> 20);
    engine.stop();
    let state = bytes_in(&dir.path().join("state"));
    assert!(state < 160 << 20, "{} MiB in state/", state >> 20);
}

#[tokio::test]
async fn a_claim_waits_for_bodies_that_a_restart_left_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let engine = start(&config);
    let ids = Bench(engine.shards()).enqueue_many("mail", 300, b"spilled").await;
    engine.stop();
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let home = bench.0.home("mail");
    // One caller drops its claim while the bodies are read, so its tasks are released.
    let mut leaving = Box::pin(bench.0.claim(home, request("mail", 300), NOW));
    assert!(engine::waits(&mut leaving).await);
    drop(leaving);
    eventually("all are ready", async || bench.ready("mail").await == 300).await;
    let claimed = bench.claim("mail", 300, Duration::from_secs(20)).await;
    let claimed_ids: Vec<_> = claimed.iter().map(|handed| handed.task.id).collect();
    assert_eq!(claimed_ids, ids);
    assert!(
        claimed.iter().all(|handed| {
            Body::decode(&handed.body).is_ok_and(|body| body.payload == b"spilled")
        })
    );
}
