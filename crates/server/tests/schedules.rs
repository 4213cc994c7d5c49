//! Schedules over both fronts: set, fire, catch up after an outage, and every refusal.

use crate::common::{
    Broker, START_MS, code, eventually,
    http::{Answer, get, post, put, send},
    task,
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use taskyard_proto::v1;
use taskyard_server::Clock;

const MINUTE: Duration = Duration::from_secs(60);

fn daily() -> Value {
    json!({"cron": "30 2 * * *", "timezone": "Europe/Berlin", "queue": "reports",
           "task": {"type": "report", "payload": {"full": true}, "headers": {"trace": "t1"}}})
}

/// Every minute, from a whole minute on.
fn each_minute(more: &Value) -> Value {
    let mut body = json!({"every_ms": 60_000, "queue": "reports", "task": {"type": "report"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn set(at: SocketAddr, name: &str, body: &Value) -> Answer {
    put(at, &format!("/v1/schedules/{name}"), &body.to_string()).await
}

async fn delete(at: SocketAddr, name: &str) -> Answer {
    send(at, "DELETE", &format!("/v1/schedules/{name}"), None, b"").await
}

async fn schedule(at: SocketAddr, name: &str) -> Value {
    get(at, &format!("/v1/schedules/{name}")).await.ok()
}

/// Waits until a schedule has decided this many occurrences.
async fn decided(at: SocketAddr, name: &str, count: u64) -> Value {
    eventually("the occurrences are decided", async || {
        let seen = schedule(at, name).await;
        let totals = ["fired_total", "skipped_total", "missed_total"];
        let sum: u64 = totals.iter().map(|total| seen[*total].as_u64().unwrap()).sum();
        (sum >= count).then_some(seen)
    })
    .await
}

/// Claims all tasks of a queue. Returns their occurrences, in order.
async fn occurrences(at: SocketAddr, queue: &str, count: usize) -> Vec<String> {
    let claim = json!({"queues": [queue], "max": 100}).to_string();
    let mut found = Vec::new();
    eventually("the runs are there", async || {
        for task in post(at, "/v1/claims", &claim).await.ok()["tasks"].as_array().unwrap() {
            found.push(task["headers"]["taskyard-occurrence-at"].as_str().unwrap().to_owned());
        }
        (found.len() >= count).then_some(())
    })
    .await;
    found.sort();
    found
}

#[tokio::test]
async fn a_schedule_fires_in_its_zone_and_shows_what_comes_next() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let made = set(at, "nightly", &daily()).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.ok();
    assert_eq!(made["next_run_at"], "2023-11-15T01:30:00.000Z");
    assert_eq!(made["next_runs"][4], "2023-11-19T01:30:00.000Z");
    assert_eq!((&made["overlap"], &made["catch_up"]), (&json!("skip"), &json!("last")));
    assert_eq!(
        made["task"],
        json!({"type": "report", "payload": {"full": true},
                                    "headers": {"trace": "t1"}})
    );
    let again = set(at, "nightly", &daily()).await;
    assert_eq!((again.status, again.json()), (200, made), "the same rules change nothing");

    broker.clock.advance(Duration::from_secs(3 * 3_600));
    let claim = r#"{"queues": ["reports"], "max": 5, "wait_ms": 60000}"#;
    broker.clock.advance(Duration::from_secs(1_000));
    let claimed = post(at, "/v1/claims", claim).await.ok();
    let run = &claimed["tasks"][0];
    assert_eq!(run["payload"], json!({"full": true}));
    assert_eq!(
        run["headers"],
        json!({"trace": "t1", "taskyard-schedule": "nightly",
               "taskyard-occurrence-at": "2023-11-15T01:30:00.000Z"})
    );
    let id = run["id"].as_str().unwrap();
    assert_eq!(get(at, &format!("/v1/tasks/{id}")).await.ok()["schedule"], "nightly");
    let seen = schedule(at, "nightly").await;
    assert_eq!((&seen["fired_total"], &seen["last_task_id"]), (&json!(1), &json!(id)));
    assert_eq!(seen["live_task_ids"], json!([id]));
    assert_eq!(seen["last_run_at"], "2023-11-15T01:30:00.000Z");
    assert_eq!(seen["next_run_at"], "2023-11-16T01:30:00.000Z");

    assert_eq!(delete(at, "nightly").await.status, 204);
    assert_eq!(get(at, &format!("/v1/tasks/{id}")).await.ok()["state"], "claimed");
    for answer in [
        delete(at, "nightly").await,
        get(at, "/v1/schedules/nightly").await,
        post(at, "/v1/schedules/nightly/pause", "").await,
        post(at, "/v1/schedules/nightly/resume", "").await,
        post(at, "/v1/schedules/nightly/trigger", "").await,
    ] {
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (404, "not_found"));
        assert_eq!(detail, "schedule nightly does not exist; set it first");
    }
}

#[tokio::test]
async fn a_broker_that_was_down_catches_up_as_each_policy_says() {
    let window = |ms: u64| json!({"catch_up": "all", "catch_up_window_ms": ms});
    let policies = [
        ("none", json!({"catch_up": "none"}), (1, 4), vec!["22:19:00"]),
        ("last", json!({}), (1, 4), vec!["22:19:00"]),
        (
            "all",
            json!({"catch_up": "all"}),
            (5, 0),
            vec!["22:15:00", "22:16:00", "22:17:00", "22:18:00", "22:19:00"],
        ),
        ("window", window(125_000), (3, 2), vec!["22:17:00", "22:18:00", "22:19:00"]),
        // No window is shorter than ten seconds.
        ("late", window(1_000), (1, 4), vec!["22:19:00"]),
    ];
    let broker = Broker::manual().await;
    for (name, more, ..) in &policies {
        let mut body = each_minute(more);
        let own = json!({"overlap": "allow", "queue": format!("queue-{name}")});
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        assert_eq!(set(broker.address, name, &body).await.status, 201);
    }
    // The clock started at 22:13:20. One occurrence fires on time.
    broker.clock.advance(Duration::from_secs(40));
    for (name, ..) in &policies {
        let seen = decided(broker.address, name, 1).await;
        assert_eq!((&seen["fired_total"], &seen["missed_total"]), (&json!(1), &json!(0)), "{name}");
        occurrences(broker.address, &format!("queue-{name}"), 1).await;
    }
    let dir = broker.stop().await;

    let later = Clock::manual(START_MS + 345_000);
    let broker = Broker::on(dir, |config| config.clock = later).await;
    for (name, _, (fired, missed), expected) in policies {
        let seen = decided(broker.address, name, 6).await;
        let totals = (&seen["fired_total"], &seen["missed_total"]);
        assert_eq!(totals, (&json!(1 + fired), &json!(missed)), "{name}");
        assert_eq!(seen["next_run_at"], "2023-11-14T22:20:00.000Z", "{name}");
        let found = occurrences(broker.address, &format!("queue-{name}"), fired).await;
        let expected: Vec<String> =
            expected.iter().map(|time| format!("2023-11-14T{time}.000Z")).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[tokio::test]
async fn a_clock_that_jumps_a_year_ahead_costs_one_run() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let body = each_minute(&json!({"every_ms": 1_000}));
    set(at, "ticks", &body).await.ok();
    broker.clock.advance(Duration::from_secs(365 * 86_400));
    let seen = decided(at, "ticks", 365 * 86_400).await;
    assert_eq!((&seen["fired_total"], &seen["missed_total"]), (&json!(1), &json!(31_535_999)));
    assert_eq!(occurrences(at, "reports", 1).await, ["2024-11-13T22:13:20.000Z"]);
}

#[tokio::test]
async fn a_run_on_another_shard_holds_up_the_next_until_it_has_ended() {
    let broker = Broker::with(|config| {
        config.clock = Clock::manual(START_MS);
        config.shards = Some(16);
    })
    .await;
    let at = broker.address;
    set(at, "minutely", &each_minute(&json!({"overlap": "buffer_one"}))).await.ok();
    broker.clock.advance(MINUTE);
    let claim = r#"{"queues": ["reports"], "wait_ms": 60000, "lease_ms": 86400000}"#;
    let first = post(at, "/v1/claims", claim).await.ok()["tasks"][0].clone();
    broker.clock.advance(MINUTE);
    let waits = eventually("the next occurrence waits", async || {
        Some(schedule(at, "minutely").await).filter(|seen| seen["buffered_at"].is_string())
    })
    .await;
    assert_eq!(waits["buffered_at"], "2023-11-14T22:15:00.000Z");
    assert_eq!(waits["live_task_ids"], json!([first["id"]]));
    let ack = json!({"claim_token": first["claim_token"]}).to_string();
    let path = format!("/v1/tasks/{}/ack", first["id"].as_str().unwrap());
    post(at, &path, &ack).await.ok();
    let second = post(at, "/v1/claims", claim).await.ok()["tasks"][0].clone();
    assert_eq!(second["headers"]["taskyard-occurrence-at"], "2023-11-14T22:15:00.000Z");
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_triggered_and_backfilled() {
    let broker = Broker::manual().await;
    let at = broker.address;
    set(at, "minutely", &each_minute(&json!({"overlap": "allow"}))).await.ok();
    let paused = post(at, "/v1/schedules/minutely/pause", r#"{"note": "holidays"}"#).await.ok();
    assert_eq!((&paused["paused"], &paused["note"]), (&json!(true), &json!("holidays")));
    assert_eq!((&paused["next_run_at"], &paused["next_runs"]), (&Value::Null, &json!([])));
    broker.clock.advance(5 * MINUTE);
    let id = post(at, "/v1/schedules/minutely/trigger", "").await;
    assert_eq!(id.status, 201);
    assert_eq!(occurrences(at, "reports", 1).await, ["2023-11-14T22:18:20.000Z"]);
    let resumed = post(at, "/v1/schedules/minutely/resume", "").await.ok();
    assert_eq!(
        (&resumed["paused"], &resumed["next_run_at"]),
        (&json!(false), &json!("2023-11-14T22:19:00.000Z"))
    );
    assert_eq!(resumed["missed_total"], 0, "what passes during a pause is not missed");

    let path = "/v1/schedules/minutely/backfill";
    let range = |from: &str, to: &str| {
        json!({"from": format!("2023-11-14T{from}Z"), "to": format!("2023-11-14T{to}Z")})
            .to_string()
    };
    let done = post(at, path, &range("20:00:00", "20:02:00")).await.ok();
    assert_eq!(done, json!({"enqueued": 3}));
    assert_eq!(
        occurrences(at, "reports", 3).await,
        ["2023-11-14T20:00:00.000Z", "2023-11-14T20:01:00.000Z", "2023-11-14T20:02:00.000Z",]
    );
    assert_eq!(schedule(at, "minutely").await["fired_total"], 0, "it is no occurrence of now");
    for (body, told) in [
        (range("20:00:00", "23:00:00"), "to 2023-11-14T23:00:00.000Z is not in the past"),
        (range("20:00:00", "19:00:00"), "is after to"),
        (
            json!({"from": "2023-10-01T00:00:00Z", "to": "2023-11-14T00:00:00Z"}).to_string(),
            "the range has more than 10000 occurrences; split it",
        ),
        ("{}".into(), "missing field `from`"),
        (
            json!({"from": "1969-01-01T00:00:00Z", "to": "2023-11-14T00:00:00Z"}).to_string(),
            "from: 1969-01-01T00:00:00Z is before 1970; choose a later moment",
        ),
        (
            json!({"from": "2023-11-14T00:00:00Z", "to": "1969-01-01T00:00:00Z"}).to_string(),
            "to: 1969-01-01T00:00:00Z is before 1970; choose a later moment",
        ),
    ] {
        let (status, _, detail) = post(at, path, &body).await.problem();
        assert!(status == 400 && detail.contains(told), "{detail}");
    }
}

#[tokio::test]
async fn operations_without_fields_refuse_any() {
    let broker = Broker::manual().await;
    let at = broker.address;
    set(at, "s", &daily()).await.ok();
    let flow = json!({"nodes": [{"name": "a", "type": "t"}]}).to_string();
    let flow = post(at, "/v1/flows", &flow).await.ok()["id"].as_str().unwrap().to_owned();
    let queued = post(at, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.ok();
    let task = queued["id"].as_str().unwrap().to_owned();
    for path in [
        "/v1/schedules/s/trigger".to_owned(),
        "/v1/schedules/s/resume".to_owned(),
        format!("/v1/flows/{flow}/retry"),
        format!("/v1/flows/{flow}/cancel"),
        format!("/v1/tasks/{task}/cancel"),
        "/v1/queues/q/pause".to_owned(),
        "/v1/queues/q/resume".to_owned(),
        "/v1/queues/q/purge".to_owned(),
    ] {
        for (body, told) in [
            (r#"{"payload": 1}"#, "unknown field `payload`"),
            ("[]", "expected an object"),
            ("run", "is not JSON"),
        ] {
            let (status, code, detail) = post(at, &path, body).await.problem();
            assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{path}: {detail}");
            assert!(detail.contains(told), "{path} {body}: {detail}");
        }
    }
    assert_eq!(schedule(at, "s").await["live_task_ids"], json!([]), "nothing was triggered");
    for body in ["", "{}"] {
        assert_eq!(post(at, "/v1/schedules/s/trigger", body).await.status, 201, "{body:?}");
        assert_eq!(post(at, "/v1/schedules/s/resume", body).await.status, 200, "{body:?}");
    }
}

#[tokio::test]
async fn a_schedule_that_catches_up_with_none_shows_no_window_and_can_be_set_as_shown() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let mut body = daily();
    body["catch_up"] = json!("none");
    let made = set(at, "s", &body).await.ok();
    assert_eq!((&made["catch_up"], made.get("catch_up_window_ms")), (&json!("none"), None));
    let asked = v1::ScheduleRequest { name: "s".into() };
    let mut client = broker.grpc().await;
    let told = client.get_schedule(asked).await.unwrap().into_inner();
    assert_eq!(told.catch_up_window_ms, None);
    let again = v1::SetScheduleRequest { schedule: Some(told) };
    client.set_schedule(again).await.unwrap();
}

#[tokio::test]
async fn schedules_are_listed_by_name_page_by_page() {
    let broker = Broker::manual().await;
    let at = broker.address;
    for name in ["c", "a", "e", "b", "d"] {
        set(at, name, &daily()).await.ok();
    }
    let mut names = Vec::new();
    let mut path = "/v1/schedules?limit=2".to_owned();
    loop {
        let page = get(at, &path).await.ok();
        let page_names = page["schedules"].as_array().unwrap().iter();
        names.extend(page_names.map(|found| found["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["cursor"].as_str() else { break };
        path = format!("/v1/schedules?limit=2&cursor={cursor}");
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let (status, _, detail) = get(at, "/v1/schedules?limit=0").await.problem();
    assert_eq!((status, detail.as_str()), (400, "limit 0 is not 1 to 1000"));
}

#[tokio::test]
async fn bad_schedules_are_refused_with_the_reason_and_change_nothing() {
    let broker = Broker::manual().await;
    let at = broker.address;
    let task = json!({"type": "t"});
    for (body, told) in [
        (
            json!({"cron": "0 0 30 2 *", "task": task}),
            "cron \"0 0 30 2 *\" does not fire within ten years; check its day and month",
        ),
        (json!({"cron": "61 * * * *", "task": task}), "cron \"61 * * * *\": "),
        (json!({"cron": "* * *", "task": task}), "it has 3 fields; give 5"),
        (json!({"cron": "@fortnightly", "task": task}), "unknown macro"),
        (
            json!({"cron": "@daily", "timezone": "Europe/Berln", "task": task}),
            "timezone \"Europe/Berln\" is not known; did you mean Europe/Berlin?",
        ),
        (json!({"cron": "@daily", "every_ms": 5000, "task": task}), "exclude each other"),
        (json!({"task": task}), "a schedule needs cron or every_ms"),
        (json!({"every_ms": 5000, "timezone": "UTC", "task": task}), "timezone means nothing"),
        (json!({"every_ms": 5, "task": task}), "every_ms is 5; at least 1000 is allowed"),
        (json!({"cron": "@daily"}), "missing field `task`"),
        (json!({"cron": "@daily", "task": {}}), "task: missing field `type`"),
        (json!({"cron": "@daily", "task": {"type": ""}}), "type is empty"),
        (json!({"cron": "@daily", "task": {"type": "t", "delay_ms": 5}}), "has run_at"),
        (json!({"cron": "@daily", "task": {"type": "t", "request_id": "r"}}), "has request_id"),
        (json!({"cron": "@daily", "queue": "a b", "task": task}), "queue \"a b\""),
        (
            json!({"cron": "@daily", "queue": "a", "task": {"type": "t", "queue": "b"}}),
            "task.queue \"b\" is not the schedule's queue \"a\"",
        ),
        (json!({"cron": "@daily", "overlap": "often", "task": task}), "unknown variant `often`"),
        (json!({"cron": "@daily", "catch_up": "some", "task": task}), "unknown variant `some`"),
        (json!({"cron": "@daily", "remaining_runs": 0, "task": task}), "remaining_runs is 0"),
        (
            json!({"cron": "@daily", "end_at": "2020-01-01T00:00:00Z", "task": task}),
            "no occurrence up to its end_at",
        ),
        (
            json!({"cron": "@daily", "start_at": "2024-02-01T00:00:00Z",
                "end_at": "2024-01-01T00:00:00Z", "task": task}),
            "end_at",
        ),
        (
            json!({"cron": "@daily", "start_at": "2124-02-01T00:00:00Z", "task": task}),
            "start_at 2124-02-01T00:00:00.000Z is more than ten years ahead",
        ),
        (
            json!({"cron": "@daily", "start_at": "1969-12-31T23:59:59Z", "task": task}),
            "start_at: 1969-12-31T23:59:59Z is before 1970",
        ),
        (
            json!({"cron": "@daily", "end_at": "1950-01-01T00:00:00Z", "task": task}),
            "end_at: 1950-01-01T00:00:00Z is before 1970",
        ),
        (
            json!({"cron": "@daily", "catch_up": "none", "catch_up_window_ms": 5, "task": task}),
            "catch_up_window_ms means nothing for catch_up none; leave it out",
        ),
        (json!({"cron": "@daily", "jitter_ms": 86_400_001, "task": task}), "jitter_ms is"),
        (json!({"cron": "@daily", "tz": "UTC", "task": task}), "unknown field `tz`"),
    ] {
        let (status, code, detail) = set(at, "s", &body).await.problem();
        assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{body}");
        assert!(detail.contains(told), "{body}: {detail}");
    }
    let (status, _, detail) = set(at, "a%20b", &daily()).await.problem();
    assert_eq!(status, 400);
    assert!(detail.starts_with("a schedule name has the character ' '"), "{detail}");
    assert_eq!(get(at, "/v1/schedules").await.ok()["schedules"], json!([]));
}

#[tokio::test]
async fn grpc_has_the_same_schedules() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let wanted = v1::Schedule {
        name: "nightly".into(),
        cron: "0 3 * * *".into(),
        timezone: "Europe/Berlin".into(),
        task: Some(task("reports", "report")),
        overlap: "cancel_other".into(),
        catch_up: "all".into(),
        remaining_runs: Some(2),
        ..Default::default()
    };
    let request =
        |schedule: &v1::Schedule| v1::SetScheduleRequest { schedule: Some(schedule.clone()) };
    let made = client.set_schedule(request(&wanted)).await.unwrap().into_inner();
    let schedule = made.schedule.unwrap();
    assert!(made.created && schedule.next_runs.len() == 2, "{schedule:?}");
    assert_eq!((schedule.overlap.as_str(), schedule.catch_up.as_str()), ("cancel_other", "all"));
    assert_eq!(schedule.task.as_ref().unwrap().queue, "reports");
    let again = client.set_schedule(request(&wanted)).await.unwrap().into_inner();
    assert!(!again.created);

    let named = || v1::ScheduleRequest { name: "nightly".into() };
    let pause = v1::PauseScheduleRequest { name: "nightly".into(), note: "why".into() };
    let paused = client.pause_schedule(pause).await.unwrap().into_inner();
    assert!(paused.paused && paused.note == "why" && paused.next_run_at.is_none());
    assert!(!client.resume_schedule(named()).await.unwrap().into_inner().paused);
    let id = client.trigger_schedule(named()).await.unwrap().into_inner().id;
    let seen = eventually("the run is there", async || {
        let request = v1::GetTaskRequest { id: id.clone(), without_payload: false };
        client.clone().get_task(request).await.ok()
    })
    .await;
    assert_eq!(seen.into_inner().schedule, "nightly");
    let (from, to) = (START_MS - 3 * 86_400_000, START_MS);
    let backfill = v1::BackfillScheduleRequest { name: "nightly".into(), from, to };
    assert_eq!(client.backfill_schedule(backfill).await.unwrap().into_inner().enqueued, 3);
    assert_eq!(client.get_schedule(named()).await.unwrap().into_inner().last_task_id, id);
    let all = client.list_schedules(v1::ListSchedulesRequest::default()).await.unwrap();
    assert_eq!(all.into_inner().schedules.len(), 1);
    client.remove_schedule(named()).await.unwrap();
    assert_eq!(code(&client.get_schedule(named()).await.unwrap_err()), "not_found");

    for (bad, told) in [
        (v1::Schedule { task: None, ..wanted.clone() }, "the schedule has no task"),
        (
            v1::Schedule { overlap: "often".into(), ..wanted.clone() },
            "overlap \"often\" is not one of skip, buffer_one, allow, cancel_other",
        ),
        (
            v1::Schedule { catch_up: "none".into(), catch_up_window_ms: Some(5), ..wanted.clone() },
            "catch_up_window_ms means nothing for catch_up none; leave it out",
        ),
        (
            v1::Schedule { catch_up: "some".into(), ..wanted.clone() },
            "catch_up \"some\" is not one of none, last, all",
        ),
        (v1::Schedule { every_ms: Some(5_000), ..wanted.clone() }, "exclude each other"),
        (v1::Schedule { cron: "0 0 30 2 *".into(), ..wanted.clone() }, "does not fire"),
        (
            v1::Schedule { timezone: "Berlin".into(), ..wanted.clone() },
            "did you mean Europe/Berlin?",
        ),
    ] {
        let status = client.set_schedule(request(&bad)).await.unwrap_err();
        assert_eq!(code(&status), "invalid_argument");
        assert!(status.message().contains(told), "{}", status.message());
    }
}
