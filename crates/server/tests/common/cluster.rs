//! A cluster of three nodes in one process.

use super::{Broker, eventually, http};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use taskyard_server::Config;

/// Where nodes listen for each other.
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Shards of the cluster.
pub(crate) const SHARDS: usize = 4;

/// Three nodes, each shard with a voter on each of them.
pub(crate) async fn three() -> [Broker; 3] {
    three_with(|_, _| ()).await
}

/// Three nodes, of which each is changed as its number, from 1, demands.
pub(crate) async fn three_with(change: impl Fn(u64, &mut Config)) -> [Broker; 3] {
    let first = founder(|config| change(1, config)).await;
    let second = joiner(&first, |config| change(2, config)).await;
    let third = joiner(&first, |config| change(3, config)).await;
    let nodes = [first, second, third];
    eventually("three voters of each shard", async || {
        let cluster = http::get(nodes[0].address, "/v1/cluster").await.ok();
        let shards = cluster["shards"].as_array()?;
        let is_whole = |shard: &Value| {
            let replicas = shard["replicas"].as_array().map_or(&[][..], Vec::as_slice);
            let voters = replicas.iter().filter(|replica| replica["role"] == "voter");
            shard["leader"].is_u64() && voters.count() == 3 && shard["moving_to"].is_null()
        };
        (shards.len() == SHARDS && shards.iter().all(is_whole)).then_some(())
    })
    .await;
    for shard in 0..SHARDS {
        transfer(&nodes[0], shard, shard as u64 % 3 + 1).await;
    }
    for node in &nodes {
        eventually("every node knows all leaders", async || {
            let ready = http::get(node.address, "/readyz").await;
            (ready.status == 200).then_some(())
        })
        .await;
    }
    nodes
}

/// A node that others can join.
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

/// Has a new node join the cluster of another.
pub(crate) fn joining(of: &Broker, config: &mut Config) {
    config.peer = Some(ANY_PORT);
    config.join = vec![of.node.peer_address().unwrap().to_string()];
    config.shards = None;
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

/// Has a node lead a shard.
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
