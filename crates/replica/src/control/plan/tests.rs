//! Plans for a simulated cluster that carries out every step, in rounds.

use super::*;
use crate::{Node, StateMachine};

/// Pseudo-random numbers that are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct World {
    control: Control,
    seen: Seen,
    steps: u64,
}

impl World {
    /// A cluster whose only node has every replica.
    fn founded(shards: u16) -> World {
        let mut world = World { control: Control::default(), seen: Seen::default(), steps: 0 };
        let found = ControlCommand::Found { cluster: 7, incarnation: 1, shards, rules: 1 };
        world.command(found).unwrap();
        world.join(1, "");
        for group in world.control.groups() {
            let replicas = vec![super::super::Placement { node: 1, replica: 1 }];
            world.command(ControlCommand::Place { group, replicas }).unwrap();
            let members = Members { voters: vec![1], ..Members::default() };
            let lags = [(1, 0)].into();
            world.seen.groups.insert(group, GroupSeen { leader: 1, members, lags });
        }
        world
    }

    fn join(&mut self, id: NodeId, zone: &str) {
        let node = Node {
            address: format!("127.0.0.{id}:7401"),
            zone: zone.into(),
            rules_max: 1,
            ..Node::default()
        };
        self.command(ControlCommand::AddNode { id, node }).unwrap();
        self.seen.alive.insert(id);
    }

    #[allow(clippy::needless_pass_by_value, reason = "a command is made where it is sent")]
    fn command(&mut self, command: ControlCommand) -> Result<(), String> {
        self.control.apply(2, &command.encode()).map_err(|rejection| rejection.to_string())
    }

    fn nodes_of(&self, group: u64, replicas: &[u64]) -> BTreeSet<NodeId> {
        replicas.iter().filter_map(|&replica| self.control.node_of(group, replica)).collect()
    }

    fn majority_lives(&self, group: u64, voters: &[u64]) -> bool {
        let lives = |replica: &&u64| {
            let node = self.control.node_of(group, **replica);
            node.is_some_and(|node| self.seen.alive.contains(&node))
        };
        voters.iter().filter(lives).count() * 2 > voters.len()
    }

    /// Carries out the plan; returns whether there was anything to do.
    fn round(&mut self) -> bool {
        self.elect();
        let steps = self.control.next_steps(&self.seen);
        let any = !steps.is_empty();
        for step in steps {
            self.steps += 1;
            match step {
                Step::Command(command) => self.command(command).unwrap(),
                Step::Change { group, changes } => self.change(group, &changes),
                Step::Transfer { group, to } => {
                    let found = self.seen.groups.get_mut(&group).unwrap();
                    assert!(found.members.voters.contains(&to), "only voters lead");
                    found.leader = to;
                }
            }
        }
        any
    }

    fn change(&mut self, group: u64, changes: &[Change]) {
        let found = self.seen.groups[&group].clone();
        let before = found.members.voters.clone();
        let mut members = found.members;
        for change in changes {
            let (Change::AddVoter(id) | Change::AddLearner(id) | Change::Remove(id)) = *change;
            members.voters.retain(|other| *other != id);
            let was_learner = members.learners.contains(&id);
            members.learners.retain(|other| *other != id);
            match change {
                Change::AddVoter(_) => {
                    assert!(was_learner, "replica {id} gets a vote and has nothing yet");
                    members.voters.push(id);
                }
                Change::AddLearner(_) => members.learners.push(id),
                Change::Remove(_) => {}
            }
        }
        members.voters.sort_unstable();
        members.learners.sort_unstable();
        assert!(!members.voters.is_empty(), "a group lost all its voters");
        assert!(
            self.majority_lives(group, &members.voters) || !self.majority_lives(group, &before),
            "group {group} would stand still: {before:?} to {:?}",
            members.voters
        );
        self.seen.groups.get_mut(&group).unwrap().members = members;
    }

    /// Elects a living leader for each group with a majority, and lets living members catch up.
    fn elect(&mut self) {
        for group in self.control.groups() {
            let Some(mut found) = self.seen.groups.get(&group).cloned() else { continue };
            let lives = |replica: &u64| {
                let node = self.control.node_of(group, *replica);
                node.is_some_and(|node| self.seen.alive.contains(&node))
            };
            let voters = &found.members.voters;
            if !voters.contains(&found.leader) || !lives(&found.leader) {
                found.leader = voters.iter().copied().find(lives).unwrap_or(found.leader);
            }
            let members = voters.iter().chain(&found.members.learners);
            found.lags = members.filter(|id| lives(id)).map(|id| (*id, 0)).collect();
            self.seen.groups.insert(group, found);
        }
    }

