//! Clusters form: nodes join, get one place each, and never become two clusters.

use crate::common::{
    DEADLINE, eventually,
    http::{self, Answer},
};
use serde_json::Value;
use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};
use taskyard_server::{Config, Node, config::Secret};
use tempfile::TempDir;
use tokio::time::timeout;

const LOCAL: [u8; 4] = [127, 0, 0, 1];

/// The directories of several nodes.
struct Yard(TempDir);

impl Yard {
    fn new() -> Yard {
        Yard(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A node that listens for peers on any free port, and joins `join`.
    fn config(&self, name: &str, join: &[SocketAddr]) -> Config {
        let mut config = Config::new(self.path(name));
        config.listen = Some(SocketAddr::from((LOCAL, 0)));
        config.peer = Some(SocketAddr::from((LOCAL, 0)));
        config.join = join.iter().map(SocketAddr::to_string).collect();
        config.disk_reserve_bytes = 0;
        config
    }

    async fn found(&self, name: &str) -> Node {
        let mut config = self.config(name, &[]);
        config.shards = Some(4);
        start(config).await
    }

    async fn join(&self, name: &str, of: &Node) -> Node {
        start(self.config(name, &[peer(of)])).await
    }
}

async fn start(config: Config) -> Node {
    timeout(DEADLINE, Node::start(config)).await.expect("the node starts in time").unwrap()
}

async fn refused(config: Config) -> String {
    let started = timeout(DEADLINE, Node::start(config)).await.expect("the node ends in time");
    started.expect_err("the node is refused").to_string()
}

fn peer(node: &Node) -> SocketAddr {
    node.peer_address().unwrap()
}

async fn status(node: &Node) -> Value {
    http::get(node.address().unwrap(), "/v1/cluster").await.ok()
}

async fn post(node: &Node, path: &str, body: &str) -> Answer {
    let path = format!("/v1/cluster/{path}");
    http::send(node.address().unwrap(), "POST", &path, Some("application/json"), body.as_bytes())
        .await
}

/// Waits until a node has a state in the cluster's status.
async fn until_state(seen_by: &Node, node: u64, state: &str) {
    eventually(&format!("node {node} is {state}"), async || {
        let status = status(seen_by).await;
        let found = status["nodes"].as_array().unwrap().iter().find(|found| found["id"] == node);
        found.is_some_and(|found| found["state"] == state).then_some(())
    })
    .await;
}

fn free_port() -> SocketAddr {
    TcpListener::bind(SocketAddr::from((LOCAL, 0))).unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_through_any_node_and_are_known_to_all() {
    let yard = Yard::new();
    let one = yard.found("one").await;
    let mut config = yard.config("two", &[peer(&one)]);
    config.zone = "cellar".into();
    let two = start(config).await;
    // Perhaps not the leader: every node passes the request on.
    let three = yard.join("three", &two).await;
    assert_eq!([one.id(), two.id(), three.id()], [1, 2, 3]);
    for node in [&one, &two, &three] {
        for id in 1..=3 {
            until_state(node, id, "up").await;
        }
        let status = status(node).await;
        assert_eq!(status["cluster_id"], format!("{:032x}", one.shards().cluster()));
        assert_eq!(status["nodes"][1]["zone"], "cellar");
        assert_eq!(status["nodes"][2]["peer_address"], peer(&three).to_string());
        assert_eq!(status["nodes"][2]["address"], three.address().unwrap().to_string());
    }
    for node in [three, two, one] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_elsewhere_announces_its_address() {
    let yard = Yard::new();
    let one = yard.found("one").await;
    let two = yard.join("two", &one).await;
    until_state(&one, 2, "up").await;
    let before = peer(&two);
    two.stop().await;
    until_state(&one, 2, "down").await;
    // The node needs no address to join, because it knows its cluster.
    let mut config = yard.config("two", &[]);
    config.zone = "attic".into();
    let two = start(config).await;
    assert_eq!(two.id(), 2);
    assert_ne!(peer(&two), before, "another port");
    eventually("the others know the node's new address", async || {
        let node = status(&one).await["nodes"][1].clone();
        let is_known = node["peer_address"] == peer(&two).to_string() && node["zone"] == "attic";
        is_known.then_some(())
    })
    .await;
    until_state(&one, 2, "up").await;
}

fn secret() -> Secret {
    Secret(b"open sesame, and let nobody else in".to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_fit_is_refused_with_the_reason() {
    let yard = Yard::new();
    let mut config = yard.config("one", &[]);
    (config.shards, config.cluster_secret) = (Some(4), secret());
    let one = start(config).await;
    let joining = |name: &str| {
        let mut config = yard.config(name, &[peer(&one)]);
        config.cluster_secret = secret();
        config
    };
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = joining("new");
        change(&mut config);
        config
    };
    let to_clients = one.address().unwrap();
    let own = peer(&one);
    for (config, words) in [
        (with(&|config| config.cluster_secret = Secret::default()), "the cluster secrets differ"),
        (
            with(&|config| config.cluster_secret.0.reverse()),
            "the cluster secrets differ; give every node the same",
        ),
        (with(&|config| config.shards = Some(8)), "has 4 shards, not 8: the number is fixed"),
        (
            with(&|config| config.join = vec![to_clients.to_string()]),
            "is not the peer address of a node",
        ),
        (
            with(&|config| config.advertise = Some(own.to_string())),
            "which is this node itself; leave it out",
        ),
    ] {
        let refused = refused(config).await;
        assert!(refused.contains(words), "{refused}");
    }
    // A directory of another cluster stays in that cluster.
    let mut alone = yard.config("other", &[]);
    alone.shards = Some(4);
    start(alone).await.stop().await;
    let refused_words = refused(joining("other")).await;
    assert!(refused_words.contains("is node 1 of cluster"), "{refused_words}");
    assert!(refused_words.contains("start with a new data directory"), "{refused_words}");
    // A node of this cluster ignores `join` when it starts again.
    let two = start(joining("two")).await;
    two.stop().await;
    assert_eq!(start(joining("two")).await.id(), 2);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The answer may get lost, or the node may crash before the answer is on its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_asks_twice_has_one_place() {
    let yard = Yard::new();
    let one = yard.found("one").await;
    let address = free_port();
    let joining = |name: &str| {
        let mut config = yard.config(name, &[peer(&one)]);
        config.peer = Some(address);
        config
    };
    // The node gets a place and can't write it to its disk.
    let in_the_way = yard.path("two").join("PEERS");
    std::fs::create_dir_all(&in_the_way).unwrap();
    refused(joining("two")).await;
    assert_eq!(status(&one).await["nodes"].as_array().unwrap().len(), 2);
    std::fs::remove_dir(&in_the_way).unwrap();
    copy(&yard.path("two"), &yard.path("again"));
    let two = start(joining("two")).await;
    assert_eq!(two.id(), 2, "the node must get the same place");
    until_state(&one, 2, "up").await;
    assert_eq!(status(&one).await["nodes"].as_array().unwrap().len(), 2);

    // Once the node has started, an empty directory of the same name is another copy.
    two.stop().await;
    until_state(&one, 2, "down").await;
    let again = start(joining("again")).await;
    assert_eq!(again.id(), 2);
    let why = timeout(DEADLINE, again.failed()).await.unwrap().to_string();
    assert!(why.contains("was last started with another copy of this data directory"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_one_node_until_that_node_is_given_up() {
    let yard = Yard::new();
    let one = yard.found("one").await;
    let two = yard.join("two", &one).await;
    let three = yard.join("three", &one).await;
    let address = peer(&two);
    until_settled(&one, 3).await;
    let answer = post(&one, "nodes/2/remove", r#"{"force": true}"#).await;
    let (code, _, detail) = answer.problem();
    assert_eq!(code, 409);
    assert!(detail.contains("node 2 is up; empty it with `taskyard cluster drain 2`"), "{detail}");
    two.stop().await;
    until_state(&one, 2, "down").await;
    // The disk is lost: a new directory at the same address is another node.
    let config = || {
        let mut config = yard.config("new", &[peer(&one), peer(&three)]);
        config.peer = Some(address);
        config
    };
    let words = refused(config()).await;
    assert!(words.contains(&format!("node 2 is at {address} already; remove it first")), "{words}");
    assert_eq!(post(&three, "nodes/2/remove", r#"{"force": true}"#).await.status, 204);
    until_state(&one, 2, "removing").await;
    let new = start(config()).await;
    assert_eq!(new.id(), 4);
    eventually("node 2 is gone by itself", async || {
        let status = status(&new).await;
        let nodes = status["nodes"].as_array().unwrap().clone();
        (nodes.len() == 3 && nodes.iter().all(|node| node["id"] != 2)).then_some(())
    })
    .await;
    // A removed node can't come back, and learns why.
    let mut old = yard.config("two", &[]);
    old.peer = Some(free_port());
    let old = start(old).await;
    let why = timeout(DEADLINE, old.failed()).await.expect("it ends").to_string();
    assert!(why.contains("node 2 was removed from this cluster"), "{why}");
}

/// Waits until every shard has this many voters, and no shard moves.
async fn until_settled(seen_by: &Node, voters: usize) {
    eventually(&format!("all shards have {voters} voters"), async || {
        let status = status(seen_by).await;
        let shards = status["shards"].as_array().unwrap();
        let is_settled = |shard: &Value| {
            let replicas = shard["replicas"].as_array().unwrap();
            let all_vote = replicas.iter().all(|replica| replica["role"] == "voter");
            all_vote && replicas.len() == voters && shard["moving_to"].is_null()
        };
        (!shards.is_empty() && shards.iter().all(is_settled)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_all_nodes_founds_one_cluster() {
    let yard = Yard::new();
    let list: Vec<SocketAddr> = (0..3).map(|_| free_port()).collect();
    let config = |name: &str, at: usize| {
        let mut config = yard.config(name, &list);
        config.peer = Some(list[at]);
        config.shards = Some(4);
        config
    };
    // The first one waits for all others, for any time.
    let first = tokio::spawn(Node::start(config("a", 0)));
    let third = tokio::spawn(Node::start(config("c", 2)));
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(!first.is_finished() && !third.is_finished(), "no node may found a cluster alone");
    let second = start(config("b", 1)).await;
    let first = timeout(DEADLINE, first).await.unwrap().unwrap().unwrap();
    let third = timeout(DEADLINE, third).await.unwrap().unwrap().unwrap();
    assert_eq!(first.id(), 1);
    for node in [&second, &third] {
        assert_eq!(node.shards().cluster(), first.shards().cluster());
    }
    until_settled(&second, 3).await;

    // The first one's disk is lost. It must not found a second cluster.
    first.stop().await;
    std::fs::remove_dir_all(yard.path("a")).unwrap();
    until_state(&second, 1, "down").await;
    let words = refused(config("a", 0)).await;
    assert!(words.contains("node 1 is at") && words.contains("--force"), "{words}");
    assert_eq!(post(&second, "nodes/1/remove", r#"{"force": true}"#).await.status, 204);
    let back = start(config("a", 0)).await;
    assert_eq!(back.id(), 4);
    assert_eq!(back.shards().cluster(), second.shards().cluster());
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_differ_found_nothing() {
    let yard = Yard::new();
    let list: Vec<SocketAddr> = (0..2).map(|_| free_port()).collect();
    let reversed: Vec<SocketAddr> = list.iter().rev().copied().collect();
    let config = |name: &str, list: &[SocketAddr], own: SocketAddr| {
        let mut config = yard.config(name, list);
        config.peer = Some(own);
        config
    };
    let (one, two) = (config("one", &list, list[0]), config("two", &reversed, list[1]));
    let one = tokio::spawn(Node::start(one));
    let two = tokio::spawn(Node::start(two));
    let words = async |started: tokio::task::JoinHandle<_>| {
        let ended: Result<Node, _> = timeout(DEADLINE, started).await.unwrap().unwrap();
        ended.err().map(|error: taskyard_server::node::StartError| error.to_string())
    };
    // The node that notices the difference ends, and the other waits in vain.
    let found_out = tokio::select! {
        words = words(one) => words,
        words = words(two) => words,
    };
    let found_out = found_out.expect("the two nodes must not found a cluster");
    assert!(found_out.contains("was given another list to join"), "{found_out}");
}
