//! What nodes tell each other of sessions, and sessions that go from node to node.

use super::*;

#[tokio::test]
async fn what_is_told_of_sessions_reaches_every_node_in_order() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let session = SessionId(7);
    let told = [
        ShardCall::SessionsAlive(vec![session]),
        ShardCall::SessionNotStarted(session, vec![]),
        ShardCall::SessionCut(session),
        ShardCall::SessionsAlive(vec![session]),
    ];
    here.shards.sessions_alive(vec![session]);
    here.shards.session_not_started(session, vec![]);
    here.shards.session_cut(session);
    here.shards.sessions_alive(vec![session]);
    for node in [&there, &other] {
        let mut changes = node.line.changed.subscribe();
        let all = async {
            while node.calls().len() < told.len() {
                changes.changed().await.unwrap();
            }
        };
        timeout(WAIT, all).await.expect("it is told");
        assert_eq!(node.calls(), told);
    }
}

/// A worker's session goes on at another node when its own is gone: what it lists stays its own, what
/// was handed to it and never arrived goes back.
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
    };
    let (attached, _) = Attached::open(&first, hello(None, vec![])).await.unwrap();
    let session = attached.id();
    for _ in 0..2 {
        enqueue(&here.shards, "mail", None).await.unwrap();
    }
    let handed = attached.claim(5).await.unwrap();
    let [kept, lost] = [0, 1].map(|n| (handed[n].task.id, handed[n].task.token));
    attached.leave();

    let gone = (TaskId { sequence: 999, ..kept.0 }, kept.1);
    let resumed = hello(Some(session), vec![kept, gone]);
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
