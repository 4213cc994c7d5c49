//! A flow's child runs once, after its parents, with their results, on any shards.

use crate::common::{Broker, DEADLINE, code, eventually, http, queues, task};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tonic::transport::Channel;

type Client = TaskyardClient<Channel>;

fn node(name: &str, queue: &str, depends_on: &[&str]) -> v1::FlowNode {
    let dependency = |name: &&str| v1::Dependency { name: name.to_string(), on_failure: 0 };
    let retry = v1::RetryPolicy { max_attempts: Some(1), ..Default::default() };
    v1::FlowNode {
        name: name.into(),
        task: Some(v1::NewTask { retry: Some(retry), ..task(queue, name) }),
        depends_on: depends_on.iter().map(dependency).collect(),
        on_failure: 0,
    }
}

async fn submit(client: &mut Client, nodes: Vec<v1::FlowNode>) -> v1::SubmitFlowReply {
    let request = v1::SubmitFlowRequest { nodes, ..Default::default() };
    client.submit_flow(request).await.unwrap().into_inner()
}

async fn claim(client: &mut Client, queue: &str, max: u32) -> Vec<v1::ClaimedTask> {
    let request =
        v1::ClaimRequest { queues: queues(&[queue]), max, wait_ms: 30_000, ..Default::default() };
    let tasks = client.claim(request).await.unwrap().into_inner().tasks;
    assert!(!tasks.is_empty(), "nothing to claim in {queue}");
    tasks
}

async fn claim_one(client: &mut Client, queue: &str) -> v1::ClaimedTask {
    claim(client, queue, 1).await.remove(0)
}

async fn ack(client: &mut Client, held: &v1::ClaimedTask, result: &str) {
    let request = v1::AckRequest {
        id: held.id.clone(),
        claim_token: held.claim_token,
        result: Some(result.as_bytes().to_vec().into()),
        enqueue: vec![],
    };
    client.ack(request).await.unwrap();
}

