//! One live claim per task: an answer of a stale worker changes nothing, and the worker learns it.

use crate::common;

use crate::common::{Broker, DEADLINE, cluster, code, eventually, http, queues, task};
use std::{collections::HashSet, time::Duration};
use taskyard_machine::limits::CLAIM_BYTES_MAX;
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::{Code, transport::Channel};

type Client = TaskyardClient<Channel>;

async fn enqueue(client: &mut Client, task: v1::NewTask) -> String {
    let request = v1::EnqueueRequest { task: Some(task) };
    client.enqueue(request).await.unwrap().into_inner().id
}

async fn claim(
    client: &mut Client,
    names: &[&str],
    max: u32,
    wait_ms: u64,
) -> Vec<v1::ClaimedTask> {
    let request = v1::ClaimRequest {
        queues: queues(names),
        max,
        wait_ms,
        worker: "w".into(),
        lease_ms: 0,
        types: vec![],
    };
    let reply = timeout(DEADLINE, client.claim(request)).await.expect("an answer in time");
    reply.unwrap().into_inner().tasks
}

fn ack(task: &v1::ClaimedTask) -> v1::AckRequest {
    let result = Some("1".into());
    v1::AckRequest { id: task.id.clone(), claim_token: task.claim_token, result, enqueue: vec![] }
}

fn fail(task: &v1::ClaimedTask) -> v1::FailRequest {
    v1::FailRequest { id: task.id.clone(), claim_token: task.claim_token, ..Default::default() }
}

async fn state(client: &mut Client, id: &str) -> v1::Task {
    let request = v1::GetTaskRequest { id: id.into(), without_payload: true };
    client.get_task(request).await.unwrap().into_inner()
}

/// Moves the clock past the lease, and waits until the claim has ended.
async fn lapse(broker: &Broker, client: &mut Client, id: &str) {
    broker.clock.advance(Duration::from_secs(31));
    eventually("the end of the claim", async || {
        (state(client, id).await.state != "claimed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_ack_with_an_old_token_is_refused() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, task("q", "t")).await;
    let first = claim(&mut client, &["q"], 1, 0).await.remove(0);
    lapse(&broker, &mut client, &id).await;
    let second = claim(&mut client, &["q"], 1, 30_000).await.remove(0);
    assert_eq!(second.id, first.id);
    assert!(second.claim_token > first.claim_token);
    let status = client.ack(ack(&first)).await.unwrap_err();
    assert_eq!((status.code(), code(&status)), (Code::FailedPrecondition, "claim_lost"));
    assert_eq!(state(&mut client, &id).await.state, "claimed", "nothing changed");
    client.ack(ack(&second)).await.unwrap();
    broker.stop().await;
}

#[tokio::test]
async fn an_ack_that_is_repeated_gets_the_same_answer() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    enqueue(&mut client, task("q", "t")).await;
    let claimed = claim(&mut client, &["q"], 1, 0).await.remove(0);
    let request = v1::AckRequest { enqueue: vec![task("next", "u")], ..ack(&claimed) };
    let first = client.ack(request.clone()).await.unwrap().into_inner();
    let again = client.ack(request).await.unwrap().into_inner();
    assert_eq!(first, again);
    assert_eq!(first.enqueued.len(), 1);
    let queue = v1::QueueRequest { queue: "next".into() };
    eventually("the follow-up", async || {
        let queue = client.get_queue(queue.clone()).await.ok()?.into_inner();
        assert!(queue.enqueued_total <= 1, "the follow-up was enqueued once");
        (queue.ready == 1).then_some(())
    })
    .await;
    let status = client.fail(fail(&claimed)).await.unwrap_err();
    assert_eq!(code(&status), "already_finished");
    broker.stop().await;
}

#[tokio::test]
async fn a_fail_after_expiry_changes_nothing() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, task("q", "t")).await;
    let claimed = claim(&mut client, &["q"], 1, 0).await.remove(0);
    lapse(&broker, &mut client, &id).await;
    let before = state(&mut client, &id).await;
    let status = client.fail(fail(&claimed)).await.unwrap_err();
    assert_eq!(code(&status), "claim_lost");
    assert_eq!(state(&mut client, &id).await, before);
    broker.stop().await;
}

