//! Calls of other nodes, as bytes, get the same answers as calls on this node.

use crate::engine;

use crate::engine::{Bench, config, manual, request, start, waits};
use std::time::Duration;
use taskyard_machine::{
    Ack, Body, Cancel, ClaimToken, Command, EncodedCommand, Enqueue, NewTask, Outcome, QueueName,
    Rejection, SessionId, ShardId, TaskId, TaskStateName, ask,
};
use taskyard_server::{
    Error,
    shard::{
        HandedTask, SessionNews, Shards, Sought,
        remote::{ShardCall, ShardReply, serve, serve_bytes, wait_ms},
    },
};

const LONG: Duration = Duration::from_secs(20);

/// Sends a call like another node.
async fn send(shards: &Shards, call: ShardCall) -> ShardReply {
    ShardReply::decode(&serve_bytes(shards, &call.encode()).await).unwrap()
}

async fn propose(
    shards: &Shards,
    commands: &[(ShardId, Command<'_>)],
    enqueue: bool,
) -> Vec<Result<Outcome, Error>> {
    let encoded = |(shard, command): &_| (*shard, EncodedCommand::new(command));
    let commands = commands.iter().map(encoded).collect();
    match send(shards, ShardCall::Propose { commands, enqueue }).await {
        ShardReply::Proposed(outcomes) => outcomes,
        other => panic!("{other:?}"),
    }
}

fn claim(shards: &Shards, queue: &str, tasks_max: u32, wait: Duration) -> ShardCall {
    let request = request(queue, tasks_max);
    ShardCall::Claim { shard: shards.home(queue), request, wait_ms: wait_ms(wait) }
}

fn claimed(reply: ShardReply) -> Vec<HandedTask> {
    match reply {
        ShardReply::Claimed(claimed) => claimed.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn commands_are_decided_each_with_its_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let home = bench.0.home("mail");
    let task = NewTask { task_type: "test", ..NewTask::default() };
    let enqueue = Command::Enqueue(Enqueue { queue: "mail", task });
    let lost = TaskId { incarnation: 0, home, origin: home, sequence: 9 };
    let commands = [
        (home, enqueue.clone()),
        (home, Command::Cancel(Cancel { task: lost })),
        (ShardId(99), enqueue),
    ];
    let answers = propose(&bench.0, &commands, true).await;
    let id = match &answers[0] {
        Ok(Outcome::Enqueued(enqueued)) => enqueued.id,
        other => panic!("{other:?}"),
    };
    assert_eq!(bench.task(id).await.unwrap().state, TaskStateName::Ready);
    // The remaining commands again, called directly.
    let direct = commands.iter().map(|(shard, command)| (*shard, EncodedCommand::new(command)));
    let direct = bench.0.propose_all(direct.collect(), true).await;
    assert_eq!(answers[1..], direct[1..]);
    assert_eq!(answers[2].clone().unwrap_err().code(), "not_found");
}

#[tokio::test]
async fn a_task_is_claimed_looked_at_and_acked_over_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let (shards, home) = (&bench.0, bench.0.home("mail"));
    let id = bench.enqueue("mail", b"letter").await;
    let handed = claimed(send(shards, claim(shards, "mail", 10, Duration::ZERO)).await);
    assert_eq!(handed.len(), 1);
    assert_eq!(Body::decode(&handed[0].body).unwrap().payload, b"letter");

    for query in [
        ask::Task { task: id }.into(),
        ask::Holder { task: id }.into(),
        ask::Queue { queue: QueueName::parse("mail").unwrap() }.into(),
        ask::Queues { after: None, limit: 10 }.into(),
        ask::EnqueueCut {}.into(),
        ask::Sketches { tasks: vec![id] }.into(),
    ] {
        let query: taskyard_machine::Query = query;
        let direct = shards.ask(home, query.clone()).await.unwrap();
        let reply = send(shards, ShardCall::Ask { shard: home, query }).await;
        assert_eq!(reply, ShardReply::Found(Box::new(Ok(direct))));
    }
    let holder = bench.task(id).await.unwrap().claim.unwrap();
    assert_eq!(holder.token, handed[0].task.token);

    let tasks = vec![id, TaskId { sequence: 999, ..id }];
    let direct = shards.bodies(tasks.clone()).await.unwrap();
    match send(shards, ShardCall::Bodies { tasks }).await {
        ShardReply::Bodies(Ok(bodies)) => {
            let bodies: Vec<_> = bodies.into_iter().map(|body| body.map(|body| body.0)).collect();
            assert_eq!(bodies, direct);
            assert!(bodies[0].is_some() && bodies[1].is_none());
        }
        other => panic!("{other:?}"),
    }

    let finished = |wait| ShardCall::Finished { task: id, wait_ms: wait_ms(wait) };
    let early = send(shards, finished(Duration::from_millis(1))).await;
    assert_eq!(early, ShardReply::Finished(Ok(false)));
    let mut waiting = Box::pin(send(shards, finished(LONG)));
    assert!(waits(&mut waiting).await);
    let ack = Ack { task: id, token: holder.token, result: Some(b"42"), follow_ups: Vec::new() };
    let answers = propose(shards, &[(home, Command::Ack(ack.clone()))], false).await;
    assert_eq!(answers, [Ok(Outcome::Acked { follow_ups: Vec::new() })]);
    assert_eq!(waiting.await, ShardReply::Finished(Ok(true)));
    let late = Ack { token: ClaimToken(holder.token.0 + 1), ..ack };
    let answers = propose(shards, &[(home, Command::Ack(late))], false).await;
    let state = TaskStateName::Succeeded;
    assert_eq!(answers, [Err(Rejection::AlreadyFinished { task: id, state }.into())]);
}

#[tokio::test]
async fn a_parked_claim_and_a_hint_are_woken_over_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let (shards, home) = (&bench.0, bench.0.home("mail"));
    let hint = |wait| ShardCall::Claimable {
        looks: vec![(home, Sought::of_any_type(vec!["mail".into()]))],
        wait_ms: wait_ms(wait),
    };
    let probed = send(shards, hint(Duration::ZERO)).await;
    assert_eq!(probed, ShardReply::Claimable(Ok(vec![(home, Ok(0))])));
    let early = send(shards, hint(Duration::from_millis(1))).await;
    assert_eq!(early, ShardReply::Claimable(Ok(Vec::new())));
    let over = send(shards, claim(shards, "mail", 1, Duration::from_millis(1))).await;
    assert!(claimed(over).is_empty());
    let mut hinted = Box::pin(send(shards, hint(LONG)));
    assert!(waits(&mut hinted).await);
    let first = bench.enqueue("mail", b"x").await;
    assert_eq!(hinted.await, ShardReply::Claimable(Ok(vec![(home, Ok(1))])));
    let probed = send(shards, hint(Duration::ZERO)).await;
    assert_eq!(probed, ShardReply::Claimable(Ok(vec![(home, Ok(1))])));
    let handed = claimed(send(shards, claim(shards, "mail", 1, LONG)).await);
    assert_eq!(handed[0].task.id, first);
    let mut parked = Box::pin(send(shards, claim(shards, "mail", 1, LONG)));
    assert!(waits(&mut parked).await);
    let second = bench.enqueue("mail", b"x").await;
    assert_eq!(claimed(parked.await)[0].task.id, second);
}

/// The worker at the other node is gone. Its call is cancelled, and its task or its place in the
/// queue goes to another claim.
#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let shards = &bench.0;
    let mut parked = Box::pin(serve(shards, claim(shards, "mail", 1, LONG)));
    assert!(waits(&mut parked).await);
    drop(parked);
    let mut leaving = Box::pin(serve(shards, claim(shards, "mail", 1, LONG)));
    assert!(waits(&mut leaving).await);
    let id = bench.enqueue("mail", b"x").await;
    // The claim has its answer, but the caller has not read the answer.
    engine::eventually("the task is claimed", async || {
        bench.task(id).await.unwrap().state == TaskStateName::Claimed
    })
    .await;
    drop(leaving);
    let handed = bench.claim("mail", 1, LONG).await;
    assert_eq!(handed[0].task.id, id);
    assert_eq!(bench.task(id).await.unwrap().losses, 0);
}

