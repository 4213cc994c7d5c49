//! Workers in a cluster: every node lists all workers, passes orders to them, and tells them which
//! tasks were cancelled.

use crate::common::{
    Broker, DEADLINE, START_MS,
    cluster::{SHARDS, leader, queues, three, three_with, transfer},
    code, eventually, http, task,
    worker::{Worker, held, hello},
};
use serde_json::{Value, json};
use std::time::Duration;
use taskyard_proto::v1::{self, WorkerState, broker_message, worker_message::Message};
use taskyard_server::Clock;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

/// Long enough that no lease is renewed or ends during a test.
const LEASE_MS: u64 = 3_600_000;

/// Three nodes with one clock, which stands still, so that no session is lost in a slow test.
async fn three_by_one_clock() -> ([Broker; 3], Clock) {
    let clock = Clock::manual(START_MS);
    let nodes = three_with(|_, config| config.clock = clock.clone()).await;
    (nodes, clock)
}

async fn enqueue(broker: &Broker, queue: &str) -> String {
    let request = v1::EnqueueRequest { task: Some(task(queue, "test")) };
    broker.grpc().await.enqueue(request).await.unwrap().into_inner().id
}

async fn state(broker: &Broker, id: &str) -> String {
    let task = http::get(broker.address, &format!("/v1/tasks/{id}")).await.ok();
    task["state"].as_str().unwrap().to_owned()
}

/// The list of workers on a node.
async fn workers(broker: &Broker) -> Value {
    http::get(broker.address, "/v1/workers").await.ok()
}

/// The id, node and state of each worker in a list.
fn shown(list: &Value) -> Vec<(String, u64, String)> {
    let shown = |worker: &Value| {
        let text = |field: &str| worker[field].as_str().unwrap().to_owned();
        (text("id"), worker["node"].as_u64().unwrap(), text("state"))
    };
    list["workers"].as_array().unwrap().iter().map(shown).collect()
}

/// Resumes a session on another node.
async fn resume(broker: &Broker, secret: &[u8], queue: &str, claims: &[v1::ClaimedTask]) -> Worker {
    let hello = v1::Hello {
        session_secret: secret.to_vec(),
        held: held(claims),
        lease_ms: LEASE_MS,
        ..hello(&[queue], 5)
    };
    timeout(DEADLINE, Worker::hello(broker, hello)).await.unwrap().unwrap()
}

async fn open(broker: &Broker, queue: &str) -> Worker {
    resume(broker, &[], queue, &[]).await
}

