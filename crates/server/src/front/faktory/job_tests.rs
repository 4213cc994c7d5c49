//! Jobs as tasks and tasks as jobs.

use super::*;

const NOW: Timestamp = Timestamp(1_700_000_000_000);

fn pushed(fields: &str) -> String {
    format!(r#"{{"jid":"12345678","jobtype":"mail","args":[1,"a"]{fields}}}"#)
}

fn refused(json: &str) -> String {
    Job::parse(json, NOW).map(|job| format!("{job:?}")).unwrap_err()
}

fn fetched(json: &str) -> String {
    let job = Job::parse(json, NOW).unwrap();
    let enqueue = job.enqueue(NOW);
    let as_job = AsJob {
        id: "0".repeat(26).parse().unwrap_or_else(|_| panic!("no id")),
        queue: enqueue.queue,
        jobtype: enqueue.task.task_type,
        enqueued_at: NOW,
        body: &enqueue.task.body,
        failure: None,
    };
    String::from_utf8(as_job.json()).unwrap()
}

#[test]
fn a_job_is_a_task_with_its_arguments_as_payload() {
    let json = pushed(r#","queue":"q","retry":3,"reserve_for":120,"priority":7"#);
    let job = Job::parse(&json, NOW).unwrap();
    let Enqueue { queue, task } = job.enqueue(NOW);
    assert_eq!((queue, task.task_type, task.body.payload), ("q", "mail", &br#"[1,"a"]"#[..]));
    assert_eq!((task.request_id, task.lease_ms), (Some("12345678"), Some(120_000)));
    assert_eq!((task.priority, task.discard_dead), (Some(7), false));
    assert_eq!(task.retry.unwrap().max_attempts, 4);
}

#[test]
fn retries_and_reservations_have_faktorys_defaults_and_edges() {
    for (fields, attempts, discard, lease_s) in [
        ("", 26, false, 1_800),
        (r#","retry":0,"reserve_for":0"#, 1, true, 1_800),
        (r#","retry":-1,"reserve_for":1"#, 1, false, 60),
        (r#","retry":null,"reserve_for":86400"#, 26, false, 86_400),
        (r#","retry":99999999999"#, limits::ATTEMPTS_MAX, false, 1_800),
    ] {
        let json = pushed(fields);
        let job = Job::parse(&json, NOW).unwrap();
        let task = job.enqueue(NOW).task;
        let retry = task.retry.unwrap();
        let found = (retry.max_attempts, task.discard_dead, task.lease_ms.unwrap() / 1_000);
        assert_eq!(found, (attempts, discard, lease_s), "{fields}");
    }
}

#[test]
fn an_invalid_job_is_refused_in_faktorys_words() {
    let long = pushed(r#","reserve_for":86401"#);
    let at = pushed(r#","at":"tomorrow""#);
    let deep = format!(
        r#"{{"jid":"12345678","jobtype":"a","args":{}{}}}"#,
        "[".repeat(70),
        "]".repeat(70)
    );
    for (json, words) in [
        ("", "invalid JSON"),
        ("[]", "invalid JSON"),
        ("{}", "jobs must have a reasonable jid parameter"),
        (r#"{"jid":"1234567"}"#, "jobs must have a reasonable jid parameter"),
        (r#"{"jid":12345678}"#, "jid is not a string"),
        (r#"{"jid":"12345678"}"#, "jobs must have a jobtype parameter"),
        (r#"{"jid":"12345678","jobtype":"a"}"#, "jobs must have an args parameter"),
        (r#"{"jid":"12345678","jobtype":"a","args":null}"#, "jobs must have an args parameter"),
        (r#"{"jid":"12345678","jobtype":"a","args":{}}"#, "args is not an array"),
        (long.as_str(), "jobs cannot be reserved for more than one day"),
        (at.as_str(), "invalid timestamp for 'at': \"tomorrow\""),
        (deep.as_str(), "nested deeper than 60 levels"),
    ] {
        let error = refused(json);
        assert!(error.contains(words), "{json}: {error} lacks {words}");
    }
}

#[test]
fn a_fetched_job_has_the_bytes_that_were_pushed() {
    let json = r#"{"jid":"a\"b\\c4567","jobtype":"é","args":[9007199254740993123, 1.0, {"a" : "\u00e9"}],"new":{"big":18446744073709551617},"custom":{"x":[1, 2]},"enqueued_at":"old","failure":{"old":1}}"#;
    let out = fetched(json);
    for kept in [
        r#""jid":"a\"b\\c4567""#,
        r#""args":[9007199254740993123, 1.0, {"a" : "\u00e9"}]"#,
        r#""new":{"big":18446744073709551617}"#,
        r#""custom":{"x":[1, 2]}"#,
        r#""jobtype":"é""#,
        r#""queue":"default""#,
        r#""enqueued_at":"2023-11-14T22:13:20.000Z""#,
        r#""created_at":"2023-11-14T22:13:20.000Z""#,
        r#""retry":25"#,
    ] {
        assert!(out.contains(kept), "{out} lacks {kept}");
    }
    assert!(!out.contains("old"), "{out}");
    let parsed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(parsed["reserve_for"], 1_800);
    assert!(fetched(&pushed(r#","created_at":"2020-01-01T00:00:00Z""#)).contains("2020-01-01"));
}

#[test]
fn jobs_with_equal_type_and_arguments_have_the_same_unique_key() {
    let unique = |json: &str| {
        let job = Job::parse(json, NOW).unwrap();
        job.enqueue(NOW)
            .task
            .unique
            .map(|unique| (unique.key.to_string(), unique.window_ms, unique.until))
    };
    let custom = r#","custom":{"unique_for":1.5}"#;
    let spaced = r#"{"jid":"abcdefgh","jobtype":"mail","args":[1, "a"],"custom":{"unique_for":60,"unique_until":"start"}}"#;
    let (one, other) = (unique(&pushed(custom)).unwrap(), unique(spaced).unwrap());
    assert_eq!(one.0, other.0);
    assert_eq!((one.1, one.2), (Some(1_500), Some(UniqueUntil::Done)));
    assert_eq!(other.2, Some(UniqueUntil::Start));
    let text = spaced.replace("[1, \"a\"]", "[1,\"a \"]");
    assert_ne!(unique(&text).unwrap().0, other.0, "spaces in a text count");
    assert!(unique(&pushed("")).is_none());
    assert!(unique(&pushed(r#","custom":{"unique_for":0}"#)).is_none());
    let at = r#","at":"2023-11-14T22:14:20Z","custom":{"unique_for":10}"#;
    assert_eq!(unique(&pushed(at)).unwrap().1, Some(70_000), "the delay is added");
}

#[test]
fn times_are_read_to_the_nanosecond_and_the_past_is_now() {
    let task = |at: &str| {
        let json = pushed(&format!(r#","at":"{at}""#));
        Job::parse(&json, NOW).unwrap().enqueue(NOW).task.run_at
    };
    assert_eq!(task("2023-11-14T22:13:21.123456789Z"), When::At(Timestamp(1_700_000_001_123)));
    assert_eq!(task("2023-11-15T00:13:21+02:00"), When::At(Timestamp(1_700_000_001_000)));
    assert_eq!(task("2001-01-01T00:00:00Z"), When::Now);
    assert_eq!(task("1901-01-01T00:00:00Z"), When::Now);
    assert_eq!(task(""), When::Now);
}

#[test]
fn a_native_task_is_a_job_with_the_fields_that_workers_need() {
    let out = |content_type, headers, payload: &[u8]| {
        let body = Body { content_type, headers, payload };
        let id: TaskId = "0".repeat(26).parse().unwrap_or_else(|_| panic!("no id"));
        let job =
            AsJob { id, queue: "q", jobtype: "t", enqueued_at: NOW, body: &body, failure: None };
        assert!(job.is_tracked());
        let json = String::from_utf8(job.json()).unwrap();
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let list = out("", vec![], b" [1, 2]");
    assert_eq!(list["args"], serde_json::json!([1, 2]));
    assert_eq!(list["jid"], "0".repeat(26));
    assert_eq!((&list["reserve_for"], &list["retry"]), (&1_800.into(), &25.into()));
    assert!(list.get("custom").is_none());
    let object = out("application/json", vec![("trace", "7")], br#"{"a":1}"#);
    assert_eq!(object["args"], serde_json::json!([{"a": 1}]));
    assert_eq!(object["custom"], serde_json::json!({"trace": "7"}));
    let bytes = out("image/png", vec![], &[0xff, 0]);
    assert_eq!(bytes["args"], serde_json::json!(["/wA="]));
    assert_eq!(bytes["custom"]["content_type"], "image/png");
}
