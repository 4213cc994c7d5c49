//! Each message between shards arrives once, even after crashes.

use crate::engine::{Bench, config, eventually, start};
use std::time::Duration;
use taskyard_machine::{
    Ack, Body, Command, EncodedCommand, Enqueue, FollowUp, NewTask, Outcome, TaskId,
};

/// Two queues on different shards.
fn apart(bench: &Bench) -> (String, String) {
    let other = (0..).map(|n| format!("other-{n}"));
    let other = other.into_iter().find(|name| bench.0.home(name) != bench.0.home("first"));
    ("first".into(), other.unwrap())
}

/// Claims a task of `queue` and acks it with `count` follow-ups on `other`.
async fn ack_with_follow_ups(bench: &Bench, queue: &str, other: &str, count: u64) -> Vec<TaskId> {
    let claimed = bench.claim(queue, 1, Duration::from_secs(20)).await;
    let payloads: Vec<_> = (0..count).map(|n| n.to_le_bytes()).collect();
    let follow_ups = payloads.iter().map(|payload| FollowUp {
        home: bench.0.home(other),
        enqueue: Enqueue {
            queue: other,
            task: NewTask {
                task_type: "next",
                body: Body { payload, ..Body::default() },
                ..NewTask::default()
            },
        },
    });
    let (task, token) = (claimed[0].task.id, claimed[0].task.token);
    let ack = Ack { task, token, result: None, follow_ups: follow_ups.collect() };
    let command = EncodedCommand::new(&Command::Ack(ack));
    match bench.0.propose(task.home, command, false).await.unwrap() {
        Outcome::Acked { follow_ups } => follow_ups,
        other => panic!("an ack was answered with {other:?}"),
    }
}

#[tokio::test]
async fn follow_ups_on_another_shard_arrive_in_order_with_their_ids() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let (first, other) = apart(&bench);
    bench.enqueue(&first, b"x").await;
    // More messages than are sent at a time.
    let ids = ack_with_follow_ups(&bench, &first, &other, 900).await;
    eventually("all have arrived", async || bench.ready(&other).await == 900).await;
    let claimed = bench.claim(&other, 900, Duration::ZERO).await;
    let arrived: Vec<_> = claimed.iter().map(|task| task.task.id).collect();
    assert_eq!(arrived, ids);
    for (n, task) in claimed.iter().enumerate() {
        let body = Body::decode(&task.body).unwrap();
        assert_eq!(body.payload, (n as u64).to_le_bytes());
    }
    let home = bench.0.home(&first);
    eventually("the outbox is empty", async || {
        bench.0.read(home, |machine| machine.outgoing(1).is_empty()).await.unwrap()
    })
    .await;
}

/// The process crashes at several instants between the ack and the arrival.
#[tokio::test]
async fn follow_ups_survive_a_crash_between_the_shards() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let mut expected = Vec::new();
    for round in 0..8 {
        let engine = start(&config);
        let bench = Bench(engine.shards());
        let (first, other) = apart(&bench);
        bench.enqueue(&first, b"x").await;
        expected.extend(ack_with_follow_ups(&bench, &first, &other, 300).await);
        if round % 3 == 1 {
            // Take a checkpoint of the state in between.
            drop(bench.0.backup().await.unwrap());
        }
        drop(engine);
    }
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let (_, other) = apart(&bench);
    eventually("all have arrived", async || bench.ready(&other).await >= 2_400).await;
    let mut arrived = Vec::new();
    loop {
        let claimed = bench.claim(&other, 1_000, Duration::ZERO).await;
        if claimed.is_empty() {
            break;
        }
        arrived.extend(claimed.iter().map(|task| task.task.id));
    }
    assert_eq!(arrived, expected, "each once, in order");
}