async fn order(broker: &Broker, id: &str, what: &str) -> http::Answer {
    http::post(broker.address, &format!("/v1/workers/{id}/{what}"), "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_lists_the_workers_of_all() {
    let nodes = three().await;
    assert_eq!(workers(&nodes[0]).await, json!({"workers": []}));
    let mut opened = Vec::new();
    for node in &nodes {
        opened.push(open(node, "q").await);
    }
    let running = |(worker, node): (&Worker, u64)| (worker.id.clone(), node, "running".to_owned());
    let expected: Vec<_> = opened.iter().zip(1..).map(running).collect();
    for node in &nodes {
        let list = workers(node).await;
        // The list is in the order of connecting, and two workers may connect in the same
        // millisecond.
        let mut listed = shown(&list);
        listed.sort_by_key(|(_, node, _)| *node);
        assert_eq!(listed, expected, "{list}");
        assert!(list["missing_nodes"].is_null(), "{list}");
        let reply = node.grpc().await.list_workers(v1::ListWorkersRequest {}).await.unwrap();
        let reply = reply.into_inner();
        let mut listed: Vec<_> = reply.workers.iter().map(|worker| worker.node).collect();
        listed.sort_unstable();
        assert_eq!((listed, reply.missing_nodes), (vec![1, 2, 3], vec![]));
    }
    for worker in opened {
        worker.goodbye().await;
    }
    assert_eq!(workers(&nodes[1]).await, json!({"workers": []}));
}

/// More workers than nodes send each other in one message.
#[tokio::test(flavor = "multi_thread")]
async fn all_of_many_workers_are_listed() {
    let nodes = three().await;
    let mut client = nodes[0].grpc().await;
    let mut streams = Vec::new();
    for _ in 0..1_001 {
        let (said, messages) = mpsc::channel(1);
        let hello = v1::WorkerMessage { message: Some(Message::Hello(hello(&["q"], 1))) };
        said.send(hello).await.unwrap();
        let mut heard = client.work(ReceiverStream::new(messages)).await.unwrap().into_inner();
        let welcome = heard.message().await.unwrap().unwrap().message;
        assert!(matches!(welcome, Some(broker_message::Message::Welcome(_))), "{welcome:?}");
        streams.push((said, heard));
    }
    for node in &nodes {
        let list = workers(node).await;
        assert_eq!(shown(&list).len(), 1_001);
        assert!(list["missing_nodes"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_quieted_and_stopped_through_any_node() {
    let nodes = three().await;
    for (place, asked) in [(0, 1), (1, 2), (2, 0), (1, 1)] {
        let mut worker = open(&nodes[place], "q").await;
        let id = worker.id.clone();
        assert_eq!(order(&nodes[asked], &id, "quiet").await.status, 202);
        assert_eq!(worker.orders().await.state(), WorkerState::Quiet);
        assert_eq!(shown(&workers(&nodes[asked]).await)[0].2, "quiet");
        let request = v1::WorkerRequest { id };
        nodes[asked].grpc().await.stop_worker(request).await.unwrap();
        assert_eq!(worker.orders().await.state(), WorkerState::Stopping);
        worker.goodbye().await;
    }
    for id in ["00112233445566778899aabbccddeeff", "nonsense"] {
        let (status, code, words) = order(&nodes[0], id, "quiet").await.problem();
        assert_eq!((status, code.as_str()), (404, "not_found"), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_is_named_and_its_workers_are_not_called_unknown() {
    let [first, second, third] = three().await;
    let (near, mut far) = (open(&first, "q").await, open(&second, "q").await);
    let gone = open(&third, "q").await;
    let unknown = gone.id.clone();
    let waiting = enqueue(&first, "lonely").await;
    tokio::task::spawn_blocking(move || drop(third)).await.unwrap();

    let list = eventually("the other nodes notice", async || {
        let list = workers(&first).await;
        (list["missing_nodes"] == json!([3])).then_some(list)
    })
    .await;
    // Workers that came in the same millisecond are listed by their ids, which are random.
    let mut ids: Vec<_> = shown(&list).into_iter().map(|(id, node, _)| (node, id)).collect();
    ids.sort();
    assert_eq!(ids, [(1, near.id.clone()), (2, far.id.clone())]);
    let reply = first.grpc().await.list_workers(v1::ListWorkersRequest {}).await.unwrap();
    assert_eq!(reply.into_inner().missing_nodes, [3]);

    // The worker may be on the lost node, so no node knows that the worker does not exist.
    for what in ["quiet", "stop"] {
        let (status, code, words) = order(&first, &unknown, what).await.problem();
        assert_eq!((status, code.as_str()), (503, "unavailable"));
        assert!(words.contains("node 3 did not answer"), "{words}");
    }
    let request = v1::WorkerRequest { id: unknown };
    let refused = first.grpc().await.quiet_worker(request).await.unwrap_err();
    assert_eq!(code(&refused), "unavailable");
    // A worker that is found needs no other node.
    assert_eq!(order(&first, &far.id.clone(), "quiet").await.status, 202);
    assert_eq!(far.orders().await.state(), WorkerState::Quiet);

    let why = http::get(second.address, &format!("/v1/tasks/{waiting}/why")).await.ok();
    let reason = &why["reasons"][0];
    assert_eq!(reason["code"], "no_worker", "{why}");
    assert!(reason["message"].as_str().unwrap().ends_with("node 3 did not answer"), "{why}");
}

/// The worker follows the order on every node where it resumes, even if it never got the order.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_outlives_the_node_that_had_the_worker() {
    let ([first, second, third], _clock) = three_by_one_clock().await;
    // This worker is away when the order comes, and its node crashes before it is back.
    let away = open(&first, "q").await;
    let (id, secret) = (away.id.clone(), away.secret.clone());
    drop(away);
    assert_eq!(order(&third, &id, "quiet").await.status, 202);
    tokio::task::spawn_blocking(move || drop(first)).await.unwrap();

    let mut worker = resume(&second, &secret, "q", &[]).await;
    assert_eq!(
        worker.orders().await.state(),
        WorkerState::Quiet,
        "the worker must get the order at once"
    );
    enqueue(&second, "q").await;
    worker.credits(5).await;
    worker.beat(&[]).await;
    assert_eq!(worker.orders().await.state(), WorkerState::Quiet, "and with every beat");
    assert_eq!(worker.waiting(), 0, "a quiet worker must get no tasks");
    let list = workers(&third).await;
    assert_eq!(shown(&list), [(id.clone(), 2, "quiet".to_owned())]);

    // This worker knows the order, and tells it to a node that never heard of it.
    let quiet = v1::Hello { state: WorkerState::Quiet.into(), ..hello(&["q"], 5) };
    let mut told = Worker::hello(&third, quiet).await.unwrap();
    let id = told.id.clone();
    let state = |list: &Value| shown(list).into_iter().find(|(found, ..)| *found == id).unwrap().2;
    assert_eq!(state(&workers(&second).await), "quiet");
    told.credits(5).await;
    told.say(Message::Beat(v1::Beat { state: WorkerState::Quiet.into(), ..Default::default() }))
        .await;
    told.orders().await;
    assert_eq!(told.waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_moves_to_another_node_is_listed_once_and_never_lost() {
    let (nodes, clock) = three_by_one_clock().await;
    // The first worker leaves behind a stream that looks alive, the second one a stream that was
    // cut.
    let ghost = open(&nodes[0], "q").await;
    let moved = resume(&nodes[1], &ghost.secret, "q", &[]).await;
    let cut = open(&nodes[0], "q").await;
    let (other, secret) = (cut.id.clone(), cut.secret.clone());
    drop(cut);
    let came_back = resume(&nodes[2], &secret, "q", &[]).await;
    let one = ghost.id.clone();
    for node in &nodes {
        let list = workers(node).await;
        let mut places: Vec<_> = shown(&list).into_iter().map(|(id, at, _)| (id, at)).collect();
        places.sort_by_key(|(_, at)| *at);
        assert_eq!(places, [(one.clone(), 2), (other.clone(), 3)], "{list}");
    }
    drop(ghost);
    moved.goodbye().await;
    came_back.goodbye().await;
    // A worker that is silent for so long is lost.
    clock.advance(Duration::from_secs(60));
    for node in &nodes {
        assert_eq!(workers(node).await, json!({"workers": []}));
    }
}

/// Another node handed out this claim, and it never reached the worker. No other node knows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_releases_claims_that_never_reached_it() {
    let (nodes, _clock) = three_by_one_clock().await;
    let secret = open(&nodes[0], "q").await.secret;
    let mut away = resume(&nodes[1], &secret, "q", &[]).await;
    away.credits(1).await;
    let id = enqueue(&nodes[2], "q").await;
    away.tasks(1).await;
    drop(away);
    let back = resume(&nodes[0], &secret, "q", &[]).await;
    eventually("the claim that the worker does not list is released", async || {
        (state(&nodes[0], &id).await == "ready").then_some(())
    })
    .await;
    back.goodbye().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_worker_at_once_whichever_node_it_is_connected_to() {
    let nodes = three().await;
    let queues = queues(&nodes[0]);
    for (shard, queue) in queues.iter().enumerate() {
        for node in &nodes {
            let mut worker = open(node, queue).await;
            for asked in &nodes {
                let id = enqueue(asked, queue).await;
                worker.credits(1).await;
                let tasks = worker.tasks(1).await;
                let request = v1::CancelRequest { id: id.clone() };
                let cancelled = asked.grpc().await.cancel(request).await.unwrap().into_inner();
                assert_eq!(cancelled.state, "claimed");
                // Beats only renew claims here, so only the order can tell the worker.
                assert_eq!(worker.orders().await.cancel, held(&tasks));
                let fail =
                    v1::FailRequest { id, claim_token: tasks[0].claim_token, ..Default::default() };
                let fail = v1::answer::Answer::Fail(fail);
                let reply = worker.answer([fail]).await.remove(0);
                assert_eq!(reply.fail.unwrap().state, "cancelled");
            }
            worker.goodbye().await;
        }
        // The next leader does not know yet which node has which session.
        let mut worker = open(&nodes[0], queue).await;
        worker.credits(1).await;
        let id = enqueue(&nodes[0], queue).await;
        let tasks = worker.tasks(1).await;
        let from = leader(&nodes[0], shard).await.unwrap();
        transfer(&nodes[2], shard, from % 3 + 1).await;
        let cancel = format!("/v1/tasks/{id}/cancel");
        http::post(nodes[1].address, &cancel, "").await.ok();
        assert_eq!(worker.orders().await.cancel, held(&tasks));
        worker.goodbye().await;
    }
    assert_eq!(queues.len(), SHARDS);
}

/// By then the leader knows the node of the worker, and tells no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_follows_a_worker_to_another_node() {
    let nodes = three().await;
    for queue in queues(&nodes[0]) {
        for place in 0..nodes.len() {
            let mut worker = open(&nodes[place], &queue).await;
            worker.credits(1).await;
            let id = enqueue(&nodes[0], &queue).await;
            let tasks = worker.tasks(1).await;
            let next = &nodes[(place + 1) % nodes.len()];
            let mut moved = resume(next, &worker.secret, &queue, &tasks).await;
            http::post(nodes[0].address, &format!("/v1/tasks/{id}/cancel"), "").await.ok();
            assert_eq!(moved.orders().await.cancel, held(&tasks));
            moved.goodbye().await;
        }
    }
}

/// No client cancels these tasks: the flow's shard sends the cancellation to their shards.
#[tokio::test(flavor = "multi_thread")]
async fn workers_learn_of_tasks_that_end_with_their_flow() {
    let nodes = three().await;
    let queues = queues(&nodes[0]);
    let mut workers = Vec::new();
    for (queue, number) in queues.iter().zip(0..) {
        let worker = open(&nodes[number % 3], queue).await;
        worker.credits(1).await;
        workers.push(worker);
    }
    let tasks: Vec<_> =
        queues.iter().map(|queue| json!({"name": queue, "queue": queue, "type": "test"})).collect();
    let flow = json!({"name": "flow", "nodes": tasks}).to_string();
    let flow = http::post(nodes[0].address, "/v1/flows", &flow).await.ok();
    let mut claimed = Vec::new();
    for worker in &mut workers {
        claimed.push(worker.tasks(1).await);
    }
    let cancel = format!("/v1/flows/{}/cancel", flow["id"].as_str().unwrap());
    http::post(nodes[1].address, &cancel, "").await.ok();
    for (worker, tasks) in workers.iter_mut().zip(&claimed) {
        assert_eq!(worker.orders().await.cancel, held(tasks));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_task_waits_knows_the_workers_of_all_nodes() {
    let nodes = three().await;
    let id = enqueue(&nodes[0], "q").await;
    let first_reason = async |node: &Broker| {
        let why = http::get(node.address, &format!("/v1/tasks/{id}/why")).await.ok();
        why["reasons"][0]["code"].as_str().unwrap().to_owned()
    };
    for node in &nodes {
        assert_eq!(first_reason(node).await, "no_worker");
    }
    // The worker has no free slot yet, but it listens.
    let worker = open(&nodes[2], "q").await;
    for node in &nodes {
        assert_eq!(first_reason(node).await, "ahead");
    }
    worker.goodbye().await;
    assert_eq!(first_reason(&nodes[0]).await, "no_worker");
}