#[tokio::test]
async fn an_extend_after_a_cancel_reports_it_and_the_task_ends_when_the_worker_yields() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, task("q", "t")).await;
    let claimed = claim(&mut client, &["q"], 1, 0).await.remove(0);
    let cancelled = client.cancel(v1::CancelRequest { id: id.clone() }).await.unwrap().into_inner();
    assert_eq!(cancelled.state, "claimed");
    let token = claimed.claim_token;
    let extend = v1::ExtendRequest { id: id.clone(), claim_token: token, ..Default::default() };
    let extended = client.extend(extend.clone()).await.unwrap().into_inner();
    assert!(extended.cancel_requested);
    let release = v1::ReleaseRequest { id: id.clone(), claim_token: token };
    assert_eq!(client.release(release).await.unwrap().into_inner().state, "cancelled");
    let status = client.extend(extend).await.unwrap_err();
    assert_eq!(code(&status), "already_finished", "{status:?}");
    broker.stop().await;
}

#[tokio::test]
async fn two_workers_race_and_one_gets_it() {
    let broker = Broker::start().await;
    let mut producer = broker.grpc().await;
    for round in 0..20 {
        let queue = format!("q{}", round % 3);
        let (mut one, mut other) = (broker.grpc().await, broker.grpc().await);
        let names = [queue.as_str()];
        // In half of the rounds the claims are parked before the task exists.
        let wait_ms = if round % 2 == 0 { 0 } else { 300 };
        let (first, second, id) = if wait_ms == 0 {
            let id = enqueue(&mut producer, task(&queue, "t")).await;
            let (first, second) =
                tokio::join!(claim(&mut one, &names, 1, 0), claim(&mut other, &names, 1, 0));
            (first, second, id)
        } else {
            tokio::join!(
                claim(&mut one, &names, 1, wait_ms),
                claim(&mut other, &names, 1, wait_ms),
                enqueue(&mut producer, task(&queue, "t")),
            )
        };
        let claimed: Vec<_> = first.into_iter().chain(second).collect();
        assert_eq!(claimed.len(), 1, "round {round}");
        assert_eq!(claimed[0].id, id);
        producer.ack(ack(&claimed[0])).await.unwrap();
    }
    broker.stop().await;
}

#[tokio::test]
async fn many_workers_claim_each_task_once() {
    let broker = Broker::start().await;
    let mut producer = broker.grpc().await;
    let tasks: Vec<_> = (0..500).map(|n| task(&format!("q{}", n % 7), "t")).collect();
    let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
    producer.enqueue_many(request).await.unwrap();
    let workers = (0..8).map(|_| {
        let broker = &broker;
        async move {
            let mut client = broker.grpc().await;
            let mut ids = Vec::new();
            loop {
                let names: Vec<_> = (0..7).map(|n| format!("q{n}")).collect();
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                let tasks = claim(&mut client, &names, 10, 0).await;
                if tasks.is_empty() {
                    return ids;
                }
                ids.extend(tasks.into_iter().map(|task| task.id));
            }
        }
    });
    let claimed = futures_util::future::join_all(workers).await.concat();
    assert_eq!(claimed.len(), 500);
    assert_eq!(claimed.iter().collect::<HashSet<_>>().len(), 500, "no task twice");
    broker.stop().await;
}

#[tokio::test]
async fn queues_of_several_shards_are_looked_at_in_strict_order() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let mut client = broker.grpc().await;
    let names: Vec<_> = (0..12).map(|n| format!("queue-{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for name in names.iter().rev() {
        for _ in 0..2 {
            enqueue(&mut client, task(name, "t")).await;
        }
    }
    let claimed = claim(&mut client, &names, 7, 0).await;
    let order: Vec<_> = claimed.iter().map(|task| task.queue.as_str()).collect();
    let expected = ["queue-0", "queue-0", "queue-1", "queue-1", "queue-2", "queue-2", "queue-3"];
    assert_eq!(order, expected);
    broker.stop().await;
}

