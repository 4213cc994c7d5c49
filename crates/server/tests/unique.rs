//! Unique keys over both fronts: one task at a time, for any client and any number of requests.

use crate::common::{
    Broker, START_MS, code,
    http::{Answer, get, post},
    queues, task,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use taskyard_proto::v1;
use taskyard_server::Clock;

async fn enqueue(broker: &Broker, body: Value) -> Answer {
    post(broker.address, "/v1/queues/mail/tasks", &body.to_string()).await
}

#[expect(clippy::needless_pass_by_value, reason = "tests read better without a borrow")]
fn keyed(unique: Value) -> Value {
    json!({"type": "send", "payload": {"n": 1}, "unique": unique})
}

/// The status, the id, and whether the task existed before.
fn answered(answer: Answer) -> (u16, String, bool) {
    let status = answer.status;
    let body = answer.ok();
    (status, body["id"].as_str().unwrap().to_owned(), body["duplicate"] == true)
}

async fn claim(broker: &Broker) -> (String, u64) {
    let claimed = post(broker.address, "/v1/claims", r#"{"queues": ["mail"]}"#).await.ok();
    let task = &claimed["tasks"][0];
    (task["id"].as_str().unwrap().to_owned(), task["claim_token"].as_u64().unwrap())
}

async fn seen(broker: &Broker, id: &str) -> Value {
    get(broker.address, &format!("/v1/tasks/{id}")).await.ok()
}

#[tokio::test]
async fn a_held_key_is_answered_replaced_or_refused() {
    let broker = Broker::manual().await;
    let (status, first, _) = answered(enqueue(&broker, keyed(json!({"key": "k"}))).await);
    assert_eq!(status, 201);
    let again = answered(enqueue(&broker, keyed(json!({"key": "k"}))).await);
    assert_eq!(again, (200, first.clone(), true));

    let replace = json!({"type": "send", "payload": {"n": 2}, "headers": {"a": "b"},
                         "unique": {"key": "k", "on_conflict": "replace"}});
    assert_eq!(answered(enqueue(&broker, replace.clone()).await), (200, first.clone(), true));
    let task = seen(&broker, &first).await;
    assert_eq!((&task["payload"]["n"], &task["headers"]["a"]), (&json!(2), &json!("b")));
    assert_eq!(task["unique"], json!({"key": "k", "until": "done", "held": true}));

    let reject = keyed(json!({"key": "k", "on_conflict": "reject"}));
    let refused = enqueue(&broker, reject.clone()).await;
    let (status, code, detail) = refused.problem();
    assert_eq!((status, code.as_str()), (409, "not_unique"));
    assert!(detail.contains(&first), "{detail}");
    assert_eq!(refused.json()["holder"], first.as_str());
    let batch = json!([{"type": "a"}, reject.clone()]).to_string();
    let refused = post(broker.address, "/v1/queues/mail/tasks", &batch).await;
    let (status, code, detail) = refused.problem();
    assert_eq!((status, code.as_str()), (409, "not_unique"));
    assert!(detail.starts_with("task 1 of the batch"), "{detail}");

    let (_, token) = claim(&broker).await;
    let running = enqueue(&broker, replace).await.problem();
    assert!(running.2.contains("no longer waits"), "{running:?}");
    let ack = json!({"claim_token": token}).to_string();
    post(broker.address, &format!("/v1/tasks/{first}/ack"), &ack).await.ok();
    let (status, next, _) = answered(enqueue(&broker, reject).await);
    assert_eq!(status, 201, "the ack has freed the key");
    assert_ne!(next, first);
    broker.stop().await;
}

#[tokio::test]
async fn keys_are_made_of_fields_on_both_fronts_alike() {
    let broker = Broker::manual().await;
    let fields = json!({"fields": ["type", "payload.user.id"]});
    let of = |user: Value| json!({"type": "send", "payload": {"user": user}, "unique": fields});
    let (_, first, _) = answered(enqueue(&broker, of(json!({"id": 7, "name": "Ada"}))).await);
    let same = answered(enqueue(&broker, of(json!({"name": "Bob", "id": 7}))).await);
    assert_eq!(same, (200, first.clone(), true));
    assert_eq!(answered(enqueue(&broker, of(json!({"id": 8}))).await).0, 201);
    let key = seen(&broker, &first).await["unique"]["key"].clone();
    assert_eq!(key, "sha256:cc86e7bb1159d75f1df2079b92845206");

    let mut grpc = broker.grpc().await;
    let by_fields = v1::Unique {
        fields: vec!["payload.user.id".into(), "type".into()],
        ..v1::Unique::default()
    };
    let payload = r#"{ "user" : { "id" : 7 } }"#.into();
    let wire = v1::NewTask { payload, unique: Some(by_fields), ..task("mail", "send") };
    let reply = grpc.enqueue(v1::EnqueueRequest { task: Some(wire) }).await.unwrap().into_inner();
    assert_eq!((reply.id, reply.duplicate), (first.clone(), true));
    let by_key = v1::Unique {
        key: Some(key.as_str().unwrap().into()),
        on_conflict: v1::unique::OnConflict::Reject.into(),
        ..v1::Unique::default()
    };
    let wire = v1::NewTask { unique: Some(by_key), ..task("mail", "send") };
    let refused = grpc.enqueue(v1::EnqueueRequest { task: Some(wire.clone()) }).await.unwrap_err();
    assert_eq!((refused.code(), code(&refused)), (tonic::Code::AlreadyExists, "not_unique"));
    assert_eq!(refused.metadata().get("taskyard-holder").unwrap().to_str().unwrap(), first);
    let many = v1::EnqueueManyRequest { tasks: vec![wire], batch_id: vec![] };
    let results = grpc.enqueue_many(many).await.unwrap().into_inner().results;
    let error = results[0].error.as_ref().unwrap();
    assert_eq!((error.code.as_str(), error.holder.as_str()), ("not_unique", first.as_str()));
    broker.stop().await;
}

#[tokio::test]
async fn a_debounced_task_is_handed_out_after_quiet_with_the_latest_payload() {
    let broker = Broker::manual().await;
    let edit =
        |n: u32| json!({"type": "send", "payload": n, "unique": {"key": "k", "debounce_ms": 5000}});
    let (status, id, _) = answered(enqueue(&broker, edit(1)).await);
    assert_eq!(status, 201);
    broker.clock.advance(Duration::from_secs(4));
    assert_eq!(answered(enqueue(&broker, edit(2)).await), (200, id.clone(), true));
    assert_eq!(seen(&broker, &id).await["run_at"], "2023-11-14T22:13:29.000Z");
    broker.clock.advance(Duration::from_millis(4_999));
    assert_eq!(seen(&broker, &id).await["state"], "scheduled");
    broker.clock.advance(Duration::from_millis(1));
    let body = r#"{"queues": ["mail"], "wait_ms": 60000}"#;
    let claimed = post(broker.address, "/v1/claims", body).await.ok();
    let task = &claimed["tasks"][0];
    assert_eq!((task["id"].as_str(), &task["payload"]), (Some(id.as_str()), &json!(2)));
    assert_eq!(answered(enqueue(&broker, edit(3)).await).0, 201, "the first has started");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_clients_that_enqueue_one_key_at_once_one_makes_the_task() {
    const CLIENTS: usize = 24;
    const ROUNDS: usize = 20;
    let broker = Broker::start().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(broker.grpc().await);
    }
    for round in 0..ROUNDS {
        let enqueues = clients.iter().cloned().enumerate().map(|(number, mut client)| {
            let unique = v1::Unique { key: Some("k".into()), ..v1::Unique::default() };
            let task = v1::NewTask { unique: Some(unique), ..task("mail", "send") };
            tokio::spawn(async move {
                if number % 2 == 0 {
                    let request = v1::EnqueueRequest { task: Some(task) };
                    let reply = client.enqueue(request).await.unwrap().into_inner();
                    return vec![(reply.id, reply.duplicate)];
                }
                let request = v1::EnqueueManyRequest { tasks: vec![task; 3], batch_id: vec![] };
                let reply = client.enqueue_many(request).await.unwrap().into_inner();
                reply.results.into_iter().map(|result| (result.id, result.duplicate)).collect()
            })
        });
        let answers = futures_util::future::join_all(enqueues).await;
        let answers: Vec<(String, bool)> = answers.into_iter().flat_map(Result::unwrap).collect();
        let ids: BTreeSet<&String> = answers.iter().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), 1, "round {round}: one task answers all");
        let made = answers.iter().filter(|(_, duplicate)| !duplicate).count();
        assert_eq!(made, 1, "round {round}: one enqueue made it");
        let request =
            v1::ClaimRequest { queues: queues(&["mail"]), max: 10, ..v1::ClaimRequest::default() };
        let claimed = clients[0].claim(request).await.unwrap().into_inner().tasks;
        assert_eq!(claimed.len(), 1, "round {round}");
        let ack = v1::AckRequest {
            id: claimed[0].id.clone(),
            claim_token: claimed[0].claim_token,
            ..v1::AckRequest::default()
        };
        clients[0].ack(ack).await.unwrap();
    }
    let queue = get(broker.address, "/v1/queues/mail").await.ok();
    assert_eq!(queue["enqueued_total"], ROUNDS);
    broker.stop().await;
}