#[tokio::test]
async fn session_reports_travel_as_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (config, clock) = manual(dir.path());
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let shards = &bench.0;
    let session = SessionId(7);
    let ids = bench.enqueue_many("mail", 2, b"x").await;
    let tell = |news: SessionNews| {
        shards.take_news(2, SessionNews::decode(&news.encode()).unwrap());
    };
    let alive = || SessionNews::Alive(vec![session]);
    tell(alive());
    let mut request = request("mail", 2);
    request.session = Some(session);
    request.lease_ms = 3_600_000;
    let call = ShardCall::Claim { shard: shards.home("mail"), request, wait_ms: 0 };
    assert_eq!(claimed(send(shards, call).await).len(), 2);
    // Reports that a session is alive keep its claims beyond the longest silence.
    for _ in 0..3 {
        clock.advance(Duration::from_secs(8));
        tell(alive());
        // The loop takes the report before the clock moves on.
        shards.status().await.unwrap();
    }
    assert_eq!(bench.task(ids[0]).await.unwrap().state, TaskStateName::Claimed);
    tell(SessionNews::Cut(session));
    tell(SessionNews::NotStarted(session, vec![ids[1]]));
    // The loop has taken all reports before it answers this; then five seconds of silence pass.
    shards.status().await.unwrap();
    clock.advance(Duration::from_millis(5_001));
    engine::eventually("both claims have ended", async || {
        let task = async |id| bench.task(id).await.unwrap();
        task(ids[0]).await.claim.is_none() && task(ids[1]).await.claim.is_none()
    })
    .await;
    assert_eq!(bench.task(ids[0]).await.unwrap().losses, 1);
    assert_eq!(
        bench.task(ids[1]).await.unwrap().losses,
        0,
        "a task that never began counts no loss"
    );
}

