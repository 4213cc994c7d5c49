//! Limits and fairness for workers: nothing runs beyond a limit, waiting claims are served once a
//! limit allows it, keys take turns, and a waiting task says why.

use crate::common::{Broker, DEADLINE, eventually, http, queues, task};
use serde_json::{Value, json};
use std::time::Duration;
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tokio::{task::JoinHandle, time::timeout};
use tonic::transport::Channel;

type Client = TaskyardClient<Channel>;

async fn set(broker: &Broker, queue: &str, settings: &Value) -> Value {
    let path = format!("/v1/queues/{queue}/settings");
    http::put(broker.address, &path, &settings.to_string()).await.ok()
}

async fn enqueue(client: &mut Client, queue: &str, key: Option<&str>) -> String {
    let task = v1::NewTask { fairness_key: key.map(str::to_owned), ..task(queue, "t") };
    let request = v1::EnqueueRequest { task: Some(task) };
    client.enqueue(request).await.unwrap().into_inner().id
}

async fn claim(client: &mut Client, queue: &str, max: u32, wait_ms: u64) -> Vec<v1::ClaimedTask> {
    let worker = "w".to_owned();
    let request = v1::ClaimRequest {
        queues: queues(&[queue]),
        max,
        wait_ms,
        worker,
        lease_ms: 0,
        types: vec![],
    };
    let reply = timeout(DEADLINE, client.claim(request)).await.expect("an answer in time");
    reply.unwrap().into_inner().tasks
}

/// Starts a claim of one task that waits.
async fn parked(broker: &Broker, queue: &'static str) -> JoinHandle<Vec<v1::ClaimedTask>> {
    let mut client = broker.grpc().await;
    tokio::spawn(async move { claim(&mut client, queue, 1, 60_000).await })
}

async fn ack(client: &mut Client, held: &v1::ClaimedTask) {
    let (id, claim_token) = (held.id.clone(), held.claim_token);
    client.ack(v1::AckRequest { id, claim_token, ..Default::default() }).await.unwrap();
}

fn keys(taken: &[v1::ClaimedTask]) -> Vec<&str> {
    taken.iter().map(|task| task.fairness_key.as_deref().unwrap_or("-")).collect()
}

async fn why(broker: &Broker, id: &str) -> Vec<Value> {
    let answer = http::get(broker.address, &format!("/v1/tasks/{id}/why")).await.ok();
    answer["reasons"].as_array().unwrap().clone()
}

