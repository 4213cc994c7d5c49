//! The commands that the control group accepts and rejects, each sent through its bytes.

use super::*;
use codec::FORMAT;

fn node(rules_max: u16) -> Node {
    Node { serves: "10.0.0.1:7400".into(), zone: "a".into(), rules_max, ..Node::default() }
}

fn node_at(instance: u128, address: &str) -> Node {
    Node { instance, address: address.into(), ..node(2) }
}

fn at(node: NodeId, replica: u64) -> Placement {
    Placement { node, replica }
}

fn check(control: &mut Control, command: ControlCommand) -> Result<(), String> {
    let before = control.clone();
    let bytes = command.encode();
    assert_eq!(ControlCommand::decode(&bytes), Ok(command));
    let outcome = control.apply(2, &bytes);
    if outcome.is_err() {
        assert_eq!(*control, before, "a rejected command changes nothing");
    }
    assert_eq!(Control::decode(&control.encode()).as_ref(), Ok(&*control));
    outcome.map_err(|rejection| rejection.to_string())
}

fn founded() -> Control {
    let mut control = Control::default();
    let found = ControlCommand::Found { cluster: 0xabc, incarnation: 7, shards: 2, rules: 1 };
    assert_eq!(check(&mut control, found), Ok(()));
    for id in 1..=3 {
        assert_eq!(check(&mut control, ControlCommand::SetNode { id, node: node(2) }), Ok(()));
    }
    control
}

#[test]
fn a_cluster_is_founded_once_and_before_all_else() {
    let mut control = Control::default();
    assert_eq!(control.cluster(), None);
    let early = ControlCommand::SetNode { id: 1, node: node(1) };
    assert_eq!(check(&mut control, early), Err("the cluster is not founded yet".into()));
    let mut control = founded();
    assert_eq!(control.cluster(), Some((0xabc, 7)));
    let again = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
    let rejection = check(&mut control, again).unwrap_err();
    assert_eq!(rejection, format!("cluster {:032x} is already founded", 0xabc));
}

#[test]
fn replica_ids_are_never_used_twice() {
    let mut control = founded();
    let place =
        |replicas: &[Placement]| ControlCommand::Place { group: 1, replicas: replicas.into() };
    assert!(check(&mut control, place(&[at(1, 0)])).is_err());
    assert_eq!(check(&mut control, place(&[at(1, 1), at(2, 2)])), Ok(()));
    assert_eq!(control.replicas(1), [at(1, 1), at(2, 2)]);
    assert_eq!(control.replica_next(1), 3);
    assert_eq!(check(&mut control, place(&[at(1, 1), at(3, 3)])), Ok(()));
    for bad in [
        vec![at(1, 1), at(2, 2)],
        vec![at(1, 1), at(2, 3)],
        vec![at(1, 0)],
        vec![at(1, 4), at(2, 4)],
        vec![at(1, 4), at(1, 5)],
        vec![at(9, 4)],
        vec![],
    ] {
        assert!(check(&mut control, place(&bad)).is_err(), "{bad:?}");
    }
    assert_eq!(control.replicas(1), [at(1, 1), at(3, 3)]);
    let far = ControlCommand::Place { group: 3, replicas: vec![at(1, 1)] };
    assert_eq!(check(&mut control, far), Err("group 3 is not one of 0 to 2".into()));
}

