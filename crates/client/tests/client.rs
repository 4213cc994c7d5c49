//! Calls of producers and operators, against the real broker.

use std::{collections::HashSet, time::Duration};
use taskyard::{
    Client, Error, Fail, NewTask, QueueSettings, RetryPolicy, TaskState, Timestamp,
    testing::TestBroker,
};

/// Longer than any wait of these tests, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

async fn broker() -> TestBroker {
    TestBroker::start().await.unwrap()
}

/// Fills a queue with numbered tasks.
async fn fill(client: &Client, queue: &str, count: usize) {
    let tasks = (0..count).map(|number| NewTask::new("count", &number).tag("numbered"));
    client.batch(queue).extend(tasks).send().await.unwrap();
}

#[tokio::test]
async fn concurrent_enqueues_each_make_one_task() {
    let broker = broker().await;
    let client = broker.client();
    let mut enqueues = tokio::task::JoinSet::new();
    for number in 0..2_000 {
        let client = client.clone();
        enqueues.spawn(async move { client.task("count", &number).await.unwrap().id().clone() });
    }
    let ids: HashSet<_> = enqueues.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 2_000);
    let details = client.queue("default").details().await.unwrap();
    assert_eq!((details.ready, details.enqueued_total), (2_000, 2_000));
}

#[tokio::test]
async fn options_reach_the_broker() {
    let broker = broker().await;
    let client = broker.client();
    let hour = Duration::from_secs(3_600);
    let expires_at = Timestamp::from_millis(broker.now().as_millis() + 7_200_000);
    let task = client
        .task("send_mail", &"ada")
        .queue("mail")
        .priority(9)
        .delay(hour)
        .expires_at(expires_at)
        .retry(RetryPolicy::never())
        .timeout(Duration::from_secs(5))
        .tag("new")
        .header("trace", "abc")
        .await
        .unwrap();
    let details = client.get(task.id()).await.unwrap();
    assert_eq!((details.queue.as_str(), details.kind.as_str()), ("mail", "send_mail"));
    assert_eq!((details.state, details.priority), (TaskState::Scheduled, 9));
    assert_eq!(details.run_at.unwrap().since(broker.now()), hour);
    assert_eq!((details.expires_at, details.max_attempts), (Some(expires_at), 1));
    assert_eq!(details.timeout, Some(Duration::from_secs(5)));
    assert_eq!((details.tags, details.headers["trace"].as_str()), (vec!["new".into()], "abc"));
}

#[tokio::test]
async fn a_delayed_task_is_not_ready_before_its_time() {
    let broker = broker().await;
    let client = broker.client();
    let task = client.task("later", &()).delay(Duration::from_secs(60)).await.unwrap();
    broker.advance(Duration::from_millis(59_999)).await.unwrap();
    assert_eq!(client.get(task.id()).await.unwrap().state, TaskState::Scheduled);
    broker.advance(Duration::from_millis(1)).await.unwrap();
    assert_eq!(client.get(task.id()).await.unwrap().state, TaskState::Ready);
}

#[tokio::test]
async fn a_known_request_id_returns_the_same_task() {
    let broker = broker().await;
    let client = broker.client();
    let first = client.task("pay", &1).request_id("order-1").await.unwrap();
    let again = client.task("pay", &1).request_id("order-1").await.unwrap();
    let other = client.task("pay", &1).request_id("order-2").await.unwrap();
    assert_eq!((first.id(), first.is_duplicate()), (again.id(), false));
    assert!(again.is_duplicate());
    assert_ne!(first.id(), other.id());
    assert_eq!(client.queue("default").details().await.unwrap().ready, 2);
}

#[tokio::test]
async fn a_batch_is_enqueued_whole_or_not_at_all() {
    let broker = broker().await;
    let client = broker.client();
    let good = client.batch("mail").push(NewTask::new("a", &1)).push(NewTask::new("b", &2));
    assert_eq!(good.len(), 2);
    let tasks = good.send().await.unwrap();
    assert_eq!(client.get(tasks[1].id()).await.unwrap().kind, "b");
    let bad =
        client.batch("mail").push(NewTask::new("a", &1)).push(NewTask::new("b", &2).priority(12));
    let error = bad.send().await.unwrap_err();
    assert_eq!(error.code(), "invalid_argument");
    assert!(error.to_string().contains("task 1"), "{error}");
    assert_eq!(client.queue("mail").details().await.unwrap().ready, 2);
}

