//! One node, turned by hand.

use super::*;
use crate::disk::{Checkpoint, Write};
use crate::shard::Shard;
use taskyard_replica::eraftpb::{ConfState, Entry};
use taskyard_replica::{Placement, StateMachine};

/// Found by seed 1021: old entries stayed on disk, new ones were written behind the snapshot,
/// and the log between them was missing at the next start.
#[test]
fn a_log_that_a_snapshot_replaced_is_dropped_on_disk_too() {
    let config = NodeConfig { id: 0, shards: 1, seed: 1, sabotage: Sabotage::None };
    let mut node = Node::new(config, Rng::new(1));
    node.disk.assign(1, 1);
    let records = Shard::new(node.identity(0)).machine.records().into_iter().collect();
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    let checkpoint =
        Checkpoint { index: 93, term: 10, conf_state, records, ..Checkpoint::default() };
    let entry = |index| Entry { index, term: 10, ..Entry::default() };
    let entries = (58..=74).map(entry).collect();
    let frame = node.disk.write(&[Write { group: 1, entries, ..Write::default() }]);
    node.disk.sync(frame);
    node.disk.store_checkpoint(1, checkpoint);
    node.start(0).unwrap();
    assert_eq!(node.applied(1), 93);
    node.crash();
    node.start(0).unwrap();
    assert_eq!(node.disk.log(1).entries.len(), 0);
}

/// Found by seed 147: a late node applied, in one turn, the entry that gave it a replica and the
/// one that took it away. The end was reported before the beginning, as if the replica had come
/// back.
#[test]
fn a_replica_that_begins_and_ends_in_one_turn_is_reported_in_this_order() {
    let config = NodeConfig { id: 1, shards: 1, seed: 1, sabotage: Sabotage::None };
    let mut node = Node::new(config, Rng::new(1));
    node.disk.enter(2);
    node.disk.assign(0, 2);
    node.start(0).unwrap();
    let place = |nodes: &[u64]| {
        let on = |&node: &u64| Placement { node, replica: node };
        ControlCommand::Place { group: 1, replicas: nodes.iter().map(on).collect() }
    };
    let new = |id: u64| {
        let node = taskyard_replica::Node { rules_max: 1, ..Default::default() };
        ControlCommand::AddNode { id, node }
    };
    let found = ControlCommand::Found { cluster: 1, incarnation: 7, shards: 1, rules: 1 };
    let mut index = 0;
    let mut follow = |node: &mut Node, commands: &[ControlCommand]| {
        for command in commands {
            index += 1;
            let map = node.control_mut().unwrap().replica.machine_mut();
            map.apply(index, &command.encode()).outcome.unwrap();
        }
        node.follow_map(0).unwrap();
    };
    follow(&mut node, &[found, new(1), new(2), place(&[1]), place(&[1, 2])]);
    follow(&mut node, &[place(&[1])]);
    assert_eq!(node.output.lives, [(1, 2, Life::Begun), (1, 2, Life::Ended)]);
    node.follow_map(0).unwrap();
    assert_eq!(node.output.lives.len(), 2, "it came back");
}
