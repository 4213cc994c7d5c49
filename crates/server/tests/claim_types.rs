//! Claims by type: a worker gets only tasks of the types that it names, over every front. A task of
//! a type that no worker takes says so.

use crate::common::{
    Broker, DEADLINE, eventually, http, queues, task,
    worker::{Worker, hello},
};
use serde_json::{Value, json};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tokio::time::timeout;
use tonic::transport::Channel;

type Client = TaskyardClient<Channel>;

async fn enqueue(client: &mut Client, queue: &str, task_type: &str) -> String {
    let request = v1::EnqueueRequest { task: Some(task(queue, task_type)) };
    client.enqueue(request).await.unwrap().into_inner().id
}

fn types(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn claim(
    client: &mut Client,
    names: &[&str],
    of: &[&str],
    wait_ms: u64,
) -> Vec<v1::ClaimedTask> {
    let (queues, types) = (queues(names), types(of));
    let request = v1::ClaimRequest { queues, types, max: 5, wait_ms, ..Default::default() };
    let reply = timeout(DEADLINE, client.claim(request)).await.expect("an answer in time");
    reply.unwrap().into_inner().tasks
}

async fn why(broker: &Broker, id: &str) -> Vec<Value> {
    let answer = http::get(broker.address, &format!("/v1/tasks/{id}/why")).await.ok();
    answer["reasons"].as_array().unwrap().clone()
}

/// Waits until a worker listens on the task's queue, for any type.
async fn is_listened_to(broker: &Broker, foreign: &str) {
    eventually("a claim that waits", async || {
        (why(broker, foreign).await[0]["code"] != "no_worker").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_claim_waits_for_its_types_on_every_path() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    // A claim from one queue waits on one shard, a claim from several queues on several shards.
    for names in [&["q"][..], &["q", "a", "b", "c", "d", "e"]] {
        let foreign = enqueue(&mut client, "q", "video").await;
        assert!(claim(&mut client, names, &["mail", "sms"], 0).await.is_empty());
        let mut parked = broker.grpc().await;
        let (of_claim, wanted) = (types(&["mail", "sms"]), names.to_vec());
        let (queues, wait_ms) = (queues(&wanted), 60_000);
        let request = v1::ClaimRequest { queues, types: of_claim, wait_ms, ..Default::default() };
        let waiting = tokio::spawn(async move { parked.claim(request).await });
        is_listened_to(&broker, &foreign).await;
        enqueue(&mut client, "q", "video").await;
        let mail = enqueue(&mut client, "q", "mail").await;
        let taken = timeout(DEADLINE, waiting)
            .await
            .expect("the waiting claim is served")
            .unwrap()
            .unwrap();
        let taken: Vec<_> = taken.into_inner().tasks.into_iter().map(|task| task.id).collect();
        assert_eq!(taken, [mail]);
        let rest = claim(&mut client, names, &[], 0).await;
        assert_eq!(rest.len(), 2, "a claim without types takes any");
        assert!(
            rest.iter().all(|task| task.attempt == 1),
            "no earlier attempt was spent on these tasks"
        );
    }
    broker.stop().await;
}

#[tokio::test]
async fn http_claims_name_types_and_wrong_lists_are_refused() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    enqueue(&mut client, "q", "video").await;
    let mail = enqueue(&mut client, "q", "mail").await;
    let claim = async |types: Value| {
        let body = json!({"queues": ["q"], "max": 5, "types": types}).to_string();
        http::post(broker.address, "/v1/claims", &body).await
    };
    let taken = claim(json!(["mail", "sms", "mail"])).await.ok();
    assert_eq!(taken["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(taken["tasks"][0]["id"], json!(mail));
    let many: Vec<String> = (0..257).map(|number| format!("t{number}")).collect();
    for (bad, words) in [
        (json!(many), "257 types, at most 256"),
        (json!([""]), "an empty type"),
        (json!(["x".repeat(257)]), "a type has 257 bytes"),
    ] {
        let (status, code, detail) = claim(bad).await.problem();
        assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{detail}");
        assert!(detail.contains(words), "{detail}");
    }
    let taken = claim(json!([])).await.ok();
    assert_eq!(taken["tasks"][0]["type"], "video", "no types are all types");
    broker.stop().await;
}

#[tokio::test]
async fn a_session_is_handed_its_types_and_shows_them() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let foreign = enqueue(&mut client, "q", "video").await;
    let hello = v1::Hello { types: types(&["sms", "mail"]), ..hello(&["q"], 5) };
    let mut worker = Worker::hello(&broker, hello).await.unwrap();
    worker.credits(5).await;
    let mail = enqueue(&mut client, "q", "mail").await;
    let tasks = worker.tasks(1).await;
    assert_eq!(tasks[0].id, mail);
    let known = http::get(broker.address, "/v1/workers").await.ok();
    assert_eq!(known["workers"][0]["types"], json!(["mail", "sms"]));
    let known = client.list_workers(v1::ListWorkersRequest {}).await.unwrap().into_inner();
    assert_eq!(known.workers[0].types, ["mail", "sms"]);
    let reasons = why(&broker, &foreign).await;
    assert_eq!(reasons[0]["code"], "no_worker_for_type");
    worker.goodbye().await;
    assert_eq!(why(&broker, &foreign).await[0]["code"], "no_worker");
    broker.stop().await;
}

#[tokio::test]
async fn why_says_that_no_worker_takes_the_type() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let id = enqueue(&mut client, "q", "video").await;
    assert_eq!(why(&broker, &id).await[0]["code"], "no_worker");
    let mut parked = broker.grpc().await;
    let waiting = tokio::spawn(async move { claim(&mut parked, &["q"], &["mail"], 60_000).await });
    is_listened_to(&broker, &id).await;
    let reasons = why(&broker, &id).await;
    assert_eq!(reasons[0]["code"], "no_worker_for_type");
    let message = "workers listen on queue q, but none of them takes tasks of type video";
    assert_eq!(reasons[0]["message"], message);
    assert_eq!(reasons[1]["code"], "ahead");
    let mut other = broker.grpc().await;
    let queues = queues(&["q"]);
    let of_video = v1::ClaimRequest { queues, types: types(&["video"]), ..Default::default() };
    let taken = other.claim(of_video).await.unwrap().into_inner().tasks;
    assert_eq!(taken[0].id, id);
    enqueue(&mut client, "q", "mail").await;
    assert_eq!(
        timeout(DEADLINE, waiting).await.expect("the waiting claim is served").unwrap().len(),
        1
    );
    broker.stop().await;
}
