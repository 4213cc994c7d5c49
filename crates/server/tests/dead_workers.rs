//! Within seconds, the tasks of a dead worker run on other workers. A task that keeps killing its
//! workers is quarantined. The tests move the clock: the times here are shard time, the waits are
//! real time.

use crate::common;

use crate::common::{
    Broker, eventually,
    http::{get, post},
    queues, task,
    worker::Worker,
};
use std::{collections::HashSet, time::Duration};
use taskyard_proto::v1;

async fn state(broker: &Broker, id: &str) -> v1::Task {
    let request = v1::GetTaskRequest { id: id.into(), without_payload: true };
    broker.grpc().await.get_task(request).await.unwrap().into_inner()
}

/// Moves the clock a second at a time until `done`. Returns the number of seconds.
async fn seconds_until(broker: &Broker, what: &str, mut done: impl AsyncFnMut() -> bool) -> u32 {
    let mut seconds = 0;
    eventually(what, async || {
        if done().await {
            return Some(());
        }
        broker.clock.advance(Duration::from_secs(1));
        seconds += 1;
        None
    })
    .await;
    seconds
}

#[tokio::test]
async fn a_hundred_tasks_of_a_killed_worker_run_elsewhere_without_waiting_for_their_leases() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let tasks: Vec<_> = (0..100).map(|n| task(&format!("q{}", n % 5), "t")).collect();
    let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
    client.enqueue_many(request).await.unwrap();
    let names = ["q0", "q1", "q2", "q3", "q4"];
    let hello = v1::Hello { lease_ms: 3_600_000, ..common::worker::hello(&names, 100) };
    let mut killed = Worker::hello(&broker, hello).await.unwrap();
    killed.credits(100).await;
    let held = killed.tasks(100).await;
    killed.started(&held).await;
    killed.beat(&held).await;
    killed.orders().await;
    // As after kill -9, the socket closes without a goodbye.
    drop(killed);

    let mut other = Worker::open(&broker, &names, 100).await;
    other.credits(100).await;
    // A lease of an hour would not have lapsed by then.
    let seconds = seconds_until(&broker, "a task that runs elsewhere", async || {
        let looked = tokio::time::timeout(Duration::from_millis(20), other.receive()).await;
        looked.is_ok_and(|received| received.map(|()| true).unwrap())
    })
    .await;
    let again = other.tasks(100).await;
    let ids =
        |tasks: &[v1::ClaimedTask]| tasks.iter().map(|t| t.id.clone()).collect::<HashSet<_>>();
    assert_eq!(ids(&again), ids(&held));
    assert!(again.iter().all(|task| task.attempt == 2));
    assert!((5..=20).contains(&seconds), "{seconds} s");
    assert_eq!(state(&broker, &again[0].id).await.losses, 1);
    let workers = client.list_workers(v1::ListWorkersRequest {}).await.unwrap().into_inner();
    let states: Vec<_> = workers.workers.iter().map(|worker| worker.state.as_str()).collect();
    assert!(states.contains(&"running"), "{states:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_task_that_a_killed_worker_had_not_started_counts_no_loss() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let request = v1::EnqueueManyRequest { tasks: vec![task("q", "t"); 4], batch_id: vec![] };
    client.enqueue_many(request).await.unwrap();
    let mut killed = Worker::open(&broker, &["q"], 4).await;
    killed.credits(4).await;
    let tasks = killed.tasks(4).await;
    killed.started(&tasks[..1]).await;
    killed.beat(&tasks).await;
    killed.orders().await;
    drop(killed);
    seconds_until(&broker, "the end of the session", async || {
        let request = v1::QueueRequest { queue: "q".into() };
        client.get_queue(request).await.unwrap().into_inner().claimed == 0
    })
    .await;
    for (n, losses) in [1, 0, 0, 0].into_iter().enumerate() {
        assert_eq!(state(&broker, &tasks[n].id).await.losses, losses, "task {n}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_task_that_kills_three_workers_is_quarantined() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let request = v1::EnqueueRequest { task: Some(task("q", "killer")) };
    let id = client.enqueue(request).await.unwrap().into_inner().id;
    for death in 1..=3 {
        let mut worker = Worker::open(&broker, &["q"], 1).await;
        worker.credits(1).await;
        seconds_until(&broker, "a claim", async || state(&broker, &id).await.state == "claimed")
            .await;
        let tasks = worker.tasks(1).await;
        assert_eq!(tasks[0].attempt, death);
        worker.started(&tasks).await;
        worker.beat(&tasks).await;
        worker.orders().await;
        drop(worker);
        seconds_until(&broker, "the loss", async || state(&broker, &id).await.losses == death)
            .await;
    }
    let dead = state(&broker, &id).await;
    assert_eq!((dead.state.as_str(), dead.death_reason.as_str()), ("dead", "its workers died"));
    assert_eq!(dead.attempts.len(), 3);
    assert!(dead.attempts.iter().all(|attempt| attempt.outcome == "lost"), "{dead:?}");
    let claim = v1::ClaimRequest { queues: queues(&["q"]), ..Default::default() };
    assert_eq!(client.claim(claim).await.unwrap().into_inner().tasks, []);
    broker.stop().await;
}

#[tokio::test]
async fn a_task_that_kills_three_http_workers_is_quarantined() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let id = post(at, "/v1/queues/q/tasks", r#"{"type": "killer"}"#).await.ok();
    let id = id["id"].as_str().unwrap();
    for death in 1..=3 {
        seconds_until(&broker, "a claim", async || {
            let claimed = post(at, "/v1/claims", r#"{"queues": ["q"], "lease_ms": 5000}"#).await;
            claimed.ok()["tasks"].as_array().is_some_and(|tasks| tasks.len() == 1)
        })
        .await;
        // The task killed the worker, which is never heard again.
        seconds_until(&broker, "the loss", async || state(&broker, id).await.losses == death).await;
    }
    let dead = get(at, &format!("/v1/tasks/{id}")).await.ok();
    assert_eq!((&dead["state"], &dead["losses"]), (&"dead".into(), &3.into()), "{dead}");
    broker.stop().await;
}

#[tokio::test]
async fn a_lost_worker_stays_listed_as_lost() {
    let broker = Broker::manual().await;
    let worker = Worker::open(&broker, &["q"], 1).await;
    drop(worker);
    let mut client = broker.grpc().await;
    let seconds = seconds_until(&broker, "the loss of the worker", async || {
        let workers = client.list_workers(v1::ListWorkersRequest {}).await.unwrap().into_inner();
        workers.workers.iter().all(|worker| worker.state == "lost")
    })
    .await;
    assert!(seconds >= 5, "{seconds} s");
    broker.stop().await;
}

#[tokio::test]
async fn a_worker_that_never_reads_loses_its_tasks_to_others() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let large = v1::NewTask { payload: vec![b'1'; 500_000].into(), ..task("q", "t") };
    for _ in 0..20 {
        let request = v1::EnqueueManyRequest { tasks: vec![large.clone(); 4], batch_id: vec![] };
        client.enqueue_many(request).await.unwrap();
    }
    // The worker asks for eighty tasks, more than fit in any buffer, and reads none. The broker
    // claims a few at a time, as far as they fit.
    let hello = v1::Hello { lease_ms: 3_600_000, ..common::worker::hello(&["q"], 80) };
    let deaf = Worker::hello(&broker, hello).await.unwrap();
    deaf.credits(80).await;
    eventually("claims for it", async || {
        let request = v1::QueueRequest { queue: "q".into() };
        (client.get_queue(request).await.unwrap().into_inner().claimed >= 4).then_some(())
    })
    .await;
    let mut other = Worker::open(&broker, &["q"], 80).await;
    other.credits(80).await;
    let started = std::time::Instant::now();
    while other.tasks_received < 80 {
        let looked = tokio::time::timeout(Duration::from_millis(200), other.receive()).await;
        if looked.map(Result::unwrap).is_err() {
            broker.clock.advance(Duration::from_secs(1));
        }
        let took = started.elapsed();
        assert!(took < common::DEADLINE, "{} tasks after {took:?}", other.tasks_received);
    }
    drop(deaf);
    broker.stop().await;
}

/// Silence after a cut connection, in seconds of the real clock.
#[tokio::test]
async fn a_killed_worker_is_noticed_by_the_real_clock_too() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let request = v1::EnqueueRequest { task: Some(task("q", "t")) };
    client.enqueue(request).await.unwrap();
    let mut killed = Worker::open(&broker, &["q"], 1).await;
    killed.credits(1).await;
    let tasks = killed.tasks(1).await;
    killed.started(&tasks).await;
    killed.beat(&tasks).await;
    killed.orders().await;
    drop(killed);
    let started = std::time::Instant::now();
    let claim = v1::ClaimRequest { queues: queues(&["q"]), wait_ms: 20_000, ..Default::default() };
    let again = client.claim(claim).await.unwrap().into_inner().tasks;
    assert_eq!(again[0].id, tasks[0].id);
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(20), "{took:?}");
    broker.stop().await;
}
