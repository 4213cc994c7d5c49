//! Bad input is refused with a stable code and a detail that names the field and its value. It
//! changes nothing.

use crate::common::{
    Broker, code,
    http::{get, post, put, send},
    queues, task,
};
use serde_json::{Value, json};
use taskyard_proto::v1;

/// Posts each body, and compares the problem's code and some words of its detail.
async fn check_refused(broker: &Broker, path: &str, cases: &[(&str, &str, &[&str])]) {
    for (body, code, words) in cases {
        let answer = post(broker.address, path, body).await;
        let (status, found, detail) = answer.problem();
        assert_eq!(found, *code, "{body}: {detail}");
        let expected = if *code == "payload_too_large" { 413 } else { 400 };
        assert_eq!(status, expected, "{body}: {detail}");
        for word in *words {
            assert!(detail.contains(word), "{body}: {detail:?} does not say {word:?}");
        }
    }
}

async fn task_count(broker: &Broker) -> u64 {
    let queues = get(broker.address, "/v1/queues").await.ok();
    let total = |queue: &Value| queue["enqueued_total"].as_u64().unwrap();
    queues["queues"].as_array().unwrap().iter().map(total).sum()
}

const INVALID: &str = "invalid_argument";

#[tokio::test]
async fn invalid_enqueues_are_refused() {
    let broker = Broker::start().await;
    let long = format!(r#"{{"type": "{}"}}"#, "t".repeat(300));
    let tags = format!(r#"{{"type": "t", "tags": {}}}"#, json!(vec!["x"; 17]));
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let deep = format!(r#"{{"type": "t", "payload": {deep}}}"#);
    check_refused(
        &broker,
        "/v1/queues/q/tasks",
        &[
            ("", INVALID, &["the body is not JSON: EOF", "line 1 column 0"]),
            ("{", INVALID, &["the body is not JSON: EOF", "line 1 column 1"]),
            ("{bad", INVALID, &["the body is not JSON: key must be a string (line 1 column 2)"]),
            ("{\"type\": \"t\",\n \"payload\": tru}", INVALID, &["payload", "line 2"]),
            (r#"{"type": "t"} x"#, INVALID, &["trailing characters", "line 1 column 15"]),
            (r#""t""#, INVALID, &["invalid type: string \"t\", expected an object"]),
            (r#"{}"#, INVALID, &["missing field `type`"]),
            (r#"{"type": 5}"#, INVALID, &["type", "integer `5`"]),
            (r#"{"type": ""}"#, INVALID, &["type"]),
            (&long, INVALID, &["type", "300", "256"]),
            (r#"{"type": "t", "prio": 1}"#, INVALID, &["unknown field `prio`", "`priority`"]),
            (r#"{"type": "t", "type": "u"}"#, INVALID, &["duplicate field `type`"]),
            (r#"{"type": "t", "unique": "k"}"#, INVALID, &["unique", "expected an object"]),
            (r#"{"type": "t", "unique": {}}"#, INVALID, &["unique.key", "both missing"]),
            (r#"{"type": "t", "unique": {"key": ""}}"#, INVALID, &["unique.key is empty"]),
            (
                r#"{"type": "t", "unique": {"key": "k", "until": "end"}}"#,
                INVALID,
                &["unique.until", "`end`", "`start` or `done`"],
            ),
            (
                r#"{"type": "t", "unique": {"key": "k", "window_ms": -1}}"#,
                INVALID,
                &["unique.window_ms"],
            ),
            (
                r#"{"type": "t", "unique": {"key": "k", "window_ms": 2592000001}}"#,
                INVALID,
                &["unique.window_ms is 2592000001; at most 2592000000"],
            ),
            (
                r#"{"type": "t", "unique": {"key": "k", "fields": ["type"]}}"#,
                INVALID,
                &["exclude each other"],
            ),
            (
                r#"{"type": "t", "unique": {"fields": ["user"]}}"#,
                INVALID,
                &["unique.fields \"user\" is not type"],
            ),
            (
                r#"{"type": "t", "unique": {"key": "k", "debounce_ms": 5, "on_conflict": "reject"}}"#,
                INVALID,
                &["unique.debounce_ms contradicts an on_conflict"],
            ),
            (
                r#"{"type": "t", "delay_ms": 5, "unique": {"key": "k", "debounce_ms": 5}}"#,
                INVALID,
                &["unique.debounce_ms and a delay or run_at exclude each other"],
            ),
            (
                r#"{"type": "t", "webhook_url": "http://a"}"#,
                INVALID,
                &["field `webhook_url` is not supported yet"],
            ),
            (r#"{"type": "t", "fairness_key": ""}"#, INVALID, &["fairness_key is empty"]),
            (r#"{"type": "t", "fairness_key": "a\u0000"}"#, INVALID, &["fairness_key", "control"]),
            (
                r#"{"type": "t", "priority": 12}"#,
                INVALID,
                &["priority 12 is not 0 to 9; 9 runs first, 5 is the default"],
            ),
            (
                r#"{"type": "t", "priority": -1}"#,
                INVALID,
                &["priority: invalid value: integer `-1`, expected a whole number, 0 or more"],
            ),
            (r#"{"type": "t", "priority": 5.5}"#, INVALID, &["priority", "5.5"]),
            (r#"{"type": "t", "delay_ms": -5}"#, INVALID, &["delay_ms", "-5", "0 or more"]),
            (r#"{"type": "t", "delay_ms": "5"}"#, INVALID, &["delay_ms", "\"5\""]),
            (
                r#"{"type": "t", "delay_ms": 400000000000}"#,
                INVALID,
                &["delay_ms 400000000000 is more than ten years; choose a nearer moment"],
            ),
            (
                r#"{"type": "t", "run_at": "9999-12-31T23:59:59Z"}"#,
                INVALID,
                &["run_at: 9999-12-31T23:59:59Z is more than ten years ahead; choose a nearer moment"],
            ),
            (
                r#"{"type": "t", "run_at": "9999-01-01T01:00:00+01:00"}"#,
                INVALID,
                &["run_at 9999-01-01T00:00:00.000Z is more than ten years ahead"],
            ),
            (
                r#"{"type": "t", "expires_at": "9999-01-01T00:00:00Z"}"#,
                INVALID,
                &["expires_at 9999-01-01T00:00:00.000Z is more than ten years ahead"],
            ),
            (
                r#"{"type": "t", "run_at": "10000-01-01T00:00:00Z"}"#,
                INVALID,
                &["run_at", "10000-01-01"],
            ),
            (r#"{"type": "t", "run_at": "tomorrow"}"#, INVALID, &["run_at", "tomorrow"]),
            (r#"{"type": "t", "run_at": 1700000000}"#, INVALID, &["run_at", "1700000000"]),
            (
                r#"{"type": "t", "delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"}"#,
                INVALID,
                &["delay_ms and run_at exclude each other"],
            ),
            (
                r#"{"type": "t", "expires_at": "2020-01-01T00:00:00Z"}"#,
                INVALID,
                &["expires_at 2020-01-01T00:00:00.000Z is not after the time it may run"],
            ),
            (r#"{"type": "t", "timeout_ms": -1}"#, INVALID, &["timeout_ms", "-1"]),
            (r#"{"type": "t", "request_id": ""}"#, INVALID, &["request_id"]),
            (r#"{"type": "t", "request_id": "a\u0007"}"#, INVALID, &["request_id", "control"]),
            (r#"{"type": "t", "headers": {"a": 1}}"#, INVALID, &["headers.a", "1"]),
            (r#"{"type": "t", "headers": {"a\n": "b"}}"#, INVALID, &["header", "control"]),
            (r#"{"type": "t", "tags": ["a", ""]}"#, INVALID, &["a tag is empty"]),
            (&deep, INVALID, &["payload: nested deeper than 60 levels"]),
            (r#"{"type": "t", "payload": "\ud800"}"#, INVALID, &["payload", "surrogate"]),
            (r#"{"type": "t", "payload": [1e400]}"#, INVALID, &["payload: number out of range"]),
            (&tags, INVALID, &["tags", "17", "16"]),
            (r#"{"type": "t", "payload_base64": "%%"}"#, INVALID, &["payload_base64"]),
            (
                r#"{"type": "t", "payload": 1, "payload_base64": "AA=="}"#,
                INVALID,
                &["payload and payload_base64 exclude each other"],
            ),
            (r#"{"type": "t", "queue": "other"}"#, INVALID, &["other", "q"]),
            (
                r#"{"type": "t", "retry": {"policy": "random"}}"#,
                INVALID,
                &["retry.policy", "random"],
            ),
            (r#"{"type": "t", "retry": {"factor": 0.1}}"#, INVALID, &["retry.factor", "0.1"]),
            (r#"{"type": "t", "retry": {"jitter": 2}}"#, INVALID, &["retry.jitter", "2"]),
            (r#"{"type": "t", "retry": {"max_attempts": 0}}"#, INVALID, &["max_attempts", "0"]),
            (
                r#"{"type": "t", "retry": {"max_attempts": 99999}}"#,
                INVALID,
                &["max_attempts", "99999"],
            ),
            (r#"{"type": "t", "retry": {"delays_ms": [1]}}"#, INVALID, &["retry.delays_ms"]),
            (r#"{"type": "t", "retry": {"policy": "list"}}"#, INVALID, &["retry.delays_ms"]),
        ],
    )
    .await;
    assert_eq!(task_count(&broker).await, 0);
    broker.stop().await;
}

#[tokio::test]
async fn null_means_the_same_as_an_absent_field() {
    let broker = Broker::start().await;
    let body = r#"{"type": "t", "headers": null, "tags": null, "priority": null, "payload": null,
                   "request_id": null, "retry": null, "run_at": null}"#;
    let id = post(broker.address, "/v1/queues/q/tasks", body).await.ok();
    let task = get(broker.address, &format!("/v1/tasks/{}", id["id"].as_str().unwrap())).await.ok();
    assert_eq!((&task["priority"], &task["state"]), (&json!(5), &json!("ready")));
    broker.stop().await;
}

#[tokio::test]
async fn a_moment_in_the_past_is_now() {
    let broker = Broker::start().await;
    let at = broker.address;
    for moment in ["2020-01-01T00:00:00Z", "1950-01-01T00:00:00+05:00"] {
        let body = json!({"type": "t", "run_at": moment}).to_string();
        let id = post(at, "/v1/queues/q/tasks", &body).await.ok();
        let seen = get(at, &format!("/v1/tasks/{}", id["id"].as_str().unwrap())).await.ok();
        assert_eq!(seen["state"], "ready", "{moment}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn names_out_of_grammar_are_refused() {
    let broker = Broker::start().await;
    let long = "q".repeat(129);
    for (queue, word) in [
        ("a%20b", "' '"),
        ("a%2Fb", "'/'"),
        ("%C3%A4", "'ä'"),
        ("a;b", "';'"),
        (long.as_str(), "129 bytes"),
        ("%ff", "path /v1/queues/%ff/tasks is not UTF-8 once decoded"),
        ("a%00b", "'\\0'"),
    ] {
        let path = format!("/v1/queues/{queue}/tasks");
        let answer = post(broker.address, &path, r#"{"type": "t"}"#).await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (400, INVALID), "{queue}: {detail}");
        assert!(detail.contains(word), "{queue}: {detail}");
    }
    let mut client = broker.grpc().await;
    let request = v1::EnqueueRequest { task: Some(task("not a name", "t")) };
    let status = client.enqueue(request).await.unwrap_err();
    assert_eq!((status.code(), code(&status)), (tonic::Code::InvalidArgument, INVALID));
    assert!(status.message().contains("not a name"), "{status:?}");
    assert_eq!(task_count(&broker).await, 0);
    broker.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_utf8_are_refused() {
    let broker = Broker::start().await;
    let body = b"{\"type\": \"\xff\"}";
    let answer =
        send(broker.address, "POST", "/v1/queues/q/tasks", Some("application/json"), body).await;
    let (status, found, detail) = answer.problem();
    assert_eq!((status, found.as_str()), (400, INVALID));
    assert!(detail.contains("not UTF-8") && detail.contains("10"), "{detail}");
    broker.stop().await;
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_taken() {
    let broker = Broker::with(|config| config.payload_bytes_max = 1000).await;
    let at = broker.address;
    let body = |bytes: usize| format!(r#"{{"type": "t", "payload": "{}"}}"#, "x".repeat(bytes - 2));
    assert_eq!(post(at, "/v1/queues/q/tasks", &body(1000)).await.status, 201);
    let (status, found, detail) = post(at, "/v1/queues/q/tasks", &body(1001)).await.problem();
    assert_eq!((status, found.as_str()), (413, "payload_too_large"));
    assert!(detail.contains("1001") && detail.contains("1000"), "{detail}");

    let large = v1::NewTask { payload: vec![b'x'; 1001].into(), ..task("q", "t") };
    let mut client = broker.grpc().await;
    let request = v1::EnqueueRequest { task: Some(large.clone()) };
    let status = client.enqueue(request).await.unwrap_err();
    assert_eq!(code(&status), "payload_too_large");

    let request = v1::EnqueueManyRequest { tasks: vec![task("q", "t"), large], batch_id: vec![] };
    let results = client.enqueue_many(request).await.unwrap().into_inner().results;
    assert_eq!(results[0].error, None);
    assert_eq!(results[1].error.as_ref().unwrap().code, "payload_too_large");

    let huge = format!(r#"{{"type": "t", "payload": "{}"}}"#, "x".repeat(33 << 20));
    let (status, found, _) = post(at, "/v1/queues/q/tasks", &huge).await.problem();
    assert_eq!((status, found.as_str()), (413, "payload_too_large"));
    let huge = v1::NewTask { payload: vec![b'x'; 33 << 20].into(), ..task("q", "t") };
    let status = client.enqueue(v1::EnqueueRequest { task: Some(huge) }).await.unwrap_err();
    assert_eq!(code(&status), "payload_too_large", "{status:?}");
    let words = "the request has more than 33554432 bytes; send less in one request";
    assert_eq!(status.message(), words);
    assert_eq!(task_count(&broker).await, 2);
    broker.stop().await;
}

#[tokio::test]
async fn one_bad_element_refuses_the_batch_and_is_named() {
    let broker = Broker::with(|config| config.payload_bytes_max = 100).await;
    let large = format!(r#"[{{"type": "t"}}, {{"type": "t", "payload": "{}"}}]"#, "x".repeat(200));
    check_refused(
        &broker,
        "/v1/queues/q/tasks",
        &[
            ("[]", INVALID, &["empty"]),
            (
                r#"[{"type": "t"}, {"type": "t", "priority": 12}]"#,
                INVALID,
                &["task 1", "priority 12"],
            ),
            (r#"[{"type": "t"}, {"type": ""}]"#, INVALID, &["task 1", "type"]),
            (r#"[{"type": "t"}, {"type": "t", "x": 1}]"#, INVALID, &["[1]", "unknown field `x`"]),
            (r#"[{"type": "t"}, {"type": "t", "delay_ms": -1}]"#, INVALID, &["[1].delay_ms", "-1"]),
            (r#"[{"type": "t"}, 7]"#, INVALID, &["[1]", "7"]),
            (
                r#"[{"type": "t"}, {"type": "t", "expires_at": "2020-01-01T00:00:00Z"}]"#,
                INVALID,
                &["task 1 of the batch: expires_at 2020-01-01T00:00:00.000Z is not after"],
            ),
            (&large, "payload_too_large", &["task 1", "202", "100"]),
        ],
    )
    .await;
    let mut client = broker.grpc().await;
    let bad = v1::NewTask { priority: Some(12), ..task("", "t") };
    let other = task("other", "t");
    for (element, word) in
        [(bad, "task 2 of the batch: priority 12"), (other, "task 2 of the batch")]
    {
        let tasks = vec![task("q", "t"), task("", "t"), element];
        let request = v1::EnqueueBatchRequest { queue: "q".into(), tasks, batch_id: vec![] };
        let status = client.enqueue_batch(request).await.unwrap_err();
        assert!(status.message().contains(word), "{status:?}");
        assert_eq!(code(&status), INVALID);
    }
    assert_eq!(task_count(&broker).await, 0, "nothing was enqueued");
    broker.stop().await;
}

#[tokio::test]
async fn a_large_batch_is_all_or_nothing_too() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let large = v1::NewTask { payload: vec![b'1'; 10_000].into(), ..task("", "t") };
    let bad = v1::NewTask { timeout_ms: Some(u64::MAX), ..task("", "t") };
    // The batch is larger than one log entry, so it is staged in parts; the bad task is in the
    // last.
    let mut tasks = vec![large; 100];
    tasks.push(bad);
    let request = |tasks| v1::EnqueueBatchRequest { queue: "q".into(), tasks, batch_id: vec![] };
    let status = client.enqueue_batch(request(tasks.clone())).await.unwrap_err();
    assert!(status.message().contains("task 100 of the batch"), "{status:?}");
    assert_eq!(task_count(&broker).await, 0, "nothing was enqueued");
    tasks.pop();
    let enqueued = client.enqueue_batch(request(tasks)).await.unwrap().into_inner();
    assert_eq!(enqueued.tasks.len(), 100);
    assert_eq!(task_count(&broker).await, 100);

    let tasks = vec![task("", "t"); 10_001];
    let status = client.enqueue_batch(request(tasks)).await.unwrap_err();
    assert!(status.message().contains("the batch has more than 10000 tasks"), "{status:?}");
    let large = v1::NewTask { payload: vec![b'1'; 1 << 20].into(), ..task("", "t") };
    let status = client.enqueue_batch(request(vec![large; 17])).await.unwrap_err();
    assert!(status.message().contains("16777216"), "{status:?}");
    broker.stop().await;
}

#[tokio::test]
async fn invalid_claims_are_refused_at_once() {
    let broker = Broker::start().await;
    let many = json!({"queues": (0..65).map(|n| format!("q{n}")).collect::<Vec<_>>()}).to_string();
    let name = json!({"queues": ["q"], "worker": "w".repeat(300)}).to_string();
    check_refused(
        &broker,
        "/v1/claims",
        &[
            (r#"{"queues": []}"#, INVALID, &["queues is empty"]),
            (r#"{}"#, INVALID, &["missing field `queues`"]),
            (r#"{"queues": "q"}"#, INVALID, &["queues", "\"q\""]),
            (r#"{"queues": [""]}"#, INVALID, &["queue \"\"", "empty"]),
            (r#"{"queues": ["a b"]}"#, INVALID, &["\"a b\""]),
            (r#"{"queues": ["a", "a"]}"#, INVALID, &["a twice"]),
            (r#"{"queues": [7]}"#, INVALID, &["queues[0]", "7"]),
            (r#"{"queues": [{"name": "a", "weight": 0}]}"#, INVALID, &["weight 0", "1 to 1000"]),
            (r#"{"queues": [{"name": "a", "weight": 2000}]}"#, INVALID, &["weight 2000"]),
            (r#"{"queues": [{"name": "a", "share": 1}]}"#, INVALID, &["unknown field `share`"]),
            (r#"{"queues": ["a"], "max": 0}"#, INVALID, &["max 0"]),
            (r#"{"queues": ["a"], "max": 1001}"#, INVALID, &["max 1001"]),
            (r#"{"queues": ["a"], "lease_ms": 10}"#, INVALID, &["lease_ms 10"]),
            (r#"{"queues": ["a"], "lease_ms": 90000000}"#, INVALID, &["lease_ms 90000000"]),
            (r#"{"queues": ["a"], "wait_ms": 60001}"#, INVALID, &["wait_ms 60001", "60000"]),
            (r#"{"queues": ["a"], "wait_ms": -1}"#, INVALID, &["wait_ms", "-1"]),
            (&many, INVALID, &["65 queues", "64"]),
            (&name, INVALID, &["worker", "300 bytes"]),
        ],
    )
    .await;
    let mut client = broker.grpc().await;
    let request = v1::ClaimRequest { wait_ms: 60_000, ..Default::default() };
    let status = client.claim(request).await.unwrap_err();
    assert!(status.message().contains("queues is empty"), "{status:?}");
    let request = v1::ClaimRequest { queues: queues(&["q"]), lease_ms: 1, ..Default::default() };
    assert_eq!(code(&client.claim(request).await.unwrap_err()), INVALID);
    broker.stop().await;
}

#[tokio::test]
async fn tasks_and_workers_that_do_not_exist_are_not_found() {
    let broker = Broker::start().await;
    let at = broker.address;
    let unknown = "0".repeat(26);
    let beyond = "00000001vs0000000000000001";
    for id in [unknown.as_str(), beyond] {
        for path in [format!("/v1/tasks/{id}"), format!("/v1/tasks/{id}/result?wait_ms=5000")] {
            let (status, code, detail) = get(at, &path).await.problem();
            assert_eq!((status, code.as_str()), (404, "not_found"), "{path}: {detail}");
            assert!(detail.contains(id), "{detail}");
        }
        for (verb, body) in [
            ("ack", r#"{"claim_token": 1}"#),
            ("fail", r#"{"claim_token": 1}"#),
            ("extend", r#"{"claim_token": 1}"#),
            ("release", r#"{"claim_token": 1}"#),
            ("snooze", r#"{"claim_token": 1, "delay_ms": 1}"#),
            ("cancel", ""),
            ("retry", ""),
            ("retry", r#"{"payload": 1}"#),
        ] {
            let (status, code, detail) =
                post(at, &format!("/v1/tasks/{id}/{verb}"), body).await.problem();
            assert_eq!((status, code.as_str()), (404, "not_found"), "{verb}: {detail}");
        }
    }
    for id in ["abc", "zzzzzzzzzzzzzzzzzzzzzzzzzz", "%ff"] {
        let (status, code, _) = get(at, &format!("/v1/tasks/{id}")).await.problem();
        assert_eq!((status, code.as_str()), (400, INVALID), "{id}");
    }
    for path in ["/v1/queues/none", "/v1/queues/none/settings"] {
        assert_eq!(get(at, path).await.problem().0, 404, "{path}");
    }
    assert_eq!(post(at, "/v1/queues/none/purge", "").await.problem().0, 404);
    for id in ["abc".to_owned(), "f".repeat(32)] {
        let (status, code, detail) =
            post(at, &format!("/v1/workers/{id}/quiet"), "").await.problem();
        assert_eq!((status, code.as_str()), (404, "not_found"));
        assert!(detail.contains(&id), "{detail}");
    }
    let gone =
        post(at, "/v1/dead/retry", &json!({"ids": [unknown, beyond]}).to_string()).await.ok();
    assert_eq!(gone, json!({"changed": 0, "skipped": 2, "done": true}));
    broker.stop().await;
}

#[tokio::test]
async fn other_invalid_bodies_and_parameters_are_refused() {
    let broker = Broker::start().await;
    let at = broker.address;
    let id = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.ok();
    let id = id["id"].as_str().unwrap();
    for (verb, body, words) in [
        ("ack", r#"{}"#, &["missing field `claim_token`"][..]),
        ("ack", r#"{"claim_token": -1}"#, &["claim_token", "-1"]),
        ("ack", r#"{"claim_token": 1, "enqueue": [{"type": "t", "queue": "a b"}]}"#, &["\"a b\""]),
        (
            "ack",
            r#"{"claim_token": 1, "enqueue": [{"type": "t", "priority": 10}]}"#,
            &["priority 10"],
        ),
        ("fail", r#"{"claim_token": 1, "error": {"kind": "x"}}"#, &["unknown field `kind`"]),
        (
            "extend",
            r#"{"claim_token": 1, "progress": {"percent": 101}}"#,
            &["progress.percent 101"],
        ),
        (
            "fail",
            r#"{"claim_token": 1, "retry_at": "9999-01-01T00:00:00Z"}"#,
            &["retry_at 9999-01-01T00:00:00.000Z is more than ten years ahead"],
        ),
        (
            "snooze",
            r#"{"claim_token": 1, "run_at": "9999-01-01T00:00:00Z"}"#,
            &["run_at 9999-01-01T00:00:00.000Z is more than ten years ahead"],
        ),
        ("snooze", r#"{"claim_token": 1}"#, &["delay_ms and run_at are both missing"]),
        ("retry", r#"{"priority": 1}"#, &["unknown field `priority`"]),
    ] {
        let answer = post(at, &format!("/v1/tasks/{id}/{verb}"), body).await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (400, INVALID), "{verb} {body}: {detail}");
        assert!(words.iter().all(|word| detail.contains(word)), "{verb} {body}: {detail}");
    }
    for (path, word) in [
        ("/v1/tasks?limit=0", "limit 0"),
        ("/v1/tasks?limit=1001", "limit 1001"),
        ("/v1/tasks?limit=x", "parameter limit is \"x\": expected a whole number, 0 or more"),
        ("/v1/tasks?limit=99999999999", "\"99999999999\": this number is too large"),
        ("/v1/tasks?limit=1&limit=2", "parameter `limit` is there twice"),
        ("/v1/tasks?state=running", "running"),
        ("/v1/tasks?cursor=abc", "abc"),
        ("/v1/dead?cursor=zzz", "cursor \"zzz\" is not from this broker"),
        ("/v1/flows?cursor=zzz", "cursor \"zzz\" is not from this broker"),
        ("/v1/schedules?cursor=zzz", "cursor \"zzz\" is not from this broker"),
        ("/v1/schedules?cursor=nightly", "cursor \"nightly\" is not from this broker"),
        ("/v1/schedules?cursor=", "cursor \"\" is not from this broker"),
        ("/v1/schedules?cursor=AQAA", "cursor \"AQAA\" is not from this broker"),
        ("/v1/tasks?queue=a&error=%ff", "parameter error is not UTF-8 once decoded"),
        (
            "/v1/tasks?quueue=a",
            "parameter quueue is \"a\": unknown parameter `quueue`, expected one of",
        ),
        ("/v1/tasks?order=oldest", "oldest"),
        ("/v1/tasks?since=2031-05-01T09:30:00Z", "since is for a list that begins with the newest"),
        ("/v1/tasks?order=newest&since=yesterday", "yesterday"),
        ("/v1/tasks?order=newest&cursor=AQAA", "cursor \"AQAA\" is not from this broker"),
        ("/v1/tasks?queue=a%20b", "a b"),
        ("/v1/dead?state=ready", "ready"),
    ] {
        let (status, code, detail) = get(at, path).await.problem();
        assert_eq!((status, code.as_str()), (400, INVALID), "{path}: {detail}");
        assert!(detail.contains(word), "{path}: {detail}");
    }
    for (body, word) in [
        (r#"{"max_lenght": 5}"#, "max_lenght"),
        (r#"{"dedup_window_ms": 99999999999999}"#, "dedup_window_ms"),
        (r#"{"dedup_window_ms": 1000}"#, "dedup_window_ms is 1000; give 60000 or more"),
        (
            r#"{"concurrency": 1000000000000000000}"#,
            "concurrency: invalid value: integer `1000000000000000000`, expected a whole number, 0 to 4294967295",
        ),
        (r#"{"per_key": {"concurrency": 1e18}}"#, "expected a whole number, 0 to 4294967295"),
        (r#"{"retry": {"policy": "fixed", "factor": 2}}"#, "retry.factor"),
    ] {
        let (status, code, detail) = put(at, "/v1/queues/q/settings", body).await.problem();
        assert_eq!((status, code.as_str()), (400, INVALID), "{body}: {detail}");
        assert!(detail.contains(word), "{body}: {detail}");
    }
    check_refused(
        &broker,
        "/v1/dead/retry",
        &[
            ("{}", INVALID, &["ids and filter are both missing"]),
            (r#"{"ids": [], "filter": {}}"#, INVALID, &["exclude each other"]),
            (r#"{"ids": ["x"]}"#, INVALID, &["\"x\""]),
            (r#"{"filter": {"state": "dead"}}"#, INVALID, &["unknown field `state`"]),
        ],
    )
    .await;
    broker.stop().await;
}

#[tokio::test]
async fn an_operation_that_the_tasks_state_forbids_is_a_conflict() {
    let broker = Broker::start().await;
    let at = broker.address;
    let id = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.ok();
    let id = id["id"].as_str().unwrap();
    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
    let check = async |words: &str| {
        let answer = post(at, &format!("/v1/tasks/{id}/retry"), "").await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (409, "conflict"), "{detail}");
        assert!(detail.contains(words), "{detail}");
        assert_eq!(answer.json()["title"], "the state does not allow this");
    };
    check("is claimed; let its attempt end").await;
    let ack = json!({"claim_token": claimed["tasks"][0]["claim_token"]}).to_string();
    post(at, &format!("/v1/tasks/{id}/ack"), &ack).await.ok();
    check("is succeeded; enqueue it again").await;
    broker.stop().await;
}

#[tokio::test]
async fn routes_methods_and_media_types_that_do_not_exist_are_problems_too() {
    let broker = Broker::start().await;
    let at = broker.address;
    let (status, code, detail) = get(at, "/v2/things").await.problem();
    assert_eq!((status, code.as_str()), (404, "not_found"));
    assert!(detail.contains("/v2/things"), "{detail}");
    let (status, code, detail) = send(at, "DELETE", "/v1/queues", None, b"").await.problem();
    assert_eq!((status, code.as_str()), (405, INVALID));
    assert!(detail.contains("DELETE"), "{detail}");
    let form = Some("application/x-www-form-urlencoded");
    let answer = send(at, "POST", "/v1/queues/q/tasks", form, b"{\"type\": \"t\"}").await;
    let (status, code, detail) = answer.problem();
    assert_eq!((status, code.as_str()), (415, INVALID));
    assert!(detail.contains("application/json"), "{detail}");
    broker.stop().await;
}
