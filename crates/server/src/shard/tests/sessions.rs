//! Workers of one node whose tasks are on another.

use super::*;
use crate::sessions::{Attached, Beat, Hello, Profile};

#[tokio::test]
async fn news_of_sessions_reaches_every_node_in_order() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let session = SessionId(7);
    let told = [
        SessionNews::Alive(vec![session]),
        SessionNews::NotStarted(session, vec![]),
        SessionNews::Cut(session),
        SessionNews::Alive(vec![session]),
    ];
    here.shards.sessions_alive(vec![session]);
    here.shards.session_not_started(session, vec![]);
    here.shards.session_cut(session);
    here.shards.sessions_alive(vec![session]);
    for node in [&there, &other] {
        node.until(|node| node.news().len() >= told.len()).await;
        assert_eq!(node.news(), told);
    }
}

/// Waiting calls must not delay signs of life or renewals of claims, because both would make
/// healthy workers look dead.
#[tokio::test]
async fn a_worker_keeps_its_claim_however_many_others_wait_for_tasks() {
    const PARKED_MAX: usize = 10;
    let clock = Clock::manual(1_700_000_000_000);
    let [here, there, _] = among(start(&clock, (PARKED_MAX + 1, PARKED_MAX)).await, &[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let mut config = Config::new(here._dir.path());
    config.clock = clock.clone();
    let broker = Broker::new(shards.clone(), &config);
    let hello = Hello {
        profile: Profile { slots: 1, ..Profile::default() },
        queues: vec![("mail".into(), 1)],
        lease_ms: 30_000,
        ..Hello::default()
    };
    let (attached, _) = Attached::open(&broker, hello).await.unwrap();
    let id = enqueue(shards, "mail", None).await.unwrap().id;
    let token = attached.claim(1).await.unwrap()[0].task.token;
    attached.started(&[(id, token)]);

    let hint = || {
        let shards = shards.clone();
        tokio::spawn(async move {
            shards.claimable(home, Sought::of_any_type(vec!["mail".into()]), WAIT).await
        })
    };
    let _parked: Vec<_> = (0..PARKED_MAX).map(|_| hint()).collect();
    let is_hint = |call: &&ShardCall| matches!(call, ShardCall::Claimable { .. });
    there.until(|node| node.calls().iter().filter(is_hint).count() == PARKED_MAX).await;
    assert_eq!(hint().await.unwrap().unwrap_err().code(), "limit_exceeded");

    // Well past the longest silence, and past the lease.
    for _ in 0..10 {
        let told = there.news().len();
        clock.advance(Duration::from_secs(5));
        attached.heard();
        there.until(|node| node.news().len() > told).await;
        let held = vec![(id, token)];
        if let (_, Some(renewed)) = attached.beat(Beat { held, ..Beat::default() }) {
            let orders = renewed.await;
            assert_eq!(orders.lost, []);
        }
        there.shards.status().await.unwrap();
    }
    let view = there.shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap();
    assert_eq!((view.state, view.losses), (TaskStateName::Claimed, 0));
    assert_eq!(view.claim.map(|claim| claim.token), Some(token));
}

/// A worker's session continues at another node after its own is gone. The session keeps the claims
/// that it lists; the others are released.
#[tokio::test]
async fn a_session_is_resumed_on_a_node_that_never_saw_it() {
    let [here, there, _] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    (0..SHARDS).for_each(|shard| here.leads(ShardId(shard), Some(2)));
    let config = Config::new(here._dir.path());
    let [first, second] = [0, 1].map(|_| Broker::new(here.shards.clone(), &config));
    let hello = |resumed, held| Hello {
        resumed,
        held,
        profile: Profile { slots: 5, ..Profile::default() },
        queues: vec![("mail".into(), 1)],
        lease_ms: 30_000,
        ..Hello::default()
    };
    let (attached, _) = Attached::open(&first, hello(None, vec![])).await.unwrap();
    let (session, secret) = (attached.id(), attached.secret().clone());
    for _ in 0..2 {
        enqueue(&here.shards, "mail", None).await.unwrap();
    }
    let handed = attached.claim(5).await.unwrap();
    let [kept, lost] = [0, 1].map(|n| (handed[n].task.id, handed[n].task.token));
    attached.leave();

    let gone = (TaskId { sequence: 999, ..kept.0 }, kept.1);
    let resumed = hello(Some(secret), vec![kept, gone]);
    let (attached, orders) = Attached::open(&second, resumed).await.unwrap();
    assert_eq!((attached.id(), orders.lost), (session, vec![gone]));
    let state = async |task| {
        let view = there.shards.ask(home, ask::Task { task }).await.unwrap().unwrap();
        (view.state, view.attempt)
    };
    assert_eq!(state(kept.0).await, (TaskStateName::Claimed, 1));
    assert_eq!(state(lost.0).await, (TaskStateName::Ready, 0));
    let again = attached.claim(5).await.unwrap();
    assert_eq!(again.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [lost.0]);
    let ack = Ack { task: kept.0, token: kept.1, result: None, follow_ups: vec![] };
    assert!(attached.finish(vec![Ok(Command::Ack(ack))]).await[0].is_ok());
}
