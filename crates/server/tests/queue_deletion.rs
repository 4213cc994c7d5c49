//! Deletion of queues for producers, workers and operators. A queue with work can't be deleted, a
//! queue without work is deleted as a whole, and no task is lost.

use crate::common::{Broker, DEADLINE, cluster::three, http};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::time::timeout;

async fn enqueue(at: SocketAddr, queue: &str, task: Value) -> Value {
    http::post(at, &format!("/v1/queues/{queue}/tasks"), &task.to_string()).await.ok()
}

/// Enqueues a task, runs it, and returns its id.
async fn run_one(at: SocketAddr, queue: &str, task: Value) -> String {
    let id = enqueue(at, queue, task).await["id"].as_str().unwrap().to_owned();
    assert_eq!(claim(at, queue, 0).await, [id.as_str()]);
    id
}

/// Claims and acks the ready tasks, and returns their ids.
async fn claim(at: SocketAddr, queue: &str, wait_ms: u64) -> Vec<String> {
    let claim = json!({"queues": [queue], "max": 50, "wait_ms": wait_ms}).to_string();
    let answer = timeout(DEADLINE, http::post(at, "/v1/claims", &claim));
    let claimed = answer.await.expect("an answer in time").ok();
    let mut ids = Vec::new();
    for task in claimed["tasks"].as_array().unwrap() {
        let id = task["id"].as_str().unwrap();
        let ack = json!({"claim_token": task["claim_token"]}).to_string();
        http::post(at, &format!("/v1/tasks/{id}/ack"), &ack).await.ok();
        ids.push(id.to_owned());
    }
    ids
}

async fn delete(at: SocketAddr, queue: &str) -> http::Answer {
    http::send(at, "DELETE", &format!("/v1/queues/{queue}"), None, b"").await
}

async fn listed(at: SocketAddr) -> Vec<String> {
    let list = http::get(at, "/v1/queues").await.ok();
    let names = list["queues"].as_array().unwrap().iter();
    names.map(|queue| queue["name"].as_str().unwrap().to_owned()).collect()
}

async fn spread(at: SocketAddr, queue: &str, spread: u16) {
    let settings = json!({ "spread": spread });
    let path = format!("/v1/queues/{queue}/settings");
    assert_eq!(http::put(at, &path, &settings.to_string()).await.ok(), settings);
}

#[tokio::test]
async fn a_queue_is_deleted_when_nothing_waits_in_it_and_stays_gone_over_a_restart() {
    let broker = Broker::start().await;
    let at = broker.address;
    let refused = delete(at, "mial").await.problem();
    assert_eq!((refused.0, refused.1.as_str()), (404, "not_found"));
    let done = run_one(at, "mial", json!({"type": "t", "request_id": "r"})).await;
    let settings = json!({"max_length": 3});
    http::put(at, "/v1/queues/mial/settings", &settings.to_string()).await.ok();
    for _ in 0..2 {
        enqueue(at, "mial", json!({"type": "t"})).await;
    }
    let refused = delete(at, "mial").await.problem();
    assert_eq!((refused.0, refused.1.as_str()), (409, "queue_not_empty"));
    let text = "queue mial has 2 waiting tasks; purge it first: taskyard queue purge mial";
    assert_eq!(refused.2, text);
    assert_eq!(http::get(at, "/v1/queues/mial/settings").await.ok(), settings);

    http::post(at, "/v1/queues/mial/purge", "").await.ok();
    let of_queue = "taskyard_queue_tasks{queue=\"mial\"";
    assert!(http::get(at, "/metrics").await.text.contains(of_queue));
    assert_eq!(delete(at, "mial").await.status, 204);
    assert_eq!(listed(at).await, [""; 0]);
    assert!(!http::get(at, "/metrics").await.text.contains("queue=\"mial\""));
    for path in ["/v1/queues/mial", "/v1/queues/mial/settings"] {
        assert_eq!(http::get(at, path).await.problem().0, 404);
    }
    assert_eq!(delete(at, "mial").await.problem().0, 404);

    let broker = Broker::on(broker.stop().await, |_| ()).await;
    let at = broker.address;
    assert_eq!(listed(at).await, [""; 0], "it stays gone");
    let kept = http::get(at, &format!("/v1/tasks/{done}")).await.ok();
    assert_eq!((&kept["state"], &kept["queue"]), (&json!("succeeded"), &json!("mial")));
    let again = enqueue(at, "mial", json!({"type": "t", "request_id": "r"})).await;
    assert_eq!(again["id"], *done, "its request is remembered");
    assert_eq!(listed(at).await, [""; 0]);
    for _ in 0..4 {
        enqueue(at, "mial", json!({"type": "t"})).await;
    }
    assert_eq!(http::get(at, "/v1/queues/mial/settings").await.ok(), json!({}), "a new queue");
    assert_eq!(claim(at, "mial", 0).await.len(), 4);
    broker.stop().await;
}

