//! Operators can rely on a node's view of its cluster: once it shows no moves, none are left, and
//! it shows every change that was made, on any node.

use crate::common::{
    Broker,
    cluster::{founder, joiner, three, voters},
    eventually, http,
};
use serde_json::Value;

async fn view(broker: &Broker) -> Value {
    http::get(broker.address, "/v1/cluster").await.ok()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Whether all three nodes are up, and each group has a leader and no move under way.
fn rests(view: &Value) -> bool {
    let rests = |group: &Value| group["leader"].is_u64() && group["moving_to"].is_null();
    let nodes = list(view, "nodes");
    nodes.len() == 3
        && nodes.iter().all(|node| node["state"] == "up")
        && list(view, "shards").iter().chain([&view["control"]]).all(rests)
}

#[tokio::test(flavor = "multi_thread")]
async fn once_nothing_moves_each_replica_is_in_its_place() {
    let first = founder(|_| ()).await;
    let second = joiner(&first, |_| ()).await;
    let third = joiner(&first, |_| ()).await;
    for node in [&first, &second, &third] {
        let at_rest =
            eventually("nothing moves", async || Some(view(node).await).filter(rests)).await;
        for shard in list(&at_rest, "shards") {
            let voters = list(shard, "replicas").iter().filter(|found| found["role"] == "voter");
            assert_eq!(voters.count(), 3, "{shard}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_change_is_in_the_next_view_of_any_node() {
    let nodes = three().await;
    // With three nodes both factors give three replicas, so that nothing moves.
    let mut factors = [5, 3].into_iter().cycle();
    for round in 0..10 {
        let asked = &nodes[round % nodes.len()];
        let factor = factors.next().unwrap();
        let body = format!("{{\"factor\": {factor}}}");
        let answer = http::post(asked.address, "/v1/cluster/replication", &body).await;
        assert_eq!(answer.status, 204, "{answer:?}");
        for node in &nodes {
            assert_eq!(view(node).await["replication"], factor, "round {round}");
        }
    }
}

/// Two nodes share a zone: no shard may have replicas on both, even if that would balance better.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_shard_are_in_different_zones() {
    let first = founder(|config| config.zone = "a".into()).await;
    let mut others = Vec::new();
    for zone in ["a", "b", "c"] {
        others.push(joiner(&first, |config| config.zone = zone.into()).await);
    }
    eventually("a voter of each shard in each zone", async || {
        let in_all =
            |nodes: &Vec<u64>| nodes.len() == 3 && [3, 4].iter().all(|n| nodes.contains(n));
        voters(&first).await?.iter().all(in_all).then_some(())
    })
    .await;
    let view = view(&first).await;
    let zones: Vec<_> = list(&view, "nodes").iter().map(|node| node["zone"].clone()).collect();
    assert_eq!(zones, ["a", "a", "b", "c"]);
}