#[tokio::test]
async fn refusals_carry_their_code() {
    let broker = broker().await;
    let client = broker.client();
    let code = |result: Result<_, Error>| result.map(|_: ()| ()).unwrap_err().code().to_string();
    let enqueue = |task: NewTask| async { client.enqueue_new(task).await.map(drop) };
    assert_eq!(code(enqueue(NewTask::new("a", &1).queue("no/slash")).await), "invalid_argument");
    assert_eq!(code(enqueue(NewTask::new("a", &1).priority(10)).await), "invalid_argument");
    let large = NewTask::raw("a", vec![b'1'; 2 << 20]);
    assert_eq!(code(enqueue(large).await), "payload_too_large");
    assert_eq!(code(client.get("unknown").await.map(drop)), "invalid_argument");
    assert_eq!(code(client.queue("none").details().await.map(drop)), "not_found");
    let small = QueueSettings { max_length: Some(1), ..QueueSettings::default() };
    client.queue("small").set(small).await.unwrap();
    enqueue(NewTask::new("a", &1).queue("small")).await.unwrap();
    assert_eq!(code(enqueue(NewTask::new("a", &2).queue("small")).await), "queue_full");
}

#[tokio::test]
async fn lists_go_on_page_by_page() {
    let broker = broker().await;
    let client = broker.client();
    fill(&client, "a", 25).await;
    fill(&client, "b", 5).await;
    let all = client.tasks().page_size(7).collect(1_000).await.unwrap();
    let ids: HashSet<_> = all.iter().map(|task| task.id.clone()).collect();
    assert_eq!((all.len(), ids.len()), (30, 30));
    assert_eq!(client.tasks().queue("b").collect(1_000).await.unwrap().len(), 5);
    assert_eq!(client.tasks().tag("numbered").collect(12).await.unwrap().len(), 12);
    assert_eq!(client.tasks().state(TaskState::Dead).collect(10).await.unwrap().len(), 0);
    let mut first = client.tasks().queue("a").page_size(10);
    let page = first.page().await.unwrap().unwrap();
    assert!(page.iter().all(|task| task.payload.is_none()));
    let mut rest = client.tasks().queue("a").with_payload().after(first.cursor().unwrap());
    let mut seen: HashSet<_> = page.into_iter().map(|task| task.id).collect();
    while let Some(task) = rest.next().await.unwrap() {
        task.payload_as::<usize>().unwrap();
        assert!(seen.insert(task.id));
    }
    assert_eq!(seen.len(), 25);
}