    fn settle(&mut self) {
        for _ in 0..2_000 {
            if !self.round() {
                return;
            }
        }
        panic!("the plan never ends: {:?}", self.control.next_steps(&self.seen));
    }

    /// Checks that each group has `voters` voters in place, and that replicas and leaders are
    /// spread evenly.
    fn check_even(&self, voters: usize) {
        let in_use: Vec<NodeId> = self.control.nodes().keys().copied().collect();
        let mut loads: BTreeMap<NodeId, usize> = in_use.iter().map(|node| (*node, 0)).collect();
        let mut leads = loads.clone();
        for (&group, found) in &self.seen.groups {
            let nodes = self.nodes_of(group, &found.members.voters);
            assert_eq!(nodes.len(), voters, "group {group}: {found:?}");
            assert_eq!(nodes.iter().copied().collect::<Vec<_>>(), self.control.target(group));
            *leads.get_mut(&self.control.node_of(group, found.leader).unwrap()).unwrap() += 1;
            if group > 0 {
                nodes.iter().for_each(|node| *loads.get_mut(node).unwrap() += 1);
                assert_eq!(self.control.replicas(group).len(), voters, "none is left over");
            }
        }
        let spread = |counts: &BTreeMap<NodeId, usize>| {
            counts.values().max().unwrap() - counts.values().min().unwrap()
        };
        assert!(spread(&loads) <= 1, "replicas {loads:?}");
        assert!(spread(&leads) <= 2, "leaders {leads:?}");
        let control = &self.seen.groups[&0].members;
        let follow = self.nodes_of(0, &[&control.voters[..], &control.learners].concat());
        assert_eq!(follow.len(), in_use.len(), "everybody knows the map");
    }
}

#[test]
fn one_node_becomes_three_and_five() {
    let mut world = World::founded(8);
    world.settle();
    world.check_even(1);
    world.join(2, "");
    world.settle();
    world.check_even(1);
    world.join(3, "");
    world.settle();
    world.check_even(3);
    world.join(4, "");
    world.join(5, "");
    world.settle();
    world.check_even(3);
    world.command(ControlCommand::SetReplication { factor: 5 }).unwrap();
    world.settle();
    world.check_even(5);
    assert_eq!(world.control.next_steps(&world.seen), []);
}

#[test]
fn a_new_group_of_three_never_has_two_voters() {
    let mut world = World::founded(4);
    world.join(2, "");
    world.join(3, "");
    for _ in 0..500 {
        world.round();
        for found in world.seen.groups.values() {
            assert_ne!(found.members.voters.len(), 2, "one loss would stop it");
        }
    }
    world.check_even(3);
}

#[test]
fn replicas_move_until_all_are_in_place() {
    let mut world = World::founded(8);
    world.settle();
    assert_eq!(world.control.moves(&world.seen), BTreeMap::new());
    for joins in [2..=3, 4..=5] {
        joins.for_each(|id| world.join(id, ""));
        for _ in 0..1_000 {
            if world.control.moves(&world.seen).is_empty() {
                break;
            }
            world.round();
        }
        let voters = |world: &World| -> Vec<(u64, Vec<u64>)> {
            let groups = world.seen.groups.iter();
            groups.map(|(group, found)| (*group, found.members.voters.clone())).collect()
        };
        let at_rest = voters(&world);
        assert!(at_rest.iter().all(|(_, voters)| voters.len() == 3), "{at_rest:?}");
        // Leaders may still move; replicas no longer do.
        world.settle();
        assert_eq!(voters(&world), at_rest);
    }
}

#[test]
fn a_drained_node_loses_its_replicas_and_leaves() {
    let mut world = World::founded(6);
    (2..=4).for_each(|id| world.join(id, ""));
    world.settle();
    assert!(world.command(ControlCommand::RemoveNode { id: 2 }).is_err(), "it is in use");
    world.command(ControlCommand::Drain { id: 2, drains: true }).unwrap();
    world.settle();
    for group in world.control.groups() {
        let found = &world.seen.groups[&group];
        assert_ne!(world.control.node_of(group, found.leader), Some(2));
        assert!(group == 0 || world.control.replica_on(group, 2).is_none());
    }
    world.command(ControlCommand::RemoveNode { id: 2 }).unwrap();
    world.settle();
    assert!(world.control.was_removed(2));
    world.check_even(3);
    let refused = world.command(ControlCommand::Drain { id: 3, drains: true }).unwrap_err();
    assert!(
        refused.contains("2 nodes are left in use, and each shard has 3 replicas"),
        "{refused}"
    );
}