#[tokio::test]
async fn a_spread_queue_is_narrowed_and_then_deleted_on_all_its_shards() {
    let broker = Broker::start().await;
    let at = broker.address;
    spread(at, "clicks", 4).await;
    let mut done = BTreeSet::new();
    for number in 0..8 {
        let task = json!({"type": "t", "request_id": format!("r{number}")});
        done.insert(run_one(at, "clicks", task).await);
    }
    let waiting = enqueue(at, "clicks", json!({"type": "t"})).await["id"].clone();
    let refused = delete(at, "clicks").await.problem();
    assert_eq!((refused.0, refused.1.as_str()), (409, "queue_not_empty"));
    let settings = http::get(at, "/v1/queues/clicks/settings").await.ok();
    assert_eq!(settings, json!({"spread": 4}));
    let id = waiting.as_str().unwrap();
    http::post(at, &format!("/v1/tasks/{id}/cancel"), "").await.ok();
    let refused = delete(at, "clicks").await.problem();
    assert_eq!((refused.0, refused.1.as_str()), (409, "conflict"));
    let text = "queue clicks is spread over 4 shards; narrow it first: taskyard queue set clicks \
                --spread 1";
    assert_eq!(refused.2, text);
    let settings = http::get(at, "/v1/queues/clicks/settings").await.ok();
    assert_eq!(settings, json!({"spread": 4}));

    spread(at, "clicks", 1).await;
    assert_eq!(delete(at, "clicks").await.status, 204);
    assert_eq!(listed(at).await, [""; 0]);
    assert!(!http::get(at, "/metrics").await.text.contains("queue=\"clicks\""));
    for id in &done {
        assert_eq!(http::get(at, &format!("/v1/tasks/{id}")).await.ok()["state"], "succeeded");
    }
    let broker = Broker::on(broker.stop().await, |_| ()).await;
    let at = broker.address;
    assert_eq!(listed(at).await, [""; 0]);
    for number in 0..8 {
        let task = json!({"type": "t", "request_id": format!("r{number}")});
        let again = enqueue(at, "clicks", task).await;
        assert!(done.contains(again["id"].as_str().unwrap()), "one task per request: {again}");
    }
    // The queue comes back on its home shard only, and can be spread again.
    enqueue(at, "clicks", json!({"type": "t"})).await;
    assert_eq!(http::get(at, "/v1/queues/clicks/settings").await.ok(), json!({}));
    spread(at, "clicks", 3).await;
    for _ in 0..6 {
        enqueue(at, "clicks", json!({"type": "t"})).await;
    }
    assert_eq!(http::get(at, "/v1/queues/clicks").await.ok()["ready"], 7);
    assert_eq!(claim(at, "clicks", 0).await.len(), 7);
    broker.stop().await;
}

#[tokio::test]
async fn a_claim_that_waits_gets_a_task_when_the_queue_comes_back() {
    let broker = Broker::start().await;
    let at = broker.address;
    run_one(at, "mail", json!({"type": "t"})).await;
    let waits = tokio::spawn(async move { claim(at, "mail", 30_000).await });
    assert_eq!(delete(at, "mail").await.status, 204);
    let id = enqueue(at, "mail", json!({"type": "t"})).await["id"].clone();
    assert_eq!(waits.await.unwrap(), [id.as_str().unwrap()]);
    broker.stop().await;
}

/// Deletes while others enqueue and work: every accepted task runs once.
async fn no_task_is_lost(at: [SocketAddr; 3], queue: &'static str, spread_over: Option<u16>) {
    const TASKS: usize = 120;
    let is_over = Arc::new(AtomicBool::new(false));
    let producer = tokio::spawn(async move {
        let mut ids = BTreeSet::new();
        while ids.len() < TASKS {
            let task = json!({"type": "t"}).to_string();
            let answer = http::post(at[0], &format!("/v1/queues/{queue}/tasks"), &task).await;
            // A deletion sets the spread of a queue to one shard for a moment.
            if answer.status == 503 {
                assert_eq!(answer.problem().1, "unavailable");
                continue;
            }
            ids.insert(answer.ok()["id"].as_str().unwrap().to_owned());
        }
        ids
    });
    let over = is_over.clone();
    let deleter = tokio::spawn(async move {
        let mut deleted = 0;
        // In the end the queue is empty, so at least one deletion succeeds.
        while deleted == 0 || !over.load(Relaxed) {
            if spread_over.is_some() {
                spread(at[2], queue, 1).await;
            }
            let answer = delete(at[1], queue).await;
            match answer.status {
                204 => deleted += 1,
                409 => assert_eq!(answer.problem().1, "queue_not_empty"),
                404 => {}
                503 => assert_eq!(answer.problem().1, "unavailable"),
                _ => panic!("{answer:?}"),
            }
            if let Some(shards) = spread_over {
                spread(at[2], queue, shards).await;
            }
        }
    });
    let mut ran = Vec::new();
    while ran.len() < TASKS {
        ran.extend(claim(at[2], queue, 1_000).await);
    }
    let made = timeout(DEADLINE, producer).await.expect("in time").unwrap();
    is_over.store(true, Relaxed);
    timeout(DEADLINE, deleter).await.expect("in time").unwrap();
    assert_eq!(made, ran.into_iter().collect::<BTreeSet<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_to_a_deletion_at_the_same_moment() {
    let broker = Broker::start().await;
    no_task_is_lost([broker.address; 3], "mail", None).await;
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_lost_when_a_spread_queue_of_three_nodes_is_deleted_meanwhile() {
    let nodes = three().await;
    let at = [0, 1, 2].map(|node: usize| nodes[node].address);
    spread(at[0], "clicks", 3).await;
    no_task_is_lost(at, "clicks", Some(3)).await;
    spread(at[0], "clicks", 1).await;
    while delete(at[1], "clicks").await.status != 204 {}
    for node in at {
        assert_eq!(listed(node).await, [""; 0]);
    }
    for node in nodes {
        node.stop().await;
    }
}