#[tokio::test]
async fn weights_share_claims_over_shards() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let mut client = broker.grpc().await;
    for queue in ["heavy", "light"] {
        let tasks = vec![task(queue, "t"); 400];
        let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
        client.enqueue_many(request).await.unwrap();
    }
    let weight = |name: &str, weight| v1::QueueWeight { name: name.into(), weight };
    let mut heavy = 0;
    for _ in 0..20 {
        let request = v1::ClaimRequest {
            queues: vec![weight("heavy", 3), weight("light", 1)],
            max: 20,
            ..Default::default()
        };
        let tasks = client.claim(request).await.unwrap().into_inner().tasks;
        assert_eq!(tasks.len(), 20, "credits are used up while there is something");
        heavy += tasks.iter().filter(|task| task.queue == "heavy").count();
    }
    assert!((230..=360).contains(&heavy), "{heavy} of 400, expected about 300");
    broker.stop().await;
}

#[tokio::test]
async fn a_claim_over_several_shards_is_woken_by_any_of_them() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let names = ["alpha", "beta", "gamma", "delta"];
    for name in names {
        let mut waiting = broker.grpc().await;
        let parked = tokio::spawn(async move { claim(&mut waiting, &names, 5, 60_000).await });
        let id = enqueue(&mut broker.grpc().await, task(name, "t")).await;
        let claimed = timeout(DEADLINE, parked).await.expect("woken").unwrap();
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].id, id);
    }
    broker.stop().await;
}