#[test]
fn voters_are_spread_over_zones() {
    let mut world = World::founded(12);
    world.join(2, "a");
    world.join(3, "a");
    world.join(4, "b");
    world.join(5, "b");
    world.join(6, "c");
    world.settle();
    // The first node has no zone, and counts as a zone of its own.
    for group in world.control.groups() {
        let target = world.control.target(group);
        assert!(!target.iter().any(|node| world.control.shares_zone(*node, target)), "{target:?}");
    }
}

#[test]
fn a_lost_node_is_replaced_if_there_is_another() {
    let mut world = World::founded(5);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    world.seen.alive.remove(&3);
    world.seen.gone.insert(3);
    world.settle();
    for found in world.seen.groups.values() {
        assert_eq!(found.members.voters.len(), 3, "nobody else could take its place");
    }
    world.join(4, "");
    world.settle();
    for group in world.control.groups().skip(1) {
        assert!(!world.control.target(group).contains(&3), "group {group}");
    }
    world.command(ControlCommand::Drain { id: 3, drains: true }).unwrap();
    world.settle();
    world.command(ControlCommand::RemoveNode { id: 3 }).unwrap();
    world.settle();
    world.check_even(3);
}

#[test]
fn a_node_that_is_given_up_is_replaced_and_then_removed() {
    let mut world = World::founded(5);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    world.seen.alive.remove(&3);
    world.command(ControlCommand::GiveUp { id: 3 }).unwrap();
    world.settle();
    for found in world.seen.groups.values() {
        assert_eq!(found.members.voters.len(), 3, "no group becomes smaller for it");
    }
    assert!(world.control.nodes().contains_key(&3), "it stays while it is expected to vote");
    world.join(4, "");
    world.settle();
    assert!(world.control.was_removed(3), "nobody had to ask again");
    world.check_even(3);
}

/// The node answered a moment ago, and would have the fewest replicas.
#[test]
fn nothing_moves_to_a_node_that_is_given_up_or_stops_while_it_counts_as_alive() {
    let mut world = World::founded(5);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    world.command(ControlCommand::GiveUp { id: 3 }).unwrap();
    world.seen.away = [3].into();
    world.join(4, "");
    let mut left = BTreeSet::new();
    for _ in 0..2_000 {
        if !world.round() {
            break;
        }
        for group in world.control.groups().skip(1) {
            match world.control.target(group).contains(&3) {
                true => assert!(!left.contains(&group), "group {group} moves back to node 3"),
                false => drop(left.insert(group)),
            }
        }
    }
    assert_eq!(left.len(), 5);
    assert!(world.control.was_removed(3));
    world.seen.away = [5].into();
    world.join(5, "");
    for _ in 0..50 {
        world.round();
    }
    assert_eq!(shards_on(&world, 5), 0, "it stops");
    world.seen.away.clear();
    world.settle();
    world.check_even(3);
}

#[test]
fn a_pinned_leader_stays() {
    let mut world = World::founded(6);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    for group in 0..=6 {
        let to = world.control.replica_on(group, 2).unwrap();
        world.seen.groups.get_mut(&group).unwrap().leader = to;
    }
    world.seen.pinned = (0..=6).collect();
    assert_eq!(world.control.next_steps(&world.seen), []);
    world.seen.pinned.clear();
    assert_ne!(world.control.next_steps(&world.seen), []);
}

/// A control group of one voter would be lost if its old node were removed during its move.
#[test]
fn a_node_stays_until_the_control_group_has_removed_its_replica() {
    let mut world = World::founded(1);
    world.join(2, "");
    world.settle();
    world.command(ControlCommand::Drain { id: 1, drains: true }).unwrap();
    world.settle();
    world.command(ControlCommand::Drain { id: 1, drains: false }).unwrap();
    let control_to = |node| ControlCommand::SetTarget { group: 0, nodes: vec![node] };
    world.command(control_to(1)).unwrap();
    world.settle();
    world.command(control_to(2)).unwrap();
    assert_eq!(world.seen.groups[&0].members.voters, [1]);
    world.command(ControlCommand::RemoveNode { id: 1 }).unwrap();
    assert!(world.control.is_leaving(1) && !world.control.was_removed(1));
    world.settle();
    assert!(world.control.was_removed(1));
    assert_eq!(world.seen.groups[&0].members, Members { voters: vec![2], ..Members::default() });
}

