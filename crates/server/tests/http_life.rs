//! The whole life of a task over HTTP/JSON.

use crate::common::{
    Broker, START_MS,
    http::{get, post, put, send},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use taskyard_server::Clock;

const JSON: Option<&str> = Some("application/json");

#[tokio::test]
async fn a_task_is_enqueued_claimed_and_acked() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let body = r#"{"type": "send_mail", "payload": {"to": "ada", "n": 123456789012345678901234567890, "a": 1},
                   "headers": {"trace": "t1"}, "priority": 7, "tags": ["x"]}"#;
    let answer = post(at, "/v1/queues/mail/tasks", body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.ok()["id"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 26);

    let seen = get(at, &format!("/v1/tasks/{id}")).await;
    let verbatim = r#""payload":{"to": "ada", "n": 123456789012345678901234567890, "a": 1}"#;
    assert!(seen.text.contains(verbatim), "{seen:?}");
    let seen = seen.ok();
    assert_eq!(seen["state"], "ready");
    assert_eq!(seen["attempt"], 0);
    assert_eq!(seen["enqueued_at"], "2023-11-14T22:13:20.000Z");

    let claim = r#"{"queues": ["mail"], "max": 5, "lease_ms": 60000, "worker": "w1"}"#;
    let claimed = post(at, "/v1/claims", claim).await;
    assert!(claimed.text.contains(verbatim), "{claimed:?}");
    let claimed = claimed.ok();
    let task = &claimed["tasks"][0];
    assert_eq!(claimed["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(task["id"], id.as_str());
    assert_eq!(task["type"], "send_mail");
    assert_eq!(task["queue"], "mail");
    assert_eq!(task["headers"], json!({"trace": "t1"}));
    assert_eq!(task["priority"], 7);
    assert_eq!(task["attempt"], 1);
    assert_eq!(task["lease_expires_at"], "2023-11-14T22:14:20.000Z");

    let token = task["claim_token"].as_u64().unwrap();
    let extend = json!({"claim_token": token, "progress": {"percent": 40, "message": "half"},
                        "resume_state": {"page": 3}});
    let extended = post(at, &format!("/v1/tasks/{id}/extend"), &extend.to_string()).await.ok();
    assert_eq!(
        extended,
        json!({"lease_expires_at": "2023-11-14T22:14:20.000Z", "cancel_requested": false})
    );
    let seen = get(at, &format!("/v1/tasks/{id}")).await.ok();
    assert_eq!(seen["state"], "claimed");
    assert_eq!(seen["progress"], json!({"percent": 40, "message": "half"}));
    assert_eq!(seen["claim"]["worker"], "w1");

    let ack = json!({"claim_token": token, "result": {"sent": true},
                     "enqueue": [{"queue": "log", "type": "note"}, {"type": "other"}]});
    let acked = post(at, &format!("/v1/tasks/{id}/ack"), &ack.to_string()).await.ok();
    let follow_ups = acked["enqueued"].as_array().unwrap();
    assert_eq!(follow_ups.len(), 2);
    let follow_up = get(at, &format!("/v1/tasks/{}", follow_ups[0].as_str().unwrap())).await.ok();
    assert_eq!(follow_up["queue"], "log");
    assert_eq!(follow_up["payload"], Value::Null);

    let result = get(at, &format!("/v1/tasks/{id}/result?wait_ms=1000")).await.ok();
    assert_eq!(result, json!({"state": "succeeded", "result": {"sent": true}}));
    let seen = get(at, &format!("/v1/tasks/{id}")).await.ok();
    assert_eq!(seen["attempts"][0]["outcome"], "succeeded");
    assert_eq!(seen["attempts"][0]["worker"], "w1");

    let queue = get(at, "/v1/queues/mail").await.ok();
    assert_eq!(queue["succeeded_total"], 1);
    assert_eq!(queue["ready"], 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_known_request_id_is_the_same_task() {
    let broker = Broker::start().await;
    let body = r#"{"type": "t", "request_id": "r1"}"#;
    let first = post(broker.address, "/v1/queues/q/tasks", body).await;
    assert_eq!(first.status, 201);
    let again = post(broker.address, "/v1/queues/q/tasks", body).await;
    assert_eq!(again.status, 200);
    let (first, again) = (first.ok(), again.ok());
    assert_eq!(again, json!({"id": first["id"], "duplicate": true}));
    broker.stop().await;
}

#[tokio::test]
async fn an_array_is_an_atomic_batch() {
    let broker = Broker::start().await;
    let at = broker.address;
    let answer = post(at, "/v1/queues/q/tasks", r#"[{"type": "a"}, {"type": "b"}]"#).await;
    assert_eq!(answer.status, 201);
    let ids = answer.ok();
    assert_eq!(ids["ids"].as_array().unwrap().len(), 2);
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"], "max": 10}"#).await.ok();
    let types: Vec<_> = claimed["tasks"].as_array().unwrap().iter().map(|t| &t["type"]).collect();
    assert_eq!(types, ["a", "b"]);
    broker.stop().await;
}

#[tokio::test]
async fn a_payload_that_is_not_json_is_base64() {
    let broker = Broker::start().await;
    let at = broker.address;
    let body = r#"{"type": "t", "payload_base64": "/wA=", "content_type": "image/png"}"#;
    let id = post(at, "/v1/queues/q/tasks", body).await.ok();
    let seen = get(at, &format!("/v1/tasks/{}", id["id"].as_str().unwrap())).await.ok();
    assert_eq!(seen["payload_base64"], "/wA=");
    assert_eq!(seen["content_type"], "image/png");
    assert_eq!(seen.get("payload"), None);
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
    assert_eq!(claimed["tasks"][0]["payload_base64"], "/wA=");
    broker.stop().await;
}

#[tokio::test]
async fn a_failed_task_retries_dies_and_is_retried_by_hand_with_another_payload() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let body = r#"{"type": "t", "payload": 1, "headers": {"h": "1"},
                   "retry": {"policy": "fixed", "delay_ms": 5000, "max_attempts": 2}}"#;
    let id = post(at, "/v1/queues/q/tasks", body).await.ok()["id"].as_str().unwrap().to_owned();
    let claim = || async {
        let claimed = post(at, "/v1/claims", r#"{"queues": ["q"], "wait_ms": 20000}"#).await.ok();
        claimed["tasks"][0]["claim_token"].as_u64().unwrap()
    };
    let fail = |token: u64| {
        let error = json!({"type": "IoError", "message": "no route"});
        let body = json!({"claim_token": token, "error": error}).to_string();
        let path = format!("/v1/tasks/{id}/fail");
        async move { post(at, &path, &body).await.ok() }
    };
    let failed = fail(claim().await).await;
    assert_eq!(failed, json!({"state": "scheduled", "run_at": "2023-11-14T22:13:25.000Z"}));
    broker.clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(fail(claim().await).await, json!({"state": "dead"}));

    let dead = get(at, "/v1/dead?queue=q&error=IoError").await.ok();
    assert_eq!(dead["tasks"][0]["id"], id.as_str());
    assert_eq!(dead["tasks"][0]["death_reason"], "attempts spent");
    let attempt = json!({
        "attempt": 2,
        "claimed_at": "2023-11-14T22:13:25.000Z",
        "ended_at": "2023-11-14T22:13:25.000Z",
        "outcome": "failed",
        "error": {"type": "IoError", "message": "no route"},
    });
    assert_eq!(dead["tasks"][0]["attempts"][1], attempt, "what is absent is left out");
    assert_eq!(dead["tasks"][0].get("payload"), None, "lists are without payloads");
    assert_eq!(get(at, "/v1/dead?type=other").await.ok()["tasks"], json!([]));
    let result = get(at, &format!("/v1/tasks/{id}/result")).await.ok();
    assert_eq!(result["state"], "dead");
    assert_eq!(result["error"]["type"], "IoError");

    let retried = post(at, &format!("/v1/tasks/{id}/retry"), r#"{"payload": [2]}"#).await.ok();
    assert_eq!(retried, json!({"state": "ready"}));
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
    assert_eq!(claimed["tasks"][0]["payload"], json!([2]));
    assert_eq!(claimed["tasks"][0]["headers"], json!({"h": "1"}), "what is not edited stays");
    broker.stop().await;
}

#[tokio::test]
async fn dead_letters_are_retried_and_discarded_by_filter() {
    let broker = Broker::start().await;
    let at = broker.address;
    for (queue, task_type) in [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")] {
        let body = json!({"type": task_type}).to_string();
        post(at, &format!("/v1/queues/{queue}/tasks"), &body).await.ok();
        let claim = json!({"queues": [queue], "max": 9}).to_string();
        for task in post(at, "/v1/claims", &claim).await.ok()["tasks"].as_array().unwrap() {
            let body = json!({"claim_token": task["claim_token"], "retryable": false}).to_string();
            let path = format!("/v1/tasks/{}/fail", task["id"].as_str().unwrap());
            assert_eq!(post(at, &path, &body).await.ok(), json!({"state": "dead"}));
        }
    }
    let count = |path: &'static str| async move {
        get(at, path).await.ok()["tasks"].as_array().unwrap().len()
    };
    assert_eq!(count("/v1/dead").await, 4);
    let discarded = post(at, "/v1/dead/discard", r#"{"filter": {"type": "y"}}"#).await.ok();
    assert_eq!(discarded, json!({"changed": 1, "skipped": 0, "done": true}));
    let retried = post(at, "/v1/dead/retry", r#"{"filter": {}}"#).await.ok();
    assert_eq!(retried, json!({"changed": 3, "skipped": 0, "done": true}));
    assert_eq!(count("/v1/dead").await, 0);
    assert_eq!(count("/v1/tasks?state=ready&limit=2").await, 2);
    broker.stop().await;
}

#[tokio::test]
async fn a_queue_is_paused_resumed_set_and_purged() {
    let broker = Broker::start().await;
    let at = broker.address;
    post(at, "/v1/queues/q/tasks", r#"[{"type": "t"}, {"type": "t"}]"#).await.ok();
    let act = |verb: &str| {
        let path = format!("/v1/queues/q/{verb}");
        async move { send(at, "POST", &path, JSON, b"").await.ok() }
    };
    assert_eq!(act("pause").await, json!({"paused": true}));
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
    assert_eq!(claimed, json!({"tasks": []}));
    assert_eq!(get(at, "/v1/queues").await.ok()["queues"][0]["paused"], true);
    assert_eq!(act("resume").await, json!({"paused": false}));

    let settings = json!({"max_length": 2, "retry": {"policy": "list", "delays_ms": [1, 2],
                          "max_attempts": 3, "jitter": 0.5}});
    let set = put(at, "/v1/queues/q/settings", &settings.to_string()).await.ok();
    assert_eq!(set, settings);
    assert_eq!(get(at, "/v1/queues/q/settings").await.ok(), settings);
    let full = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await;
    assert_eq!((full.problem().0, full.problem().1.as_str()), (429, "queue_full"));

    assert_eq!(act("purge").await, json!({"changed": 2, "skipped": 0, "done": true}));
    assert_eq!(get(at, "/v1/queues/q").await.ok()["ready"], 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_task_is_released_snoozed_and_cancelled() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let id = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.ok();
    let path = format!("/v1/tasks/{}", id["id"].as_str().unwrap());
    let claim = || async {
        let claimed = post(at, "/v1/claims", r#"{"queues": ["q"], "wait_ms": 20000}"#).await.ok();
        claimed["tasks"][0]["claim_token"].as_u64().unwrap()
    };
    let body = json!({"claim_token": claim().await}).to_string();
    assert_eq!(post(at, &format!("{path}/release"), &body).await.ok(), json!({"state": "ready"}));
    let body = json!({"claim_token": claim().await, "delay_ms": 2000}).to_string();
    let snoozed = post(at, &format!("{path}/snooze"), &body).await.ok();
    assert_eq!(snoozed, json!({"state": "scheduled", "run_at": "2023-11-14T22:13:22.000Z"}));
    assert_eq!(get(at, &path).await.ok()["state"], "scheduled");
    let cancelled = send(at, "POST", &format!("{path}/cancel"), JSON, b"").await.ok();
    assert_eq!(cancelled, json!({"state": "cancelled"}));
    let again = send(at, "POST", &format!("{path}/cancel"), JSON, b"").await.ok();
    assert_eq!(again, json!({"state": "cancelled"}), "again is no error");
    broker.stop().await;
}

#[tokio::test]
async fn a_list_goes_over_all_shards_page_by_page() {
    let broker = Broker::with(|config| config.shards = Some(8)).await;
    let at = broker.address;
    let mut enqueued = Vec::new();
    for queue in 0..20 {
        let path = format!("/v1/queues/q{queue}/tasks");
        let ids = post(at, &path, r#"[{"type": "t"}, {"type": "t"}, {"type": "u"}]"#).await.ok();
        enqueued.extend(
            ids["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()),
        );
    }
    let mut seen = Vec::new();
    let mut path = "/v1/tasks?limit=7".to_owned();
    loop {
        let page = get(at, &path).await.ok();
        let tasks = page["tasks"].as_array().unwrap();
        assert!(tasks.len() <= 7);
        seen.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        match page["cursor"].as_str() {
            Some(cursor) => path = format!("/v1/tasks?limit=7&cursor={cursor}"),
            None => break,
        }
    }
    assert!(seen.is_sorted(), "in id order");
    enqueued.sort();
    assert_eq!(seen, enqueued);
    let of_type = get(at, "/v1/tasks?type=u&limit=1000").await.ok();
    assert_eq!(of_type["tasks"].as_array().unwrap().len(), 20);
    let of_queue = get(at, "/v1/tasks?queue=q3&state=ready").await.ok();
    assert_eq!(of_queue["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(of_queue.get("cursor"), None);
    broker.stop().await;
}

/// The ids of all pages of a list.
async fn listed(at: SocketAddr, query: &str, limit: usize) -> Vec<String> {
    let mut all = Vec::new();
    let mut path = format!("/v1/{query}&limit={limit}");
    loop {
        let page = get(at, &path).await.ok();
        let tasks = page["tasks"].as_array().unwrap();
        assert!(tasks.len() <= limit);
        all.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        match page["cursor"].as_str() {
            Some(cursor) => path = format!("/v1/{query}&limit={limit}&cursor={cursor}"),
            None => return all,
        }
    }
}

#[tokio::test]
async fn a_list_begins_with_the_newest_whichever_shard_has_it() {
    let broker = Broker::with(|config| {
        (config.shards, config.clock) = (Some(8), Clock::manual(START_MS));
    });
    let broker = broker.await;
    let at = broker.address;
    let mut enqueued = Vec::new();
    // Some tasks come at the same moment, and most are in one queue, which also has the newest.
    for number in 0..120 {
        broker.clock.advance(Duration::from_millis(number % 3));
        let queue = if number % 4 == 0 { format!("q{number}") } else { "hot".into() };
        let task = post(at, &format!("/v1/queues/{queue}/tasks"), r#"{"type": "t"}"#).await.ok();
        let id = task["id"].as_str().unwrap().to_owned();
        let shown = get(at, &format!("/v1/tasks/{id}")).await.ok();
        enqueued.push((shown["enqueued_at"].as_str().unwrap().to_owned(), id));
    }
    let newest_first = |mut tasks: Vec<(String, String)>| {
        tasks.sort_by(|one, other| other.cmp(one));
        tasks.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    let expected = newest_first(enqueued.clone());
    for limit in [1000, 50, 7, 1] {
        assert_eq!(listed(at, "tasks?order=newest", limit).await, expected, "{limit}");
    }
    let of_queue = listed(at, "tasks?order=newest&queue=hot", 10).await;
    assert_eq!(of_queue.len(), 90);
    let (since, _) = &enqueued[100];
    let recent = enqueued.iter().filter(|(at, _)| at >= since).cloned().collect();
    let recent = newest_first(recent);
    assert!((15..=25).contains(&recent.len()));
    assert_eq!(listed(at, &format!("tasks?order=newest&since={since}"), 6).await, recent);
    // A task that ends between two pages leaves the others in their places.
    let page = get(at, "/v1/tasks?order=newest&limit=10").await.ok();
    let cursor = page["cursor"].as_str().unwrap();
    post(at, &format!("/v1/tasks/{}/cancel", expected[9]), "").await.ok();
    let rest = listed(at, &format!("tasks?order=newest&cursor={cursor}"), 200).await;
    assert_eq!(rest, expected[10..]);
    broker.stop().await;
}

#[tokio::test]
async fn a_result_is_waited_for() {
    let broker = Broker::start().await;
    let at = broker.address;
    let id = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.ok();
    let path = format!("/v1/tasks/{}", id["id"].as_str().unwrap());
    let early = get(at, &format!("{path}/result?wait_ms=10")).await.ok();
    assert_eq!(early, json!({"state": "ready"}), "not ended: a state and no result");
    let result = {
        let path = format!("{path}/result?wait_ms=60000");
        tokio::spawn(async move { get(at, &path).await.ok() })
    };
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
    let ack = json!({"claim_token": claimed["tasks"][0]["claim_token"], "result": "ok"});
    post(at, &format!("{path}/ack"), &ack.to_string()).await.ok();
    assert_eq!(result.await.unwrap(), json!({"state": "succeeded", "result": "ok"}));
    broker.stop().await;
}

#[tokio::test]
async fn the_node_describes_itself() {
    let broker = Broker::start().await;
    let at = broker.address;
    assert_eq!(get(at, "/healthz").await.ok(), json!({"status": "ok"}));
    assert_eq!(get(at, "/readyz").await.ok(), json!({"status": "ok"}));
    let cluster = get(at, "/v1/cluster").await.ok();
    assert_eq!(cluster["nodes"][0]["address"], at.to_string());
    assert_eq!(cluster["shards"].as_array().unwrap().len(), 4);
    assert_eq!(cluster["shards"][3]["leader"], 1);
    let metrics = get(at, "/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.text.contains("taskyard_"), "{}", metrics.text);
    assert_eq!(get(at, "/v1/workers").await.ok(), json!({"workers": []}));
    let document = get(at, "/openapi.json").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    assert!(document["paths"]["/v1/queues/{queue}/tasks"]["post"].is_object());
    broker.stop().await;
}
