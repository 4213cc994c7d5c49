//! Every kind of call finds its leader, and fails clearly when there is none.

use super::*;

#[tokio::test]
async fn whatever_is_asked_is_done_by_the_leader() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let id = enqueue(shards, "mail", None).await.unwrap().id;
    assert_eq!((count(shards, "mail").await, count(&there.shards, "mail").await), (0, 1));

    assert!(shards.claimable(home, Sought::of_any_type(vec!["mail".into()]), WAIT).await.unwrap());
    let handed = shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(Body::decode(&handed[0].body).unwrap().payload, b"letter");
    let bodies = shards.bodies(vec![id, TaskId { sequence: 99, ..id }]).await.unwrap();
    assert_eq!(bodies, [Some(handed[0].body.clone()), None]);
    assert!(!shards.finished(id, Duration::from_millis(1)).await.unwrap());

    let watching = tokio::spawn({
        let shards = shards.clone();
        async move { shards.finished(id, WAIT).await }
    });
    there.until_asked(|call| matches!(call, ShardCall::Finished { wait_ms: 1_000.., .. })).await;
    let ack = Ack { task: id, token: handed[0].task.token, result: None, follow_ups: vec![] };
    let ack = EncodedCommand::new(&Command::Ack(ack));
    shards.propose(home, ack, false).await.unwrap();
    assert!(watching.await.unwrap().unwrap());
    let view = shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap();
    assert_eq!(view.state, TaskStateName::Succeeded);
    // A rejection of the machine arrives unchanged.
    let cancel = EncodedCommand::new(&Command::Cancel(Cancel { task: id }));
    let no = shards.propose(home, cancel, false).await.unwrap_err();
    assert_eq!(no.code(), "already_finished");
    let elsewhere = EncodedCommand::new(&Command::Cancel(Cancel { task: id }));
    assert_eq!(
        shards.propose(ShardId(99), elsewhere, false).await.unwrap_err().code(),
        "not_found"
    );
}

#[tokio::test]
async fn a_stale_route_is_followed_to_the_leader_and_remembered() {
    let [here, stale, leader] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    stale.bend(&[Bent::Refuses(Some(3))]);
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(count(&leader.shards, "mail").await, 1);
    assert_eq!(here.shards.routes().leader(home), Some(3));

    // The leader is unknown: the nodes with a replica are asked.
    here.leads(home, None);
    stale.bend(&[Bent::Refuses(None)]);
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(count(&leader.shards, "mail").await, 2);
    assert_eq!((stale.calls().len(), leader.calls().len()), (2, 2));
}

#[tokio::test]
async fn a_call_waits_for_an_election_and_goes_on_with_its_end() {
    let [here, _there, _] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    let shards = here.shards.clone();
    let waiting = tokio::spawn(async move { enqueue(&shards, "mail", None).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    here.leads(home, Some(2));
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_node_that_is_cut_off_says_so_at_once() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    here.network.set_peers(&std::collections::BTreeMap::new());
    let begun = crate::clock::real_now();
    let error = enqueue(&here.shards, "mail", None).await.unwrap_err();
    assert_eq!(error, Error::NoQuorum { shard: here.shards.home("mail").0 });
    let request = request("mail", None);
    let claimed = here.shards.claim(here.shards.home("mail"), request, WAIT).await;
    assert_eq!(claimed.unwrap_err().code(), "no_quorum");
    assert!(begun.elapsed() < route::PATIENCE);
    assert!(there.calls().is_empty() && other.calls().is_empty());
}

#[tokio::test]
async fn metrics_show_what_this_node_leads_alone() {
    let [here, there, _] = three(&[2, 3]).await;
    here.leads(here.shards.home("mail"), Some(2));
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert!(!here.shards.metrics().await.unwrap().contains("queue=\"mail\""));
    assert!(there.shards.metrics().await.unwrap().contains("queue=\"mail\""));
}
