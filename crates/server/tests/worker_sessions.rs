//! A worker's session: tasks up to its free slots, leases renewed while it beats, goodbye and
//! resume.

use crate::common::{
    Broker, code, eventually, http, task,
    worker::{Worker, ack, held, hello},
};
use serde_json::json;
use std::time::Duration;
use taskyard_proto::v1::{self, answer::Answer, worker_message::Message};

async fn enqueue(broker: &Broker, queue: &str, count: usize) {
    let tasks = vec![task(queue, "t"); count];
    let request = v1::EnqueueManyRequest { tasks, batch_id: vec![] };
    let results = broker.grpc().await.enqueue_many(request).await.unwrap().into_inner().results;
    assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
}

async fn counts(broker: &Broker, queue: &str) -> v1::Queue {
    let request = v1::QueueRequest { queue: queue.into() };
    broker.grpc().await.get_queue(request).await.unwrap().into_inner()
}

async fn state(broker: &Broker, id: &str) -> String {
    let request = v1::GetTaskRequest { id: id.into(), without_payload: true };
    broker.grpc().await.get_task(request).await.unwrap().into_inner().state
}

#[tokio::test]
async fn tasks_are_handed_out_up_to_the_free_slots() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 10).await;
    let mut worker = Worker::open(&broker, &["q"], 3).await;
    assert_eq!(worker.welcome.beat_every_ms, 5_000);
    assert_eq!(worker.welcome.silence_ms_max, 15_000);
    worker.credits(3).await;
    let first = worker.tasks(3).await;
    // These credits crossed with the tasks: the worker sent "3 free" before it got the tasks.
    worker.say(Message::Credits(v1::Credits { free: 3, tasks_received: 0 })).await;
    worker.beat(&first).await;
    worker.orders().await;
    assert_eq!((worker.waiting(), counts(&broker, "q").await.claimed), (0, 3));
    // Credits beyond the worker's slots do not count.
    worker.ack_all(&first).await;
    worker.credits(100).await;
    worker.tasks(3).await;
    worker.beat(&[]).await;
    worker.orders().await;
    assert_eq!((worker.waiting(), counts(&broker, "q").await.claimed), (0, 3));
    broker.stop().await;
}

#[tokio::test]
async fn a_worker_waits_for_tasks_of_several_shards() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let names = ["one", "two", "three", "four", "five"];
    let mut worker = Worker::open(&broker, &names, 8).await;
    worker.credits(8).await;
    for name in names {
        enqueue(&broker, name, 1).await;
        let tasks = worker.tasks(1).await;
        assert_eq!(tasks[0].queue, name);
        worker.ack_all(&tasks).await;
        worker.credits(8).await;
    }
    broker.stop().await;
}

