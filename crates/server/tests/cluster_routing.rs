//! Any node takes any request and forwards it to the leader. Clients and workers do not notice a
//! change of leader.

use crate::common;

use crate::common::{
    Broker, DEADLINE,
    cluster::{SHARDS, leader, queues, three, transfer},
    http, task,
    worker::Worker,
};
use serde_json::Value;
use taskyard_proto::v1;
use tokio::time::timeout;

async fn enqueue(broker: &Broker, queue: &str) -> String {
    let request = v1::EnqueueRequest { task: Some(task(queue, "test")) };
    broker.grpc().await.enqueue(request).await.unwrap().into_inner().id
}

async fn state(broker: &Broker, id: &str) -> String {
    let task = http::get(broker.address, &format!("/v1/tasks/{id}")).await.ok();
    task["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_answers_for_every_shard() {
    let nodes = three().await;
    let queues = queues(&nodes[0]);
    for (number, queue) in queues.iter().enumerate() {
        let [first, second, third] = [0, 1, 2].map(|offset| &nodes[(number + offset) % 3]);
        let id = enqueue(first, queue).await;
        assert_eq!(state(second, &id).await, "ready");
        let claim = format!("{{\"queues\": [\"{queue}\"], \"max\": 5, \"wait_ms\": 10000}}");
        let claimed = http::post(third.address, "/v1/claims", &claim).await.ok();
        assert_eq!(claimed["tasks"][0]["id"], *id);
        let token = &claimed["tasks"][0]["claim_token"];
        let ack = format!("{{\"claim_token\": {token}, \"result\": 42}}");
        http::post(first.address, &format!("/v1/tasks/{id}/ack"), &ack).await.ok();
        let result = format!("/v1/tasks/{id}/result?wait_ms=10000");
        assert_eq!(http::get(second.address, &result).await.ok()["result"], 42);
    }
    // Each node lists all queues, and has metrics for the queues that it leads.
    let mut shown = 0;
    for node in &nodes {
        let listed = http::get(node.address, "/v1/queues").await.ok();
        assert_eq!(listed["queues"].as_array().map_or(0, Vec::len), SHARDS, "{listed}");
        let (mut names, mut path) = (Vec::new(), "/v1/queues?limit=2".to_owned());
        loop {
            let page = http::get(node.address, &path).await.ok();
            let name = |queue: &Value| queue["name"].as_str().unwrap().to_owned();
            names.extend(page["queues"].as_array().unwrap().iter().map(name));
            let Some(cursor) = page["cursor"].as_str() else { break };
            path = format!("/v1/queues?limit=2&cursor={cursor}");
        }
        let mut sorted = queues.clone();
        sorted.sort();
        assert_eq!(names, sorted, "page by page too");
        let metrics = http::get(node.address, "/metrics").await.text;
        shown += queues.iter().filter(|q| metrics.contains(&format!("queue=\"{q}\""))).count();
    }
    assert_eq!(shown, SHARDS, "each queue on one node");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_and_its_claims_outlive_a_change_of_leaders() {
    let nodes = three().await;
    let queues = queues(&nodes[0]);
    let names: Vec<&str> = queues.iter().map(String::as_str).collect();
    let mut worker = Worker::open(&nodes[0], &names, 20).await;
    worker.credits(20).await;
    for queue in &queues {
        enqueue(&nodes[1], queue).await;
    }
    let held = worker.tasks(SHARDS).await;
    worker.started(&held).await;

    // Every shard moves to another node while a claim is held there and another is parked.
    for shard in 0..SHARDS {
        let from = leader(&nodes[0], shard).await.unwrap();
        transfer(&nodes[2], shard, from % 3 + 1).await;
    }
    worker.beat(&held).await;
    worker.ack_all(&held).await;
    for queue in &queues {
        enqueue(&nodes[2], queue).await;
    }
    let again = worker.tasks(SHARDS).await;
    worker.ack_all(&again).await;
    worker.goodbye().await;
}

/// The claim may wait at the old leader, at the new leader, or at neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_result_follows_its_shard_to_the_next_leader() {
    let nodes = three().await;
    let queue = &queues(&nodes[0])[0];
    let id = enqueue(&nodes[0], queue).await;
    let path = format!("/v1/tasks/{id}/result?wait_ms=30000");
    let wait = |broker: &Broker| {
        let (address, path) = (broker.address, path.clone());
        tokio::spawn(async move { http::get(address, &path).await.ok() })
    };
    let waits = nodes.each_ref().map(wait);
    for _ in 0..3 {
        let from = leader(&nodes[0], 0).await.unwrap();
        transfer(&nodes[2], 0, from % 3 + 1).await;
    }
    assert!(waits.iter().all(|wait| !wait.is_finished()), "every claim must still wait");
    let claim = format!("{{\"queues\": [\"{queue}\"], \"wait_ms\": 10000}}");
    let claimed = http::post(nodes[1].address, "/v1/claims", &claim).await.ok();
    let token = &claimed["tasks"][0]["claim_token"];
    let ack = format!("{{\"claim_token\": {token}, \"result\": 42}}");
    http::post(nodes[1].address, &format!("/v1/tasks/{id}/ack"), &ack).await.ok();
    for wait in waits {
        let result = timeout(DEADLINE, wait).await.unwrap().unwrap();
        assert_eq!(result["result"], 42, "{result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_other_nodes_do_not_notice_a_node_that_stops() {
    let [first, second, third] = three().await;
    let queues = queues(&first);
    let names: Vec<&str> = queues.iter().map(String::as_str).collect();
    let mut worker = Worker::open(&second, &names, 20).await;
    worker.credits(20).await;
    // A worker waits and a stream enqueues while the node stops: neither fails.
    let stopping = tokio::spawn(async move { first.stop().await });
    let mut ids = Vec::new();
    while !stopping.is_finished() {
        for queue in &queues {
            ids.push(enqueue(&third, queue).await);
        }
    }
    stopping.await.unwrap();
    let mut left = ids.len();
    while left > 0 {
        worker.credits(20).await;
        let more = worker.tasks(left.min(20)).await;
        worker.ack_all(&more).await;
        left -= more.len();
    }
    for id in &ids {
        assert_eq!(state(&second, id).await, "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_continues_on_another_node_after_a_crash() {
    let [first, second, third] = three().await;
    let queues = queues(&first);
    let names: Vec<&str> = queues.iter().map(String::as_str).collect();
    let mut worker = Worker::open(&first, &names, 20).await;
    worker.credits(20).await;
    for queue in &queues {
        enqueue(&second, queue).await;
    }
    let held = worker.tasks(SHARDS).await;
    worker.started(&held).await;
    let (id, session_secret) = (worker.id.clone(), worker.secret.clone());
    tokio::task::spawn_blocking(move || drop(first)).await.unwrap();
    drop(worker);

    let hello = v1::Hello {
        session_secret,
        held: common::worker::held(&held),
        ..common::worker::hello(&names, 20)
    };
    let mut worker = timeout(DEADLINE, Worker::hello(&second, hello)).await.unwrap().unwrap();
    assert_eq!(worker.id, id);
    worker.ack_all(&held).await;
    worker.credits(20).await;
    for queue in &queues {
        enqueue(&third, queue).await;
    }
    let again = worker.tasks(SHARDS).await;
    worker.ack_all(&again).await;
}