async fn fail(client: &mut Client, held: &v1::ClaimedTask) {
    let error =
        v1::TaskError { r#type: "io".into(), message: "no route".into(), ..Default::default() };
    let request = v1::FailRequest {
        id: held.id.clone(),
        claim_token: held.claim_token,
        error: Some(error),
        ..Default::default()
    };
    client.fail(request).await.unwrap();
}

/// The flow, once it has ended.
async fn ended(client: &mut Client, id: &str) -> v1::Flow {
    let wait_ms = DEADLINE.as_millis() as u64;
    let request = v1::GetFlowRequest { id: id.into(), wait_ms, without_nodes: false };
    let flow = client.get_flow(request).await.unwrap().into_inner();
    assert!(flow.ended_at.is_some(), "{flow:?}");
    flow
}

async fn look(client: &mut Client, id: &str) -> v1::Flow {
    let request = v1::GetFlowRequest { id: id.into(), ..Default::default() };
    client.get_flow(request).await.unwrap().into_inner()
}

fn states(flow: &v1::Flow) -> BTreeMap<&str, &str> {
    flow.nodes.iter().map(|node| (node.name.as_str(), node.state.as_str())).collect()
}

/// Waits until the nodes are in these states.
async fn await_states(client: &mut Client, id: &str, expected: &[(&str, &str)]) {
    let expected: BTreeMap<&str, &str> = expected.iter().copied().collect();
    eventually("the states of the nodes", async || {
        let flow = look(client, id).await;
        (states(&flow) == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_flow_over_http_from_its_submission_to_its_result() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let address = broker.address;
    let flow = json!({"name": "nightly", "nodes": [
        {"name": "left", "queue": "l", "type": "half", "payload": {"n": 1}},
        {"name": "right", "queue": "r", "type": "half"},
        {"name": "sum", "queue": "s", "type": "add",
         "depends_on": ["left", {"name": "right", "on_failure": "run"}]},
    ]});
    let answer = http::post(address, "/v1/flows", &flow.to_string()).await;
    assert_eq!(answer.status, 201);
    let made = answer.ok();
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["tasks"].as_object().unwrap().len(), 3);

    let claim = async |queue: &str| -> Value {
        let body = json!({"queues": [queue], "wait_ms": 30_000}).to_string();
        http::post(address, "/v1/claims", &body).await.ok()["tasks"][0].clone()
    };
    let finish = async |held: &Value, verb: &str, rest: Value| {
        let mut body = rest;
        body["claim_token"] = held["claim_token"].clone();
        let path = format!("/v1/tasks/{}/{verb}", held["id"].as_str().unwrap());
        http::post(address, &path, &body.to_string()).await.ok()
    };
    let left = claim("l").await;
    assert_eq!(left["flow"], json!({"id": id, "node": "left"}));
    assert_eq!(left.get("parents"), None);
    finish(&left, "ack", json!({"result": {"half": 20}})).await;
    let right = claim("r").await;
    finish(&right, "fail", json!({"error": {"type": "io", "message": "no"}, "retryable": false}))
        .await;
    let sum = claim("s").await;
    assert_eq!(sum["parents"], json!({"left": {"half": 20}}));
    assert_eq!(
        sum["parent_errors"],
        json!({"right": {"state": "dead", "type": "io", "message": "no"}})
    );
    let running = http::get(address, &format!("/v1/flows/{id}")).await.ok();
    assert_eq!(
        (&running["state"], &running["nodes"][2]["state"]),
        (&json!("running"), &json!("claimed"))
    );
    finish(&sum, "ack", json!({"result": 42})).await;

    let path = format!("/v1/flows/{id}?wait_ms=30000");
    let done = http::get(address, &path).await.ok();
    assert_eq!(done["state"], "failed", "a failure after which others ran is one all the same");
    assert_eq!(done["results"], json!({"sum": 42}));
    assert_eq!(
        (&done["nodes_total"], &done["nodes_done"], &done["nodes_failed"]),
        (&json!(3), &json!(3), &json!(1))
    );
    assert_eq!(
        done["nodes"][2]["depends_on"],
        json!([
            {"name": "left", "on_failure": "fail"}, {"name": "right", "on_failure": "run"}
        ])
    );
    let task =
        http::get(address, &format!("/v1/tasks/{}", made["tasks"]["left"].as_str().unwrap()))
            .await
            .ok();
    assert_eq!(task["flow"], json!({"id": id, "node": "left"}));
    let of_flow = http::get(address, &format!("/v1/tasks?flow={id}")).await.ok();
    assert_eq!(of_flow["tasks"].as_array().unwrap().len(), 3);
    let list = http::get(address, "/v1/flows?name=nightly&state=failed").await.ok();
    assert_eq!(list["flows"][0]["id"], id);
    assert_eq!(list["flows"][0].get("nodes"), None);
    broker.stop().await;
}

#[tokio::test]
async fn invalid_flows_are_refused_with_the_names() {
    let broker = Broker::start().await;
    let address = broker.address;
    let large = "x".repeat((1 << 20) + 1);
    for (body, status, text) in [
        (json!({"nodes": []}), 400, "the flow has no nodes"),
        (json!({"nodes": [{"type": "t"}]}), 400, "nodes[0] has no name"),
        (
            json!({"nodes": [{"name": "a", "type": "t", "depends_on": ["b"]}]}),
            400,
            "node \"a\" depends on \"b\", which is no node",
        ),
        (
            json!({"nodes": [
                {"name": "a", "type": "t", "depends_on": ["b"]},
                {"name": "b", "type": "t", "depends_on": [{"name": "a"}]},
            ]}),
            400,
            "the flow has a cycle: a -> b -> a",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t"}, {"name": "a", "type": "u"}]}),
            400,
            "two nodes of the flow are named \"a\"",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "priority": 12}]}),
            400,
            "node \"a\": priority 12",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "queue": "no spaces"}]}),
            400,
            "node \"a\": queue \"no spaces\"",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "request_id": "r"}]}),
            400,
            "node \"a\": it has a request_id",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t"}, {"name": "b", "type": "t", "unique": {"key": "k"}}]}),
            400,
            "node \"b\": it has a unique key, which another task might hold; leave it out",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "payload": large}]}),
            400,
            "node \"a\": payload has",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "expires_at": "2001-01-01T00:00:00Z"}]}),
            400,
            "node \"a\": expires_at 2001",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "depends_on": [{"name": "b", "on_failure": "explode"}]}]}),
            400,
            "nodes[0].depends_on[0]",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "dependson": []}]}),
            400,
            "unknown field `dependson`",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "on_failure": "ignore"}]}),
            400,
            "node \"a\": on_failure is for a dependency, or for a task that a running one adds",
        ),
        (
            json!({"nodes": [{"name": "a", "type": "t", "on_failure": "fail"}]}),
            400,
            "node \"a\": on_failure is for a dependency",
        ),
        (
            json!({"name": "\u{7}", "nodes": [{"name": "a", "type": "t"}]}),
            400,
            "the name of the flow has the control character",
        ),
    ] {
        let answer = http::post(address, "/v1/flows", &body.to_string()).await;
        let (found, _, detail) = answer.problem();
        let expected = if detail.contains("payload has") { 413 } else { status };
        assert_eq!(found, expected, "{detail}");
        assert!(detail.contains(text), "{detail} lacks {text}");
    }
    let ignored = v1::FlowNode { on_failure: 1, ..node("a", "q", &[]) };
    let request = v1::SubmitFlowRequest { nodes: vec![ignored], ..Default::default() };
    let refused = broker.grpc().await.submit_flow(request).await.unwrap_err();
    assert_eq!(code(&refused), "invalid_argument");
    assert!(refused.message().contains("on_failure is for a dependency"), "{refused}");
    assert_eq!(http::get(address, "/v1/flows").await.ok(), json!({"flows": []}));
    let alone =
        http::post(address, "/v1/queues/q/tasks", r#"{"type": "t", "depends_on": []}"#).await;
    assert!(alone.problem().2.contains("depends_on is for nodes of a flow alone"));
    for (method, path) in [("GET", ""), ("POST", "/cancel"), ("POST", "/retry")] {
        let path = format!("/v1/flows/00000000000000000000000000{path}");
        let json = Some("application/json");
        let (status, code, _) = http::send(address, method, &path, json, b"").await.problem();
        assert_eq!((status, code.as_str()), (404, "not_found"), "{method} {path}");
    }
    let waited = http::get(address, "/v1/flows/00000000000000000000000000?wait_ms=10").await;
    assert!(waited.problem().2.starts_with("flow 0"), "{waited:?}");
    let bad = http::get(address, "/v1/flows?state=done").await.problem().2;
    assert!(bad.contains("running, succeeded, failed, cancelled"), "{bad}");
    broker.stop().await;
}