fn codes(reasons: &[Value]) -> Vec<&str> {
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn both_fronts_return_settings_as_they_were_set() {
    let broker = Broker::start().await;
    let settings = json!({
        "concurrency": 5,
        "rate": {"per_second": 0.5, "burst": 10},
        "per_key": {"concurrency": 2, "rate": {"per_second": 100.0}},
        "weights": {"acme": 3, "": 2},
        "ageing_ms": 60_000,
    });
    let told = set(&broker, "q", &settings).await;
    let mut expected = settings.clone();
    expected["per_key"]["rate"]["burst"] = json!(100);
    assert_eq!(told, expected, "the default burst is the rate of one second");
    let mut client = broker.grpc().await;
    let request = v1::QueueRequest { queue: "q".into() };
    let wire = client.get_queue_settings(request).await.unwrap().into_inner();
    assert_eq!(wire.rate, Some(v1::Rate { per_second: 0.5, burst: Some(10) }));
    assert_eq!(wire.weights["acme"], 3);
    let request = v1::SetQueueSettingsRequest { queue: "r".into(), settings: Some(wire.clone()) };
    assert_eq!(client.set_queue_settings(request).await.unwrap().into_inner(), wire);
    for (bad, text) in [
        (json!({"concurrency": 0}), "concurrency is 0"),
        (json!({"rate": {"per_second": 0}}), "rate.per_second 0 is not 0.000001 to 1000000"),
        (json!({"rate": {"per_second": 1, "burst": 0}}), "burst of rate is 0"),
        (json!({"rate": {"burst": 1}}), "per_second"),
        (json!({"per_key": {"rate": {"per_second": 0.000001, "burst": 9}}}), "ms to fill"),
        (json!({"weights": {"a": 1_001}}), "the weight of key \"a\" is 1001"),
        (json!({"ageing_ms": 0}), "ageing_ms is 0"),
        (json!({"per_key": {"conc": 1}}), "unknown field `conc`"),
    ] {
        let answer = http::put(broker.address, "/v1/queues/q/settings", &bad.to_string()).await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{detail}");
        assert!(detail.contains(text), "{detail} lacks {text}");
    }
    let kept = http::get(broker.address, "/v1/queues/q/settings").await.ok();
    assert_eq!(kept, expected, "a refused setting must change nothing");
    broker.stop().await;
}

#[tokio::test]
async fn a_parked_claim_is_served_when_another_ends() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    for (queue, settings) in
        [("whole", json!({"concurrency": 1})), ("keys", json!({"per_key": {"concurrency": 1}}))]
    {
        set(&broker, queue, &settings).await;
        let key = Some("acme").filter(|_| queue == "keys");
        enqueue(&mut client, queue, key).await;
        let second = enqueue(&mut client, queue, key).await;
        let held = claim(&mut client, queue, 9, 0).await;
        assert_eq!(held.len(), 1, "the limit holds within one claim");
        let waiting = parked(&broker, queue).await;
        eventually("the claim waits", async || {
            let reasons = why(&broker, &second).await;
            (!codes(&reasons).contains(&"no_worker")).then_some(())
        })
        .await;
        let reasons = why(&broker, &second).await;
        let code = format!("{}_concurrency", if key.is_some() { "key" } else { "queue" });
        assert_eq!(codes(&reasons), [code.as_str(), "ahead"]);
        assert_eq!((&reasons[0]["claimed"], &reasons[0]["limit"]), (&json!(1), &json!(1)));
        ack(&mut client, &held[0]).await;
        let taken = timeout(DEADLINE, waiting).await.expect("the waiting claim is served").unwrap();
        assert_eq!(taken[0].id, second);
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_parked_claim_is_served_when_a_limit_is_raised() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    set(&broker, "q", &json!({"per_key": {"concurrency": 1}})).await;
    for _ in 0..3 {
        enqueue(&mut client, "q", Some("acme")).await;
    }
    let held = claim(&mut client, "q", 9, 0).await;
    let waiting = parked(&broker, "q").await;
    set(&broker, "q", &json!({"per_key": {"concurrency": 2}})).await;
    let more = timeout(DEADLINE, waiting).await.expect("the waiting claim is served").unwrap();
    assert_eq!((held.len(), more.len()), (1, 1));
    // A limit below the running tasks ends none of them, and hands out no more.
    set(&broker, "q", &json!({"per_key": {"concurrency": 1}})).await;
    ack(&mut client, &held[0]).await;
    assert!(claim(&mut client, "q", 9, 0).await.is_empty());
    ack(&mut client, &more[0]).await;
    assert_eq!(claim(&mut client, "q", 9, 0).await.len(), 1);
    broker.stop().await;
}

#[tokio::test]
async fn a_parked_claim_is_served_when_a_bucket_refills() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    for (queue, settings) in [
        ("whole", json!({"rate": {"per_second": 0.5, "burst": 2}})),
        ("keys", json!({"per_key": {"rate": {"per_second": 0.5, "burst": 2}}})),
    ] {
        set(&broker, queue, &settings).await;
        let mut last = String::new();
        for _ in 0..3 {
            last = enqueue(&mut client, queue, Some("acme")).await;
        }
        assert_eq!(claim(&mut client, queue, 9, 0).await.len(), 2, "the burst");
        let waiting = parked(&broker, queue).await;
        eventually("the claim waits", async || {
            let reasons = why(&broker, &last).await;
            (!codes(&reasons).contains(&"no_worker")).then_some(())
        })
        .await;
        let reasons = why(&broker, &last).await;
        let (code, name) =
            if queue == "keys" { ("key_rate", "key acme") } else { ("queue_rate", "queue whole") };
        assert_eq!(codes(&reasons), [code, "ahead"]);
        let message = format!("{name} has used up its rate; its bucket refills in 2.0 s");
        assert_eq!(reasons[0]["message"], message);
        assert!(!waiting.is_finished());
        broker.clock.advance(Duration::from_millis(2_000));
        let taken = timeout(DEADLINE, waiting).await.expect("the waiting claim is served").unwrap();
        assert_eq!(taken[0].id, last);
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_key_with_many_tasks_does_not_delay_others() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let of = |key: &str| v1::NewTask { fairness_key: Some(key.into()), ..task("q", "t") };
    for (key, count) in [("large", 5_000), ("small", 10)] {
        let request = v1::EnqueueBatchRequest {
            queue: "q".into(),
            tasks: vec![of(key); count],
            ..Default::default()
        };
        client.enqueue_batch(request).await.unwrap();
    }
    let taken = claim(&mut client, "q", 20, 0).await;
    let small = keys(&taken).iter().filter(|key| **key == "small").count();
    assert_eq!(small, 10, "each key is served in its turn");
    broker.stop().await;
}

#[tokio::test]
async fn a_handler_pushes_back_for_its_whole_key() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    for key in [Some("acme"), Some("acme"), Some("bolt"), None] {
        enqueue(&mut client, "q", key).await;
    }
    let held = claim(&mut client, "q", 1, 0).await.remove(0);
    assert_eq!(held.fairness_key.as_deref(), Some("acme"));
    let body = json!({"claim_token": held.claim_token, "delay_ms": 10_000, "hold_key": true});
    let path = format!("/v1/tasks/{}/snooze", held.id);
    http::post(broker.address, &path, &body.to_string()).await.ok();
    assert_eq!(keys(&claim(&mut client, "q", 9, 0).await), ["bolt", "-"]);
    let waiting = parked(&broker, "q").await;
    broker.clock.advance(Duration::from_secs(10));
    let taken = timeout(DEADLINE, waiting).await.expect("the waiting claim is served").unwrap();
    assert_eq!(keys(&taken), ["acme"]);
    broker.stop().await;
}

