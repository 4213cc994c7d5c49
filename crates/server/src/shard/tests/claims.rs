//! Claims: parked at the leader of their shard, and never orphaned.

use super::*;

#[tokio::test]
async fn a_parked_claim_follows_its_shard_to_the_next_leader() {
    let [here, mut first, second] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let shards = here.shards.clone();
    let parked = tokio::spawn(async move { shards.claim(home, request("mail", None), WAIT).await });
    first.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    // A node that stops ends its parked claims, and takes no more.
    let engine = first.engine.take().unwrap();
    tokio::task::spawn_blocking(move || engine.stop()).await.unwrap();
    here.leads(home, Some(3));
    second.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_session_gets_the_tasks_of_a_claim_whose_answer_was_lost() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let id = enqueue(shards, "mail", None).await.unwrap().id;
    there.bend(&[Bent::Loses]);
    let session = Some(SessionId(7));
    let handed = shards.claim(home, request("mail", session), WAIT).await.unwrap();
    assert_eq!(handed.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [id]);
    let view = there.shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap();
    assert_eq!((view.attempt, view.claim.unwrap().token), (1, handed[0].task.token));

    // A claim that got nothing is repeated and goes on waiting.
    there.bend(&[Bent::Loses]);
    let none = shards.claim(home, request("mail", session), Duration::from_millis(300)).await;
    assert!(none.unwrap().is_empty());
}

