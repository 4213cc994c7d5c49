//! Faktory's other verbs: batches, tracking, queues, mutations.

use crate::common;

use crate::common::{
    Broker,
    faktory::{Client, Reply, listens},
    http,
};
use serde_json::{Value, json};

async fn broker() -> Broker {
    Broker::with(listens).await
}

fn bulk(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) => text,
        other => panic!("no bulk reply: {other:?}"),
    }
}

async fn status(client: &mut Client, bid: &str) -> Value {
    client.call(&format!("BATCH STATUS {bid}")).await.json()
}

/// Fetches and acks one job of a queue. Returns its type.
async fn run_one(client: &mut Client, queue: &str) -> Option<String> {
    let Reply::Bulk(job) = client.call(&format!("FETCH {queue}")).await else { return None };
    let job: Value = serde_json::from_str(&job).unwrap();
    client.done(&format!(r#"ACK {{"jid":{}}}"#, job["jid"])).await;
    Some(job["jobtype"].as_str().unwrap().to_owned())
}

fn counts(status: &Value) -> (u64, u64, u64) {
    let count = |name: &str| status[name].as_u64().unwrap();
    (count("total"), count("pending"), count("failed"))
}

fn follow_ups(status: &Value) -> (&str, &str) {
    (status["complete_st"].as_str().unwrap(), status["success_st"].as_str().unwrap())
}

#[tokio::test]
async fn a_batch_counts_its_jobs_and_calls_back_once_all_have_run_and_succeeded() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    // Callbacks without an id get one.
    let new = r#"BATCH NEW {"description":"pictures","complete":{"jobtype":"all_ran","args":[],"queue":"back"},"success":{"jobtype":"all_well","args":[],"queue":"back"}}"#;
    let bid = bulk(client.call(new).await);
    assert!(bid.starts_with("b-"), "{bid}");
    for n in 1..=2 {
        let job = format!(
            r#"PUSH {{"jid":"batch-job-{n}","jobtype":"t","args":[],"queue":"work{n}","custom":{{"bid":"{bid}"}}}}"#
        );
        client.done(&job).await;
    }
    let many = format!(
        r#"PUSHB [{{"jid":"batch-job-3","jobtype":"t","args":[],"queue":"work3","custom":{{"bid":"{bid}"}}}},{{"jid":"batch-job-4","jobtype":"t","args":[],"custom":{{"bid":"b-none"}}}}]"#
    );
    assert_eq!(client.call(&many).await.json(), json!({"batch-job-4": "No such batch b-none"}));
    let shown = status(&mut client, &bid).await;
    assert_eq!((&shown["bid"], &shown["description"]), (&json!(bid), &json!("pictures")));
    assert!(shown.get("parent_bid").is_none());
    assert_eq!(counts(&shown), (3, 3, 0));

    assert_eq!(run_one(&mut client, "work1").await.as_deref(), Some("t"));
    assert_eq!(client.call("FETCH work2").await.json()["jid"], "batch-job-2");
    client.done(r#"FAIL {"jid":"batch-job-2"}"#).await;
    assert_eq!(run_one(&mut client, "work3").await.as_deref(), Some("t"));
    let shown = status(&mut client, &bid).await;
    assert_eq!((counts(&shown), follow_ups(&shown)), ((3, 1, 1), ("", "")), "not committed");
    client.done(&format!("BATCH COMMIT {bid}")).await;
    let shown = status(&mut client, &bid).await;
    assert_eq!(follow_ups(&shown), ("1", ""), "all jobs have run and one has failed");
    assert_eq!(run_one(&mut client, "back").await.as_deref(), Some("all_ran"));
    assert_eq!(follow_ups(&status(&mut client, &bid).await), ("2", ""));

    client.done(r#"MUTATE {"cmd":"requeue","target":"retries"}"#).await;
    assert_eq!(run_one(&mut client, "work2").await.as_deref(), Some("t"));
    let shown = status(&mut client, &bid).await;
    assert_eq!((counts(&shown), follow_ups(&shown)), ((3, 0, 0), ("2", "1")));
    assert_eq!(run_one(&mut client, "back").await.as_deref(), Some("all_well"));
    assert_eq!(follow_ups(&status(&mut client, &bid).await), ("2", "2"));
    assert_eq!(run_one(&mut client, "back").await, None, "each once");
}

#[tokio::test]
async fn an_invalid_job_keeps_no_other_out_of_its_batch() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    let bid = bulk(client.call(r#"BATCH NEW {"success":{"jobtype":"s","args":[]}}"#).await);
    let job = |jid: &str, more: &str| {
        format!(
            r#"{{"jid":"{jid}","jobtype":"t","args":[],"queue":"w","custom":{{"bid":"{bid}"{more}}}}}"#
        )
    };
    let past = r#","expires_at":"2020-01-01T00:00:00Z""#;
    let jobs = [job("good-job-1", ""), job("late-job-1", past), job("good-job-2", "")];
    let refused = client.call(&format!("PUSHB [{}]", jobs.join(","))).await.json();
    assert_eq!(refused.as_object().unwrap().len(), 1, "{refused}");
    let why = refused["late-job-1"].as_str().unwrap();
    assert!(why.starts_with("expires_at 2020-01-01T00:00:00.000Z is not after"), "{why}");
    assert_eq!(counts(&status(&mut client, &bid).await), (2, 2, 0));
}

#[tokio::test]
async fn a_callback_is_enqueued_whatever_else_has_its_id() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    let job = r#"{"jid":"the-callback","jobtype":"back","args":[],"custom":{"unique_for":60}}"#;
    let new = format!(r#"BATCH NEW {{"complete":{job},"success":{job}}}"#);
    let bid = bulk(client.call(&new).await);
    client.done(&format!("BATCH COMMIT {bid}")).await;
    for _ in ["complete", "success"] {
        assert_eq!(run_one(&mut client, "default").await.as_deref(), Some("back"));
    }
    assert_eq!(follow_ups(&status(&mut client, &bid).await), ("2", "2"));
}

#[tokio::test]
async fn batches_are_nested_and_opened_again() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    let callback =
        |name: &str| format!(r#""success":{{"jobtype":"{name}","args":[],"queue":"back"}}"#);
    let parent = bulk(client.call(&format!("BATCH NEW {{{}}}", callback("parent"))).await);
    let child = format!(r#"BATCH NEW {{"parent_bid":"{parent}",{}}}"#, callback("child"));
    let child = bulk(client.call(&child).await);
    assert_eq!(status(&mut client, &child).await["parent_bid"], json!(parent));
    client.done(&format!("BATCH COMMIT {parent}")).await;
    assert_eq!(follow_ups(&status(&mut client, &parent).await).1, "", "its child is not done");
    assert_eq!(bulk(client.call(&format!("BATCH OPEN {child}")).await), child);
    client.done(&format!("BATCH COMMIT {child}")).await;
    assert_eq!(run_one(&mut client, "back").await.as_deref(), Some("child"));
    assert_eq!(run_one(&mut client, "back").await.as_deref(), Some("parent"));
    let unknown = client.call("BATCH OPEN b-01ARZ3NDEKTSV4RRFFQ69G5FAV").await;
    let Reply::Error(text) = unknown else { panic!("{unknown:?}") };
    assert!(text.starts_with("ERR No such batch b-"), "{text}");
}

#[tokio::test]
async fn any_connection_may_report_a_jobs_progress() {
    let broker = broker().await;
    let mut worker = Client::worker(&broker, "worker-1").await;
    let mut job = Client::open(&broker).await;
    let track = "TRACK GET tracked-job";
    let unknown = json!({"jid": "tracked-job", "state": "unknown", "updated_at": ""});
    assert_eq!(job.call(track).await.json(), unknown);
    worker.push("untracked-job", "default").await;
    assert_eq!(job.call("TRACK GET untracked-job").await.json()["state"], "unknown");
    worker.done(r#"PUSH {"jid":"tracked-job","jobtype":"t","args":[],"queue":"q","custom":{"track":1}}"#).await;
    assert_eq!(job.call(track).await.json()["state"], "enqueued");
    worker.call("FETCH q").await.json();
    job.done(r#"TRACK SET {"jid":"tracked-job","percent":30,"desc":"a third"}"#).await;
    let shown = job.call(track).await.json();
    assert_eq!((&shown["state"], &shown["percent"]), (&json!("working"), &json!(30)));
    assert_eq!(shown["desc"], "a third");
    assert!(!shown["updated_at"].as_str().unwrap().is_empty());
    worker.done(r#"ACK {"jid":"tracked-job"}"#).await;
    job.done(r#"TRACK SET {"jid":"tracked-job","percent":40}"#).await;
    let shown = job.call(track).await.json();
    assert_eq!((&shown["state"], &shown["percent"]), (&json!("success"), &json!(30)));
    for wrong in [
        "{}",
        r#"{"jid":"tracked-job","percent":101}"#,
        "[",
        r#"{"jid":"tracked-job","reserve_until":"x"}"#,
    ] {
        let reply = job.call(&format!("TRACK SET {wrong}")).await;
        assert!(matches!(reply, Reply::Error(_)), "{wrong}: {reply:?}");
    }
}

#[tokio::test]
async fn a_reservation_is_lengthened_and_never_cut_short() {
    let broker = Broker::with(|config| {
        listens(config);
        config.clock = taskyard_server::Clock::manual(common::START_MS);
    })
    .await;
    let mut client = Client::worker(&broker, "worker-1").await;
    client.done(r#"PUSH {"jid":"reserved-job","jobtype":"t","args":[],"reserve_for":7200}"#).await;
    client.call("FETCH default").await.json();
    let lease = async || {
        let listed = http::get(broker.address, "/v1/tasks?state=claimed").await.ok();
        listed["tasks"][0]["claim"]["lease_expires_at"].as_str().unwrap().to_owned()
    };
    assert_eq!(lease().await, "2023-11-15T00:13:20.000Z");
    for (until, expected) in [
        ("2023-11-14T23:00:00Z", "2023-11-15T00:13:20.000Z"),
        ("2023-11-15T02:00:00Z", "2023-11-15T02:00:00.000Z"),
    ] {
        client
            .done(&format!(
                r#"TRACK SET {{"jid":"reserved-job","percent":1,"reserve_until":"{until}"}}"#
            ))
            .await;
        assert_eq!(lease().await, expected);
    }
}

#[tokio::test]
async fn queues_are_paused_resumed_emptied_and_measured() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    for queue in ["a", "b"] {
        client.push(&format!("job-in-queue-{queue}"), queue).await;
    }
    client.done("QUEUE pause a unknown").await;
    assert_eq!(client.call("FETCH a").await, Reply::Nil);
    let listed = http::get(broker.address, "/v1/queues").await.ok();
    assert_eq!(listed["queues"].as_array().unwrap().len(), 2, "nothing came to be: {listed}");
    let latency = client.call("QUEUE LATENCY a unknown").await.json();
    assert!(latency["a"].as_f64().unwrap() > 0.0, "{latency}");
    assert_eq!(latency["unknown"], 0.0);
    client.done("QUEUE RESUME *").await;
    assert_eq!(client.call("FETCH a").await.json()["jid"], "job-in-queue-a");
    client.done("QUEUE REMOVE b").await;
    assert_eq!(client.call("FETCH b").await, Reply::Nil);
    let queues = client.call("INFO").await.json()["faktory"]["queues"].clone();
    assert_eq!(queues, json!({"a": 0}));
    client.push("job-in-queue-b2", "b").await;
    let queues = client.call("INFO").await.json()["faktory"]["queues"].clone();
    assert_eq!(queues, json!({"a": 0, "b": 1}));
    client.done("FLUSH").await;
    assert_eq!(client.call("FETCH a b").await, Reply::Nil);
}

#[tokio::test]
async fn mutations_change_the_named_jobs_and_no_others() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    for n in 1..=4 {
        let kind = if n == 4 { "other" } else { "t" };
        let job = format!(
            r#"PUSH {{"jid":"later-job-{n}","jobtype":"{kind}","args":[ "n{n}" ],"at":"2030-01-01T00:00:00Z"}}"#
        );
        client.done(&job).await;
    }
    let sets =
        async |client: &mut Client| client.call("INFO").await.json()["faktory"]["sets"].clone();
    assert_eq!(sets(&mut client).await["scheduled"], 4);
    let glob = r#"MUTATE {"cmd":"requeue","target":"scheduled","filter":{"jobtype":"t","regexp":"*\\\"args\\\":\\[\\\"n1\\\"\\]*"}}"#;
    client.done(glob).await;
    assert_eq!(client.call("FETCH default").await.json()["jid"], "later-job-1");
    client.done(r#"FAIL {"jid":"later-job-1","message":"no"}"#).await;
    client.done(r#"MUTATE {"cmd":"kill","target":"scheduled","filter":{"jids":["later-job-2","unknown-job"]}}"#).await;
    client
        .done(r#"MUTATE {"cmd":"discard","target":"scheduled","filter":{"jobtype":"other"}}"#)
        .await;
    let expected = json!({"scheduled": 1, "retries": 1, "dead": 1, "working": 0});
    assert_eq!(sets(&mut client).await, expected);
    client.done(r#"MUTATE {"cmd":"kill","target":"retries","filter":{}}"#).await;
    client.done(r#"MUTATE {"cmd":"clear","target":"scheduled","filter":{}}"#).await;
    let expected = json!({"scheduled": 0, "retries": 0, "dead": 2, "working": 0});
    assert_eq!(sets(&mut client).await, expected);
    client
        .done(r#"MUTATE {"cmd":"requeue","target":"dead","filter":{"jids":["later-job-2"]}}"#)
        .await;
    assert_eq!(client.call("FETCH default").await.json()["jid"], "later-job-2");
    client.done(r#"FAIL {"jid":"later-job-2"}"#).await;
    let expected = json!({"scheduled": 0, "retries": 1, "dead": 1, "working": 0});
    assert_eq!(sets(&mut client).await, expected, "the job has all its attempts again");
    let long = format!(
        r#"MUTATE {{"cmd":"kill","target":"dead","filter":{{"regexp":"{}"}}}}"#,
        "a*".repeat(1_000)
    );
    assert!(matches!(client.call(&long).await, Reply::Error(_)));
    client.done(r#"MUTATE {"cmd":"discard","target":"dead"}"#).await;
    client.done("MUTATE {\"cmd\": \"clear\", \"target\": \"retries\"}").await;
    let expected = json!({"scheduled": 0, "retries": 0, "dead": 0, "working": 0});
    assert_eq!(sets(&mut client).await, expected);
}