#[tokio::test]
async fn a_task_says_what_it_waits_for() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, "q", None).await;
    let second = enqueue(&mut client, "q", None).await;
    let reasons = why(&broker, &second).await;
    assert_eq!(codes(&reasons), ["no_worker", "ahead"]);
    assert_eq!(reasons[0]["message"], "no worker listens on queue q now");
    assert_eq!(
        reasons[1],
        json!({"code": "ahead", "message": "1 task is ahead of it", "ahead": 1})
    );
    http::post(broker.address, "/v1/queues/q/pause", "").await.ok();
    assert_eq!(codes(&why(&broker, &id).await), ["queue_paused", "no_worker", "ahead"]);
    http::post(broker.address, "/v1/queues/q/resume", "").await.ok();
    let held = claim(&mut client, "q", 1, 0).await.remove(0);
    let reasons = why(&broker, &id).await;
    assert_eq!((codes(&reasons), &reasons[0]["worker"]), (vec!["running"], &json!("w")));
    let (id, claim_token) = (held.id.clone(), held.claim_token);
    client.fail(v1::FailRequest { id, claim_token, ..Default::default() }).await.unwrap();
    let reasons = why(&broker, &held.id).await;
    assert_eq!(codes(&reasons), ["scheduled"]);
    let message = reasons[0]["message"].as_str().unwrap();
    assert!(message.ends_with(": its last attempt failed"), "{message}");
    let request = v1::CancelRequest { id: held.id.clone() };
    client.cancel(request).await.unwrap();
    assert_eq!(codes(&why(&broker, &held.id).await), ["finished"]);
    let request = v1::WhyTaskRequest { id: second.clone() };
    let wire = client.why_task(request).await.unwrap().into_inner().reasons;
    assert_eq!(wire[1].code, "ahead");
    let first = (Some(0), "no task is ahead of it");
    assert_eq!((wire[1].ahead, wire[1].message.as_str()), first, "but nobody listens");
    let unknown = second.replace(&second[20..], "zzzzzz");
    let answer = http::get(broker.address, &format!("/v1/tasks/{unknown}/why")).await;
    assert_eq!(answer.problem().0, 400, "it is no id");
    broker.stop().await;
}

#[tokio::test]
async fn limits_turns_and_buckets_survive_a_restart() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let settings = json!({
        "concurrency": 4,
        "per_key": {"concurrency": 2, "rate": {"per_second": 0.001, "burst": 3}},
        "weights": {"a": 2},
    });
    set(&broker, "q", &settings).await;
    for key in ["a", "a", "a", "a", "b", "b", "b"] {
        enqueue(&mut client, "q", Some(key)).await;
    }
    let held = claim(&mut client, "q", 3, 0).await;
    assert_eq!(keys(&held), ["a", "a", "b"]);
    ack(&mut client, &held[0]).await;
    let dir = broker.stop().await;
    let broker = Broker::on(dir, |_| ()).await;
    let mut client = broker.grpc().await;
    let more = claim(&mut client, "q", 9, 0).await;
    assert_eq!(keys(&more), ["a", "b"], "a's third token and second slot, b's second slot");
    for held in held[1..].iter().chain(&more) {
        ack(&mut client, held).await;
    }
    assert_eq!(keys(&claim(&mut client, "q", 9, 0).await), ["b"], "the tokens of a are spent");
    broker.stop().await;
}

#[tokio::test]
async fn a_blocked_task_names_the_parents_it_waits_for() {
    let broker = Broker::start().await;
    let flow = json!({"nodes": [
        {"name": "left", "queue": "q", "type": "t"},
        {"name": "right", "queue": "other", "type": "t"},
        {"name": "sum", "queue": "sums", "type": "t", "depends_on": ["left", "right"]},
    ]});
    let made = http::post(broker.address, "/v1/flows", &flow.to_string()).await.ok();
    let sum = made["tasks"]["sum"].as_str().unwrap();
    let reasons = why(&broker, sum).await;
    assert_eq!(
        (codes(&reasons), &reasons[0]["parents"]),
        (vec!["parents"], &json!(["left", "right"]))
    );
    assert_eq!(reasons[0]["message"], "it waits for its parents: left, right");
    let mut client = broker.grpc().await;
    let held = claim(&mut client, "q", 1, 0).await.remove(0);
    ack(&mut client, &held).await;
    eventually("the flow knows the end of its task", async || {
        let reasons = why(&broker, sum).await;
        (reasons[0]["parents"] == json!(["right"])).then_some(())
    })
    .await;
    broker.stop().await;
}
