//! The life of a job over Faktory's protocol, and how other fronts show it.

use crate::common;

use crate::common::{
    Broker,
    cluster::three_with,
    eventually,
    faktory::{Client, Reply, listens, ok},
    http,
    worker::Worker,
};
use serde_json::{Value, json};
use std::time::Duration;

async fn broker() -> Broker {
    Broker::with(listens).await
}

/// A broker with a clock that the test moves.
async fn manual() -> Broker {
    Broker::with(|config| {
        listens(config);
        config.clock = taskyard_server::Clock::manual(common::START_MS);
    })
    .await
}

fn error(text: &str) -> Reply {
    Reply::Error(format!("ERR {text}"))
}

async fn jids_in(client: &mut Client, queue: &str) -> Vec<String> {
    let mut jids = Vec::new();
    while let Reply::Bulk(job) = client.call(&format!("FETCH {queue}")).await {
        let job: Value = serde_json::from_str(&job).unwrap();
        jids.push(job["jid"].as_str().unwrap().to_owned());
    }
    jids
}

#[tokio::test]
async fn a_job_comes_out_as_it_went_in() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    let pushed = r#"{"jid":"job-number-1","jobtype":"Mail","args":[1, 12345678901234567890, 1.50, "é\u0000"],"queue":"q","own":{"b":1,"a":[ ]},"custom":{"x":98765432109876543210},"retry":3}"#;
    client.done(&format!("PUSH {pushed}")).await;
    // A repeat makes no second job, because the first reply may have been lost.
    client.done(&format!("PUSH {pushed}")).await;
    let Reply::Bulk(fetched) = client.call("FETCH other q").await else { panic!("no job") };
    for part in [
        r#""args":[1, 12345678901234567890, 1.50, "é\u0000"]"#,
        r#""own":{"b":1,"a":[ ]}"#,
        r#""custom":{"x":98765432109876543210}"#,
        r#""retry":3"#,
        r#""reserve_for":1800"#,
    ] {
        assert!(fetched.contains(part), "{part} in {fetched}");
    }
    let job: Value = serde_json::from_str(&fetched).unwrap();
    assert_eq!(job["queue"], "q");
    assert!(job["created_at"].is_string() && job["enqueued_at"].is_string());
    assert_eq!(client.call("FETCH q").await, Reply::Nil);
    client.done(r#"ACK {"jid":"job-number-1"}"#).await;
    client.done(r#"ACK {"jid":"job-number-1"}"#).await;
    client.done(r#"ACK {"jid":"never-was-there"}"#).await;
    let failed = client.call(r#"FAIL {"jid":"never-was-there"}"#).await;
    assert_eq!(failed, error("Job not found never-was-there"));
}

#[tokio::test]
async fn invalid_jobs_are_refused_in_faktorys_words() {
    let broker = broker().await;
    let mut client = Client::open(&broker).await;
    for (job, words) in [
        (r#"{"jid":"short","jobtype":"t","args":[]}"#, "jobs must have a reasonable jid parameter"),
        (r#"{"jid":"longenough","args":[]}"#, "jobs must have a jobtype parameter"),
        (r#"{"jid":"longenough","jobtype":"t"}"#, "jobs must have an args parameter"),
        (
            r#"{"jid":"longenough","jobtype":"t","args":[],"reserve_for":86401}"#,
            "jobs cannot be reserved for more than one day",
        ),
    ] {
        assert_eq!(client.call(&format!("PUSH {job}")).await, error(words));
    }
    for (line, begins) in [
        ("PUSH", "ERR invalid JSON"),
        ("PUSH [1]", "ERR invalid JSON"),
        (r#"PUSH {"jid":"longenough","jobtype":"t","args":{}}"#, "ERR invalid JSON"),
        (
            r#"PUSH {"jid":"longenough","jobtype":"t","args":[],"at":"soon"}"#,
            "ERR invalid timestamp for 'at': \"soon\"",
        ),
        (r#"PUSH {"jid":"longenough","jobtype":"t","args":[],"queue":"no/slash"}"#, "ERR "),
        ("PUSHB {}", "ERR invalid JSON"),
        ("ACK {}", "ERR invalid ACK"),
        ("FAIL 7", "ERR invalid FAIL"),
        ("BEAT {", "ERR invalid BEAT"),
        (r#"BEAT {"wid":"unknown"}"#, "ERR unknown worker unknown"),
        ("FETCH", "ERR must call fetch with at least one queue"),
        ("QUEUE NOPE x", "ERR no such QUEUE subcommand: NOPE"),
        ("QUEUE LATENCY *", "ERR QUEUE LATENCY does not support wildcards"),
        ("MUTATE what", "ERR invalid format"),
        (r#"MUTATE {"cmd":"what","target":"dead"}"#, "ERR unknown mutate operation"),
        (r#"MUTATE {"cmd":"kill","target":"what"}"#, "ERR invalid target for mutation command"),
        ("BATCH STATUS b-unknown", "ERR No such batch b-unknown"),
        ("BATCH NOPE", "ERR no such BATCH subcommand: NOPE"),
        ("TRACK", "ERR invalid TRACK"),
        ("push {}", "ERR unknown command push"),
        ("", "ERR unknown command"),
    ] {
        let reply = client.call(line).await;
        let Reply::Error(text) = &reply else { panic!("{line}: {reply:?}") };
        assert!(text.starts_with(begins), "{line}: {text}");
    }
    let bulk = client
        .call(r#"PUSHB [{"jid":"longenough","jobtype":"t","args":[]},{"jid":"x","jobtype":"t","args":[]}]"#)
        .await;
    assert_eq!(bulk.json(), json!({"x": "jobs must have a reasonable jid parameter"}));
    let deep = format!(r#","own":{}{}"#, "[".repeat(100), "]".repeat(100));
    let many: String = (0..300).map(|n| format!(r#","m{n}":1"#)).collect();
    for (more, words) in [(deep, "own: nested deeper"), (many, "more than 256 members")] {
        let job = format!(r#"PUSH {{"jid":"longenough","jobtype":"t","args":[]{more}}}"#);
        let Reply::Error(text) = client.call(&job).await else { panic!("{words}") };
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(client.call("PUSHB []").await, Reply::Bulk("{}".to_owned()));
    assert_eq!(jids_in(&mut client, "default").await, ["longenough"], "nothing else came in");
}

#[tokio::test]
async fn a_failed_job_is_tried_again_as_often_as_it_says() {
    let broker = manual().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    client.done(r#"PUSH {"jid":"job-twice","jobtype":"t","args":[],"retry":1}"#).await;
    client
        .done(r#"PUSH {"jid":"job-never","jobtype":"t","args":[],"retry":0,"queue":"never"}"#)
        .await;
    client
        .done(r#"PUSH {"jid":"job-dead1","jobtype":"t","args":[],"retry":-1,"queue":"dead"}"#)
        .await;
    assert!(client.call("FETCH default").await.json().get("failure").is_none());
    client.done(r#"FAIL {"jid":"job-twice","errtype":"Boom","message":"too hot","backtrace":["a","b"]}"#).await;
    let info = client.call("INFO").await.json();
    assert_eq!(info["faktory"]["sets"]["retries"], 1);
    assert_eq!(info["faktory"]["total_failures"], 1);
    // n^4 + 15 + up to 29 seconds.
    broker.clock.advance(Duration::from_secs(60));
    let again = eventually("the retry", async || match client.call("FETCH default").await {
        Reply::Bulk(job) => serde_json::from_str::<Value>(&job).ok(),
        _ => None,
    })
    .await;
    let failure = &again["failure"];
    assert_eq!(failure["retry_count"], 0);
    assert_eq!(failure["remaining"], 1);
    assert_eq!((&failure["errtype"], &failure["message"]), (&json!("Boom"), &json!("too hot")));
    assert_eq!(failure["backtrace"], json!(["a", "b"]));
    client.done(r#"FAIL {"jid":"job-twice"}"#).await;
    for (queue, jid) in [("never", "job-never"), ("dead", "job-dead1")] {
        assert_eq!(client.call(&format!("FETCH {queue}")).await.json()["jid"], jid);
        client.done(&format!(r#"FAIL {{"jid":"{jid}"}}"#)).await;
    }
    let sets = client.call("INFO").await.json()["faktory"]["sets"].clone();
    assert_eq!(sets, json!({"scheduled": 0, "retries": 0, "dead": 2, "working": 0}));
}

#[tokio::test]
async fn jobs_and_native_tasks_are_the_same_thing() {
    let broker = broker().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    client.done(r#"PUSH {"jid":"from-faktory","jobtype":"mail","args":[1,{"a":2}],"queue":"to-native"}"#).await;
    let mut native = Worker::open(&broker, &["to-native"], 1).await;
    native.credits(1).await;
    let held = native.tasks(1).await;
    assert_eq!(held[0].r#type, "mail");
    assert_eq!(held[0].payload.as_ref(), br#"[1,{"a":2}]"#);
    for (payload, args) in [
        (r#"[1,2]"#, json!([1, 2])),
        (r#"{"to":"you"}"#, json!([{"to": "you"}])),
        ("7", json!([7])),
    ] {
        let task = format!(r#"{{"type":"mail","payload":{payload},"headers":{{"trace":"t1"}}}}"#);
        let made = http::post(broker.address, "/v1/queues/from-native/tasks", &task).await.ok();
        let job = client.call("FETCH from-native").await.json();
        assert_eq!(job["jid"], made["id"]);
        assert_eq!((&job["jobtype"], &job["args"]), (&json!("mail"), &args));
        assert_eq!(job["custom"], json!({"trace": "t1"}));
        client.done(&format!(r#"ACK {{"jid":{}}}"#, job["jid"])).await;
        let id = made["id"].as_str().unwrap();
        let task = http::get(broker.address, &format!("/v1/tasks/{id}")).await.ok();
        assert_eq!(task["state"], "succeeded");
    }
}

#[tokio::test]
async fn unique_jobs_wait_for_each_other_and_expired_ones_are_not_run() {
    let broker = manual().await;
    let mut client = Client::worker(&broker, "worker-1").await;
    let job = |jid: &str, until: &str| {
        format!(
            r#"PUSH {{"jid":"{jid}","jobtype":"t","args":[1],"queue":"{until}","custom":{{"unique_for":60,"unique_until":"{until}"}}}}"#
        )
    };
    let refused = Reply::Error("NOTUNIQUE Job not unique".to_owned());
    for until in ["success", "start"] {
        client.done(&job("first-job", until)).await;
        assert_eq!(client.call(&job("other-job", until)).await, refused);
        client.call(&format!("FETCH {until}")).await.json();
        let while_it_runs = client.call(&job("third-job", until)).await;
        assert_eq!(while_it_runs, if until == "start" { ok() } else { refused.clone() });
        client.done(r#"ACK {"jid":"first-job"}"#).await;
    }
    client.done(&job("after-all", "success")).await;
    client
        .done(r#"PUSH {"jid":"expiring","jobtype":"t","args":[],"queue":"e","custom":{"expires_at":"2023-11-14T22:13:25Z"}}"#)
        .await;
    broker.clock.advance(Duration::from_secs(10));
    assert_eq!(client.call("FETCH e").await, Reply::Nil);
}

#[tokio::test]
async fn a_dead_workers_jobs_come_back_in_seconds_and_its_late_answer_counts_for_nothing() {
    let broker = manual().await;
    let mut dying = Client::worker(&broker, "dying").await;
    dying.push("job-number-1", "q").await;
    dying.done(r#"BEAT {"wid":"dying","rss_kb":1000}"#).await;
    assert_eq!(dying.call("FETCH q").await.json()["jid"], "job-number-1");
    drop(dying);
    let mut other = Client::worker(&broker, "other").await;
    let mut seconds = 0;
    let job = eventually("the job", async || match other.call("FETCH q").await {
        Reply::Bulk(job) => serde_json::from_str::<Value>(&job).ok(),
        _ => {
            broker.clock.advance(Duration::from_secs(2));
            seconds += 2;
            None
        }
    })
    .await;
    assert_eq!(job["jid"], "job-number-1");
    assert!(seconds <= 20, "{seconds} s, though it was reserved for half an hour");
    let mut late = Client::worker(&broker, "dying").await;
    let failed = late.call(r#"FAIL {"jid":"job-number-1"}"#).await;
    assert_eq!(failed, error("Job not found job-number-1"));
    late.done(r#"ACK {"jid":"job-number-1"}"#).await;
    assert_eq!(other.call("INFO").await.json()["faktory"]["sets"]["working"], 1);
    other.done(r#"ACK {"jid":"job-number-1"}"#).await;
    assert_eq!(other.call("INFO").await.json()["faktory"]["total_processed"], 1);
}

#[tokio::test]
async fn a_job_whose_reservation_ends_three_times_is_dead() {
    let broker = manual().await;
    let mut client = Client::worker(&broker, "never-beats").await;
    client.done(r#"PUSH {"jid":"endless-job","jobtype":"t","args":[],"reserve_for":60}"#).await;
    let mut fetched = 0;
    let sets = eventually("the job is dead", async || {
        let fetch = client.call("FETCH default").await;
        let lapses = matches!(fetch, Reply::Bulk(_));
        fetched += u32::from(lapses);
        // The worker sends a command in each step of the clock, so that only its reservation ends.
        for _ in 0..if lapses { 7 } else { 1 } {
            broker.clock.advance(Duration::from_secs(9));
            client.call("INFO").await;
        }
        let sets = client.call("INFO").await.json()["faktory"]["sets"].clone();
        (sets["dead"] == 1).then_some(sets)
    })
    .await;
    assert_eq!(fetched, 3);
    assert_eq!(sets, json!({"scheduled": 0, "retries": 0, "dead": 1, "working": 0}));
}

#[tokio::test]
async fn a_quiet_worker_is_handed_nothing_on_any_connection_and_then_stops() {
    let broker = broker().await;
    let mut one = Client::worker(&broker, "many-handed").await;
    let mut two = Client::worker(&broker, "many-handed").await;
    one.done(r#"BEAT {"wid":"many-handed"}"#).await;
    let listed = http::get(broker.address, "/v1/workers").await.ok();
    let worker = &listed["workers"][0];
    assert_eq!((&worker["pid"], &worker["name"]), (&json!(77), &json!("many-handed")));
    assert_eq!(
        listed["workers"].as_array().unwrap().len(),
        1,
        "all its connections are one worker"
    );
    let id = worker["id"].as_str().unwrap();
    http::post(broker.address, &format!("/v1/workers/{id}/quiet"), "{}").await.ok();
    one.push("job-number-1", "q").await;
    assert_eq!(one.call("FETCH q").await, Reply::Nil);
    assert_eq!(two.call("FETCH q").await, Reply::Nil);
    let quiet = Reply::Bulk(r#"{"state":"quiet"}"#.to_owned());
    assert_eq!(two.call(r#"BEAT {"wid":"many-handed"}"#).await, quiet);
    assert_eq!(one.call(r#"BEAT {"wid":"many-handed","current_state":"quiet"}"#).await, quiet);
    http::post(broker.address, &format!("/v1/workers/{id}/stop"), "{}").await.ok();
    let stop = Reply::Bulk(r#"{"state":"terminate"}"#.to_owned());
    assert_eq!(one.call(r#"BEAT {"wid":"many-handed"}"#).await, stop);
    drop((one, two));
    // Once the broker notices that the connections closed, another worker may use this name, and
    // has no orders.
    let job = eventually("the job", async || {
        match Client::process(&broker, "many-handed", 78).await.call("FETCH q").await {
            Reply::Bulk(job) => Some(job),
            _ => None,
        }
    })
    .await;
    assert!(job.contains("job-number-1"), "{job}");
}

#[tokio::test]
async fn a_fetch_that_waits_when_its_worker_is_quieted_is_handed_nothing() {
    let broker = broker().await;
    let mut waits = Client::worker(&broker, "many-handed").await;
    let waiting = tokio::spawn(async move { waits.call("FETCH q").await });
    let worker = loop {
        let listed = http::get(broker.address, "/v1/workers").await.ok();
        // From now on the fetch waits, or is about to check whether its worker is quiet.
        if listed["workers"][0]["queues"] == json!(["q"]) {
            break listed["workers"][0]["id"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    http::post(broker.address, &format!("/v1/workers/{worker}/quiet"), "{}").await.ok();
    let mut other = Client::worker(&broker, "other").await;
    other.push("job-number-1", "q").await;
    assert_eq!(waiting.await.unwrap(), Reply::Nil);
    assert_eq!(other.call("FETCH q").await.json()["jid"], "job-number-1");
}

#[tokio::test]
async fn any_node_serves_any_client() {
    let nodes = three_with(|_, config| listens(config)).await;
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(Client::worker(node, "everywhere").await);
    }
    for n in 0..12_usize {
        let (jid, queue) = (format!("job-number-{n}"), format!("q{}", n % 6));
        clients[n % 3].push(&jid, &queue).await;
        // The job is fetched through a second node and ended through a third.
        let fetched = clients[(n + 1) % 3].call(&format!("FETCH {queue}")).await;
        assert_eq!(fetched.json()["jid"], jid.as_str());
        clients[(n + 2) % 3].done(&format!(r#"ACK {{"jid":"{jid}"}}"#)).await;
    }
    let info = clients[0].call("INFO").await.json();
    assert_eq!(info["faktory"]["sets"]["working"], 0);
    assert_eq!(info["faktory"]["total_processed"], 12);
}

/// The worker got this job before, through another node. The old claim must not hide the new one.
#[tokio::test]
async fn a_job_that_came_again_through_another_node_is_acknowledged_through_either() {
    let nodes = three_with(|_, config| listens(config)).await;
    let mut one = Client::worker(&nodes[0], "wanders").await;
    let mut two = Client::worker(&nodes[1], "wanders").await;
    one.push("job-number-1", "q").await;
    one.call("FETCH q").await.json();
    two.done(r#"FAIL {"jid":"job-number-1"}"#).await;
    two.done(r#"MUTATE {"cmd":"requeue","target":"retries"}"#).await;
    let again = two.call("FETCH q").await.json();
    assert_eq!(again["failure"]["retry_count"], 0);
    one.done(r#"ACK {"jid":"job-number-1"}"#).await;
    let info = two.call("INFO").await.json();
    assert_eq!(info["faktory"]["sets"]["working"], 0);
    assert_eq!(info["faktory"]["total_processed"], 2);
}

/// Behind a load balancer, the connections of one worker lead to several nodes.
#[tokio::test]
async fn a_worker_may_beat_on_one_node_and_fetch_on_another() {
    let [first, second, third] = three_with(|_, config| listens(config)).await;
    let mut other = Client::worker(&third, "other").await;
    let mut beats = Client::worker(&first, "divided").await;
    let mut fetches = Client::worker(&second, "divided").await;
    other.push("job-number-1", "q").await;
    assert_eq!(fetches.call("FETCH q").await.json()["jid"], "job-number-1");
    beats.done(r#"BEAT {"wid":"divided"}"#).await;
    drop((beats, fetches));
    // The other worker gets the job long before its reservation of half an hour ends.
    let job = eventually("the job", async || match other.call("FETCH q").await {
        Reply::Bulk(job) => Some(job),
        _ => None,
    })
    .await;
    assert!(job.contains("job-number-1"), "{job}");

    // The state in a beat counts on every node too.
    let mut beats = Client::worker(&first, "resting").await;
    let mut fetches = Client::worker(&second, "resting").await;
    beats.done(r#"BEAT {"wid":"resting","current_state":"quiet"}"#).await;
    let mut jobs = 2;
    eventually("its rest", async || {
        let jid = format!("job-number-{jobs}");
        other.push(&jid, "q").await;
        jobs += 1;
        match fetches.call("FETCH q").await {
            Reply::Nil => Some(()),
            Reply::Bulk(_) => {
                fetches.done(&format!(r#"ACK {{"jid":"{jid}"}}"#)).await;
                None
            }
            reply => panic!("{reply:?}"),
        }
    })
    .await;
}
