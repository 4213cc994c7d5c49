//! Commands: sent on, sent again where that is safe, and answered for what they did.

use super::*;

#[tokio::test]
async fn a_lost_outcome_is_asked_for_again_only_by_an_identity() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    there.bend(&[Bent::Loses]);
    assert_eq!(enqueue(shards, "mail", None).await.unwrap_err(), Error::OutcomeUnknown);
    assert_eq!(count(&there.shards, "mail").await, 1);

    there.bend(&[Bent::Loses]);
    let enqueued = enqueue(shards, "mail", Some("r1")).await.unwrap();
    assert!(enqueued.duplicate, "it was made the first time");
    assert_eq!(count(&there.shards, "mail").await, 2);

    let handed = shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(handed.len(), 2);
    let (task, token) = (handed[0].task.id, handed[0].task.token);
    there.bend(&[Bent::Loses]);
    let ack = Ack { task, token, result: None, follow_ups: vec![] };
    let ack = EncodedCommand::new(&Command::Ack(ack));
    assert!(shards.propose(home, ack, false).await.is_ok(), "the same ack gets the same answer");

    // It may be the first one that has given it back, or the claim was lost before: nobody knows.
    let (task, token) = (handed[1].task.id, handed[1].task.token);
    let release = EncodedCommand::new(&Command::Release(Release { task, token }));
    there.bend(&[Bent::Loses]);
    let released = shards.propose(home, release.clone(), false).await;
    assert_eq!(released, Err(Error::OutcomeUnknown));
    let released = shards.propose(home, release, false).await;
    assert_eq!(released.unwrap_err().code(), "claim_lost");
}

/// The queue's own window may be none at all: what the broker sends again must still be known again.
#[tokio::test]
async fn a_named_enqueue_is_one_task_whatever_its_queue_remembers() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let settings = QueueSettings { dedup_window_ms: Some(0), ..QueueSettings::default() };
    let set = Command::SetQueue(SetQueue { queue: "mail", settings });
    shards.propose(home, EncodedCommand::new(&set), false).await.unwrap();
    there.bend(&[Bent::Loses]);
    assert!(enqueue(shards, "mail", Some("r1")).await.is_ok());
    assert_eq!(count(&there.shards, "mail").await, 1);

    let item = |request_id| Enqueue { queue: "mail", task: task(Some(request_id)) };
    let many = EnqueueMany { batch_id: None, items: vec![item("r2"), item("r3")] };
    let many = EncodedCommand::new(&Command::EnqueueMany(many));
    there.bend(&[Bent::Loses]);
    assert!(shards.propose(home, many, true).await.is_ok());
    assert_eq!(count(&there.shards, "mail").await, 3);
}

#[tokio::test]
async fn a_batch_goes_to_each_leader_once_and_only_what_was_refused_goes_on() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let shards = &here.shards;
    let queues: Vec<String> = (0..SHARDS).map(|n| queue_on(shards, ShardId(n))).collect();
    for (shard, leader) in [(0, 1), (1, 2), (2, 2), (3, 3)] {
        here.leads(ShardId(shard), Some(leader));
    }
    // The leader of shard 1 and 2 has lost them to the third node.
    there.bend(&[Bent::Refuses(Some(3))]);
    let command = |number: usize| {
        let queue = &queues[number % queues.len()];
        let items = vec![Enqueue { queue, task: task(None) }; number + 1];
        let command = Command::EnqueueMany(EnqueueMany { batch_id: None, items });
        (shards.home(queue), EncodedCommand::new(&command))
    };
    let mut commands: Vec<_> = (0..8).map(command).collect();
    commands.push((ShardId(99), commands[0].1.clone()));
    let answers = shards.propose_all(commands, true).await;
    for (number, answer) in answers[..8].iter().enumerate() {
        match answer {
            Ok(Outcome::EnqueuedMany(made)) => assert_eq!(made.len(), number + 1),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers[8].clone().unwrap_err().code(), "not_found");
    let sizes = |node: &TestNode| {
        let mut sizes = Vec::new();
        for call in node.calls() {
            match call {
                ShardCall::Propose { commands, .. } => sizes.push(commands.len()),
                other => panic!("{other:?}"),
            }
        }
        sizes
    };
    assert_eq!(sizes(&there), [4], "one call for both shards");
    assert_eq!(sizes(&other), [2, 2, 2], "its own, and those of each shard that came to it");
    assert_eq!(count(shards, &queues[0]).await, 1 + 5);
    assert_eq!(count(&other.shards, &queues[1]).await, 2 + 6);
}
