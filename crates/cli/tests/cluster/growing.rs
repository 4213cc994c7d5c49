//! Clusters that grow and shrink while clients work. Nodes join and get replicas, are drained and
//! removed, and return when the others no longer have the log that they lack. The answers to
//! clients keep all promises.

use crate::{
    cluster::{
        load::Load,
        nodes::{NODES, Nodes},
    },
    yard::until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_becomes_three_under_load_and_is_lost_and_the_others_have_its_data() {
    let mut nodes = Nodes::placed(NODES);
    nodes.start(0);
    nodes.until_ready(0);
    let load = Load::start(nodes.urls(), 1).await;
    load.until_confirmed(100).await;
    for place in 1..NODES {
        nodes.start(place);
        nodes.until_ready(place);
    }
    nodes.until_settled();
    load.until_confirmed(100).await;
    nodes.kill(0);
    load.until_confirmed(100).await;
    load.finish_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_drained_under_load_and_one_that_was_away_too_long_gets_a_snapshot() {
    const AWAY: usize = NODES - 1;
    let mut nodes = Nodes::form(NODES + 1);
    let load = Load::start(nodes.urls(), 1).await;
    load.until_confirmed(100).await;
    nodes.drain_last();
    nodes.until_settled();
    load.until_confirmed(100).await;

    nodes.kill(AWAY);
    // A node that stops saves its state, and drops the log from before its previous save. So two
    // stops drop the log that the absent node lacks.
    for _ in 0..2 {
        for place in 0..AWAY {
            load.until_confirmed(50).await;
            nodes.stop(place);
            nodes.start(place);
            nodes.until_ready(place);
        }
    }
    let snapshots = |nodes: &Nodes| nodes.nodes[AWAY].said("a snapshot brought shard");
    let before = snapshots(&nodes);
    nodes.start(AWAY);
    nodes.until_settled();
    until("a shard of the node that was away comes by a snapshot", || snapshots(&nodes) > before);
    // With one of three nodes killed, the state from the snapshot is needed for every decision.
    nodes.lead(AWAY);
    nodes.kill(0);
    load.until_confirmed(100).await;
    load.finish_and_check().await;
}
