//! A leader with a saturated uplink: its heartbeats arrive, its entries do not.

use crate::harness::Group;
use taskyard_replica::{Role, Room};

/// The number of ticks after which such a leader has stepped down.
const STALLED: usize = 220;

fn leads(group: &mut Group, id: u64) -> bool {
    matches!(group.replica(id).role(), Role::Leader { .. })
}

#[test]
fn a_leader_whose_entries_do_not_arrive_steps_down_for_the_others() {
    let mut group = Group::new(7, &[1, 2, 3]);
    let old = group.elect();
    group.propose(old, "kept", 1);
    group.tick(5);
    group.saturated.insert(old);
    group.propose(old, "lost", 2);
    group.tick(150);
    assert!(leads(&mut group, old), "a short wait is no reason");
    group.tick(STALLED - 150);
    assert!(group.replica(old).rests());
    let new = group.elect();
    assert_ne!(new, old);
    assert_eq!(group.dropped, [2]);
    group.propose(new, "next", 3);
    group.tick(5);
    for id in 1..=3 {
        assert_eq!(group.words(id), ["kept", "next"], "replica {id}");
    }
    // The old leader refuses leadership, and votes for others.
    group.replica(new).transfer_leader(old);
    group.tick(1);
    assert!(leads(&mut group, new));
    group.saturated.clear();
    group.stop(new);
    let third = group.elect();
    assert_ne!(third, old);
    group.start(new);
    group.tick(1_500);
    assert!(!group.replica(old).rests(), "it may lead again later");
}

#[test]
fn a_leader_keeps_leading_while_the_others_cannot_elect_one() {
    let mut group = Group::new(7, &[1, 2, 3]);
    let leader = group.elect();
    group.tick(5);
    let down = leader % 3 + 1;
    group.stop(down);
    group.saturated.insert(leader);
    group.propose(leader, "late", 1);
    group.tick(3 * STALLED);
    assert!(leads(&mut group, leader));
    // The uplink is free again, and all waiting messages arrive.
    group.saturated.clear();
    group.tick(20);
    assert_eq!(group.answers[&1], "word 1");
}

#[test]
fn a_busy_leader_keeps_leading() {
    let mut group = Group::new(7, &[1, 2, 3]);
    let leader = group.elect();
    for number in 0..3 * STALLED as u64 {
        group.propose(leader, &format!("w{number}"), number);
        group.tick(1);
    }
    assert!(leads(&mut group, leader));
    assert_eq!(group.answers.len(), 3 * STALLED);
}

/// The successor dies, and the third replica may not lead, so that no leader is left.
#[test]
fn a_resting_leader_leads_again_when_its_successor_dies_and_no_other_can() {
    let mut group = Group::new(7, &[1, 2, 3]);
    let old = group.elect();
    group.tick(5);
    group.saturated.insert(old);
    group.propose(old, "lost", 1);
    group.tick(STALLED);
    let new = group.elect();
    assert_ne!(new, old);
    assert!(group.replica(old).rests());
    group.saturated.clear();
    group.tick(5);
    let third = 6 - old - new;
    group.replica(third).set_room(Room::Full);
    group.stop(new);
    group.tick(150);
    assert!(!group.replica(old).rests());
    group.replica(third).set_room(Room::Enough);
    assert_eq!(group.elect(), old);
}

#[test]
fn a_leader_keeps_leading_while_the_disks_of_the_others_are_full() {
    let mut group = Group::new(7, &[1, 2, 3]);
    let leader = group.elect();
    group.tick(5);
    for id in (1..=3).filter(|id| *id != leader) {
        group.replica(id).set_room(Room::Full);
    }
    // Proposed before the leader learns about the full disks.
    group.propose(leader, "late", 1);
    group.tick(3 * STALLED);
    assert!(leads(&mut group, leader));
    for id in 1..=3 {
        group.replica(id).set_room(Room::Enough);
    }
    group.tick(20);
    assert_eq!(group.answers[&1], "word 1");
}
