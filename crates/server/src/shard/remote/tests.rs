//! Calls and replies survive the way to another node; damaged bytes give an error or a value, and
//! never a panic.

use super::*;
use crate::{
    Config,
    shard::{Engine, Sought, TaskTypes},
};
use std::fmt::Debug;
use taskyard_machine::{
    Backoff, ClaimNumber, ClaimToken, ClaimedTask, Command, Enqueue, FlowMember, NewTask,
    ParentResult, QueueName, Rejection, RetryPolicy, SessionId, TaskStateName, Timestamp, ask,
};

const TASK: TaskId = TaskId { incarnation: 7, home: ShardId(1), origin: ShardId(2), sequence: 300 };

fn body() -> Bytes {
    let headers = vec![("trace", "1")];
    Body { content_type: "text/plain", headers, payload: b"\x00\xff letter" }.encode().into()
}

fn handed() -> HandedTask {
    let parent = ParentResult {
        name: "first".into(),
        task: TASK,
        state: TaskStateName::Failed,
        result: Some(b"42".as_slice().into()),
        omitted: true,
        error: Some(("io".into(), "no route".into())),
    };
    let task = ClaimedTask {
        id: TASK,
        token: ClaimToken(9),
        queue: QueueName::parse("mail").unwrap(),
        task_type: "send".into(),
        priority: 9,
        attempt: 2,
        lease_expires_at: Timestamp(1 << 41),
        lease_ms: 30_000,
        timeout_ms: Some(5),
        enqueued_at: Timestamp(3),
        resume_state: Some(b"page 2".as_slice().into()),
        fairness_key: Some("acme".into()),
        flow: Some(FlowMember { flow: TASK, node: "second".into(), failed_parent: None }),
        parents: [parent].into(),
    };
    HandedTask { task, body: body() }
}

fn sought() -> Sought {
    let types = TaskTypes::new(vec!["send".into(), "render".into()]);
    Sought { queues: vec!["mail".into()], types }
}

fn request() -> ClaimRequest {
    ClaimRequest {
        queues: vec![("mail".into(), 1), ("video".into(), 1_000)],
        types: sought().types,
        weighted: true,
        tasks_max: 10,
        bytes_max: 5,
        lease_ms: 30_000,
        session: Some(SessionId(u128::MAX)),
        number: Some(ClaimNumber { sequence: 3, sending: 1 }),
        begun: true,
        worker: "host-1".into(),
    }
}

fn calls() -> Vec<ShardCall> {
    let retry = RetryPolicy { backoff: Backoff::Polynomial, ..RetryPolicy::default() };
    let task = NewTask { task_type: "send", retry: Some(retry), ..NewTask::default() };
    let enqueue = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
    let expire = EncodedCommand::new(&Command::ExpireDue);
    let calls = vec![
        ShardCall::Propose {
            commands: vec![(ShardId(1), enqueue), (ShardId(300), expire)],
            enqueue: true,
        },
        ShardCall::Claim { shard: ShardId(1), request: request(), wait_ms: 60_000 },
        ShardCall::Claimable { looks: vec![(ShardId(1), sought())], wait_ms: 1 },
        ShardCall::Ask { shard: ShardId(1), query: ask::Task { task: TASK }.into() },
        ShardCall::Bodies { tasks: vec![TASK, TASK] },
        ShardCall::Spare { task: TASK },
        ShardCall::Finished { task: TASK, wait_ms: 0 },
        ShardCall::Status,
        ShardCall::SetSpread([1, 13].into()),
    ];
    for call in &calls {
        // A new call needs a line above.
        match call {
            ShardCall::Propose { .. }
            | ShardCall::Claim { .. }
            | ShardCall::Claimable { .. }
            | ShardCall::Ask { .. }
            | ShardCall::Bodies { .. }
            | ShardCall::Spare { .. }
            | ShardCall::Finished { .. }
            | ShardCall::Status
            | ShardCall::SetSpread(_) => {}
        }
    }
    calls
}

