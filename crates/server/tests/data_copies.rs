//! Copies of a node's data directory. A copy may lack later promises of the node, so a copy counts
//! only when no other node knows a newer one.

use crate::common::{
    Broker, DEADLINE,
    cluster::{ANY_PORT, at, queues, three},
    copy_all, eventually, http,
};
use serde_json::Value;
use std::{fs, net::SocketAddr};
use taskyard_server::{Config, Node};
use tempfile::TempDir;
use tokio::time::timeout;

async fn view(broker: &Broker) -> Value {
    http::get(broker.address, "/v1/cluster").await.ok()
}

/// Enqueues tasks on all shards, which must accept them once they have leaders.
async fn enqueue_everywhere(broker: &Broker, count: usize) {
    for queue in queues(broker) {
        for number in 0..count {
            let path = format!("/v1/queues/{queue}/tasks");
            let task = format!(r#"{{"type": "test", "request_id": "{queue}-{count}-{number}"}}"#);
            eventually("a task is taken", async || {
                (http::post(broker.address, &path, &task).await.status < 300).then_some(())
            })
            .await;
        }
    }
}

/// The number of waiting tasks.
async fn waiting(broker: &Broker) -> u64 {
    eventually("all shards answer", async || {
        let answer = http::get(broker.address, "/v1/queues").await;
        let answer = (answer.status == 200).then(|| answer.json())?;
        Some(
            answer["queues"].as_array()?.iter().map(|queue| queue["ready"].as_u64().unwrap()).sum(),
        )
    })
    .await
}

fn copied(from: &TempDir) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    copy_all(from.path(), to.path());
    to
}

/// Whether the file system records when a file was made. Otherwise nodes can't notice a copy.
fn can_tell_copies(dir: &TempDir) -> bool {
    let is_told = fs::metadata(dir.path()).and_then(|found| found.created()).is_ok();
    if !is_told {
        eprintln!("skipped: this file system does not say when a file was made");
    }
    is_told
}

/// The addresses of three nodes, at which they come back after a stop.
fn addresses(nodes: &[&Broker; 3]) -> [SocketAddr; 3] {
    nodes.map(|node| node.node.peer_address().unwrap())
}

/// Waits until a node reports that it waits to hear from `whom`.
async fn until_it_waits_for(node: &Broker, whom: &str) {
    eventually("the node reports what it waits for", async || {
        let view = view(node).await;
        let nodes = view["nodes"].as_array().unwrap().iter();
        let own = nodes.clone().find(|found| found["id"] == node.node.id())?;
        let problem = own["problem"].as_str()?;
        assert!(problem.contains(" was copied, and may be older than what"), "{problem}");
        problem.contains(&format!("before it has heard from {whom} that")).then_some(())
    })
    .await;
}

async fn until_ended(node: &Broker) -> String {
    timeout(DEADLINE, node.node.failed()).await.expect("the node ends").to_string()
}

/// The node of the older copy lacks the last tasks, and node 1 was down when they were accepted. So
/// this majority does not know these tasks.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_counts_for_nothing_before_every_other_node_has_let_it_in() {
    let [one, two, three] = three().await;
    let places = addresses(&[&one, &two, &three]);
    enqueue_everywhere(&one, 1).await;
    let two = two.stop().await;
    if !can_tell_copies(&two) {
        return;
    }
    let older = copied(&two);
    let one = one.stop().await;
    let two = Broker::on(two, at(places[1])).await;
    enqueue_everywhere(&two, 3).await;
    let acknowledged = waiting(&two).await;
    assert_eq!(acknowledged, 16);
    drop(two.stop().await);
    let three = three.stop().await;

    let one = Broker::on(one, at(places[0])).await;
    let two = Broker::on(older, at(places[1])).await;
    until_it_waits_for(&two, "node 3").await;
    for node in [&one, &two] {
        let path = format!("/v1/queues/{}/tasks", queues(node)[0]);
        let (status, code, detail) =
            http::post(node.address, &path, r#"{"type": "new"}"#).await.problem();
        assert_eq!((status, code.as_str()), (503, "no_quorum"), "{detail}");
    }

    let three = Broker::on(three, at(places[2])).await;
    let why = until_ended(&two).await;
    let words = "node 2 was last started with another copy of this data directory (start 2 here, start 2 \
                 is known)";
    assert!(why.starts_with(words), "{why}");
    assert_eq!(waiting(&one).await, acknowledged);
    assert_eq!(waiting(&three).await, acknowledged);

    // A supervisor may restart the node again and again. Its start count would soon exceed that of
    // the newest directory.
    let older = two.stop().await;
    for _ in 0..3 {
        let mut config = Config::new(older.path());
        (config.peer, config.listen) = (Some(places[1]), None);
        let refused =
            Node::start(config).await.expect_err("the copy must not start again").to_string();
        assert_eq!(refused, why);
    }
}

/// All nodes that are up are copies and ask each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_moved_to_other_disks_as_a_whole_goes_on() {
    let [one, two, three] = three().await;
    let places = addresses(&[&one, &two, &three]);
    enqueue_everywhere(&one, 1).await;
    let mut moved = Vec::new();
    for node in [one, two, three] {
        moved.push(copied(&node.stop().await));
    }
    let mut nodes = Vec::new();
    for (dir, place) in moved.into_iter().zip(places) {
        nodes.push(Broker::on(dir, at(place)).await);
    }
    enqueue_everywhere(&nodes[1], 2).await;
    assert_eq!(waiting(&nodes[2]).await, 12);
}

/// The third node is lost for good, and the operator knows that the copy was made after all nodes
/// had stopped.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_copy_counts_on_the_word_of_the_operator() {
    let [one, two, three] = three().await;
    let places = addresses(&[&one, &two, &three]);
    enqueue_everywhere(&one, 1).await;
    drop(three.stop().await);
    let moved = copied(&two.stop().await);
    if !can_tell_copies(&moved) {
        return;
    }
    let two = Broker::on(moved, at(places[1])).await;
    until_it_waits_for(&two, "node 3").await;
    let two = Broker::on(two.stop().await, |config| {
        at(places[1])(config);
        config.newest_copy = true;
    })
    .await;
    enqueue_everywhere(&two, 2).await;
    // From now on the copy counts as the directory itself.
    let two = Broker::on(two.stop().await, at(places[1])).await;
    enqueue_everywhere(&two, 3).await;
    assert_eq!(waiting(&one).await, 24);
}

/// A lone node has no other node to ask.
#[tokio::test]
async fn a_copy_of_a_lone_nodes_data_is_its_data() {
    let alone = Broker::with(|config| config.peer = Some(ANY_PORT)).await;
    enqueue_everywhere(&alone, 1).await;
    let moved = copied(&alone.stop().await);
    let alone = Broker::on(moved, |config| config.peer = Some(ANY_PORT)).await;
    enqueue_everywhere(&alone, 2).await;
    assert_eq!(waiting(&alone).await, 12);
}