#[tokio::test]
async fn a_node_that_dies_takes_its_dependents_along_until_the_flow_is_retried() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let nodes = vec![
        node("get", "q1", &[]),
        node("parse", "q2", &["get"]),
        node("store", "q3", &["parse"]),
        node("other", "q4", &["get"]),
    ];
    let flow = submit(&mut client, nodes).await;
    let held = claim_one(&mut client, "q1").await;
    ack(&mut client, &held, "1").await;
    let held = claim_one(&mut client, "q2").await;
    fail(&mut client, &held).await;
    let held = claim_one(&mut client, "q4").await;
    ack(&mut client, &held, "4").await;
    let end = ended(&mut client, &flow.id).await;
    assert_eq!(end.state, "failed");
    await_states(
        &mut client,
        &flow.id,
        &[("get", "succeeded"), ("parse", "dead"), ("store", "failed"), ("other", "succeeded")],
    )
    .await;
    let request = v1::GetResultRequest { id: flow.tasks["store"].clone(), wait_ms: 0 };
    let result = client.get_result(request).await.unwrap().into_inner();
    assert_eq!(result.error.unwrap().message, "parent parse failed");
    let retry = v1::RetryRequest { id: flow.tasks["store"].clone(), ..Default::default() };
    let refused = client.retry(retry).await.unwrap_err();
    assert!(refused.message().contains("retry its flow"), "{refused}");

    let request = v1::FlowRequest { id: flow.id.clone() };
    assert_eq!(client.retry_flow(request).await.unwrap().into_inner().state, "running");
    let held = claim_one(&mut client, "q2").await;
    assert_eq!((held.attempt, &held.parents[0].result), (2, &Some(b"1".to_vec())));
    ack(&mut client, &held, "2").await;
    let held = claim_one(&mut client, "q3").await;
    ack(&mut client, &held, "3").await;
    let end = ended(&mut client, &flow.id).await;
    assert_eq!((end.state.as_str(), end.nodes_failed), ("succeeded", 0));
    let results: HashMap<String, Vec<u8>> = [("store", "3"), ("other", "4")]
        .map(|(name, result)| (name.to_owned(), result.as_bytes().to_vec()))
        .into();
    assert_eq!(end.results, results);
    broker.stop().await;
}