#[tokio::test]
async fn answers_are_taken_in_batches_and_each_gets_its_reply() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 6).await;
    let mut worker = Worker::open(&broker, &["q"], 6).await;
    worker.credits(6).await;
    let tasks = worker.tasks(6).await;
    let claim = |n: usize| (tasks[n].id.clone(), tasks[n].claim_token);
    let (id, claim_token) = claim(1);
    let error = Some(v1::TaskError { message: "no".into(), ..Default::default() });
    let fail = v1::FailRequest { id, claim_token, error, ..Default::default() };
    let (id, claim_token) = claim(2);
    let release = v1::ReleaseRequest { id, claim_token };
    let (id, claim_token) = claim(3);
    let snooze = v1::SnoozeRequest {
        id,
        claim_token,
        delay_ms: Some(60_000),
        ..v1::SnoozeRequest::default()
    };
    let (id, claim_token) = claim(4);
    let extend = v1::ExtendRequest { id, claim_token, ..Default::default() };
    let (id, _) = claim(5);
    let stale = v1::AckRequest { id, claim_token: 99_999, ..Default::default() };
    let follow_up = Answer::Ack(v1::AckRequest {
        id: tasks[0].id.clone(),
        claim_token: tasks[0].claim_token,
        enqueue: vec![task("next", "u")],
        ..Default::default()
    });
    let nonsense = v1::AckRequest { id: "nonsense".into(), ..Default::default() };
    let replies = worker
        .answer([
            follow_up,
            Answer::Fail(fail),
            Answer::Release(release),
            Answer::Snooze(snooze),
            Answer::Extend(extend),
            Answer::Ack(stale),
            Answer::Ack(nonsense),
        ])
        .await;
    let numbers: Vec<_> = replies.iter().map(|reply| reply.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(replies[0].ack.as_ref().unwrap().enqueued.len(), 1);
    assert_eq!(replies[1].fail.as_ref().unwrap().state, "scheduled");
    assert_eq!(replies[2].error, None);
    assert!(replies[3].snooze.as_ref().unwrap().run_at > 0);
    assert!(!replies[4].extend.as_ref().unwrap().cancel_requested);
    assert_eq!(replies[5].error.as_ref().unwrap().code, "claim_lost");
    assert_eq!(replies[6].error.as_ref().unwrap().code, "invalid_argument");
    for (n, expected) in ["succeeded", "scheduled", "ready", "scheduled", "claimed", "claimed"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(state(&broker, &tasks[n].id).await, expected, "task {n}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn beats_renew_leases_and_report_lost_claims() {
    let broker = Broker::manual().await;
    enqueue(&broker, "q", 2).await;
    let mut worker = Worker::open(&broker, &["q"], 2).await;
    worker.credits(2).await;
    let tasks = worker.tasks(2).await;
    worker.started(&tasks).await;
    // The worker lists one of the two for a minute: four times the longest silence, twice its
    // lease.
    let mut lost = Vec::new();
    for _ in 0..12 {
        broker.clock.advance(Duration::from_secs(5));
        worker.beat(&tasks[..1]).await;
        lost.extend(worker.orders().await.lost);
    }
    assert_eq!(lost, []);
    assert_eq!(state(&broker, &tasks[0].id).await, "claimed", "renewed");
    eventually("the unlisted claim has ended", async || {
        (state(&broker, &tasks[1].id).await != "claimed").then_some(())
    })
    .await;
    // Now the worker lists the other too.
    worker.beat(&tasks).await;
    let lost = eventually("the loss", async || worker.orders().await.lost.pop()).await;
    assert_eq!(lost, held(&tasks[1..])[0]);
    let reply = worker.answer([ack(&tasks[1], None)]).await.remove(0);
    assert_eq!(reply.error.unwrap().code, "claim_lost");
    broker.stop().await;
}

/// A lease is a length of time, because the node that renews it has another clock than the shard
/// that counts it.
#[tokio::test]
async fn leases_are_renewed_while_the_shard_is_an_hour_ahead_of_the_node() {
    let broker = Broker::manual().await;
    broker.clock.jump(-3_600_000);
    enqueue(&broker, "q", 1).await;
    let mut worker = Worker::open(&broker, &["q"], 1).await;
    worker.credits(1).await;
    let tasks = worker.tasks(1).await;
    worker.started(&tasks).await;
    // Twice its lease.
    for _ in 0..12 {
        broker.clock.advance(Duration::from_secs(5));
        worker.beat(&tasks).await;
        assert_eq!(worker.orders().await.lost, []);
    }
    assert_eq!(state(&broker, &tasks[0].id).await, "claimed", "renewed");
    let reply = worker.answer([ack(&tasks[0], None)]).await.remove(0);
    assert_eq!(reply.error, None);
    broker.stop().await;
}

#[tokio::test]
async fn a_short_lease_asks_for_quicker_beats() {
    let broker = Broker::start().await;
    let hello = v1::Hello { lease_ms: 3_000, ..hello(&["q"], 1) };
    let worker = Worker::hello(&broker, hello).await.unwrap();
    assert_eq!(worker.welcome.beat_every_ms, 1_000);
    broker.stop().await;
}

#[tokio::test]
async fn a_cancelled_task_is_ordered_to_stop_at_once() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 1).await;
    let mut worker = Worker::open(&broker, &["q"], 1).await;
    worker.credits(1).await;
    let tasks = worker.tasks(1).await;
    let request = v1::CancelRequest { id: tasks[0].id.clone() };
    let cancelled = broker.grpc().await.cancel(request).await.unwrap().into_inner();
    assert_eq!(cancelled.state, "claimed");
    assert_eq!(worker.orders().await.cancel, held(&tasks));
    let fail = v1::FailRequest {
        id: tasks[0].id.clone(),
        claim_token: tasks[0].claim_token,
        ..Default::default()
    };
    let reply = worker.answer([Answer::Fail(fail)]).await.remove(0);
    assert_eq!(reply.fail.unwrap().state, "cancelled");
    broker.stop().await;
}

#[tokio::test]
async fn goodbye_releases_claims_without_a_loss() {
    let broker = Broker::manual().await;
    enqueue(&broker, "q", 5).await;
    let mut worker = Worker::open(&broker, &["q"], 5).await;
    worker.credits(5).await;
    let tasks = worker.tasks(5).await;
    worker.started(&tasks).await;
    worker.goodbye().await;
    let counts = counts(&broker, "q").await;
    assert_eq!((counts.ready, counts.claimed, counts.lost_total), (5, 0, 0));
    let workers = http::get(broker.address, "/v1/workers").await.ok();
    assert_eq!(workers, json!({"workers": []}));
    broker.stop().await;
}