/// The leader decides a claim, and its answer is delayed. Meanwhile another node seems to lead, the
/// claim is repeated, and its worker has the tasks: the first answer must not take them away.
#[tokio::test]
async fn a_late_answer_gives_nothing_back_that_its_repetition_has_handed_out() {
    let ([here, there, other], line) = three_by_proxy(&[2, 3]).await;
    let (shards, home) = (here.shards.clone(), here.shards.home("mail"));
    here.leads(home, Some(2));
    let id = enqueue(&shards, "mail", None).await.unwrap().id;
    line.set(proxy::Line::HoldsAnswers);
    let claiming = tokio::spawn({
        let request = request("mail", Some(SessionId(7)));
        async move { shards.claim(home, request, WAIT).await }
    });
    let claims = |node: &TestNode| {
        node.calls().iter().filter(|call| matches!(call, ShardCall::Claim { .. })).count()
    };
    there.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    let claim =
        async || there.shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap().claim;
    eventually("it is claimed", async || claim().await.is_some()).await;
    other.bend(&[Bent::Refuses(Some(2))]);
    here.leads(home, Some(3));
    eventually("it is claimed again", async || claims(&there) == 2).await;
    line.set(proxy::Line::Passes);
    let handed = claiming.await.unwrap().unwrap();
    assert_eq!(handed.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [id]);

    // The tasks of the late answer are released, and that is decided before the next look.
    let proposed = |call: &ShardCall| matches!(call, ShardCall::Propose { enqueue: false, .. });
    eventually("the first claim is given back", async || {
        there.calls().iter().chain(&other.calls()).any(proposed)
    })
    .await;
    let nothing = EncodedCommand::new(&Command::ExpireDue);
    there.shards.propose(home, nothing, false).await.unwrap();
    assert_eq!(claim().await.map(|claim| claim.token), Some(handed[0].task.token));
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_claim_behind() {
    let [here, there, _] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let shards = here.shards.clone();
    let parked = tokio::spawn(async move { shards.claim(home, request("mail", None), WAIT).await });
    there.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    parked.abort();
    assert!(parked.await.unwrap_err().is_cancelled());
    enqueue(&here.shards, "mail", None).await.unwrap();
    // Whether or not the first caller received it in the meantime.
    let handed = here.shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(handed.len(), 1);
}

/// One shard of a claim has answered, another has not, and then the caller goes away.
#[tokio::test]
async fn tasks_of_one_shard_are_released_when_the_caller_goes_away() {
    let [here, there, hung] = three(&[2, 3]).await;
    let shards = &here.shards;
    let queues = [ShardId(0), ShardId(1)].map(|shard| queue_on(shards, shard));
    here.leads(ShardId(0), Some(2));
    here.leads(ShardId(1), Some(3));
    let broker = Broker::new(shards.clone(), &Config::new(here._dir.path()));
    let places = broker.places(&queues.each_ref().map(|queue| (queue.clone(), 1))).unwrap();
    let asked = ClaimAsked {
        tasks_max: 100,
        lease_ms: 600_000,
        session: None,
        begun: false,
        worker: "test".into(),
    };
    let id = enqueue(shards, &queues[0], None).await.unwrap().id;
    enqueue(shards, &queues[1], None).await.unwrap();
    let is_claimed = async || {
        let view = there.shards.ask(ShardId(0), ask::Task { task: id }).await.unwrap().unwrap();
        view.state == TaskStateName::Claimed
    };
    let has_left_in_time = async || {
        hung.bend(&[Bent::Serves, Bent::Hangs]);
        let claiming = tokio::spawn({
            let (broker, places, asked) = (broker.clone(), places.clone(), asked.clone());
            async move { broker.claim(&places, &asked, Duration::ZERO).await }
        });
        eventually("one shard has given", &is_claimed).await;
        // Answers come in order: the claim's answer is here before this one.
        enqueue(shards, &queues[0], None).await.unwrap();
        claiming.abort();
        match claiming.await {
            Ok(handed) => {
                // The caller did not go away in time: the other shard was given up before.
                shards.release_later(&handed.unwrap());
                false
            }
            Err(gone) => gone.is_cancelled(),
        }
    };
    loop {
        let left_in_time = has_left_in_time().await;
        eventually("it goes back", async || !is_claimed().await).await;
        if left_in_time {
            break;
        }
    }
}

#[tokio::test]
async fn a_shard_without_a_leader_keeps_no_work_of_others_from_a_claim() {
    let [here, there, _] = three(&[1, 2, 3]).await;
    let shards = &here.shards;
    let [dead, live] = [ShardId(0), ShardId(1)].map(|shard| queue_on(shards, shard));
    here.leads(ShardId(1), Some(2));
    let config = Config::new(here._dir.path());
    let broker = Broker::new(shards.clone(), &config);
    let places = broker.places(&[(dead, 0), (live.clone(), 0)]).unwrap();
    let asked = ClaimAsked {
        tasks_max: 5,
        lease_ms: 30_000,
        session: None,
        begun: false,
        worker: "test".into(),
    };
    enqueue(shards, &live, None).await.unwrap();
    for wait in [Duration::ZERO, WAIT] {
        let handed = broker.claim(&places, &asked, wait).await.unwrap();
        assert_eq!(handed.len(), 1, "what is there is handed out");
        let release =
            |handed: &HandedTask| Release { task: handed.task.id, token: handed.task.token };
        let release = EncodedCommand::new(&Command::Release(release(&handed[0])));
        shards.propose(ShardId(1), release, false).await.unwrap();
    }
    let handed = broker.claim(&places, &asked, Duration::ZERO).await.unwrap();
    let parked = tokio::spawn({
        let (broker, places, asked) = (broker.clone(), places.clone(), asked.clone());
        async move { broker.claim(&places, &asked, WAIT).await }
    });
    there.until_asked(|call| matches!(call, ShardCall::Claimable { .. })).await;
    enqueue(shards, &live, None).await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().len(), 1, "what comes is handed out");
    drop(handed);
}

/// A claim over queues that two other nodes lead, two shards each.
async fn over_two_nodes() -> ([TestNode; 3], Broker, [String; 4]) {
    let nodes = three(&[2, 3]).await;
    let shards = nodes[0].shards.clone();
    let queues = [0, 1, 2, 3].map(|shard| queue_on(&shards, ShardId(shard)));
    for (shard, node) in [(0, 2), (1, 3), (2, 2), (3, 3)] {
        nodes[0].leads(ShardId(shard), Some(node));
    }
    let broker = Broker::new(shards, &Config::new(nodes[0]._dir.path()));
    (nodes, broker, queues)
}

fn parked(broker: &Broker, queues: &[String; 4]) -> tokio::task::JoinHandle<Vec<HandedTask>> {
    let broker = broker.clone();
    let places = broker.places(&queues.each_ref().map(|queue| (queue.clone(), 0))).unwrap();
    let asked = ClaimAsked {
        tasks_max: 5,
        lease_ms: 30_000,
        session: None,
        begun: false,
        worker: "test".into(),
    };
    tokio::spawn(async move { broker.claim(&places, &asked, WAIT).await.unwrap() })
}

fn hints(node: &TestNode) -> usize {
    node.calls().iter().filter(|call| matches!(call, ShardCall::Claimable { .. })).count()
}