#[tokio::test]
async fn a_flow_that_is_cancelled_half_way_ends_when_its_worker_yields() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let nodes = vec![
        node("a", "q1", &[]),
        node("b", "q2", &["a"]),
        node("c", "q3", &["a"]),
        node("d", "q4", &["b", "c"]),
    ];
    let flow = submit(&mut client, nodes).await;
    let held = claim_one(&mut client, "q1").await;
    ack(&mut client, &held, "1").await;
    let running = claim_one(&mut client, "q2").await;
    let request = || v1::FlowRequest { id: flow.id.clone() };
    assert_eq!(client.cancel_flow(request()).await.unwrap().into_inner().state, "running");
    await_states(
        &mut client,
        &flow.id,
        &[("a", "succeeded"), ("b", "claimed"), ("c", "cancelled"), ("d", "cancelled")],
    )
    .await;
    assert!(look(&mut client, &flow.id).await.cancel_requested);
    let extend = v1::ExtendRequest {
        id: running.id.clone(),
        claim_token: running.claim_token,
        ..Default::default()
    };
    assert!(client.extend(extend).await.unwrap().into_inner().cancel_requested);
    let release = v1::ReleaseRequest { id: running.id.clone(), claim_token: running.claim_token };
    assert_eq!(client.release(release).await.unwrap().into_inner().state, "cancelled");
    let end = ended(&mut client, &flow.id).await;
    assert_eq!((end.state.as_str(), end.nodes_failed), ("cancelled", 3));
    assert!(end.cancel_requested, "the flow must still show that it was cancelled");
    assert_eq!(client.cancel_flow(request()).await.unwrap().into_inner().state, "cancelled");
    broker.stop().await;
}