#[tokio::test]
async fn a_cut_session_is_resumed_with_its_claims() {
    let broker = Broker::manual().await;
    enqueue(&broker, "q", 3).await;
    let mut worker = Worker::open(&broker, &["q"], 3).await;
    worker.credits(3).await;
    let tasks = worker.tasks(3).await;
    worker.started(&tasks).await;
    let (id, session_secret) = (worker.id.clone(), worker.secret.clone());
    drop(worker);
    broker.clock.advance(Duration::from_secs(3));
    let hello = v1::Hello { session_secret, held: held(&tasks[..2]), ..hello(&["q"], 3) };
    let mut worker = Worker::hello(&broker, hello.clone()).await.unwrap();
    assert_eq!((&worker.id, &worker.secret), (&id, &hello.session_secret));
    eventually("the claim that the worker does not list is released", async || {
        (state(&broker, &tasks[2].id).await == "ready").then_some(())
    })
    .await;
    // The resumed session outlives the silence that a cut session may have.
    for _ in 0..4 {
        broker.clock.advance(Duration::from_secs(4));
        worker.beat(&tasks[..2]).await;
        assert_eq!(worker.orders().await.lost, []);
    }
    worker.ack_all(&tasks[..2]).await;
    let counts = counts(&broker, "q").await;
    assert_eq!((counts.succeeded_total, counts.lost_total), (2, 0));
    broker.stop().await;
}

#[tokio::test]
async fn a_session_is_resumed_after_the_broker_was_started_anew() {
    let broker = Broker::manual().await;
    enqueue(&broker, "q", 3).await;
    let mut worker = Worker::open(&broker, &["q"], 3).await;
    worker.credits(3).await;
    let tasks = worker.tasks(3).await;
    let session_secret = worker.secret.clone();
    let clock = broker.clock.clone();
    let ended = tokio::spawn(async move {
        loop {
            if let Err(status) = worker.receive().await {
                return status;
            }
        }
    });
    let dir = broker.stop().await;
    let status = ended.await.unwrap();
    assert_eq!((status.code(), code(&status)), (tonic::Code::Unavailable, "unavailable"));

    let broker = Broker::on(dir, |config| config.clock = clock).await;
    let unknown = v1::HeldClaim { id: tasks[1].id.clone(), claim_token: 77 };
    let mut listed = held(&tasks[..1]);
    listed.push(unknown.clone());
    let hello = v1::Hello { session_secret, held: listed, ..hello(&["q"], 3) };
    let mut worker = Worker::hello(&broker, hello).await.unwrap();
    assert_eq!(worker.orders().await.lost, [unknown], "the unknown claim is reported as lost");
    worker.ack_all(&tasks[..1]).await;
    assert_eq!(state(&broker, &tasks[2].id).await, "ready", "the unlisted claim is released");
    broker.stop().await;
}

#[tokio::test]
async fn a_second_stream_of_a_session_replaces_the_first() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 1).await;
    let mut first = Worker::open(&broker, &["q"], 1).await;
    first.credits(1).await;
    let tasks = first.tasks(1).await;
    let session_secret = first.secret.clone();
    let hello = v1::Hello { session_secret, held: held(&tasks), ..hello(&["q"], 1) };
    let mut second = Worker::hello(&broker, hello).await.unwrap();
    assert!(first.receive().await.is_err(), "the first ends");
    drop(first);
    second.ack_all(&tasks).await;
    let workers = http::get(broker.address, "/v1/workers").await.ok();
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1);
    assert_eq!(workers["workers"][0]["state"], "running");
    broker.stop().await;
}

