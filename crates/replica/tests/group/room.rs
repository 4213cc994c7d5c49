//! Replicas with full disks take no entries, still vote, and catch up once they have room.

use crate::harness::Group;
use taskyard_replica::{Role, Room};

/// Three replicas, of which the first leads.
fn three() -> (Group, [u64; 3]) {
    let mut group = Group::new(11, &[1, 2, 3]);
    let leader = group.elect();
    group.tick(2);
    (group, [leader, leader % 3 + 1, (leader + 1) % 3 + 1])
}

#[test]
fn a_full_replica_gets_no_entries_and_catches_up_once_it_has_room() {
    let (mut group, [leader, full, _]) = three();
    group.replica(full).set_room(Room::Full);
    let last = group.replica(full).last_index();
    group.propose(leader, "one", 1);
    group.settle();
    group.tick(2);
    assert_eq!(group.answers[&1], "word 1", "the two others are a majority");
    assert_eq!(group.replica(leader).room_of(full), Room::Full);
    group.entries_sent.clear();
    for number in 2..50 {
        group.propose(leader, "more", number);
        group.tick(1);
    }
    assert_eq!(group.answers.len(), 49);
    assert_eq!(group.replica(full).last_index(), last, "nothing is appended");
    assert_eq!(group.entries_sent[&full], 0, "nor sent");

    group.replica(full).set_room(Room::Low);
    group.tick(4);
    assert_eq!(group.words(full), group.words(leader));
    assert_eq!(group.replica(leader).room_of(full), Room::Low);
}

/// The leader keeps leading, although it cannot commit anything, and reports that.
#[test]
fn a_majority_that_is_full_keeps_its_leader_and_votes_for_one_with_room() {
    let (mut group, [leader, full, other]) = three();
    assert!(group.replica(leader).can_commit());
    let term = group.replica(leader).term();
    for id in [full, other] {
        group.replica(id).set_room(Room::Full);
    }
    group.tick(50);
    assert_eq!(group.replica(leader).role(), Role::Leader { term });
    assert!(!group.replica(leader).can_commit());
    group.replica(leader).read(7).unwrap();
    group.tick(2);
    assert_eq!(group.reads, [7], "the full replicas confirm the leader");

    // The leader is gone, and one of the others has room again. The full one votes for it.
    group.stop(leader);
    group.tick(100);
    for id in [full, other] {
        assert!(!matches!(group.replica(id).role(), Role::Leader { .. }), "a full replica leads");
    }
    group.replica(other).set_room(Room::Enough);
    for _ in 0..200 {
        group.tick(1);
    }
    assert_eq!(group.replica(full).term(), group.replica(other).term());
    assert!(group.replica(full).term() > term, "it has voted");
    // The new leader serves once both have its first entry.
    group.replica(full).set_room(Room::Enough);
    assert_eq!(group.elect(), other);
}

#[test]
fn a_full_replica_behind_the_log_gets_a_snapshot_once_it_has_room() {
    let (mut group, [leader, full, _]) = three();
    group.replica(full).set_room(Room::Full);
    group.tick(2);
    for number in 1..20 {
        group.propose(leader, "word", number);
        group.settle();
    }
    group.checkpoint(leader);
    group.tick(20);
    assert!(group.words(full).is_empty());
    group.replica(full).set_room(Room::Enough);
    group.tick(10);
    assert_eq!(group.words(full), group.words(leader));
}

#[test]
fn a_replica_that_abdicates_is_followed_by_another() {
    let (mut group, [leader, ..]) = three();
    group.propose(leader, "one", 1);
    group.replica(leader).abdicate();
    group.cut_off.insert(leader);
    assert_ne!(group.elect(), leader);
    assert!(matches!(group.replica(leader).role(), Role::Follower { leader: None, .. }));
}
