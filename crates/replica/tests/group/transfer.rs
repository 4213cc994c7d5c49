//! Transfer of leadership, to an heir that accepts and to one that does not. "At once" in a name
//! means that no tick passes.

use crate::harness::Group;
use taskyard_replica::eraftpb::{Message, MessageType};
use taskyard_replica::{NotLeader, Role};

/// Three replicas, of which the first leads; the second is its heir.
fn three(seed: u64) -> (Group, [u64; 3]) {
    let mut group = Group::new(seed, &[1, 2, 3]);
    let leader = group.elect();
    group.tick(2);
    (group, [leader, leader % 3 + 1, (leader + 1) % 3 + 1])
}

fn leads(group: &mut Group, id: u64) -> bool {
    matches!(group.replica(id).role(), Role::Leader { .. })
}

#[test]
fn leadership_is_handed_over_on_request() {
    let (mut group, [leader, heir, _]) = three(11);
    group.replica(leader).transfer_leader(heir);
    assert_eq!(group.replica(leader).heir(), Some(heir));
    assert_eq!(
        group.replica(leader).propose(b"x".to_vec(), 1),
        Err(NotLeader { leader: None }.into())
    );
    group.settle();
    assert!(leads(&mut group, heir) && !leads(&mut group, leader));
    assert_eq!(group.replica(leader).heir(), None);
}

#[test]
fn an_heir_that_declines_refuses_and_its_leader_continues_at_once() {
    let (mut group, [leader, heir, other]) = three(11);
    let term = group.replica(leader).term();
    group.replica(heir).decline();
    group.replica(leader).transfer_leader(heir);
    group.settle();
    assert_eq!(group.replica(leader).role(), Role::Leader { term });
    assert_eq!(group.replica(leader).heir(), None);
    group.propose(leader, "one", 1);
    group.settle();
    assert_eq!(group.answers[&1], "word 1");
    group.replica(leader).transfer_leader(other);
    group.settle();
    assert!(leads(&mut group, other), "another takes it");
}

#[test]
fn an_heir_that_replays_its_log_still_refuses() {
    let (mut group, [leader, heir, _]) = three(11);
    for number in 0..5 {
        group.propose(leader, "word", number);
    }
    group.settle();
    group.tick(2);
    group.stop(heir);
    group.start(heir);
    assert!(group.replica(heir).applied() < group.replica(heir).commit(), "it has to replay");
    let term = group.replica(heir).term();
    let mut now = Message { from: leader, to: heir, term, ..Message::default() };
    now.set_msg_type(MessageType::MsgTimeoutNow);
    group.replica(heir).step(now);
    let ready = group.replica(heir).ready().unwrap();
    let sent = group.replica(heir).persisted(ready.number).messages;
    let refuses = |message: &Message| {
        message.get_msg_type() == MessageType::MsgTransferLeader
            && (message.to, message.term, message.reject) == (leader, term, true)
    };
    assert!(sent.iter().any(refuses), "{sent:?}");
}

#[test]
fn an_heir_that_cannot_be_reached_is_given_up_at_once() {
    let (mut group, [leader, heir, other]) = three(11);
    group.cut_off.insert(heir);
    group.replica(leader).transfer_leader(heir);
    group.settle();
    group.replica(leader).unreachable(other);
    assert_eq!(group.replica(leader).heir(), Some(heir), "it is about the heir alone");
    group.replica(leader).unreachable(heir);
    assert_eq!(group.replica(leader).heir(), None);
    group.propose(leader, "one", 1);
    group.settle();
    assert_eq!(group.answers[&1], "word 1");
}

#[test]
fn a_refusal_from_another_term_or_another_replica_ends_no_transfer() {
    let (mut group, [leader, heir, other]) = three(11);
    group.cut_off.insert(heir);
    group.replica(leader).transfer_leader(heir);
    let term = group.replica(leader).term();
    for (from, term) in [(heir, term - 1), (other, term)] {
        let mut refusal = Message { from, to: leader, term, reject: true, ..Message::default() };
        refusal.set_msg_type(MessageType::MsgTransferLeader);
        group.replica(leader).step(refusal);
        assert_eq!(group.replica(leader).heir(), Some(heir), "{from} in term {term}");
    }
}

#[test]
fn a_declining_replica_is_never_elected_and_votes_for_others() {
    for seed in 0..20 {
        let (mut group, [leader, declines, other]) = three(seed);
        group.replica(declines).decline();
        group.stop(leader);
        assert_eq!(group.elect(), other, "seed {seed}");
        let term = group.replica(declines).term();
        group.cut_off.insert(other);
        group.tick(100);
        assert!(!leads(&mut group, declines));
        assert_eq!(group.replica(declines).term(), term, "it does not even try");
    }
}

#[test]
fn an_elected_replica_leads_once_it_has_applied_earlier_entries() {
    let (mut group, [leader, heir, _]) = three(11);
    assert!(
        !group.replica(leader).is_becoming_leader() && !group.replica(heir).is_becoming_leader()
    );
    group.replica(leader).transfer_leader(heir);
    group.settle_while(|group| !group.replica(heir).is_becoming_leader());
    assert!(!leads(&mut group, heir), "the heir is elected and has not applied earlier entries");
    group.settle();
    assert!(leads(&mut group, heir) && !group.replica(heir).is_becoming_leader());
}

/// No message can carry the entry, so that only the leader's log has it.
#[test]
fn a_leader_that_can_send_no_entry_resigns_until_another_has_replaced_it() {
    let (mut group, [leader, ..]) = three(11);
    group.cut_off.insert(leader);
    group.propose(leader, "stuck", 1);
    group.settle();
    group.cut_off.remove(&leader);
    let stuck = group.replica(leader).last_index();
    group.replica(leader).resign(stuck);
    assert!(!leads(&mut group, leader));
    let next = group.elect();
    assert_ne!(next, leader, "it would send nothing again");
    assert_eq!(group.dropped, [1], "the caller learns that the outcome is unknown");
    group.propose(next, "next", 2);
    group.settle();
    group.tick(3);
    for id in 1..=3 {
        assert_eq!(group.words(id), ["next"], "replica {id}");
    }
    group.replica(next).transfer_leader(leader);
    group.settle();
    assert!(leads(&mut group, leader), "the entry is gone, so that the replica may lead again");
}

#[test]
fn a_leader_does_not_resign_over_an_entry_that_is_committed() {
    let (mut group, [leader, ..]) = three(11);
    group.propose(leader, "one", 1);
    group.settle();
    let committed = group.replica(leader).commit();
    group.replica(leader).resign(committed);
    assert!(leads(&mut group, leader));
}