#[tokio::test]
async fn keys_and_windows_survive_a_restart() {
    let broker = Broker::manual().await;
    let (_, waiting, _) = answered(enqueue(&broker, keyed(json!({"key": "waiting"}))).await);
    let window = || keyed(json!({"key": "daily", "window_ms": 60000}));
    let (_, daily, _) = answered(enqueue(&broker, window()).await);
    post(broker.address, &format!("/v1/tasks/{daily}/cancel"), "").await.ok();
    let dir = broker.stop().await;
    let broker = Broker::on(dir, |config| config.clock = Clock::manual(START_MS + 30_000)).await;
    let again = answered(enqueue(&broker, keyed(json!({"key": "waiting"}))).await);
    assert_eq!(again, (200, waiting, true));
    assert_eq!(answered(enqueue(&broker, window()).await), (200, daily.clone(), true));
    broker.clock.advance(Duration::from_secs(30));
    let (status, next, _) = answered(enqueue(&broker, window()).await);
    assert_eq!(status, 201, "the window is over");
    assert_ne!(next, daily);
    broker.stop().await;
}

#[tokio::test]
async fn a_retry_by_hand_is_refused_while_another_task_holds_the_key() {
    let broker = Broker::manual().await;
    let (_, first, _) = answered(enqueue(&broker, keyed(json!({"key": "k"}))).await);
    post(broker.address, &format!("/v1/tasks/{first}/cancel"), "").await.ok();
    let (_, holder, _) = answered(enqueue(&broker, keyed(json!({"key": "k"}))).await);
    let refused = post(broker.address, &format!("/v1/tasks/{first}/retry"), "{}").await;
    assert_eq!(refused.problem().1, "not_unique");
    assert_eq!(refused.json()["holder"], holder.as_str());
    broker.stop().await;
}