/// A worker that asks for a thousand large tasks gets them a few at a time.
#[tokio::test]
async fn a_claim_gets_fewer_tasks_when_they_are_large() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let payload = format!("\"{}\"", "x".repeat(CLAIM_BYTES_MAX / 5 * 2));
    let on_all = cluster::queues(&broker);
    let mut left = HashSet::new();
    for _ in 0..5 {
        for queue in &on_all {
            let large = v1::NewTask { payload: payload.clone().into(), ..task(queue, "test") };
            left.insert(enqueue(&mut client, large).await);
        }
    }
    let one = &on_all[0];
    let tasks = claim(&mut client, &[one], 1_000, 0).await;
    assert_eq!(tasks.len(), 3, "over gRPC");
    tasks.iter().for_each(|task| assert!(left.remove(&task.id)));
    let asked = format!(r#"{{"queues": ["{one}"], "max": 1000}}"#);
    let answer = http::post(broker.address, "/v1/claims", &asked).await.ok();
    let tasks = answer["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 2, "over HTTP");
    tasks.iter().for_each(|task| assert!(left.remove(task["id"].as_str().unwrap())));
    let names: Vec<&str> = on_all.iter().map(String::as_str).collect();
    while !left.is_empty() {
        let tasks = claim(&mut client, &names, 1_000, 20_000).await;
        let bytes: usize = tasks.iter().map(|task| task.payload.len()).sum();
        let bytes_max = CLAIM_BYTES_MAX + on_all.len() * payload.len();
        assert!((1..bytes_max).contains(&bytes), "{bytes}");
        tasks.iter().for_each(|task| assert!(left.remove(&task.id), "no task twice"));
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_client_goes_away() {
    let broker = Broker::with(|config| {
        config.shards = Some(16);
        config.clock = taskyard_server::Clock::manual(common::START_MS);
    })
    .await;
    let mut client = broker.grpc().await;
    for names in [&["one"][..], &["two", "three", "four"]] {
        // These clients park a claim and vanish, some of them while a task arrives.
        let mut vanishing = Vec::new();
        for _ in 0..20 {
            let mut socket = TcpStream::connect(broker.address).await.unwrap();
            let queues: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
            let body = format!(r#"{{"queues": [{}], "wait_ms": 60000}}"#, queues.join(","));
            let head = format!(
                "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            vanishing.push(socket);
        }
        let id = {
            let enqueued = enqueue(&mut client, task(names[names.len() - 1], "t"));
            let (id, ()) = tokio::join!(enqueued, async { drop(vanishing) });
            id
        };
        // The client that claimed the task is gone. Its claim keeps its lease only if the answer
        // was already on the wire; otherwise the claim is released.
        let mut claimed = claim(&mut client, names, 1, 1_000).await;
        if claimed.is_empty() {
            broker.clock.advance(Duration::from_secs(31));
            claimed = claim(&mut client, names, 1, 30_000).await;
        }
        assert_eq!(claimed[0].id, id);
    }
    broker.stop().await;
}

#[tokio::test]
async fn parked_claims_of_clients_that_vanished_are_gone() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let parked = async |count: usize| {
        eventually("parked claims", async || {
            let metrics = http::get(broker.address, "/metrics").await.text;
            metrics.contains(&format!("\ntaskyard_claims_parked {count}\n")).then_some(())
        })
        .await;
    };
    let body = r#"{"queues": ["q"], "wait_ms": 60000}"#;
    let length = body.len();
    let request = format!(
        "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut socket = TcpStream::connect(broker.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    parked(1).await;
    let mut client = broker.grpc().await;
    let streams = tokio::spawn(async move { claim(&mut client, &["q"], 1, 60_000).await });
    parked(2).await;
    let mut client = broker.grpc().await;
    // A claim over several shards leaves a hint on each of them.
    let names =
        ["a", "b", "c", "d", "e"].map(|name| (taskyard_machine::home_shard(name, 16), name));
    let other = names.iter().find(|(home, _)| *home != names[0].0).unwrap().1;
    let several = tokio::spawn(async move { claim(&mut client, &["a", other], 1, 60_000).await });
    parked(4).await;
    drop(socket);
    streams.abort();
    several.abort();
    parked(0).await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, task("q", "t")).await;
    assert_eq!(claim(&mut client, &["q"], 1, 0).await[0].id, id, "left for others");
    broker.stop().await;
}

#[tokio::test]
async fn delays_are_kept_and_claims_wait_for_them() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let delayed = v1::NewTask { delay_ms: Some(10_000), ..task("q", "t") };
    let id = enqueue(&mut client, delayed).await;
    assert_eq!(claim(&mut client, &["q"], 1, 0).await, []);
    broker.clock.advance(Duration::from_millis(9_999));
    assert_eq!(claim(&mut client, &["q"], 1, 100).await, [], "never early");
    let mut waiting = broker.grpc().await;
    let parked = tokio::spawn(async move { claim(&mut waiting, &["q"], 1, 60_000).await });
    broker.clock.advance(Duration::from_millis(1));
    let claimed = timeout(DEADLINE, parked).await.expect("on time").unwrap();
    assert_eq!(claimed[0].id, id);
    broker.stop().await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_an_hour_neither_stops_nor_hurries_tasks() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let delayed = v1::NewTask { delay_ms: Some(10_000), ..task("q", "t") };
    let id = enqueue(&mut client, delayed).await;
    let held = enqueue(&mut client, task("held", "t")).await;
    let claimed = claim(&mut client, &["held"], 1, 0).await.remove(0);
    let dir = broker.stop().await;

    let hour_ms = 3_600_000;
    let back = taskyard_server::Clock::manual(common::START_MS - hour_ms);
    let broker = Broker::on(dir, |config| config.clock = back).await;
    let mut client = broker.grpc().await;
    assert_eq!(claim(&mut client, &["q"], 1, 0).await, []);
    broker.clock.advance(Duration::from_secs(10));
    // Shard time is ahead of the wall clock, so shard time runs a little slower. Tasks are
    // neither early nor late.
    assert_eq!(claim(&mut client, &["q"], 1, 100).await, [], "never early");
    broker.clock.advance(Duration::from_millis(400));
    assert_eq!(claim(&mut client, &["q"], 1, 30_000).await[0].id, id);
    let seen = state(&mut client, &held).await;
    assert_eq!(seen.state, "claimed", "the jump must not end a lease");
    client.ack(ack(&claimed)).await.unwrap();
    broker.stop().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_an_hour_on_a_running_node_changes_nothing() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let delayed = v1::NewTask { delay_ms: Some(10_000), ..task("q", "t") };
    let id = enqueue(&mut client, delayed).await;
    let held = enqueue(&mut client, task("held", "t")).await;
    let claimed = claim(&mut client, &["held"], 1, 0).await.remove(0);
    let before = enqueue(&mut client, task("else", "t")).await;
    let mut waiting = broker.grpc().await;
    let mut parked = tokio::spawn(async move { claim(&mut waiting, &["q"], 1, 60_000).await });

    broker.clock.jump(-3_600_000);
    let after = enqueue(&mut client, task("else", "t")).await;
    let enqueued_at = async |client: &mut Client, id: &str| state(client, id).await.enqueued_at;
    let (before, after) =
        (enqueued_at(&mut client, &before).await, enqueued_at(&mut client, &after).await);
    assert!(after >= before, "time never goes back: {before}, then {after}");
    // Shard time is ahead of the wall clock, so shard time runs a little slower. Tasks are
    // neither early nor late.
    broker.clock.advance(Duration::from_secs(10));
    assert_eq!(state(&mut client, &id).await.state, "scheduled", "never early");
    let early = timeout(Duration::from_millis(50), &mut parked).await;
    assert!(early.is_err(), "never early: {early:?}");
    let metrics = http::get(broker.address, "/metrics").await.text;
    let ahead = "taskyard_shard_time_ahead_seconds 3599.";
    assert!(metrics.contains(ahead), "operators see it: {metrics}");
    broker.clock.advance(Duration::from_millis(400));
    let woken = timeout(DEADLINE, parked).await.expect("on time").unwrap();
    assert_eq!(woken[0].id, id);

    // Leases follow shard time too: the jump neither ends them nor keeps them for an hour.
    assert_eq!(state(&mut client, &held).await.state, "claimed");
    broker.clock.advance(Duration::from_secs(45));
    let again = claim(&mut client, &["held"], 1, 30_000).await.remove(0);
    assert_eq!(again.id, held);
    let status = client.ack(ack(&claimed)).await.unwrap_err();
    assert_eq!(code(&status), "claim_lost");
    client.ack(ack(&again)).await.unwrap();

    // Once the clock is right again, time continues from there.
    broker.clock.jump(3_600_000);
    let last = enqueue(&mut client, task("else", "t")).await;
    assert!(enqueued_at(&mut client, &last).await >= after);
    broker.stop().await;
}

/// Log entries of all shards.
async fn entries(broker: &Broker) -> u64 {
    let cluster = http::get(broker.address, "/v1/cluster").await.ok();
    let entries = |shard: &serde_json::Value| shard["replicas"][0]["match"].as_u64().unwrap();
    cluster["shards"].as_array().unwrap().iter().map(entries).sum()
}

#[tokio::test]
async fn ten_thousand_parked_claims_cost_nothing_and_are_all_woken() {
    let broker = Broker::start().await;
    let parked = 10_000;
    // Four shards, each with its first entry, its election and the first entry of its term.
    let before = eventually("every shard has begun its term", async || {
        Some(entries(&broker).await).filter(|entries| *entries >= 4 * 3)
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(broker.grpc().await);
    }
    let claims: futures_util::stream::FuturesUnordered<_> = (0..parked)
        .map(|n| {
            let mut client = clients[n % clients.len()].clone();
            tokio::spawn(async move {
                let queue = format!("q{}", n % 10);
                claim(&mut client, &[&queue], 1, 60_000).await
            })
        })
        .collect();
    eventually("all claims are parked", async || {
        let metrics = http::get(broker.address, "/metrics").await.text;
        metrics.contains(&format!("\ntaskyard_claims_parked {parked}\n")).then_some(())
    })
    .await;
    assert_eq!(entries(&broker).await, before, "parked claims never enter the log");
    // While they are parked, other calls are served.
    let mut client = broker.grpc().await;
    enqueue(&mut client, task("else", "t")).await;
    assert_eq!(claim(&mut client, &["else"], 1, 0).await.len(), 1);
    for n in 0..10 {
        let tasks = vec![task(&format!("q{n}"), "t"); parked / 10];
        let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
        client.enqueue_many(request).await.unwrap();
    }
    let all = futures_util::StreamExt::collect::<Vec<_>>(claims);
    let woken = timeout(DEADLINE, all).await.expect("all woken");
    let ids: HashSet<_> = woken.into_iter().flat_map(Result::unwrap).map(|task| task.id).collect();
    assert_eq!(ids.len(), parked);
    broker.stop().await;
}
