//! A leader that hands over its shard, and what happens to its commands meanwhile.

use super::*;
use taskyard_machine::{Command, Delivered, EndSession, Identity, RULES_CURRENT, SessionEnd};
use taskyard_replica::{
    Config, LogReader, Restored,
    eraftpb::{ConfState, Entry as LogEntry, Message, MessageType},
};
use tokio::sync::oneshot;

const SHARD: ShardId = ShardId(2);
const IDENTITY: Identity = Identity { incarnation: 1, shard: SHARD, shards: 4 };
const SESSION: SessionId = SessionId(7);
const ELECTION_TICKS: usize = 10;

/// Entries are never dropped from memory here, so that the log is never read.
struct NoDisk;

impl LogReader for NoDisk {
    fn entries(&self, _: u64, _: u64, _: u64) -> Vec<LogEntry> {
        Vec::new()
    }

    fn term(&self, _: u64) -> Option<u64> {
        None
    }
}

fn replica(id: u64) -> LocalShard {
    let config = Config {
        id,
        seed: 1,
        heartbeat_ticks: 2,
        election_ticks: ELECTION_TICKS,
        entry_bytes_max: 1 << 20,
    };
    let conf_state = ConfState { voters: vec![1, 2], ..ConfState::default() };
    let restored = Restored { conf_state, ..Restored::default() };
    let state = State::new(Machine::new(IDENTITY));
    let replica = Replica::new(&config, restored, Box::new(NoDisk), state).unwrap();
    LocalShard::new(SHARD, 3, replica, Checkpoint::new(0, 0))
}

/// Persists everything pending; returns the messages to send.
fn drive(shard: &mut LocalShard) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(ready) = shard.replica.ready() {
        messages.extend(ready.messages_now);
        messages.extend(shard.replica.persisted(ready.number).messages);
    }
    messages
}

/// Exchanges messages until none are left, and drops the order to take over.
fn talk(one: &mut LocalShard, two: &mut LocalShard) {
    loop {
        let (to_two, to_one) = (drive(one), drive(two));
        if to_two.is_empty() && to_one.is_empty() {
            return;
        }
        let heard = |message: &Message| message.get_msg_type() != MessageType::MsgTimeoutNow;
        to_two.into_iter().filter(heard).for_each(|message| two.replica.step(message));
        to_one.into_iter().for_each(|message| one.replica.step(message));
    }
}

#[test]
fn a_leaders_own_commands_wait_for_the_end_of_a_transfer() {
    let (mut leader, mut follower) = (replica(1), replica(2));
    leader.replica.campaign();
    talk(&mut leader, &mut follower);
    let reading = crate::Clock::manual(1_000).reading();
    leader.leading = Some(LeaderClock::new(Timestamp(1_000), reading));
    leader.replica.transfer_leader(2);
    talk(&mut leader, &mut follower);

    let (answer, _answered) = oneshot::channel();
    let end = EndSession {
        session: SESSION,
        reason: SessionEnd::Silence,
        not_started: Vec::new(),
        keep: Vec::new(),
    };
    let delivered = Delivered { to: ShardId(1), up_to: 9 };
    for (command, waiting) in [
        (Command::BeginTerm, Waiting::Nobody),
        (Command::ExpireDue, Waiting::Call(answer)),
        (Command::EndSession(end), Waiting::SessionEnd(SESSION)),
        (Command::Delivered(delivered), Waiting::Delivered { to: ShardId(1), up_to: 9 }),
        (Command::ExpireDue, Waiting::Deliver { from: ShardId(1), sequence: 1 }),
        (Command::ExpireDue, Waiting::Expiry),
    ] {
        leader.pending.push((EncodedCommand::new(&command), waiting));
    }
    // Callers that can repeat a command are refused; the loop's own commands stay, in order.
    let refused = leader.propose(RULES_CURRENT, Timestamp(2_000));
    assert!(matches!(refused.not_leading[..], [Waiting::Call(_), Waiting::Deliver { .. }]));
    assert!(leader.propose(RULES_CURRENT, Timestamp(2_000)).is_empty());
    let applied = leader.replica.applied();

    for _ in 0..ELECTION_TICKS {
        leader.replica.tick();
        talk(&mut leader, &mut follower);
    }
    assert!(leader.propose(RULES_CURRENT, Timestamp(2_000)).is_empty());
    assert!(leader.pending.is_empty());
    talk(&mut leader, &mut follower);
    assert_eq!(leader.replica.applied(), applied + 1, "all of it in one entry");
    let wanted = leader.answers_of(leader.next_number);
    assert!(matches!(
        wanted[..],
        [
            Waiting::Nobody,
            Waiting::SessionEnd(SESSION),
            Waiting::Delivered { up_to: 9, .. },
            Waiting::Expiry
        ]
    ));
}

#[test]
fn pending_commands_end_with_leadership() {
    let mut shard = replica(1);
    shard.pending.push((EncodedCommand::new(&Command::BeginTerm), Waiting::SessionEnd(SESSION)));
    let why = Error::NotLeader { shard: SHARD.0, leader: Some(2) };
    assert!(matches!(shard.end_all(&why)[..], [Waiting::SessionEnd(SESSION)]));
    assert!(shard.pending.is_empty(), "or it would be proposed in another term");
}
