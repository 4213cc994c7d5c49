//! Limits through the SDK, against the real broker: settings, handlers that push back, and the
//! reasons of a waiting task.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use taskyard::{
    Client, Fail, PerKey, QueueSettings, Rate, State, TaskContext, TaskId, TaskState, Throttled,
    WaitReason, testing::TestBroker,
};

const QUEUE: &str = "calls";
const MINUTE: Duration = Duration::from_secs(60);

async fn enqueue(client: &Client, number: u32, key: &str) -> TaskId {
    let task = client.task("call", &number).queue(QUEUE).fairness_key(key);
    task.await.unwrap().id().clone()
}

async fn set(client: &Client, settings: QueueSettings) {
    client.queue(QUEUE).set(settings).await.unwrap();
}

async fn why(client: &Client, task: &TaskId) -> Vec<WaitReason> {
    client.why(task).await.unwrap()
}

fn codes(reasons: &[WaitReason]) -> Vec<&str> {
    reasons.iter().map(|reason| reason.code.as_str()).collect()
}

/// The attempts, as `key number attempt`, and the number of refused calls of bolt.
#[derive(Default)]
struct Calls {
    ran: Vec<String>,
    refused: u32,
}

/// Calls a service that refuses the first call of bolt.
async fn call(
    number: u32,
    context: TaskContext,
    State(calls): State<Arc<Mutex<Calls>>>,
) -> Result<(), Fail> {
    let key = context.fairness_key().unwrap_or("none").to_owned();
    let mut calls = calls.lock().unwrap();
    if key == "bolt" && calls.refused == 0 {
        calls.refused += 1;
        return Err(Throttled::after(MINUTE).into());
    }
    calls.ran.push(format!("{key} {number} {}", context.attempt()));
    Ok(())
}

#[tokio::test]
async fn a_handler_that_pushes_back_holds_its_key_and_spends_no_attempt() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let bolt = [enqueue(&client, 1, "bolt").await, enqueue(&client, 2, "bolt").await];
    let coil = enqueue(&client, 1, "coil").await;
    let calls = Arc::new(Mutex::new(Calls::default()));
    let worker = broker.worker().queue(QUEUE).concurrency(1).state(Arc::clone(&calls));
    let _worker = broker.run(worker.handler("call", call)).unwrap();

    // The clock stands still, so no task of bolt runs, however long this takes.
    while client.get(&coil).await.unwrap().state != TaskState::Succeeded {
        tokio::task::yield_now().await;
    }
    while client.get(&bolt[0]).await.unwrap().state != TaskState::Scheduled {
        tokio::task::yield_now().await;
    }
    let pushed = client.get(&bolt[0]).await.unwrap();
    assert_eq!(pushed.attempt, 0, "a push-back spends no attempt");
    let reasons = why(&client, &bolt[1]).await;
    assert_eq!(codes(&reasons), ["key_held", "ahead"]);
    assert_eq!(reasons[0].key.as_deref(), Some("bolt"));
    assert!(reasons[0].until.is_some());
    assert!(reasons[0].message.contains("a handler has pushed back"), "{reasons:?}");
    assert_eq!(codes(&why(&client, &bolt[0]).await), ["scheduled"]);
    assert_eq!(calls.lock().unwrap().ran, ["coil 1 1"]);

    broker.advance(MINUTE).await.unwrap();
    broker.settle().await.unwrap();
    let calls = calls.lock().unwrap();
    let mut of_bolt: Vec<&str> = calls.ran[1..].iter().map(String::as_str).collect();
    of_bolt.sort_unstable();
    assert_eq!((of_bolt, calls.refused), (vec!["bolt 1 1", "bolt 2 1"], 1));
}

#[tokio::test]
async fn a_client_is_told_why_a_task_waits() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let first = enqueue(&client, 1, "acme").await;
    let second = enqueue(&client, 2, "acme").await;
    let reasons = why(&client, &second).await;
    assert_eq!(codes(&reasons), ["no_worker", "ahead"]);
    assert_eq!(reasons[1].ahead, Some(1));

    client.queue(QUEUE).pause().await.unwrap();
    assert_eq!(codes(&why(&client, &second).await), ["queue_paused", "no_worker", "ahead"]);
    client.queue(QUEUE).resume().await.unwrap();

    // A task that never returns takes the only place of its key.
    let per_key = Some(PerKey { concurrency: Some(1), rate: None });
    set(&client, QueueSettings { per_key, ..QueueSettings::default() }).await;
    let stuck = |_: u32| std::future::pending::<Result<(), Fail>>();
    let worker = broker.worker().queue(QUEUE).concurrency(3).handler("call", stuck);
    let worker = broker.run(worker).unwrap();
    while client.get(&first).await.unwrap().state != TaskState::Claimed {
        tokio::task::yield_now().await;
    }
    assert_eq!(codes(&why(&client, &first).await), ["running"]);
    let reasons = why(&client, &second).await;
    assert_eq!(codes(&reasons), ["key_concurrency", "ahead"]);
    assert_eq!((reasons[0].claimed, reasons[0].limit), (Some(1), Some(1)));

    // A limit below the number of running tasks ends none of them.
    set(&client, QueueSettings { concurrency: Some(1), ..QueueSettings::default() }).await;
    let reasons = why(&client, &second).await;
    assert_eq!(codes(&reasons), ["queue_concurrency", "ahead"]);
    assert_eq!(client.get(&first).await.unwrap().state, TaskState::Claimed);

    let unknown = client.why("6hrp7d20020010000000000001").await.unwrap_err();
    assert!(unknown.is_not_found(), "{unknown}");
    drop(worker);
}

#[tokio::test]
async fn settings_with_limits_come_back_as_they_were_set() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let queue = client.queue(QUEUE);
    let settings = QueueSettings {
        concurrency: Some(5),
        rate: Some(Rate::per_second(0.5).burst(3)),
        per_key: Some(PerKey {
            concurrency: Some(2),
            rate: Some(Rate::per_second(10.0).burst(20)),
        }),
        weights: [("acme".to_owned(), 3), (String::new(), 2)].into(),
        ageing_ms: Some(60_000),
        ..QueueSettings::default()
    };
    assert_eq!(queue.set(settings.clone()).await.unwrap(), settings);
    assert_eq!(queue.settings().await.unwrap(), settings);

    let none = QueueSettings::default;
    for wrong in [
        QueueSettings { concurrency: Some(0), ..none() },
        QueueSettings { rate: Some(Rate::per_second(0.0)), ..none() },
        QueueSettings { rate: Some(Rate::per_second(f64::NAN)), ..none() },
        QueueSettings { rate: Some(Rate::per_second(1.0).burst(0)), ..none() },
        QueueSettings { per_key: Some(PerKey { concurrency: Some(0), rate: None }), ..none() },
        QueueSettings { weights: [("acme".to_owned(), 0)].into(), ..none() },
        QueueSettings { ageing_ms: Some(0), ..none() },
    ] {
        let error = queue.set(wrong.clone()).await.unwrap_err();
        assert_eq!(error.code(), "invalid_argument", "{wrong:?}: {error}");
        assert_eq!(queue.settings().await.unwrap(), settings, "{wrong:?} changes nothing");
    }
}