/// Nodes come, fall silent, return and are drained while everything moves.
#[test]
fn replicas_end_evenly_spread_after_any_interruption() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let mut world = World::founded(1 + draw.below(12) as u16);
        for _ in 0..120 {
            let nodes: Vec<NodeId> = world.control.nodes().keys().copied().collect();
            let node = nodes[draw.below(nodes.len() as u64) as usize];
            match draw.below(12) {
                0 if nodes.len() < 7 => {
                    let zone = ["", "a", "b"][draw.below(3) as usize];
                    world.join(world.control.node_next(), zone);
                }
                // At most one node is silent, so that every group keeps a majority.
                1 if world.seen.alive.len() == nodes.len() && nodes.len() > 2 => {
                    world.seen.alive.remove(&node);
                    if draw.below(2) == 0 {
                        world.seen.gone.insert(node);
                    }
                }
                2 => {
                    world.seen.alive = nodes.iter().copied().collect();
                    world.seen.gone.clear();
                }
                3 => {
                    let drains = draw.below(3) == 0;
                    let _ = world.command(ControlCommand::Drain { id: node, drains });
                }
                4 if world.control.is_draining(node) => {
                    let _ = world.command(ControlCommand::RemoveNode { id: node });
                }
                5 => {
                    let factor = [1, 3, 5][draw.below(3) as usize];
                    world.command(ControlCommand::SetReplication { factor }).unwrap();
                }
                _ => {
                    world.round();
                }
            }
        }
        let nodes: Vec<NodeId> = world.control.nodes().keys().copied().collect();
        world.seen.alive = nodes.iter().copied().collect();
        world.seen.gone.clear();
        for id in nodes.clone() {
            world.command(ControlCommand::Drain { id, drains: false }).unwrap();
        }
        world.settle();
        let voters = world.control.voters_on(nodes.len());
        for (&group, found) in &world.seen.groups {
            assert_eq!(found.members.voters.len(), voters, "seed {seed}, group {group}");
        }
    }
}

/// The node that leads a group.
fn leader_of(world: &World, group: u64) -> NodeId {
    world.control.node_of(group, world.seen.groups[&group].leader).unwrap()
}

/// Makes one node lead all groups.
fn lead_all(world: &mut World, node: NodeId) {
    for group in world.control.groups() {
        let to = world.control.replica_on(group, node).unwrap();
        world.seen.groups.get_mut(&group).unwrap().leader = to;
    }
}

#[test]
fn a_stopping_node_gets_no_leaders_and_the_others_keep_theirs() {
    let mut world = World::founded(6);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    lead_all(&mut world, 2);
    // The node answered a moment ago, and counts as alive for some more seconds.
    world.seen.away = [3].into();
    world.settle();
    assert!(world.control.groups().all(|group| leader_of(&world, group) != 3));
    world.seen.away.clear();
    lead_all(&mut world, 2);
    world.seen.is_in_flux = true;
    assert_eq!(world.control.next_steps(&world.seen), [], "it can wait");
    world.seen.is_in_flux = false;
    world.settle();
    world.check_even(3);
}

#[test]
fn a_leaving_leader_does_not_hand_over_to_a_stopping_node() {
    for swapped in [false, true] {
        let mut world = World::founded(1);
        (2..=4).for_each(|id| world.join(id, ""));
        world.settle();
        let mut target = world.control.target(1).to_vec();
        if swapped {
            target.swap(1, 2);
        }
        let [leaves, stops, stays] = target[..] else { panic!("{target:?}") };
        world.seen.away = [stops].into();
        world.command(ControlCommand::Drain { id: leaves, drains: true }).unwrap();
        while world.control.target(1).contains(&leaves) {
            assert!(world.round());
        }
        // The old leader is elected again while its group moves away from it.
        let replica = world.control.replica_on(1, leaves).unwrap();
        world.seen.groups.get_mut(&1).unwrap().leader = replica;
        for _ in 0..100 {
            world.round();
            assert_ne!(leader_of(&world, 1), stops);
        }
        assert_eq!(leader_of(&world, 1), stays);
    }
}