fn errors() -> Vec<Error> {
    let rejection = Rejection::ClaimLost { task: TASK };
    let in_batch = Rejection::BatchElement { index: 3, rejection: Box::new(rejection.clone()) };
    let errors = vec![
        Error::Rejected(in_batch),
        Error::Rejected(Rejection::NeverRuns { expires_at: Timestamp(1_700_000_000_000) }),
        Error::Invalid("limit 0 is not 1 to 1000".into()),
        Error::NotFound("there is no shard 9".into()),
        Error::PayloadTooLarge { bytes: usize::MAX, bytes_max: 1 << 20 },
        Error::CommandTooLarge { bytes: usize::MAX, bytes_max: 1 << 24 },
        Error::RequestTooLarge { bytes: usize::MAX, bytes_max: 40 << 20 },
        Error::Element { index: 7, error: Box::new(Error::Invalid("é".into())) },
        Error::Node { node: "a".into(), error: Box::new(Error::Rejected(rejection)) },
        Error::HalfWay { enqueued: 3, total: 7, error: Box::new(Error::OutcomeUnknown) },
        Error::LimitExceeded("memory".into()),
        Error::DiskFull("disk".into()),
        Error::NoQuorum { shard: 5 },
        Error::NoControl,
        Error::Refused("drain it first".into()),
        Error::Forbidden("a page of another site".into()),
        Error::NotLeader { shard: 5, leader: Some(3) },
        Error::NotLeader { shard: 5, leader: None },
        Error::OutcomeUnknown,
        Error::Unavailable("stopping".into()),
    ];
    for error in &errors {
        // A new error needs a line above.
        match error {
            Error::Rejected(_)
            | Error::Invalid(_)
            | Error::NotFound(_)
            | Error::PayloadTooLarge { .. }
            | Error::CommandTooLarge { .. }
            | Error::RequestTooLarge { .. }
            | Error::Element { .. }
            | Error::Node { .. }
            | Error::HalfWay { .. }
            | Error::LimitExceeded(_)
            | Error::DiskFull(_)
            | Error::NoQuorum { .. }
            | Error::NoControl
            | Error::Refused(_)
            | Error::Forbidden(_)
            | Error::NotLeader { .. }
            | Error::OutcomeUnknown
            | Error::Unavailable(_) => {}
        }
    }
    errors
}

fn replies() -> Vec<ShardReply> {
    let mut outcomes: Vec<_> = errors().into_iter().map(Err).collect();
    outcomes.push(Ok(Outcome::Acked { follow_ups: vec![TASK] }));
    let status =
        ShardStatus { shard: ShardId(31), term: 4, serves: true, persisted: u64::MAX, applied: 0 };
    let stopping = || Error::Unavailable("stopping".into());
    vec![
        ShardReply::Unread("version 9 instead of 1".into()),
        ShardReply::Proposed(outcomes),
        ShardReply::Claimed(Ok(vec![handed(), handed()])),
        ShardReply::Claimed(Err(stopping())),
        ShardReply::Claimable(Ok(vec![(ShardId(1), Ok(300)), (ShardId(2), Err(stopping()))])),
        ShardReply::Claimable(Err(stopping())),
        ShardReply::Found(Box::new(Ok(Found::Now(Timestamp(5))))),
        ShardReply::Found(Box::new(Err(stopping()))),
        ShardReply::Bodies(Ok(vec![None, Some(KeptBody(body()))])),
        ShardReply::Bodies(Err(stopping())),
        ShardReply::Finished(Ok(false)),
        ShardReply::Finished(Err(stopping())),
        ShardReply::Status(Ok(vec![status, status])),
        ShardReply::Status(Err(stopping())),
        ShardReply::SpreadSet(Ok(())),
        ShardReply::SpreadSet(Err(stopping())),
    ]
}

/// SplitMix64: the same damage in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

fn check<T: PartialEq + Debug>(
    value: &T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    let bytes = encode(value);
    assert_eq!(decode(&bytes).as_ref(), Ok(value));
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{value:?} cut at {length}");
    }
    assert!(decode(&[&bytes[..], &[0]].concat()).is_err(), "bytes left over");
    let mut random = Random(bytes.len() as u64);
    for _ in 0..2_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(3) {
            damaged[random.below(bytes.len())] = random.below(256) as u8;
        }
        if let Ok(other) = decode(&damaged) {
            assert_eq!(decode(&encode(&other)), Ok(other));
        }
    }
}

#[test]
fn every_call_survives_and_damage_never_panics() {
    for call in calls() {
        check(&call, ShardCall::encode, ShardCall::decode);
    }
}

#[test]
fn every_reply_survives_and_damage_never_panics() {
    for reply in replies() {
        check(&reply, ShardReply::encode, ShardReply::decode);
    }
}

/// Nodes of two versions talk to each other during an upgrade: these bytes never change.
#[test]
fn the_layout_of_version_1_stays() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sketch = ask::Sketches { tasks: vec![TASK] };
    let claim = ShardCall::Claim { shard: ShardId(300), request: request(), wait_ms: 60_000 };
    for (call, expected) in [
        (
            claim,
            "0102ac0202046d61696c0105766964656fe807020672656e6465720473656e64010a05b0ea0101\
             ffffffffffffffffffffffffffffffff0103010106686f73742d31e0d403",
        ),
        (
            ShardCall::Ask { shard: ShardId(1), query: sketch.into() },
            "0104010d010000000700010002000000000000012c",
        ),
        (ShardCall::Status, "010a"),
    ] {
        assert_eq!(hex(call.encode()), expected, "{call:?}");
    }
    let lost = Error::Rejected(Rejection::ClaimLost { task: TASK });
    for (reply, expected) in [
        (
            ShardReply::Claimed(Ok(vec![handed()])),
            "010201010000000700010002000000000000012c09046d61696c0473656e6409028080808080\
             40b0ea010105030106706167652032010461636d65010000000700010002000000000000012c067365\
             636f6e6400010566697273740000000700010002000000000000012c0601023432010102696f\
             086e6f20726f7574651f010a746578742f706c61696e0105747261636501310900ff206c6574\
             746572",
        ),
        (
            ShardReply::Proposed(vec![Ok(Outcome::Done), Err(lost)]),
            "010102011100010c0000000700010002000000000000012c",
        ),
        (ShardReply::Unread("new".into()), "0100036e6577"),
    ] {
        assert_eq!(hex(reply.encode()), expected, "{reply:?}");
    }
}

