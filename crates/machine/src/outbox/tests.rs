//! Messages between shards are taken once, and delays count from the sender's entry.

use super::*;
use crate::testing::{SHARD, START, Yard, new_task};
use crate::{Ack, Command, FollowUp, NewTask, OnConflict, QueueSettings, TaskStateName, Unique};

const OTHER: ShardId = ShardId(2);

/// Acks a task on shard 2 with a follow-up in queue `next` of shard 1.
fn follow(source: &mut Yard, task: NewTask<'_>) -> TaskId {
    source.enqueue("mail");
    let held = source.claim_one("mail");
    let enqueue = Enqueue { queue: "next", task };
    let follow_ups = vec![FollowUp { home: SHARD, enqueue }];
    let ack = Ack { task: held.id, token: held.token, result: None, follow_ups };
    match source.send(Command::Ack(ack)) {
        Ok(Outcome::Acked { follow_ups }) => follow_ups[0],
        other => panic!("{other:?}"),
    }
}

fn deliver(target: &mut Yard, outgoing: &Outgoing) -> Result<Outcome, Rejection> {
    deliver_at(target, outgoing, outgoing.stored_at)
}

fn deliver_at(
    target: &mut Yard,
    outgoing: &Outgoing,
    now: Timestamp,
) -> Result<Outcome, Rejection> {
    target.send(Command::Deliver(outgoing.deliver(OTHER, now)))
}

#[test]
fn a_follow_up_reaches_its_shard_once_however_often_it_is_delivered() {
    let mut source = Yard::of_shard(OTHER);
    let mut target = Yard::new();
    let ids = [follow(&mut source, new_task()), follow(&mut source, new_task())];
    assert!(source.events().contains(&EventKind::OutgoingQueued(SHARD)));
    assert_eq!((ids[0].home, ids[0].origin), (SHARD, OTHER));
    let outgoing = source.machine.outgoing(10);
    assert_eq!(outgoing.iter().map(|o| o.sequence).collect::<Vec<_>>(), [1, 2]);
    assert!(deliver(&mut target, &outgoing[1]).is_err(), "in order");
    for outgoing in [&outgoing[0], &outgoing[1], &outgoing[0], &outgoing[1]] {
        assert_eq!(deliver(&mut target, outgoing), Ok(Outcome::Taken));
    }
    for id in ids {
        assert_eq!(target.state(id), TaskStateName::Ready);
    }
    assert_eq!(target.counts("next").enqueued_total, 2);
}

#[test]
fn taken_messages_are_dropped_and_the_rest_stays() {
    let mut source = Yard::of_shard(OTHER);
    for _ in 0..3 {
        follow(&mut source, new_task());
    }
    source.send(Command::Delivered(Delivered { to: SHARD, up_to: 2 })).unwrap();
    let left = source.machine.outgoing(10);
    assert_eq!(left.iter().map(|o| (o.to, o.sequence)).collect::<Vec<_>>(), [(SHARD, 3)]);
    assert!(source.machine.outgoing(0).is_empty());
    let owed_after =
        |after| source.machine.owed_to(SHARD, after, Timestamp(START)).map(|owed| owed.sequence);
    assert_eq!(owed_after(0).collect::<Vec<_>>(), [3]);
    assert_eq!(owed_after(3).count(), 0, "it is only not dropped yet");
    assert_eq!(source.machine.targets().collect::<Vec<_>>(), [SHARD]);
}

#[test]
fn an_accepted_follow_up_is_not_refused_and_its_delay_counts_from_the_ack() {
    let mut source = Yard::of_shard(OTHER);
    let mut target = Yard::new();
    target.set("next", QueueSettings { max_length: Some(0), ..QueueSettings::default() });
    let run_at = When::After { ms: 60_000 };
    let id = follow(&mut source, NewTask { run_at, ..new_task() });
    target.pass_ms(20_000);
    let now = Timestamp(START + 20_000);
    deliver_at(&mut target, &source.machine.outgoing(1)[0], now).unwrap();
    assert_eq!(target.task(id).run_at, Some(Timestamp(START + 60_000)));
}

