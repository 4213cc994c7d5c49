//! Restarts: however the process ends, everything acknowledged is there.

use crate::engine::{Bench, config, start};
use std::time::Duration;
use taskyard_machine::TaskStateName;

const NOW: Duration = Duration::ZERO;

async fn check_all_is_there(stop: bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let mut waiting = bench.enqueue_many("mail", 500, b"waiting").await;
    let done = bench.claim("mail", 100, NOW).await;
    for task in &done {
        bench.ack(task.task.id, task.task.token).await.unwrap();
    }
    waiting.drain(..100);
    if stop {
        engine.stop()
    } else {
        drop(engine)
    }

    for round in 0..3 {
        let engine = start(&config);
        let bench = Bench(engine.shards());
        assert_eq!(bench.ready("mail").await, waiting.len() as u64, "round {round}");
        for task in &done {
            let view = bench.task(task.task.id).await.expect("finished tasks are kept");
            assert_eq!(view.state, TaskStateName::Succeeded);
        }
        assert_eq!(bench.payload(waiting[7]).await.as_deref(), Some(&b"waiting"[..]));
        waiting.extend(bench.enqueue_many("mail", 10, b"more").await);
        if round == 1 { engine.stop() } else { drop(engine) }
    }
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let claimed = bench.claim("mail", 1000, NOW).await;
    let ids: Vec<_> = claimed.iter().map(|task| task.task.id).collect();
    assert_eq!(ids, waiting, "every task once, in order");
}

#[tokio::test]
async fn a_stop_loses_nothing() {
    check_all_is_there(true).await;
}

#[tokio::test]
async fn a_crash_loses_nothing() {
    check_all_is_there(false).await;
}

/// The burst is larger than one turn of the loop takes. The shard writes it in parts and confirms
/// all of it.
#[tokio::test]
async fn a_burst_of_large_payloads_is_taken_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let payloads: Vec<Vec<u8>> = (0..48).map(|n| vec![n; 1 << 20]).collect();
    let enqueues = payloads.iter().map(|payload| bench.enqueue("video", payload));
    let ids = futures_util::future::join_all(enqueues).await;
    drop(engine);
    let engine = start(&config);
    let bench = Bench(engine.shards());
    for (id, payload) in ids.into_iter().zip(&payloads) {
        assert!(bench.payload(id).await.as_ref() == Some(payload), "{id}");
    }
}
