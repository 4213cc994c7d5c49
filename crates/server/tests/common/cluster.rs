//! Clusters of three or five nodes in one process.

use super::{Broker, eventually, http};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use taskyard_server::Config;

/// An address for peers, with any free port.
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Shards of the cluster.
pub(crate) const SHARDS: usize = 4;

/// Three nodes, each shard with a voter on each of them.
pub(crate) async fn three() -> [Broker; 3] {
    three_with(|_, _| ()).await
}

/// Three nodes, each with a configuration changed for its number, from 1.
pub(crate) async fn three_with(change: impl Fn(u64, &mut Config)) -> [Broker; 3] {
    let first = founder(|config| change(1, config)).await;
    let second = joiner(&first, |config| change(2, config)).await;
    let third = joiner(&first, |config| change(3, config)).await;
    are_three([first, second, third]).await
}

/// Waits until three nodes are a cluster, and spreads the leaders over them.
pub(crate) async fn are_three(nodes: [Broker; 3]) -> [Broker; 3] {
    eventually("three voters of each shard", async || {
        voters(&nodes[0]).await?.iter().all(|nodes| nodes.len() == 3).then_some(())
    })
    .await;
    for shard in 0..SHARDS {
        transfer(&nodes[0], shard, shard as u64 % 3 + 1).await;
    }
    are_ready(&nodes).await;
    nodes
}

/// Five nodes, each shard with a voter on three of them; no node has all shards.
pub(crate) async fn five() -> Vec<Broker> {
    let mut nodes = vec![founder(|_| ()).await];
    for _ in 1..5 {
        nodes.push(joiner(&nodes[0], |_| ()).await);
    }
    eventually("three voters of each shard, and no node with all of them", async || {
        let voters = voters(&nodes[0]).await?;
        let has_all = |node| voters.iter().all(|nodes| nodes.contains(&node));
        let is_placed = voters.iter().all(|nodes| nodes.len() == 3) && !(1..=5).any(has_all);
        is_placed.then_some(())
    })
    .await;
    are_ready(&nodes).await;
    nodes
}

/// The nodes with a vote, by shard; `None` while a shard moves or has no leader.
pub(crate) async fn voters(broker: &Broker) -> Option<Vec<Vec<u64>>> {
    let cluster = http::get(broker.address, "/v1/cluster").await.ok();
    let shards = cluster["shards"].as_array().filter(|shards| shards.len() == SHARDS)?;
    let voters = |shard: &Value| {
        let replicas = shard["replicas"].as_array()?.iter();
        let voters = replicas.filter(|replica| replica["role"] == "voter");
        let is_calm = shard["leader"].is_u64() && shard["moving_to"].is_null();
        is_calm.then(|| voters.filter_map(|replica| replica["node"].as_u64()).collect())
    };
    shards.iter().map(voters).collect()
}

async fn are_ready(nodes: &[Broker]) {
    for node in nodes {
        eventually("every node knows all leaders", async || {
            let ready = http::get(node.address, "/readyz").await;
            (ready.status == 200).then_some(())
        })
        .await;
    }
}

/// A node that other nodes can join.
pub(crate) async fn founder(change: impl FnOnce(&mut Config)) -> Broker {
    let founder = Broker::with(|config| {
        config.peer = Some(ANY_PORT);
        change(config);
    })
    .await;
    eventually("the first node says where others reach it", async || {
        let cluster = http::get(founder.address, "/v1/cluster").await.ok();
        cluster["nodes"][0]["peer_address"].as_str().filter(|at| !at.is_empty()).map(drop)
    })
    .await;
    founder
}

/// A new node in the cluster of another.
pub(crate) async fn joiner(of: &Broker, change: impl FnOnce(&mut Config)) -> Broker {
    Broker::with(|config| {
        joining(of, config);
        change(config);
    })
    .await
}

/// Configures a new node to join the cluster of another.
pub(crate) fn joining(of: &Broker, config: &mut Config) {
    config.peer = Some(ANY_PORT);
    config.join = vec![of.node.peer_address().unwrap().to_string()];
    config.shards = None;
}

/// Has a node come back where others look for it, in the cluster of its directory.
pub(crate) fn at(address: SocketAddr) -> impl Fn(&mut Config) {
    move |config| (config.peer, config.shards) = (Some(address), None)
}

/// A queue on each shard.
pub(crate) fn queues(broker: &Broker) -> Vec<String> {
    let shards = broker.node.shards();
    let on = |shard: usize| {
        let mut names = (0..).map(|number| format!("q{number}"));
        names.find(|name| usize::from(shards.home(name).0) == shard).unwrap()
    };
    (0..SHARDS).map(on).collect()
}

/// The number of the node that leads a shard, as seen by another.
pub(crate) async fn leader(broker: &Broker, shard: usize) -> Option<u64> {
    let cluster = http::get(broker.address, "/v1/cluster").await.ok();
    cluster["shards"][shard]["leader"].as_u64()
}

/// Hands a shard over to a node.
pub(crate) async fn transfer(broker: &Broker, shard: usize, to: u64) {
    let path = format!("/v1/cluster/shards/{shard}/transfer");
    eventually("another leads", async || {
        if leader(broker, shard).await == Some(to) {
            return Some(());
        }
        let asked = http::post(broker.address, &path, &format!("{{\"node\": {to}}}")).await;
        assert!([204, 503].contains(&asked.status), "{asked:?}");
        None
    })
    .await;
}