/// The clocks of two shards are an hour apart, either way. An undelayed task is ready at once, and
/// a delay is as long as requested; only a moment that a client names follows the target's clock.
#[test]
fn delays_do_not_depend_on_how_far_the_clocks_of_two_shards_are_apart() {
    const HOUR: u64 = 3_600_000;
    let at = When::At(Timestamp(START + HOUR + 90_000));
    let debounce = || {
        let on_conflict = OnConflict::Replace;
        let debounce_ms = Some(50_000);
        let key = "k".into();
        Box::new(Unique { key, until: None, window_ms: None, on_conflict, debounce_ms })
    };
    for (source_ahead, target_ahead) in [(HOUR, 0), (0, HOUR)] {
        let (mut source, mut target) = (Yard::of_shard(OTHER), Yard::new());
        source.pass_ms(source_ahead);
        target.pass_ms(target_ahead);
        let now = follow(&mut source, new_task());
        let delayed = NewTask { run_at: When::After { ms: 60_000 }, ..new_task() };
        let delayed = follow(&mut source, delayed);
        let moment = follow(&mut source, NewTask { run_at: at, ..new_task() });
        let quiet = NewTask { unique: Some(debounce()), ..new_task() };
        let quiet = follow(&mut source, quiet);
        // The messages wait for 20 s, which pass on both shards.
        target.pass_ms(20_000);
        let sent_at = Timestamp(START + source_ahead + 20_000);
        for outgoing in source.machine.outgoing(10) {
            deliver_at(&mut target, &outgoing, sent_at).unwrap();
        }
        let arrived = target.now();
        assert_eq!(target.state(now), TaskStateName::Ready, "{source_ahead}");
        assert_eq!(target.task(delayed).run_at, Some(arrived.plus_ms(40_000)));
        assert_eq!(target.task(moment).run_at, Some(Timestamp(START + HOUR + 90_000)));
        assert_eq!(target.task(quiet).run_at, Some(arrived.plus_ms(30_000)));
    }
}

#[test]
fn a_task_that_an_earlier_version_accepted_is_taken() {
    let mut target = Yard::new();
    let long = "x".repeat(1_000);
    let id = TaskId { home: SHARD, origin: OTHER, ..follow(&mut Yard::new(), new_task()) };
    let task = NewTask { task_type: &long, priority: Some(9), ..new_task() };
    let message = Message::Enqueue { id, enqueue: Enqueue { queue: "..", task }, watch: None };
    let (stored_at, command) = (Timestamp(START), encode(&message));
    let outgoing = Outgoing { to: SHARD, sequence: 1, stored_at, command };
    assert_eq!(deliver(&mut target, &outgoing), Ok(Outcome::Taken));
    assert_eq!(target.state(id), TaskStateName::Ready);
}

#[test]
fn a_known_request_is_not_made_twice() {
    let mut source = Yard::of_shard(OTHER);
    let mut target = Yard::new();
    let request = || NewTask { request_id: Some("r"), ..new_task() };
    let known = target.enqueue_task("next", request()).unwrap().id;
    let promised = follow(&mut source, request());
    deliver(&mut target, &source.machine.outgoing(1)[0]).unwrap();
    assert_eq!(target.counts("next").enqueued_total, 1);
    // The sender did not know of the existing task, so no task has the id that it made.
    assert_eq!(target.state(known), TaskStateName::Ready);
    assert!(target.machine.task(promised).is_none());
}

#[test]
fn foreign_bytes_are_refused() {
    let mut target = Yard::new();
    for command in [&b""[..], b"\x09", b"{\"task\":1}"] {
        let deliver = Deliver { from: OTHER, sequence: 1, waited_ms: 0, command };
        let rejection = target.send(Command::Deliver(deliver)).unwrap_err();
        assert_eq!(rejection.code(), "invalid_argument");
    }
}
