//! Claims: handed out, parked without cost, woken by events, never lost.

use crate::engine;

use crate::engine::{Bench, config, request, start, waits};
use std::time::Duration;
use taskyard_machine::{Body, Command, EncodedCommand, Enqueue, NewTask, TaskStateName};
use taskyard_server::shard::Sought;

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_task_is_enqueued_claimed_and_acked() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let id = bench.enqueue("mail", b"hello").await;
    let claimed = bench.claim("mail", 10, LONG).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].task.id, id);
    assert_eq!(Body::decode(&claimed[0].body).unwrap().payload, b"hello");
    bench.ack(id, claimed[0].task.token).await.unwrap();
    assert_eq!(bench.task(id).await.unwrap().state, TaskStateName::Succeeded);
    engine.stop();
}

#[tokio::test]
async fn a_parked_claim_is_woken_by_an_enqueue() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let parked = bench.claim("mail", 1, LONG);
    let enqueued = async {
        tokio::task::yield_now().await;
        bench.enqueue("mail", b"x").await
    };
    let (claimed, id) = tokio::join!(parked, enqueued);
    assert_eq!(claimed[0].task.id, id);
}

#[tokio::test]
async fn a_claim_that_does_not_wait_returns_empty_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    assert!(bench.claim("mail", 1, Duration::ZERO).await.is_empty());
    assert!(bench.claim("mail", 1, Duration::from_millis(20)).await.is_empty());
    let status = bench.0.status().await.unwrap();
    let home = bench.0.home("mail");
    let shard = status[usize::from(home.0)];
    bench.claim("mail", 1, Duration::ZERO).await;
    let after = bench.0.status().await.unwrap()[usize::from(home.0)];
    assert_eq!(shard.persisted, after.persisted, "empty claims never enter the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_parked_claims_are_served_in_the_order_in_which_they_came() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let shards = engine.shards();
    let home = shards.home("mail");
    let mut parked = Vec::new();
    for _ in 0..10_000 {
        let shards = shards.clone();
        parked.push(Box::pin(async move {
            shards.claim(home, request("mail", 1), Duration::from_secs(60)).await.unwrap()
        }));
    }
    // After one poll, each claim is parked.
    for claim in &mut parked {
        assert!(waits(claim).await);
    }
    let bench = Bench(shards.clone());
    let before = shards.status().await.unwrap()[usize::from(home.0)].persisted;
    let ids = bench.enqueue_many("mail", 3, b"x").await;
    for (claim, id) in parked.drain(..3).zip(&ids) {
        assert_eq!(claim.await[0].task.id, *id);
    }
    let after = shards.status().await.unwrap()[usize::from(home.0)].persisted;
    assert!(after - before <= 4, "one entry to enqueue, one to claim: {}", after - before);
    // The other callers leave, so the new task must go to a caller who still waits.
    drop(parked);
    let id = bench.enqueue("mail", b"x").await;
    assert_eq!(bench.claim("mail", 1, LONG).await[0].task.id, id);
}

#[tokio::test]
async fn a_task_that_was_handed_to_a_caller_who_left_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let home = bench.0.home("mail");
    let mut leaving = Box::pin(bench.0.claim(home, request("mail", 1), LONG));
    assert!(waits(&mut leaving).await);
    let id = bench.enqueue("mail", b"x").await;
    // The claim has its answer, but the caller has not read the answer.
    engine::eventually("the task is claimed", async || {
        bench.task(id).await.unwrap().state == TaskStateName::Claimed
    })
    .await;
    drop(leaving);
    let claimed = bench.claim("mail", 1, LONG).await;
    assert_eq!(claimed[0].task.id, id);
    let attempts = bench.task(id).await.unwrap();
    assert_eq!(attempts.losses, 0);
}

#[tokio::test]
async fn hints_report_tasks_and_claim_none() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let home = bench.0.home("mail");
    let hint = || bench.0.claimable(home, Sought::of_any_type(vec!["mail".into()]), LONG);
    let mut first = Box::pin(hint());
    let mut second = Box::pin(hint());
    assert!(waits(&mut first).await);
    assert!(waits(&mut second).await);
    bench.enqueue("mail", b"x").await;
    assert!(first.await.unwrap());
    // The first hint leads to no claim, so the second hint comes next.
    assert!(second.await.unwrap());
    assert_eq!(bench.claim("mail", 1, Duration::ZERO).await.len(), 1);
    assert!(
        !bench
            .0
            .claimable(home, Sought::of_any_type(vec!["mail".into()]), Duration::from_millis(1))
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_watch_reports_the_end_of_its_task() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let id = bench.enqueue("mail", b"x").await;
    assert!(!bench.0.finished(id, Duration::from_millis(1)).await.unwrap());
    let claimed = bench.claim("mail", 1, LONG).await;
    let (finished, acked) =
        tokio::join!(bench.0.finished(id, LONG), bench.ack(id, claimed[0].task.token));
    acked.unwrap();
    assert!(finished.unwrap());
    assert!(bench.0.finished(id, LONG).await.unwrap(), "already ended");
}

/// A claim on two queues is promised a task of one queue and takes a task of the other queue. The
/// promised task goes to the next claim.
#[tokio::test]
async fn a_promised_task_that_is_not_taken_goes_to_the_next_claim() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let bench = Bench(engine.shards());
    let home = bench.0.home("a");
    // This name sorts before the other queue, so the shard serves its claims first.
    let same = (0..).map(|n| format!("A{n}")).find(|name| bench.0.home(name) == home).unwrap();
    let mut both = request("a", 1);
    both.queues.push((same.clone(), 1));
    for _ in 0..50 {
        let mut first = Box::pin(bench.0.claim(home, both.clone(), LONG));
        assert!(waits(&mut first).await);
        let mut second = Box::pin(bench.claim(&same, 1, LONG));
        assert!(waits(&mut second).await);
        // Both tasks come in one entry, so that both queues wake at the same time.
        let one = |queue: &str| {
            let task = NewTask { task_type: "t", ..NewTask::default() };
            (home, EncodedCommand::new(&Command::Enqueue(Enqueue { queue, task })))
        };
        bench.0.propose_all(vec![one(&same), one("a")], true).await;
        assert_eq!(first.await.unwrap()[0].task.queue.as_str(), "a");
        assert_eq!(second.await[0].task.queue.as_str(), same);
    }
}