#[tokio::test]
async fn a_claim_over_many_shards_asks_each_node_once_and_then_waits() {
    let ([_here, first, second], broker, queues) = over_two_nodes().await;
    let claim = parked(&broker, &queues);
    for node in [&first, &second] {
        // A question about now, then a wait.
        node.until(|node| hints(node) == 2).await;
    }
    enqueue(broker.shards(), &queues[2], None).await.unwrap();
    assert_eq!(claim.await.unwrap().len(), 1);
    let asked = |node: &TestNode| node.calls().len();
    assert_eq!((asked(&first), asked(&second)), (4, 2), "one enqueue and one claim beside them");
}

#[tokio::test]
async fn of_many_claims_that_wait_few_are_woken_by_one_task() {
    let ([_here, first, second], broker, queues) = over_two_nodes().await;
    let mut claims: Vec<_> = (0..50).map(|_| parked(&broker, &queues)).collect();
    for node in [&first, &second] {
        node.until(|node| hints(node) == 100).await;
    }
    enqueue(broker.shards(), &queues[0], None).await.unwrap();
    let (handed, _, rest) = futures_util::future::select_all(claims.drain(..)).await;
    assert_eq!(handed.unwrap().len(), 1);
    let claimed = |call: &&ShardCall| matches!(call, ShardCall::Claim { .. });
    let tried = first.calls().iter().filter(claimed).count();
    // One claim, and one more if the first took so long that another was woken.
    assert!(tried <= 5, "{tried} have tried to claim one task");
    assert!(hints(&second) <= 100 + tried, "nobody asks again who was told nothing");
    rest.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Node 2 leads two of the shards, and answers neither claim before it has both.
#[tokio::test]
async fn a_claim_with_room_for_all_waits_for_no_shard_before_it_asks_the_next() {
    let ([_here, first, _second], broker, queues) = over_two_nodes().await;
    for queue in &queues {
        enqueue(broker.shards(), queue, None).await.unwrap();
    }
    // The first call is the probe.
    first.bend(&[Bent::Serves, Bent::Meets, Bent::Meets]);
    let handed = parked(&broker, &queues).await.unwrap();
    let mut from: Vec<u16> = handed.iter().map(|handed| handed.task.id.home.0).collect();
    from.sort_unstable();
    assert_eq!(from, [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_claim_takes_no_more_than_it_has_room_for_and_in_order() {
    let (_nodes, broker, queues) = over_two_nodes().await;
    for queue in queues.iter().rev() {
        for _ in 0..3 {
            enqueue(broker.shards(), queue, None).await.unwrap();
        }
    }
    let places = broker.places(&queues.each_ref().map(|queue| (queue.clone(), 0))).unwrap();
    for (tasks_max, wanted) in [(4, vec![0, 0, 0, 1]), (8, vec![1, 1, 2, 2, 2, 3, 3, 3])] {
        let asked = ClaimAsked {
            tasks_max,
            lease_ms: 30_000,
            session: None,
            begun: false,
            worker: "w".into(),
        };
        let handed = broker.claim(&places, &asked, WAIT).await.unwrap();
        let mut from: Vec<u16> = handed.iter().map(|handed| handed.task.id.home.0).collect();
        from.sort_unstable();
        assert_eq!(from, wanted);
    }
}

/// Node 2 was deposed and does not know it yet: it has no task, and node 3 has one.
#[tokio::test]
async fn that_there_is_nothing_to_claim_is_said_by_a_confirmed_leader_alone() {
    let [here, deposed, leader] = three(&[2, 3]).await;
    here.leads(here.shards.home("mail"), Some(2));
    let id = enqueue(&leader.shards, "mail", None).await.unwrap().id;
    // Node 2 finds nothing. When it has to confirm that it leads, it learns that node 3 does.
    deposed.bend(&[Bent::Serves, Bent::Refuses(Some(3))]);
    let broker = Broker::new(here.shards.clone(), &Config::new(here._dir.path()));
    let places = broker.places(&[("mail".into(), 0)]).unwrap();
    let asked = ClaimAsked {
        tasks_max: 5,
        lease_ms: 30_000,
        session: None,
        begun: false,
        worker: "test".into(),
    };
    let handed = broker.claim(&places, &asked, Duration::ZERO).await.unwrap();
    assert_eq!(handed.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [id]);
    let handed = broker.claim(&places, &asked, Duration::ZERO).await.unwrap();
    assert!(handed.is_empty(), "now there is nothing");
}