#[test]
fn a_node_without_room_leads_only_groups_that_no_other_can_lead() {
    let mut world = World::founded(6);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    lead_all(&mut world, 2);
    world.seen.pinned = (0..=6).collect();
    world.seen.full = [2].into();
    // All leaders move at once, because each of these groups refuses tasks.
    assert_eq!(world.control.next_steps(&world.seen).len(), 7);
    world.seen.is_in_flux = true;
    world.settle();
    assert!(world.control.groups().all(|group| leader_of(&world, group) != 2));
    lead_all(&mut world, 2);
    world.seen.full = [1, 2, 3].into();
    assert_eq!(world.control.next_steps(&world.seen), [], "nobody has room");
    world.seen = Seen { full: BTreeSet::new(), pinned: BTreeSet::new(), ..world.seen };
    world.seen.is_in_flux = false;
    world.settle();
    world.check_even(3);
}

#[test]
fn a_slow_node_leads_nothing_and_keeps_its_replicas() {
    let mut world = World::founded(6);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    lead_all(&mut world, 2);
    world.seen.pinned = (0..=6).collect();
    world.seen.slow = [2].into();
    world.settle();
    assert!(world.control.groups().all(|group| leader_of(&world, group) != 2));
    assert_eq!(shards_on(&world, 2), 6);
    world.join(4, "");
    world.settle();
    assert!(world.control.groups().all(|group| leader_of(&world, group) != 2));
    world.seen = Seen { slow: BTreeSet::new(), pinned: BTreeSet::new(), ..world.seen };
    world.settle();
    world.check_even(3);
}

/// The shards that have a voter or a learner on a node.
fn shards_on(world: &World, node: NodeId) -> usize {
    let has = |group: &u64| world.control.replica_on(*group, node).is_some();
    world.control.groups().skip(1).filter(has).count()
}

#[test]
fn a_node_without_room_gets_no_replica_and_keeps_its_own() {
    let mut world = World::founded(6);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    world.seen.full = [3].into();
    world.settle();
    assert_eq!(shards_on(&world, 3), 6, "it has a copy of each, and keeps it");
    world.join(4, "");
    world.seen.full = [4].into();
    world.settle();
    assert_eq!(shards_on(&world, 4), 0);
    assert_eq!(world.control.replicas(CONTROL_GROUP).len(), 4, "the map is small");
    // The drain waits for room, because a smaller group would be worse.
    world.command(ControlCommand::Drain { id: 1, drains: true }).unwrap();
    world.settle();
    for group in world.control.groups().skip(1) {
        assert_eq!(world.seen.groups[&group].members.voters.len(), 3);
    }
    assert_eq!((shards_on(&world, 1), shards_on(&world, 4)), (6, 0));
    world.seen.full.clear();
    world.settle();
    assert_eq!((shards_on(&world, 1), shards_on(&world, 4)), (0, 6));
}

#[test]
fn a_move_to_a_node_whose_disk_fills_up_changes_its_target_or_waits() {
    let mut world = World::founded(3);
    (2..=3).for_each(|id| world.join(id, ""));
    world.settle();
    world.join(4, "");
    world.command(ControlCommand::Drain { id: 1, drains: true }).unwrap();
    while !world.control.target(1).contains(&4) {
        assert!(world.round(), "shards move to the new node");
    }
    world.seen.full = [4].into();
    let assigned = shards_on(&world, 4);
    for _ in 0..20 {
        world.round();
    }
    assert_eq!(shards_on(&world, 4), assigned, "it gets nothing more");
    world.join(5, "");
    world.settle();
    assert_eq!((shards_on(&world, 1), shards_on(&world, 4), shards_on(&world, 5)), (0, 0, 3));
}

#[test]
fn rules_are_raised_once_every_node_knows_them_even_a_silent_one() {
    let mut world = World::founded(1);
    world.join(2, "");
    world.join(3, "");
    while world.round() {}
    let knows = |world: &mut World, id: NodeId, rules_max| {
        let node = Node { rules_max, ..world.control.nodes()[&id].clone() };
        world.command(ControlCommand::SetNode { id, node }).unwrap();
        while world.round() {}
        world.control.rules()
    };
    assert_eq!(knows(&mut world, 2, 3), 1);
    assert_eq!(knows(&mut world, 3, 2), 1, "node 1 knows no newer ones");
    // A silent node may come back with its old build.
    world.seen.alive.remove(&1);
    world.seen.away.insert(1);
    while world.round() {}
    assert_eq!(world.control.rules(), 1);
    assert_eq!(knows(&mut world, 1, 3), 2, "the newest that all know");
    assert_eq!(knows(&mut world, 3, 3), 3);
}
