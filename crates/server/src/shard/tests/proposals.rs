//! Commands: forwarded, repeated where that is safe, and answered truthfully.

use super::*;
use taskyard_machine::limits::DEDUP_WINDOW_MS_MIN;

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

    // The first release may have released it, or the claim was lost before: the outcome is unknown.
    let (task, token) = (handed[1].task.id, handed[1].task.token);
    let release = EncodedCommand::new(&Command::Release(Release { task, token }));
    there.bend(&[Bent::Loses]);
    let released = shards.propose(home, release.clone(), false).await;
    assert_eq!(released, Err(Error::OutcomeUnknown));
    let released = shards.propose(home, release, false).await;
    assert_eq!(released.unwrap_err().code(), "claim_lost");
}

/// Most error codes say that nothing changed, and clients rely on it.
#[tokio::test]
async fn nothing_is_called_undone_that_may_have_been_done_before() {
    let [mut here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (here.shards.clone(), here.shards.home("mail"));
    here.leads(home, Some(2));
    there.bend(&[Bent::IsFull]);
    let error = enqueue(&shards, "mail", Some("r1")).await.unwrap_err();
    assert_eq!(error.code(), "limit_exceeded", "it was sent once, and is surely not there");
    there.bend(&[Bent::Loses, Bent::IsFull]);
    let error = enqueue(&shards, "mail", Some("r1")).await.unwrap_err();
    assert_eq!(error, Error::OutcomeUnknown);
    assert_eq!(count(&there.shards, "mail").await, 1);
    let command = Command::Enqueue(Enqueue { queue: "mail", task: task(Some("r2")) });
    there.bend(&[Bent::Loses, Bent::IsFull]);
    let answers = shards.propose_all(vec![(home, EncodedCommand::new(&command))], true).await;
    assert_eq!(answers, [Err(Error::OutcomeUnknown)]);
    assert_eq!(count(&there.shards, "mail").await, 2);

    // The leader's answer is lost, and then this node leads the shard, and stops.
    let engine = here.engine.take().unwrap();
    tokio::task::spawn_blocking(move || engine.stop()).await.unwrap();
    there.bend(&[Bent::Loses, Bent::Refuses(Some(1))]);
    let error = enqueue(&shards, "mail", Some("r3")).await.unwrap_err();
    assert_eq!(error, Error::OutcomeUnknown);
}

#[tokio::test]
async fn a_task_that_the_lost_command_has_removed_tells_nothing() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
    let set = Command::SetQueue(SetQueue { queue: "mail", settings });
    shards.propose(home, EncodedCommand::new(&set), false).await.unwrap();
    for _ in 0..2 {
        enqueue(shards, "mail", None).await.unwrap();
    }
    let handed = shards.claim(home, request("mail", None), WAIT).await.unwrap();
    let (task, token) = (handed[0].task.id, handed[0].task.token);
    let ack = Command::Ack(Ack { task, token, result: None, follow_ups: vec![] });
    shards.release_later(&handed[1..]);
    let other = handed[1].task.id;
    eventually("the other one waits", async || {
        let view = there.shards.ask(home, ask::Task { task: other }).await.unwrap().unwrap();
        view.state == TaskStateName::Ready
    })
    .await;
    for command in [ack, Command::Cancel(Cancel { task: other })] {
        there.bend(&[Bent::Loses]);
        let command = EncodedCommand::new(&command);
        let answer = shards.propose(home, command.clone(), false).await;
        assert_eq!(answer, Err(Error::OutcomeUnknown));
        let answer = shards.propose(home, command, false).await;
        assert_eq!(answer.unwrap_err().code(), "already_finished", "not by this one");
    }
}

/// The queue's own dedup window may be zero: the broker's repetition must still be recognized.
#[tokio::test]
async fn a_named_enqueue_is_one_task_whatever_its_queue_remembers() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let dedup_window_ms = Some(DEDUP_WINDOW_MS_MIN);
    let settings = QueueSettings { dedup_window_ms, ..QueueSettings::default() };
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
    // The leader of shards 1 and 2 has lost both to the third node.
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

/// Commands that are too large for one call, each with its own payload.
fn large(count: usize) -> Vec<EncodedCommand> {
    let command = |number: usize| {
        let payload = vec![number as u8; 3 << 20];
        let body = Body { payload: &payload, ..Body::default() };
        let task = NewTask { task_type: "test", body, ..NewTask::default() };
        EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }))
    };
    (0..count).map(command).collect()
}

/// The commands that a node was asked for, in order.
fn proposed(node: &TestNode, commands: &[EncodedCommand]) -> Vec<usize> {
    let sent = |call| match call {
        ShardCall::Propose { commands, .. } => commands.into_iter().map(|(_, command)| command),
        _ => panic!("nothing else is asked for"),
    };
    let number = |sent| commands.iter().position(|command| *command == sent).unwrap();
    node.calls().into_iter().flat_map(sent).map(number).collect()
}

/// Later commands may build on the refused one: they would be applied out of order or rejected.
#[tokio::test]
async fn nothing_is_sent_to_a_leader_after_a_refused_command() {
    let [here, there, other] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    there.bend(&[Bent::Serves, Bent::Refuses(Some(3))]);
    let large = large(4);
    let commands = large.iter().map(|command| (home, command.clone())).collect();
    let answers = here.shards.propose_all(commands, true).await;
    assert_eq!(proposed(&there, &large), [0, 1]);
    assert_eq!(proposed(&other, &large), [1, 2, 3], "in order");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[tokio::test]
async fn commands_after_a_refused_part_are_not_sent() {
    let [here, there, _] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    there.bend(&[Bent::Serves, Bent::IsFull]);
    let large = large(4);
    let refused = here.shards.propose_in_turn(home, large.clone(), true).await.unwrap_err();
    assert_eq!(refused, Error::LimitExceeded("full".into()));
    assert_eq!(proposed(&there, &large), [0, 1]);
    let done = here.shards.propose_in_turn(home, large[2..].to_vec(), true).await.unwrap();
    assert!(matches!(done, Outcome::Enqueued(_)), "{done:?}");
    assert_eq!(proposed(&there, &large), [0, 1, 2, 3]);
}

#[tokio::test]
async fn nothing_is_sent_when_the_time_is_over() {
    let [here, there, other] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let commands = large(2).into_iter().map(|command| (home, command)).collect();
    let over = crate::clock::real_now();
    let answers = here.shards.propose_all_routed(&here.network, commands, true, over).await;
    let refused = Err(Error::NoQuorum { shard: home.0 });
    assert_eq!(answers, [refused.clone(), refused]);
    assert!(there.calls().is_empty() && other.calls().is_empty());
}
