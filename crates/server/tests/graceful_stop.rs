//! A graceful stop under load ends within the grace. No confirmed task is lost, and no client is
//! left waiting.

use crate::common;

use crate::common::{Broker, DEADLINE, code, eventually, http, queues, task, worker::Worker};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use taskyard_proto::v1;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

const GRACE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_nothing_and_ends_within_the_grace() {
    let broker = Broker::with(|config| config.shutdown_grace = GRACE).await;
    let confirmed = Arc::new(Mutex::new(HashSet::new()));
    let acked = Arc::new(Mutex::new(HashSet::new()));
    let (busy, mut busy_signs) = mpsc::channel::<()>(64);
    let mut load = Vec::new();
    for n in 0..4 {
        let (mut client, confirmed, busy) = (broker.grpc().await, confirmed.clone(), busy.clone());
        load.push(tokio::spawn(async move {
            loop {
                let tasks = vec![task(&format!("q{n}"), "t"); 10];
                let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
                let Ok(reply) = client.enqueue_many(request).await else { return };
                for result in reply.into_inner().results {
                    match result.error {
                        None => assert!(confirmed.lock().unwrap().insert(result.id)),
                        Some(error) => assert_ne!(error.code, "invalid_argument", "{error:?}"),
                    }
                }
                let _ = busy.try_send(());
            }
        }));
    }
    for _ in 0..2 {
        let mut worker = Worker::open(&broker, &["q0", "q1", "q2", "q3"], 20).await;
        let (acked, busy) = (acked.clone(), busy.clone());
        load.push(tokio::spawn(async move {
            loop {
                worker.credits(20).await;
                while worker.waiting() == 0 {
                    if worker.receive().await.is_err() {
                        return;
                    }
                }
                let tasks = worker.tasks(worker.waiting()).await;
                let answers = tasks.iter().map(|task| common::worker::ack(task, None));
                let Ok(replies) = worker.try_answer(answers).await else { return };
                for (task, reply) in tasks.into_iter().zip(replies) {
                    if reply.error.is_none() {
                        acked.lock().unwrap().insert(task.id);
                    }
                }
                let _ = busy.try_send(());
            }
        }));
    }
    for _ in 0..200 {
        timeout(DEADLINE, busy_signs.recv()).await.expect("load").unwrap();
    }
    let started = Instant::now();
    let dir = broker.stop().await;
    let took = started.elapsed();
    assert!(took < GRACE, "{took:?}");
    for client in load {
        timeout(DEADLINE, client).await.expect("every client gets an answer").unwrap();
    }

    let (confirmed, acked) = (confirmed.lock().unwrap().clone(), acked.lock().unwrap().clone());
    assert!(!confirmed.is_empty() && !acked.is_empty());
    let broker = Broker::on(dir, |_| ()).await;
    let mut seen = HashSet::new();
    let mut succeeded = HashSet::new();
    let mut client = broker.grpc().await;
    let mut cursor = String::new();
    loop {
        let request = v1::ListTasksRequest { cursor, limit: 1000, ..Default::default() };
        let page = client.list_tasks(request).await.unwrap().into_inner();
        for task in page.tasks {
            if task.state == "succeeded" {
                succeeded.insert(task.id.clone());
            }
            assert!(seen.insert(task.id), "once");
        }
        cursor = page.cursor;
        if cursor.is_empty() {
            break;
        }
    }
    let lost: Vec<_> = confirmed.difference(&seen).collect();
    assert_eq!(lost, Vec::<&String>::new(), "confirmed and gone");
    let back: Vec<_> = acked.difference(&succeeded).collect();
    assert_eq!(back, Vec::<&String>::new(), "acked and not succeeded");
    broker.stop().await;
}

#[tokio::test]
async fn long_polls_and_streams_end_at_once() {
    let broker = Broker::with(|config| config.shutdown_grace = GRACE).await;
    let request = v1::EnqueueRequest { task: Some(task("idle", "t")) };
    let id = broker.grpc().await.enqueue(request).await.unwrap().into_inner().id;
    let at = broker.address;
    let parked = tokio::spawn(async move {
        http::post(at, "/v1/claims", r#"{"queues": ["q"], "wait_ms": 60000}"#).await.ok()
    });
    let several = {
        let mut client = broker.grpc().await;
        let queues = queues(&["a", "b", "c", "d", "e"]);
        let request = v1::ClaimRequest { queues, wait_ms: 60_000, ..Default::default() };
        tokio::spawn(async move { client.claim(request).await })
    };
    let result = {
        let path = format!("/v1/tasks/{id}/result?wait_ms=60000");
        tokio::spawn(async move { http::get(at, &path).await.ok() })
    };
    let mut worker = Worker::open(&broker, &["q"], 1).await;
    worker.credits(1).await;
    worker.beat(&[]).await;
    worker.orders().await;
    let (requests, outbound) = mpsc::channel(1);
    let mut client = broker.grpc().await;
    let mut stream =
        client.enqueue_stream(ReceiverStream::new(outbound)).await.unwrap().into_inner();
    let tasks = vec![task("q2", "t")];
    requests.send(v1::EnqueueManyRequest { tasks, batch_id: vec![] }).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().results.len(), 1);
    let homes = ["a", "b", "c", "d", "e"].map(|name| taskyard_machine::home_shard(name, 4));
    // The worker, the claim of one shard, and a hint on each shard of the claim over several.
    let parked_claims = 2 + homes.iter().collect::<HashSet<_>>().len();
    eventually("all claims are parked", async || {
        let metrics = http::get(at, "/metrics").await.text;
        metrics.contains(&format!("\ntaskyard_claims_parked {parked_claims}\n")).then_some(())
    })
    .await;

    let started = Instant::now();
    let stopping = tokio::spawn(broker.stop());
    let status = loop {
        if let Err(status) = worker.receive().await {
            break status;
        }
    };
    assert_eq!(code(&status), "unavailable", "{status:?}");
    assert_eq!(code(&stream.message().await.unwrap_err()), "unavailable");
    drop((requests, worker));
    timeout(DEADLINE, stopping).await.expect("stopped").unwrap();
    assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
    assert_eq!(parked.await.unwrap(), serde_json::json!({"tasks": []}));
    assert_eq!(several.await.unwrap().unwrap().into_inner().tasks, []);
    assert_eq!(result.await.unwrap(), serde_json::json!({"state": "ready"}));
}