#[tokio::test]
async fn a_running_task_decides_the_fan_out_and_what_depends_on_it_waits() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let flow =
        submit(&mut client, vec![node("split", "q1", &[]), node("after", "q2", &["split"])]).await;
    let held = claim_one(&mut client, "q1").await;
    let member = held.flow.clone().unwrap();
    assert_eq!((member.id.as_str(), member.node.as_str()), (flow.id.as_str(), "split"));
    let parts: Vec<String> = (0..20).map(|number| format!("part-{number}")).collect();
    let mut nodes: Vec<v1::FlowNode> = parts.iter().map(|name| node(name, "parts", &[])).collect();
    let names: Vec<&str> = parts.iter().map(String::as_str).collect();
    nodes.push(node("merge", "q3", &names));
    let request = |claim_token| v1::AddFlowTasksRequest {
        flow_id: member.id.clone(),
        parent: member.node.clone(),
        claim_token,
        nodes: nodes.clone(),
    };
    let stale = client.add_flow_tasks(request(held.claim_token + 1)).await.unwrap_err();
    assert_eq!(code(&stale), "claim_lost");
    let added = client.add_flow_tasks(request(held.claim_token)).await.unwrap().into_inner();
    let again = client.add_flow_tasks(request(held.claim_token)).await.unwrap().into_inner();
    assert_eq!((added.tasks.len(), &added), (21, &again));
    ack(&mut client, &held, "split").await;
    // An added task says what it waits for. A task that waits for its adder names the added tasks.
    let parents = async |task: &str| {
        let why = http::get(broker.address, &format!("/v1/tasks/{task}/why")).await.ok();
        let reason = why["reasons"][0].clone();
        assert_eq!(reason["code"], "parents", "{why}");
        (reason["message"].as_str().unwrap().to_owned(), reason["parents"].clone())
    };
    let (message, named) = parents(&added.tasks["merge"]).await;
    assert_eq!(named, json!(names[..10]));
    assert!(message.ends_with("part-8, part-9 and 10 more"), "{message}");
    eventually("the flow knows that its first task has ended", async || {
        let (_, named) = parents(&flow.tasks["after"]).await;
        (named[0] == "split" && named[1] == "part-0").then_some(())
    })
    .await;
    for _ in 0..20 {
        let part = claim_one(&mut client, "parts").await;
        ack(&mut client, &part, "1").await;
    }
    let merge = claim_one(&mut client, "q3").await;
    assert_eq!(merge.parents.len(), 20);
    let waiting = look(&mut client, &flow.id).await;
    assert_eq!((states(&waiting)["after"], waiting.nodes[0].added_open), ("blocked", 1));
    assert_eq!(parents(&flow.tasks["after"]).await.1, json!(["split", "merge"]));
    ack(&mut client, &merge, "20").await;
    let after = claim_one(&mut client, "q2").await;
    ack(&mut client, &after, "done").await;
    assert_eq!(ended(&mut client, &flow.id).await.state, "succeeded");
    broker.stop().await;
}

#[tokio::test]
async fn only_the_running_task_adds_tasks_to_its_node() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let nodes = vec![
        node("split", "q1", &[]),
        node("beside", "q2", &[]),
        node("waits", "q3", &[]),
        node("blocked", "q4", &["split"]),
    ];
    let flow = submit(&mut client, nodes).await;
    let first = claim_one(&mut client, "q1").await;
    let beside = claim_one(&mut client, "q2").await;
    let request = |parent: &str, claim_token| v1::AddFlowTasksRequest {
        flow_id: flow.id.clone(),
        parent: parent.into(),
        claim_token,
        nodes: vec![node("part", "parts", &[])],
    };
    let path = format!("/v1/flows/{}/tasks", flow.id);
    let over_http = async |parent: &str, token: Option<u64>| {
        let mut body = json!({"parent": parent, "nodes": [{"name": "part", "type": "t"}]});
        if let Some(token) = token {
            body["claim_token"] = token.into();
        }
        http::post(broker.address, &path, &body.to_string()).await.problem()
    };
    let missing = client.add_flow_tasks(request("split", 0)).await.unwrap_err();
    assert_eq!(code(&missing), "invalid_argument");
    assert!(missing.message().contains("claim_token is missing"), "{missing}");
    let (status, _, detail) = over_http("split", None).await;
    assert_eq!(status, 400);
    assert!(detail.contains("missing field `claim_token`"), "{detail}");

    // The lease of the first attempt ends, and another attempt begins.
    broker.clock.advance(Duration::from_secs(31));
    let second = claim_one(&mut client, "q1").await;
    assert_eq!((&second.id, second.attempt), (&first.id, 2));
    for (parent, token, what) in [
        ("split", beside.claim_token, "another task's token"),
        ("split", first.claim_token, "the token of a claim that was lost"),
        ("waits", second.claim_token, "a task that nobody has claimed"),
        ("blocked", second.claim_token, "a task that waits for its parents"),
    ] {
        let lost = client.add_flow_tasks(request(parent, token)).await.unwrap_err();
        assert_eq!(code(&lost), "claim_lost", "{what}: {lost}");
        let (status, code, detail) = over_http(parent, Some(token)).await;
        assert_eq!((status, code.as_str()), (409, "claim_lost"), "{what}: {detail}");
    }
    assert_eq!(look(&mut client, &flow.id).await.nodes_total, 4);
    client.add_flow_tasks(request("split", second.claim_token)).await.unwrap();
    assert_eq!(look(&mut client, &flow.id).await.nodes_total, 5);
    ack(&mut client, &second, "1").await;
    let late = client.add_flow_tasks(request("split", second.claim_token)).await.unwrap_err();
    assert_eq!(code(&late), "claim_lost");
    broker.stop().await;
}

