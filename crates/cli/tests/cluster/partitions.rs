//! The tests of `chaos.rs` and `failover.rs` in network namespaces. Links go down and drop packets,
//! so no process learns that a connection is gone. The chaos here fills disks too. Without the
//! right to make network namespaces, these tests are skipped.

use crate::cluster::{
    chaos,
    failover::{cut_off_each, cut_off_one_way, outages_of},
    load::Load,
    namespaces::{Namespaces, plug_in, unplug, with_namespaces},
    nodes::{NODES, Nodes},
};

/// The size of each node's disk, which is in memory and takes only as much as its files.
const DISK: &str = "1500m";

fn form() -> Nodes {
    Nodes::form_over(Box::new(Namespaces::new()), NODES)
}

#[test]
fn a_node_whose_link_is_down_refuses_writes_and_catches_up_when_it_is_back() {
    let name = "cluster::partitions::a_node_whose_link_is_down_refuses_writes_and_catches_up_when_it_is_back";
    with_namespaces(name, async {
        let mut nodes = form();
        let load = Load::start(nodes.urls(), 1).await;
        cut_off_each(&mut nodes, &load.history).await;
        load.finish_and_check().await;
    });
}

#[test]
fn a_node_whose_packets_go_one_way_confirms_nothing_and_the_majority_goes_on() {
    let name = "cluster::partitions::a_node_whose_packets_go_one_way_confirms_nothing_and_the_majority_goes_on";
    with_namespaces(name, async {
        let mut nodes = form();
        let load = Load::start(nodes.urls(), 1).await;
        cut_off_one_way(&mut nodes, &load.history).await;
        load.finish_and_check().await;
    });
}

#[test]
fn a_machine_that_loses_its_power_says_nothing_and_the_others_go_on() {
    let name =
        "cluster::partitions::a_machine_that_loses_its_power_says_nothing_and_the_others_go_on";
    let pull = |nodes: &mut Nodes, place| unplug(place, || nodes.kill(place));
    let mend = |nodes: &mut Nodes, place| {
        plug_in(place);
        nodes.start(place);
    };
    with_namespaces(name, async { outages_of("power", form(), pull, mend).await });
}

#[test]
fn what_clients_were_told_adds_up_whatever_is_cut() {
    let name = "cluster::partitions::what_clients_were_told_adds_up_whatever_is_cut";
    with_namespaces(name, async {
        let network = Box::new(Namespaces::new());
        chaos::run(name, Nodes::form_on_disks(network, NODES, DISK)).await;
    });
}