#[test]
fn an_error_keeps_its_code_and_words() {
    for error in errors() {
        let reply = ShardReply::Finished(Err(error.clone()));
        let ShardReply::Finished(Err(told)) = ShardReply::decode(&reply.encode()).unwrap() else {
            panic!("another reply");
        };
        assert_eq!((told.code(), told.to_string()), (error.code(), error.to_string()));
        assert_eq!(told.holder(), error.holder());
    }
}

/// If this error ever reaches a client: nothing changed, and the request may be repeated.
#[test]
fn the_wrong_node_is_told_to_clients_like_a_missing_majority() {
    let error = Error::NotLeader { shard: 5, leader: Some(3) };
    assert_eq!(error.code(), Error::NoQuorum { shard: 5 }.code());
    assert_eq!(error.to_string(), "this node does not lead shard 5; send it again");
}

#[test]
fn a_command_that_no_log_could_give_back_is_refused() {
    let mut call = ShardCall::Propose {
        commands: vec![(ShardId(0), EncodedCommand::from_bytes([200, 1].into()))],
        enqueue: false,
    };
    let error = ShardCall::decode(&call.encode()).unwrap_err();
    assert!(error.what.contains("unknown command 200"), "{error}");
    if let ShardCall::Propose { commands, .. } = &mut call {
        commands[0].1 = EncodedCommand::new(&Command::ExpireDue);
    }
    assert_eq!(ShardCall::decode(&call.encode()), Ok(call));
}

#[test]
fn a_body_that_no_front_could_read_is_refused() {
    let reply = ShardReply::Bodies(Ok(vec![Some(KeptBody(Bytes::from_static(&[9, 9])))]));
    let error = ShardReply::decode(&reply.encode()).unwrap_err();
    assert!(error.what.contains("unknown body version 9"), "{error}");
}

#[test]
fn words_of_another_version_can_be_read() {
    let mut bytes = ShardReply::Unread("I know only version 9".into()).encode();
    bytes[0] = 9;
    let told = ShardReply::decode(&bytes).unwrap();
    assert_eq!(told, ShardReply::Unread("I know only version 9".into()));
    let mut bytes = ShardReply::Finished(Ok(true)).encode();
    bytes[0] = 9;
    assert!(ShardReply::decode(&bytes).is_err());
}

#[test]
fn waits_are_rounded_up_and_bounded() {
    for (wait, ms) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
        assert_eq!(wait_ms(Duration::from_nanos(wait)), ms);
    }
    assert_eq!(wait_ms(Duration::MAX), u64::MAX);
    assert_eq!(wait_for(u64::MAX), Duration::from_millis(CLAIM_WAIT_MS_MAX));
}

#[tokio::test]
async fn a_reply_that_is_too_long_is_made_shorter_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
    let engine = Engine::start(&config).unwrap();
    let (shards, home) = (engine.shards(), ShardId(0));
    let payload = vec![b'x'; 1_000];
    let body = Body { payload: &payload, ..Body::default() };
    let task = NewTask { task_type: "send", body, ..NewTask::default() };
    let enqueue = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
    for outcome in shards.propose_all(vec![(home, enqueue); 16], true).await {
        outcome.unwrap();
    }

    let tasks = ask::Tasks {
        queue: None,
        state: None,
        task_type: None,
        error: None,
        tag: None,
        flow: None,
        after: None,
        limit: 16,
    };
    let call = ShardCall::Ask { shard: home, query: tasks.clone().into() };
    let reply = encode_bounded(serve(&shards, call).await, 500);
    let ShardReply::Found(found) = ShardReply::decode(&reply).unwrap() else {
        panic!("another reply");
    };
    let Ok(Found::Tasks(page)) = *found else { panic!("{found:?}") };
    assert!((1..16).contains(&page.tasks.len()), "{}", page.tasks.len());
    let after = page.next;
    assert_eq!(after, page.tasks.last().map(|task| task.id));
    let rest = shards.ask(home, ask::Tasks { after, ..tasks }).await.unwrap();
    assert_eq!(page.tasks.len() + rest.tasks.len(), 16);

    let call = ShardCall::Ask { shard: home, query: ask::Queues { after: None, limit: 10 }.into() };
    let reply = encode_bounded(serve(&shards, call).await, 10);
    let ShardReply::Found(found) = ShardReply::decode(&reply).unwrap() else {
        panic!("another reply");
    };
    assert_eq!(found.unwrap_err().code(), "limit_exceeded");
}