#[tokio::test]
async fn a_flow_is_never_refused_by_a_full_queue_but_counts_in_it() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let address = broker.address;
    let settings = http::put(address, "/v1/queues/small/settings", r#"{"max_length": 2}"#).await;
    assert_eq!(settings.status, 200);
    let nodes: Vec<Value> = (0..5)
        .map(|number| json!({"name": format!("n{number}"), "queue": "small", "type": "t"}))
        .collect();
    let made = http::post(address, "/v1/flows", &json!({"nodes": nodes}).to_string()).await;
    assert_eq!(made.status, 201);
    eventually("its tasks are in the queue", async || {
        let queue = http::get(address, "/v1/queues/small").await.ok();
        (queue["ready"] == 5).then_some(())
    })
    .await;
    let alone = http::post(address, "/v1/queues/small/tasks", r#"{"type": "t"}"#).await;
    let (status, code, _) = alone.problem();
    assert_eq!((status, code.as_str()), (429, "queue_full"));
    broker.stop().await;
}

#[tokio::test]
async fn an_operation_that_the_flows_state_forbids_is_a_conflict() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let flow = submit(&mut client, vec![node("a", "q1", &[]), node("b", "q2", &[])]).await;
    let path = format!("/v1/flows/{}/retry", flow.id);
    let check = async |client: &mut Client, words: &str| {
        let answer = http::post(broker.address, &path, "").await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (409, "conflict"), "{detail}");
        assert!(detail.contains(words), "{detail}");
        assert_eq!(answer.json()["title"], "the state does not allow this");
        let request = v1::FlowRequest { id: flow.id.clone() };
        let refused = client.retry_flow(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    };
    check(&mut client, "is running; none of its nodes has failed").await;
    let a = claim_one(&mut client, "q1").await;
    let b = claim_one(&mut client, "q2").await;
    ack(&mut client, &a, "1").await;
    ack(&mut client, &b, "1").await;
    ended(&mut client, &flow.id).await;
    check(&mut client, "is succeeded; submit it again").await;
    broker.stop().await;
}

#[tokio::test]
async fn a_repeated_submission_is_the_same_flow() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let nodes = vec![node("a", "q1", &[]), node("b", "q2", &["a"])];
    let request = v1::SubmitFlowRequest { nodes, batch_id: vec![7; 16], ..Default::default() };
    let first = client.submit_flow(request.clone()).await.unwrap().into_inner();
    let again = client.submit_flow(request).await.unwrap().into_inner();
    assert!(again.duplicate && !first.duplicate);
    assert_eq!((&again.id, &again.tasks), (&first.id, &first.tasks));
    let list = client.list_flows(v1::ListFlowsRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.flows.len(), 1);
    broker.stop().await;
}

#[tokio::test]
async fn a_large_result_is_fetched_from_its_task() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let flow = submit(&mut client, vec![node("a", "q1", &[]), node("b", "q2", &["a"])]).await;
    let held = claim_one(&mut client, "q1").await;
    let large = format!("\"{}\"", "x".repeat(100_000));
    ack(&mut client, &held, &large).await;
    let b = claim_one(&mut client, "q2").await;
    assert_eq!((b.parents[0].omitted, &b.parents[0].result), (true, &None));
    let request = v1::GetResultRequest { id: b.parents[0].task_id.clone(), wait_ms: 0 };
    let result = client.get_result(request).await.unwrap().into_inner().result;
    assert_eq!(result, Some(large.into_bytes()));
    assert_eq!(flow.tasks["a"], b.parents[0].task_id);
    broker.stop().await;
}