#[test]
fn a_node_leaves_only_without_replicas() {
    let mut control = founded();
    let placed = ControlCommand::Place { group: 2, replicas: vec![at(2, 1)] };
    assert_eq!(check(&mut control, placed), Ok(()));
    let remove = |id| ControlCommand::RemoveNode { id };
    let in_use = "node 2 still holds a replica of shard 1; drain it first";
    assert_eq!(check(&mut control, remove(2)), Err(in_use.into()));
    assert_eq!(check(&mut control, remove(3)), Ok(()));
    assert_eq!(check(&mut control, remove(3)), Err("node 3 is not known; add it first".into()));
    assert_eq!(control.nodes().keys().copied().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn rules_are_raised_to_the_newest_that_every_node_knows() {
    let mut control = founded();
    assert_eq!(check(&mut control, ControlCommand::RaiseRules { rules: 2 }), Ok(()));
    for rules in [1, 3] {
        assert!(check(&mut control, ControlCommand::RaiseRules { rules }).is_err(), "{rules}");
    }
    assert_eq!(control.rules(), 2);
    let old = ControlCommand::SetNode { id: 4, node: node(1) };
    assert!(check(&mut control, old).is_err(), "a node that does not know the rules can't join");
}

#[test]
fn broken_bytes_are_rejected() {
    let bytes = founded().encode();
    for length in 0..bytes.len() {
        assert!(Control::decode(&bytes[..length]).is_err(), "cut to {length}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Control::decode(&longer).is_err());
    assert!(ControlCommand::decode(&[FORMAT, 99]).is_err());
    assert!(ControlCommand::decode(&[9, 1]).is_err());
}

#[test]
fn a_number_is_given_to_one_node() {
    let mut control = founded();
    let add = |id| ControlCommand::AddNode { id, node: node(2) };
    let taken = "node 3 was known before; numbers are not given twice";
    assert_eq!(check(&mut control, add(3)), Err(taken.into()));
    assert_eq!(control.node_next(), 4);
    assert_eq!(check(&mut control, add(4)), Ok(()));
    assert_eq!(check(&mut control, ControlCommand::RemoveNode { id: 4 }), Ok(()));
    assert!(control.was_removed(4));
    let again = ControlCommand::SetNode { id: 4, node: node(2) };
    assert!(check(&mut control, again).is_err(), "it was removed");
    assert_eq!(control.node_next(), 5);
}

#[test]
fn replicas_are_assigned_and_unassigned_by_their_target() {
    let mut control = founded();
    let placed = ControlCommand::Place { group: 1, replicas: vec![at(1, 1)] };
    assert_eq!(check(&mut control, placed), Ok(()));
    assert_eq!(check(&mut control, ControlCommand::Assign { group: 1, node: 2 }), Ok(()));
    assert_eq!(control.replicas(1), [at(1, 1), at(2, 2)]);
    for (command, words) in [
        (ControlCommand::Assign { group: 1, node: 2 }, "node 2 has a replica of shard 0"),
        (ControlCommand::Assign { group: 1, node: 9 }, "node 9 is not known; add it first"),
        (ControlCommand::Unassign { group: 1, replica: 1 }, "is to have a replica on node 1"),
        (ControlCommand::Unassign { group: 1, replica: 7 }, "shard 0 has no replica 7"),
        (ControlCommand::SetTarget { group: 1, nodes: vec![] }, "needs nodes, each once"),
        (ControlCommand::SetTarget { group: 1, nodes: vec![1, 1] }, "needs nodes, each once"),
        (ControlCommand::SetTarget { group: 1, nodes: vec![9] }, "node 9 is not known"),
        (ControlCommand::SetReplication { factor: 4 }, "1, 3 or 5 replicas, not 4"),
    ] {
        let rejection = check(&mut control, command).unwrap_err();
        assert!(rejection.contains(words), "{rejection}");
    }
    let target = ControlCommand::SetTarget { group: 1, nodes: vec![2] };
    assert_eq!(check(&mut control, target), Ok(()));
    let unassign = |replica| ControlCommand::Unassign { group: 1, replica };
    assert_eq!(check(&mut control, unassign(1)), Ok(()));
    let last = check(&mut control, unassign(2)).unwrap_err();
    assert_eq!(last, "replica 2 is the last one of shard 0");
}

#[test]
fn a_node_is_not_drained_if_too_few_are_left() {
    let mut control = founded();
    let drain = |id, drains| ControlCommand::Drain { id, drains };
    let rejection = check(&mut control, drain(1, true)).unwrap_err();
    assert!(rejection.contains("2 nodes are left in use, and each shard has 3"), "{rejection}");
    let mut lone = Control::default();
    let found = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
    assert_eq!(check(&mut lone, found), Ok(()));
    assert_eq!(check(&mut lone, ControlCommand::AddNode { id: 1, node: node(1) }), Ok(()));
    let rejection = check(&mut lone, drain(1, true)).unwrap_err();
    let why = "node 1 can't be drained: it is the only node in use; add a node first";
    assert_eq!(rejection, why, "there is nothing lower than 1 replica");
    let add = ControlCommand::AddNode { id: 4, node: node(2) };
    assert_eq!(check(&mut control, add), Ok(()));
    assert_eq!(check(&mut control, drain(1, true)), Ok(()));
    assert_eq!(check(&mut control, drain(1, true)), Ok(()), "twice is once");
    assert!(check(&mut control, drain(2, true)).is_err());
    assert_eq!(check(&mut control, drain(1, false)), Ok(()));
    assert!(!control.is_draining(1));
}

#[test]
fn a_data_directory_joins_once_and_an_address_has_one_node() {
    let mut control = founded();
    let add =
        |id, instance, address| ControlCommand::AddNode { id, node: node_at(instance, address) };
    assert_eq!(check(&mut control, add(4, 40, "10.0.0.4:7401")), Ok(()));
    let again = check(&mut control, add(5, 40, "10.0.0.9:7401")).unwrap_err();
    assert_eq!(again, "this node has joined before, as node 4");
    let taken = check(&mut control, add(5, 50, "10.0.0.4:7401")).unwrap_err();
    assert!(taken.starts_with("node 4 is at 10.0.0.4:7401 already; remove it first"), "{taken}");
    let moved = |id, address| ControlCommand::SetNode { id, node: node_at(0, address) };
    assert_eq!(check(&mut control, moved(4, "10.0.0.5:7401")), Ok(()));
    assert_eq!(control.nodes()[&4].instance, 40, "its directory is the same");
    assert_eq!(check(&mut control, add(5, 50, "10.0.0.4:7401")), Ok(()));
    assert!(check(&mut control, moved(5, "10.0.0.5:7401")).is_err(), "node 4 is there");
}

#[test]
fn a_node_that_is_given_up_frees_its_address_and_does_not_come_back() {
    let mut control = founded();
    let add = |id, at| ControlCommand::AddNode { id, node: node_at(u128::from(id), at) };
    assert_eq!(check(&mut control, add(4, "10.0.0.4:7401")), Ok(()));
    let place =
        |replicas: &[Placement]| ControlCommand::Place { group: 1, replicas: replicas.into() };
    let give_up = ControlCommand::GiveUp { id: 4 };
    assert_eq!(check(&mut control, place(&[at(4, 1)])), Ok(()));
    let last = check(&mut control, give_up.clone()).unwrap_err();
    assert!(last.starts_with("node 4 holds the last replica of shard 0"), "{last}");
    assert_eq!(check(&mut control, place(&[at(4, 1), at(1, 2), at(2, 3)])), Ok(()));
    assert_eq!(check(&mut control, give_up.clone()), Ok(()));
    assert_eq!(check(&mut control, give_up), Ok(()), "twice is once");
    assert!(control.has_given_up(4) && !control.was_removed(4));
    assert_eq!(check(&mut control, add(5, "10.0.0.4:7401")), Ok(()), "a new one in its place");
    for command in [
        ControlCommand::SetNode { id: 4, node: node_at(0, "10.0.0.6:7401") },
        ControlCommand::Drain { id: 4, drains: false },
    ] {
        let refused = check(&mut control, command).unwrap_err();
        assert!(refused.starts_with("node 4 was given up"), "{refused}");
    }
    let in_use = ControlCommand::RemoveNode { id: 4 };
    assert!(check(&mut control, in_use).is_err(), "other nodes do not have its replicas yet");
}

/// A node that was put back into use while it was leaving would have lost its replica for good.
#[test]
fn a_node_that_stays_keeps_its_replica_of_the_control_group() {
    let mut control = founded();
    for (group, replicas) in [(0, vec![at(1, 1), at(2, 2)]), (1, vec![at(1, 1)])] {
        let placed = ControlCommand::Place { group, replicas };
        assert_eq!(check(&mut control, placed), Ok(()));
    }
    let target = ControlCommand::SetTarget { group: 0, nodes: vec![1] };
    assert_eq!(check(&mut control, target), Ok(()));
    assert_eq!(check(&mut control, ControlCommand::RemoveNode { id: 2 }), Ok(()));
    assert!(control.is_leaving(2) && control.is_draining(2) && control.nodes().contains_key(&2));
    let back = ControlCommand::Drain { id: 2, drains: false };
    assert_eq!(check(&mut control, back), Ok(()));
    let unassign = ControlCommand::Unassign { group: 0, replica: 2 };
    let rejection = check(&mut control, unassign.clone()).unwrap_err();
    assert_eq!(rejection, "node 2 stays, and follows the control group");
    assert_eq!(check(&mut control, ControlCommand::RemoveNode { id: 2 }), Ok(()));
    assert_eq!(check(&mut control, unassign), Ok(()));
    assert!(control.was_removed(2));
}

#[test]
fn the_spread_of_a_queue_is_that_of_its_newest_version() {
    let mut control = founded();
    let set_of = |queue: &str, version, spread, reach, now_ms| {
        ControlCommand::SetSpread(SetSpread {
            queue: queue.into(),
            version,
            spread,
            reach,
            now_ms,
            requests_until_ms: now_ms + 100,
        })
    };
    let set = |version, spread, reach, now_ms| set_of("mail", version, spread, reach, now_ms);
    let shown = |control: &Control| {
        let spread = control.spread("mail")?;
        let before = spread.before.iter().map(|past| (past.spread, past.until_ms)).collect();
        Some((spread.spread, spread.reach, before))
    };
    let lies = |spread, reach, before: &[(u16, u64)]| Some((spread, reach, before.to_vec()));
    assert_eq!(shown(&control), None);
    for (command, expected) in [
        (set(1, 2, 2, 1_000), lies(2, 2, &[(1, 1_100)])),
        (set(1, 1, 1, 1_010), lies(2, 2, &[(1, 1_100)])),
        (set(3, 1, 2, 1_020), lies(1, 2, &[(2, 1_120)])),
        (set(2, 2, 2, 1_030), lies(1, 2, &[(2, 1_120)])),
        (set(4, 2, 2, 1_040), lies(2, 2, &[(1, 1_140)])),
        (set(5, 2, 2, 1_140), lies(2, 2, &[])),
        (set(6, 1, 1, 1_200), lies(1, 1, &[(2, 1_300)])),
        (set(7, 1, 1, 1_300), None),
    ] {
        assert_eq!(check(&mut control, command.clone()), Ok(()), "{command:?}");
        assert_eq!(shown(&control), expected, "{command:?}");
    }
    assert_eq!(control.spread_queues(), 0, "a queue on its home shard alone has no record");

    // The queue is deleted while requests are remembered, and no change of it comes any more.
    for command in [set(8, 2, 2, 1_400), set(9, 1, 1, 1_410)] {
        assert_eq!(check(&mut control, command), Ok(()));
    }
    for (now_ms, spread_queues) in [(1_509, 2), (1_510, 1)] {
        assert_eq!(check(&mut control, set_of("clicks", now_ms, 2, 2, now_ms)), Ok(()));
        assert_eq!(control.spread_queues(), spread_queues, "at {now_ms}");
    }
    for (spread, reach) in [(0, 1), (2, 1), (1, 3), (3, 3)] {
        let refused = check(&mut control, set(9, spread, reach, 2_000)).unwrap_err();
        assert!(refused.contains("at most 2 are allowed"), "{refused}");
    }
}

#[test]
fn only_newer_data_of_a_node_follows_what_is_known_of_it() {
    let mut control = founded();
    let start = |id, count, boot| ControlCommand::Start { id, start: Start { count, boot } };
    for (count, boot, known) in [
        (1, 10, (1, 10)),
        (1, 10, (1, 10)),
        // The node crashed before the cluster heard of its second start.
        (3, 30, (3, 30)),
        // The count rises while the node runs; a message with an older count may arrive late.
        (4, 30, (4, 30)),
        (3, 30, (4, 30)),
    ] {
        assert_eq!(check(&mut control, start(2, count, boot)), Ok(()), "start {count}");
        assert_eq!(control.started(2).map(|known| (known.count, known.boot)), Some(known));
    }
    for (count, boot, words) in [
        (
            2,
            20,
            "this data directory is older than the one that node 2 was last started with (start 2",
        ),
        (3, 31, "this data directory is older than"),
        (
            4,
            40,
            "node 2 was last started with another copy of this data directory (start 4 here, start 4",
        ),
    ] {
        let refused = check(&mut control, start(2, count, boot)).unwrap_err();
        assert!(refused.starts_with(words), "{refused}");
        assert!(refused.len() <= 512, "a handshake cuts it");
    }
    assert_eq!(Control::decode(&control.encode()), Ok(control.clone()));
    assert_eq!(check(&mut control, start(1, 1, 11)), Ok(()), "another node");
    assert!(check(&mut control, start(9, 1, 11)).is_err(), "nobody knows it");
    assert_eq!(check(&mut control, ControlCommand::RemoveNode { id: 2 }), Ok(()));
    assert_eq!(control.started(2), None);
}

/// The facts about all nodes travel in one message.
#[test]
fn a_node_with_a_long_name_is_rejected() {
    let mut control = Control::default();
    let found = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
    check(&mut control, found).unwrap();
    let long = "x".repeat(taskyard_machine::limits::NODE_TEXT_BYTES_MAX + 1);
    type Change = fn(&mut Node, String);
    let changes: [Change; 3] = [
        |node, text| node.address = text,
        |node, text| node.serves = text,
        |node, text| node.zone = text,
    ];
    for change in changes {
        let mut node = Node { rules_max: 1, ..Node::default() };
        change(&mut node, long.clone());
        for command in [
            ControlCommand::AddNode { id: 1, node: node.clone() },
            ControlCommand::SetNode { id: 1, node: node.clone() },
        ] {
            let refused = check(&mut control, command).unwrap_err();
            assert!(refused.contains("has 513 bytes, 512 are allowed"), "{refused}");
        }
        change(&mut node, long[1..].to_owned());
        check(&mut control.clone(), ControlCommand::AddNode { id: 1, node }).unwrap();
    }
}

#[test]
fn the_layout_of_format_1_stays() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let known = Node {
        instance: 0x1122,
        address: "a:1".into(),
        serves: "b:2".into(),
        zone: "z".into(),
        rules_max: 3,
    };
    let set = SetSpread {
        queue: "mail".into(),
        version: 4,
        spread: 2,
        reach: 3,
        now_ms: 5,
        requests_until_ms: 6,
    };
    let (id, group) = (7, 2);
    for (command, expected) in [
        (
            ControlCommand::Found { cluster: 1, incarnation: 2, shards: 3, rules: 4 },
            "0101010000000000000000000000000000000200000003000400",
        ),
        (
            ControlCommand::SetNode { id, node: known.clone() },
            "010207000000000000002211000000000000000000000000000003000000613a31030000\
                 00623a32010000007a0300",
        ),
        (ControlCommand::RemoveNode { id }, "01030700000000000000"),
        (
            ControlCommand::Place { group, replicas: vec![at(1, 8), at(2, 9)] },
            "010402000000000000000200000001000000000000000800000000000000020000000000\
                 00000900000000000000",
        ),
        (ControlCommand::RaiseRules { rules: 5 }, "01050500"),
        (
            ControlCommand::AddNode { id, node: known },
            "010607000000000000002211000000000000000000000000000003000000613a31030000\
                 00623a32010000007a0300",
        ),
        (ControlCommand::Drain { id, drains: true }, "0107070000000000000001"),
        (
            ControlCommand::SetTarget { group, nodes: vec![1, 2, 3] },
            "010802000000000000000300000001000000000000000200000000000000030000000000\
                 0000",
        ),
        (ControlCommand::Assign { group, node: 7 }, "010902000000000000000700000000000000"),
        (ControlCommand::Unassign { group, replica: 9 }, "010a02000000000000000900000000000000"),
        (ControlCommand::SetReplication { factor: 5 }, "010b05"),
        (ControlCommand::GiveUp { id }, "010c0700000000000000"),
        (
            ControlCommand::SetSpread(set),
            "010d040000006d61696c0400000000000000020003000500000000000000060000000000\
                 0000",
        ),
        (
            ControlCommand::Start { id, start: Start { count: 3, boot: 0x44 } },
            "010e0700000000000000030000000000000044000000000000000000000000000000",
        ),
    ] {
        assert_eq!(hex(command.encode()), expected, "{command:?}");
        assert_eq!(ControlCommand::decode(&command.encode()), Ok(command));
    }
    let mut control = founded();
    for command in [
        ControlCommand::Place { group: 1, replicas: vec![at(1, 1), at(2, 2)] },
        ControlCommand::SetReplication { factor: 1 },
        ControlCommand::Drain { id: 3, drains: true },
        ControlCommand::Start { id: 2, start: Start { count: 3, boot: 0x44 } },
    ] {
        assert_eq!(check(&mut control, command), Ok(()));
    }
    assert_eq!(
        hex(control.encode()),
        "01bc0a000000000000000000000000000007000000020001000103000000000000000300\
                 0000010000000000000000000000000000000000000000000000000000000d0000003130\
                 2e302e302e313a3734303001000000610200020000000000000000000000000000000000\
                 000000000000000000000d00000031302e302e302e313a37343030010000006102000300\
                 00000000000000000000000000000000000000000000000000000d00000031302e302e30\
                 2e313a373430300100000061020001000000030000000000000000000000000000000100\
                 000001000000000000000200000000000000020000000100000000000000020000000000\
                 000002000000010000000000000001000000000000000200000000000000020000000000\
                 000000000000010000000200000000000000030000000000000044000000000000000000\
                 000000000000"
    );
}