/// Otherwise a reader of the list of workers could resume a session, end its stream and release its
/// claims.
#[tokio::test]
async fn a_workers_public_id_resumes_nothing() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 1).await;
    let mut worker = Worker::open(&broker, &["q"], 1).await;
    worker.credits(1).await;
    let tasks = worker.tasks(1).await;
    let id = &tasks[0].id;
    let listed = http::get(broker.address, "/v1/workers").await.ok();
    let shown = listed["workers"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!((shown.len(), &shown), (32, &worker.id));
    let asked = v1::ListWorkersRequest {};
    let reply = broker.grpc().await.list_workers(asked).await.unwrap().into_inner();
    let secret: String = worker.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let task = http::get(broker.address, &format!("/v1/tasks/{id}")).await.ok();
    for shown in [listed.to_string(), format!("{reply:?}"), task.to_string()] {
        assert!(!shown.contains(&secret) && !shown.contains(&format!("{:?}", worker.secret)));
    }

    let bytes = worker.welcome.session_id.clone();
    let refused = v1::Hello { session_secret: bytes.clone(), ..hello(&["q"], 1) };
    let Err(status) = Worker::hello(&broker, refused).await else { panic!("an id is no secret") };
    assert_eq!(code(&status), "invalid_argument");
    let texts = [[bytes.clone(), vec![0; 16]].concat(), bytes.repeat(2), shown.into_bytes()];
    let off_by_a_bit = [vec![worker.secret[0] ^ 1], worker.secret[1..].to_vec()].concat();
    for guess in texts.into_iter().chain([off_by_a_bit]) {
        let hello = v1::Hello { session_secret: guess, ..hello(&["q"], 1) };
        let stranger = Worker::hello(&broker, hello).await.unwrap();
        assert_ne!(stranger.id, worker.id, "the stranger gets a new session");
        stranger.goodbye().await;
    }
    assert_eq!(state(&broker, id).await, "claimed");
    // The worker's own stream went on meanwhile.
    worker.beat(&tasks).await;
    assert_eq!(worker.orders().await.lost, []);
    worker.ack_all(&tasks).await;
    broker.stop().await;
}

#[tokio::test]
async fn workers_are_listed_and_told_to_be_quiet_and_to_stop() {
    let broker = Broker::start().await;
    enqueue(&broker, "q", 2).await;
    let mut worker = Worker::open(&broker, &["q", "other"], 4).await;
    worker.credits(1).await;
    let tasks = worker.tasks(1).await;
    worker.beat(&tasks).await;
    worker.orders().await;
    let workers = http::get(broker.address, "/v1/workers").await.ok();
    let seen = &workers["workers"][0];
    for (field, value) in [
        ("name", json!("test")),
        ("host", json!("localhost")),
        ("pid", json!(7)),
        ("version", json!("1")),
        ("queues", json!(["q", "other"])),
        ("slots", json!(4)),
        ("busy", json!(1)),
        ("state", json!("running")),
        ("rss_bytes", json!(1 << 20)),
    ] {
        assert_eq!(seen[field], value, "{field} in {seen}");
    }
    let id = seen["id"].as_str().unwrap();
    let quiet = http::post(broker.address, &format!("/v1/workers/{id}/quiet"), "").await;
    assert_eq!(quiet.status, 202);
    assert_eq!(worker.orders().await.state(), v1::WorkerState::Quiet);
    // The worker gets no tasks, whatever it asks for.
    worker.ack_all(&tasks).await;
    worker.credits(4).await;
    worker.beat(&[]).await;
    assert_eq!(worker.orders().await.state(), v1::WorkerState::Quiet, "and with every beat");
    assert_eq!((worker.waiting(), counts(&broker, "q").await.ready), (0, 1));
    let request = v1::WorkerRequest { id: id.to_owned() };
    broker.grpc().await.stop_worker(request).await.unwrap();
    assert_eq!(worker.orders().await.state(), v1::WorkerState::Stopping);
    let workers = broker.grpc().await.list_workers(v1::ListWorkersRequest {}).await.unwrap();
    assert_eq!(workers.into_inner().workers[0].state, "stopping");
    broker.stop().await;
}

#[tokio::test]
async fn invalid_hellos_are_refused() {
    let broker = Broker::start().await;
    let good = || hello(&["q"], 1);
    let held_nonsense = vec![v1::HeldClaim { id: "x".into(), claim_token: 1 }];
    for (bad, words) in [
        (v1::Hello { queues: vec![], ..good() }, "queues is empty"),
        (hello(&["a b"], 1), "a b"),
        (hello(&["q"], 0), "slots 0"),
        (hello(&["q"], 5_000), "slots 5000"),
        (v1::Hello { lease_ms: 5, ..good() }, "lease_ms 5"),
        (v1::Hello { session_secret: vec![1, 2], ..good() }, "session_secret has 2 bytes"),
        (v1::Hello { host: "h".repeat(1000), ..good() }, "host has 1000 bytes"),
        (v1::Hello { held: held_nonsense, ..good() }, "\"x\""),
    ] {
        let Err(status) = Worker::hello(&broker, bad).await else { panic!("taken: {words}") };
        assert_eq!(code(&status), "invalid_argument");
        assert!(status.message().contains(words), "{status:?} does not say {words}");
    }
    let mut worker = Worker::open(&broker, &["q"], 1).await;
    worker.say(Message::Hello(good())).await;
    let status = worker.receive().await.unwrap_err();
    assert!(status.message().contains("hello was said before"), "{status:?}");
    broker.stop().await;
}