#[tokio::test]
async fn a_thousand_children_acked_at_once_have_one_callback() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    let names: Vec<String> = (0..1_000).map(|number| format!("child-{number}")).collect();
    let in_queue = |(number, name): (usize, &String)| node(name, &format!("w{}", number % 16), &[]);
    let mut nodes: Vec<v1::FlowNode> = names.iter().enumerate().map(in_queue).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push(node("callback", "callbacks", &all));
    let flow = submit(&mut client, nodes).await;
    let workers = (0..16).map(|number| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let queue = format!("w{number}");
            let expected = (0..1_000).filter(|child| child % 16 == number).count();
            let mut held = Vec::new();
            while held.len() < expected {
                held.extend(claim(&mut client, &queue, 100).await);
            }
            let acks = held.iter().map(|held| {
                let mut client = client.clone();
                async move { ack(&mut client, held, "1").await }
            });
            futures_util::future::join_all(acks).await;
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let callback = claim_one(&mut client, "callbacks").await;
    let told: HashSet<&str> = callback.parents.iter().map(|parent| parent.name.as_str()).collect();
    assert_eq!(told.len(), 1_000);
    assert!(callback.parents.iter().all(|parent| parent.result.as_deref() == Some(b"1")));
    ack(&mut client, &callback, "done").await;
    let end = ended(&mut client, &flow.id).await;
    assert_eq!((end.state.as_str(), end.nodes_done), ("succeeded", 1_001));
    let queue = v1::QueueRequest { queue: "callbacks".into() };
    let counts = client.get_queue(queue).await.unwrap().into_inner();
    assert_eq!((counts.enqueued_total, counts.succeeded_total), (1, 1));
    broker.stop().await;
}

#[tokio::test]
async fn ten_thousand_nodes_are_submitted_and_cancelled_whole() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let mut client = broker.grpc().await;
    // A hundred chains of ninety-nine, a root and a sink.
    let mut nodes = vec![node("root", "q-root", &[])];
    let mut ends = Vec::new();
    for chain in 0..100 {
        let mut before = "root".to_owned();
        for step in 0..99 {
            let name = format!("n{chain}-{step}");
            nodes.push(node(&name, &format!("q{}", chain % 20), &[&before]));
            before = name;
        }
        ends.push(before);
    }
    while nodes.len() < 9_999 {
        nodes.push(node(&format!("extra-{}", nodes.len()), "q-extra", &["root"]));
    }
    nodes.push(node("sink", "q-sink", &ends.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(nodes.len(), 10_000);
    let mut over = nodes.clone();
    over.push(node("more", "q", &[]));
    let request = v1::SubmitFlowRequest { nodes: over, ..Default::default() };
    let refused = client.submit_flow(request).await.unwrap_err();
    assert!(refused.message().contains("more than 10000 tasks; split it"), "{refused}");

    let flow = submit(&mut client, nodes).await;
    assert_eq!(flow.tasks.len(), 10_000);
    let held = claim_one(&mut client, "q-root").await;
    ack(&mut client, &held, "1").await;
    eventually("the chains begin", async || {
        let flow = look(&mut client, &flow.id).await;
        let ready = flow.nodes.iter().filter(|node| node.state == "ready").count();
        let blocked = flow.nodes.iter().filter(|node| node.state == "blocked").count();
        (ready == 198 && blocked == 9_801).then_some(())
    })
    .await;
    client.cancel_flow(v1::FlowRequest { id: flow.id.clone() }).await.unwrap();
    let end = ended(&mut client, &flow.id).await;
    assert_eq!((end.state.as_str(), end.nodes_failed), ("cancelled", 9_999));
    broker.stop().await;
}
