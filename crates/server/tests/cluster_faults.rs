//! Clusters stand bad input and faults: what can't be is refused in words, and the others go on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{
    Broker, DEADLINE,
    cluster::{ANY_PORT, SHARDS, founder, joiner, queues, three, three_with, transfer},
    eventually, http,
};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use taskyard_server::{Clock, Config, limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const HOUR_MS: i64 = 3_600_000;
/// A delay of tasks, and how much later than that they may run on a busy machine.
const DELAY: Duration = Duration::from_millis(100);
const LATE_MAX: Duration = Duration::from_secs(10);

async fn status(broker: &Broker) -> Value {
    http::get(broker.address, "/v1/cluster").await.ok()
}

/// Enqueues a task on each shard, which must be taken by all of them.
async fn enqueue_everywhere(broker: &Broker) {
    for queue in queues(broker) {
        enqueue(broker, &queue, Duration::ZERO).await;
    }
}

async fn enqueue(broker: &Broker, queue: &str, delay: Duration) -> Value {
    let delay_ms = delay.as_millis();
    let task = format!(r#"{{"type": "test", "delay_ms": {delay_ms}}}"#);
    let path = format!("/v1/queues/{queue}/tasks");
    let id = http::post(broker.address, &path, &task).await.ok()["id"].clone();
    http::get(broker.address, &format!("/v1/tasks/{}", id.as_str().unwrap())).await.ok()
}

/// What an operator is told who asks for what can't be.
async fn refused(broker: &Broker, path: &str, body: &str) -> String {
    let path = format!("/v1/cluster/{path}");
    let (code, _, detail) = http::post(broker.address, &path, body).await.problem();
    assert_eq!(code, 409, "{detail}");
    detail
}

/// Starts a node that stays in the cluster of its directory.
fn again(config: &mut Config) {
    (config.peer, config.shards) = (Some(ANY_PORT), None);
}

async fn until_down(seen_by: &Broker, node: usize) {
    eventually("the others know that a node is down", async || {
        (status(seen_by).await["nodes"][node - 1]["state"] == "down").then_some(())
    })
    .await;
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_stand_scanners_an_impossible_drain_and_a_copied_directory() {
    let [one, two, three] = three().await;
    for node in [&one, &two] {
        let words = refused(node, "nodes/3/drain", "{}").await;
        let why = "node 3 can't be drained: without it 2 nodes are left in use, and each shard has 3 \
                   replicas; add a node first, or lower the replication";
        assert_eq!(words, why);
        let words = refused(node, "nodes/3/remove", "{}").await;
        assert!(words.contains("node 3 still holds a replica of"), "{words}");
        assert!(words.ends_with("; drain it first"), "{words}");
    }
    assert_eq!(status(&one).await["nodes"][2]["state"], "up");

    scan(&[&one, &two, &three]).await;
    enqueue_everywhere(&one).await;

    // Started beside its original, a copy is told and ends; nobody takes it for the original.
    let original = three.stop().await;
    let copied = tempfile::tempdir().unwrap();
    copy_all(original.path(), copied.path());
    let three = Broker::on(original, again).await;
    let at = three.node.peer_address().unwrap().to_string();
    let is_back = async |seen_by: &Broker| {
        let node = status(seen_by).await["nodes"][2].clone();
        node["state"] == "up" && node["peer_address"] == at
    };
    for node in [&one, &two] {
        eventually("the original is back", async || is_back(node).await.then_some(())).await;
    }
    let copy = Broker::on(copied, again).await;
    assert_eq!(copy.node.id(), 3);
    let mut failed = std::pin::pin!(copy.node.failed());
    let started = Instant::now();
    let why = loop {
        assert!(started.elapsed() < DEADLINE, "the copy goes on");
        enqueue_everywhere(&three).await;
        if let Ok(why) = timeout(Duration::from_millis(100), &mut failed).await {
            break why.to_string();
        }
    };
    assert!(why.contains("node 3 is connected from another live process"), "{why}");
    assert!(why.contains("never start a node from a copy of another's data"), "{why}");
    assert!(is_back(&one).await && is_back(&two).await);
}

/// Sends what scanners send to the peer ports, and frames longer than any: each is hung up on.
async fn scan(nodes: &[&Broker]) {
    let frame = |length: u32| [&b"TASKYARD-PEER 1\n"[..], &length.to_le_bytes()].concat();
    let noise: Vec<u8> = (0..100_000_u32).map(|number| ((number * 7_919) >> 3) as u8).collect();
    let sent = [
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        noise,
        frame(limits::PEER_HANDSHAKE_BYTES_MAX as u32 + 1),
        frame(limits::PEER_FRAME_BYTES_MAX as u32 + 1),
        frame(u32::MAX),
    ];
    for node in nodes {
        for bytes in &sent {
            let mut socket = TcpStream::connect(node.node.peer_address().unwrap()).await.unwrap();
            // It may hang up before all is written.
            let _ = socket.write_all(bytes).await;
            let mut said = Vec::new();
            let ended = timeout(DEADLINE, socket.read_to_end(&mut said)).await;
            assert!(ended.is_ok(), "it does not hang up on {:?}", &bytes[..8]);
            assert_eq!(said, b"", "a stranger is told nothing");
        }
        enqueue_everywhere(node).await;
    }
}

/// Leaders follow each other whose clocks are an hour behind, right, and an hour ahead.
#[tokio::test(flavor = "multi_thread")]
async fn shard_time_goes_on_with_clocks_an_hour_apart() {
    let off_by = |number: u64| Clock::system_off_by((number as i64 - 2) * HOUR_MS);
    let nodes = three_with(|number, config| config.clock = off_by(number)).await;
    let queue = &queues(&nodes[0])[0];
    let mut enqueued_at = String::new();
    for (turn, leader) in [1, 2, 3, 1, 2, 1, 3].into_iter().enumerate() {
        transfer(&nodes[1], 0, leader).await;
        let asked = Instant::now();
        let task = enqueue(&nodes[turn % 3], queue, DELAY).await;
        let now = task["enqueued_at"].as_str().unwrap().to_owned();
        assert!(now > enqueued_at, "{now} under node {leader} comes after {enqueued_at}");
        enqueued_at = now;
        // If time stood still, what is due in a moment would be due in an hour or two.
        let claim = format!(r#"{{"queues": ["{queue}"], "wait_ms": {}}}"#, LATE_MAX.as_millis());
        let claimed = http::post(nodes[0].address, "/v1/claims", &claim).await.ok();
        assert_eq!(claimed["tasks"][0]["id"], task["id"], "under node {leader}");
        let took = asked.elapsed();
        assert!((DELAY..LATE_MAX).contains(&took), "{took:?} under node {leader}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_replica_of_a_shard_is_not_given_up() {
    let one = founder(|_| ()).await;
    let two = joiner(&one, |_| ()).await;
    // With two nodes each shard has one replica, here or there.
    let alone = eventually("node 2 alone holds a shard", async || {
        let shards = status(&one).await["shards"].clone();
        let is_alone = |shard: &&Value| {
            let replicas = shard["replicas"].as_array().unwrap();
            replicas.len() == 1 && replicas[0]["node"] == 2 && shard["moving_to"].is_null()
        };
        shards.as_array().unwrap().iter().position(|shard| is_alone(&shard))
    })
    .await;
    assert!(alone < SHARDS);
    let directory = two.stop().await;
    until_down(&one, 2).await;
    let words = refused(&one, "nodes/2/remove", r#"{"force": true}"#).await;
    assert!(words.contains("node 2 holds the last replica of shard "), "{words}");
    assert!(words.contains("start it again, or restore a backup"), "{words}");
    // Nothing was begun: it comes back with all that it held.
    let two = Broker::on(directory, again).await;
    eventually("all shards are led again", async || {
        (http::get(two.address, "/readyz").await.status == 200).then_some(())
    })
    .await;
    enqueue_everywhere(&one).await;
}

/// One build stands for two versions here, of which the newer one knows newer rules.
#[tokio::test(flavor = "multi_thread")]
async fn rules_do_not_rise_while_one_node_does_not_know_them() {
    let older = |config: &mut Config| config.rules_max = 1;
    let newer = |config: &mut Config| config.rules_max = 2;
    let one = founder(older).await;
    let two = joiner(&one, newer).await;
    let three = joiner(&one, newer).await;
    // The leader has looked at all nodes, and planned, when all have their replicas.
    eventually("the cluster has settled", async || {
        let status = status(&one).await;
        let of_three = |shard: &Value| shard["replicas"].as_array().unwrap().len() == 3;
        let settled = status["shards"].as_array().unwrap().iter().all(of_three);
        let known: Vec<_> = (0..3).map(|node| status["nodes"][node]["rules_max"].clone()).collect();
        (settled && known == [1, 2, 2]).then_some(())
    })
    .await;
    assert_eq!(status(&two).await["rules"], 1, "node 1 knows no newer ones");
    enqueue_everywhere(&three).await;

    let directory = one.stop().await;
    until_down(&two, 1).await;
    assert_eq!(status(&two).await["rules"], 1, "it may come back as it was");
    let one = Broker::on(directory, again).await;
    // Until it has heard of a leader for every shard it may say that there is none.
    eventually("it is ready", async || {
        (http::get(one.address, "/readyz").await.status == 200).then_some(())
    })
    .await;
    enqueue_everywhere(&one).await;
    // How they rise is the control group's own test: entries under rules 2 are beyond this build.
}