#[tokio::test]
async fn a_peer_gets_the_status_of_shards_and_an_error_once_they_have_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let shards = engine.shards();
    // These come after each leader's own first entries, so no index moves any more.
    let all = [0, 1, 2, 3].map(|shard| (ShardId(shard), Command::ExpireDue));
    propose(&shards, &all, false).await;
    let direct = shards.status().await.unwrap();
    assert_eq!(direct.len(), 4);
    assert_eq!(send(&shards, ShardCall::Status).await, ShardReply::Status(Ok(direct)));
    engine.stop();
    let query = ask::Now {}.into();
    match send(&shards, ShardCall::Ask { shard: ShardId(0), query }).await {
        ShardReply::Found(found) => assert_eq!(found.unwrap_err().code(), "unavailable"),
        other => panic!("{other:?}"),
    }
    let answers = propose(&shards, &[(ShardId(0), Command::ExpireDue)], false).await;
    assert_eq!(answers[0].clone().unwrap_err().code(), "unavailable");
}

#[tokio::test]
async fn an_unreadable_call_gets_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let shards = engine.shards();
    let mut newer = ShardCall::Status.encode();
    newer[0] = 2;
    for (bytes, words) in [
        (newer.as_slice(), "version 2 instead of 1"),
        (&[1, 77], "unknown ShardCall 77"),
        (&[], "1 bytes wanted, 0 left"),
        (b"GET / HTTP/1.1\r\n\r\n", "version 71 instead of 1"),
    ] {
        match ShardReply::decode(&serve_bytes(&shards, bytes).await).unwrap() {
            ShardReply::Unread(told) => assert!(told.starts_with(words), "{told}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(send(&shards, ShardCall::Status).await, ShardReply::Status(Ok(_))));
}