#[tokio::test]
async fn a_paused_queue_hands_out_nothing() {
    let broker = broker().await;
    let client = broker.client();
    let queue = client.queue("mail");
    fill(&client, "mail", 1).await;
    queue.pause().await.unwrap();
    assert!(queue.details().await.unwrap().paused);
    assert_eq!(client.claim(["mail"]).await.unwrap().len(), 0);
    queue.resume().await.unwrap();
    assert_eq!(client.claim(["mail"]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn settings_are_replaced_whole() {
    let broker = broker().await;
    let queue = broker.client().queue("mail");
    let settings = QueueSettings {
        max_length: Some(10),
        retry: Some(RetryPolicy::fixed(Duration::from_secs(5)).max_attempts(2)),
        timeout_ms: Some(9_000),
        ..QueueSettings::default()
    };
    queue.set(settings.clone()).await.unwrap();
    let set = queue.settings().await.unwrap();
    assert_eq!((set.max_length, set.timeout_ms), (Some(10), Some(9_000)));
    assert_eq!(set.retry.unwrap().max_attempts, Some(2));
    queue.set(QueueSettings::default()).await.unwrap();
    assert_eq!(queue.settings().await.unwrap().max_length, None);
}

#[tokio::test]
async fn a_purge_removes_waiting_tasks_and_counts_them() {
    let broker = broker().await;
    let client = broker.client();
    fill(&client, "mail", 2_500).await;
    fill(&client, "other", 1).await;
    let mut purge = client.queue("mail").purge();
    let mut last = None;
    while let Some(progress) = purge.next().await.unwrap() {
        last = Some(progress);
    }
    let last = last.unwrap();
    assert_eq!((last.changed, last.done), (2_500, true));
    assert_eq!(client.queue("mail").details().await.unwrap().ready, 0);
    assert_eq!(client.queue("other").details().await.unwrap().ready, 1);
}

#[tokio::test]
async fn dead_letters_are_listed_retried_and_discarded() {
    let broker = broker().await;
    let client = broker.client();
    fill(&client, "mail", 3).await;
    for task in client.claim(["mail"]).max(10).await.unwrap() {
        let number: u32 = task.payload_as().unwrap();
        let fail = Fail::permanent(format!("error {number}"));
        assert_eq!(task.fail(fail).await.unwrap(), TaskState::Dead);
    }
    let dead = client.dead().queue("mail").list().collect(10).await.unwrap();
    assert_eq!(dead.len(), 3);
    let retried = client.dead().error("error 1").retry().await.unwrap();
    assert_eq!((retried.changed, retried.done), (1, true));
    assert_eq!(client.queue("mail").details().await.unwrap().ready, 1);
    let left = client.dead().list().collect(10).await.unwrap();
    let discarded = client.dead().ids([&left[0].id]).discard().await.unwrap();
    assert_eq!(discarded.changed, 1);
    assert!(client.get(&left[0].id).await.unwrap_err().is_not_found());
    assert_eq!(client.dead().discard().await.unwrap().changed, 1);
    assert_eq!(client.queue("mail").details().await.unwrap().dead, 0);
}

#[tokio::test]
async fn a_dead_letter_can_be_retried_with_another_payload() {
    let broker = broker().await;
    let client = broker.client();
    let task = client.task("parse", &"{").await.unwrap();
    client.claim(["default"]).await.unwrap()[0].fail(Fail::permanent("bad")).await.unwrap();
    let state = client.retry_edited(task.id(), Some("\"{}\"")).await.unwrap();
    assert_eq!(state, TaskState::Ready);
    let claimed = client.claim(["default"]).await.unwrap();
    assert_eq!(claimed[0].payload_as::<String>().unwrap(), "{}");
}

#[tokio::test]
async fn a_claim_without_a_worker_lives_by_its_lease() {
    let broker = broker().await;
    let client = broker.client();
    let task = client.task("add", &[1, 2]).await.unwrap();
    let lease = Duration::from_secs(10);
    let claim = || client.claim(["default"]).lease(lease).worker("me");
    let first = claim().await.unwrap().remove(0);
    assert_eq!(first.lease_expires_at().since(broker.now()), lease);
    broker.advance(Duration::from_secs(9)).await.unwrap();
    assert!(!first.extend(lease).await.unwrap());
    broker.advance(Duration::from_secs(10)).await.unwrap();
    let second = loop {
        if let Some(task) = claim().wait(Duration::from_secs(5)).await.unwrap().pop() {
            break task;
        }
    };
    assert!(second.claim_token() > first.claim_token());
    assert_eq!(first.ack(3).await.unwrap_err().code(), "claim_lost");
    second.ack(3).await.unwrap();
    // A repeated ack gets the same answer.
    second.ack(3).await.unwrap();
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 3);
}

#[tokio::test]
async fn a_claim_can_be_released_snoozed_or_acked_with_a_follow_up() {
    let broker = broker().await;
    let client = broker.client();
    let task = client.task("a", &1).await.unwrap();
    let claim = async || client.claim(["default"]).await.unwrap().remove(0);
    claim().await.release().await.unwrap();
    assert_eq!(client.get(task.id()).await.unwrap().state, TaskState::Ready);
    let nap = taskyard::Snooze::after(Duration::from_secs(60));
    let wakes_at = claim().await.snooze(nap).await.unwrap();
    assert_eq!(wakes_at.since(broker.now()), Duration::from_secs(60));
    broker.advance(Duration::from_secs(60)).await.unwrap();
    let follow_ups = [NewTask::new("b", &2)];
    let ids = claim().await.ack_with((), follow_ups).await.unwrap();
    assert_eq!(client.get(&ids[0]).await.unwrap().kind, "b");
    client.result::<()>(task.id()).within(PATIENCE).await.unwrap();
    // The follow-up is cancelled while it is claimed, so that the snooze ends it.
    let held = claim().await;
    assert_eq!(client.cancel(held.id()).await.unwrap(), TaskState::Claimed);
    assert_eq!(held.fail(nap).await.unwrap(), TaskState::Cancelled);
}

#[tokio::test]
async fn a_result_that_never_comes_is_not_waited_for_longer_than_asked() {
    let broker = broker().await;
    let client = broker.client();
    let waiting = client.task("nobody", &()).await.unwrap();
    let error = waiting.result().within(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, Error::NotFinished { state: TaskState::Ready, .. }), "{error:?}");
    assert_eq!(client.cancel(waiting.id()).await.unwrap(), TaskState::Cancelled);
    let error = waiting.result().within(PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::NotSucceeded { state: TaskState::Cancelled, .. }), "{error:?}");
}

#[tokio::test]
async fn the_broker_tells_about_itself() {
    let broker = broker().await;
    let client = broker.client();
    let info = client.info().await.unwrap();
    assert_eq!(info.shards, 4);
    assert_eq!(info.now, broker.now());
}

#[tokio::test]
async fn a_backup_comes_whole() {
    let broker = broker().await;
    let client = broker.client();
    fill(&client, "mail", 10).await;
    let mut backup = client.backup().await.unwrap();
    let (mut bytes, mut done) = (0, (0, 0));
    while let Some(chunk) = backup.next().await.unwrap() {
        bytes += chunk.data.len();
        done = (chunk.shards_done, chunk.shards);
    }
    assert!(bytes > 0);
    assert_eq!(done, (4, 4));
}
