//! Limits and `task why` as people and scripts use them, against a real broker.

use std::fs;

use crate::yard::Yard;
use serde_json::{Value, json};

fn enqueue(yard: &Yard, queue: &str, more: &[&str]) -> String {
    let mut arguments = vec!["enqueue", "call", "--queue", queue];
    arguments.extend(more);
    yard.ok(&arguments)
}

/// The reasons of a task as JSON and as text.
fn why(yard: &Yard, id: &str) -> (Vec<Value>, String) {
    let mut found = yard.json(&["task", "why", id]).remove(0);
    assert_eq!(found["id"], id);
    let Value::Array(reasons) = found["reasons"].take() else { panic!("{found}") };
    (reasons, yard.ok(&["task", "why", id]))
}

fn codes(reasons: &[Value]) -> Vec<&str> {
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[test]
fn a_task_that_nobody_could_run_says_why() {
    let yard = Yard::start();
    let first = enqueue(&yard, "mail", &[]);
    enqueue(&yard, "mail", &[]);
    let third = enqueue(&yard, "mail", &[]);
    let (reasons, text) = why(&yard, &third);
    assert_eq!(codes(&reasons), ["no_worker", "ahead"]);
    assert_eq!(reasons[1]["ahead"], 2);
    assert_eq!(text, "no worker listens on queue mail now\n2 tasks are ahead of it");
    let (reasons, _) = why(&yard, &first);
    assert_eq!(reasons[1]["ahead"], 0);

    yard.ok(&["queue", "pause", "mail"]);
    let (reasons, text) = why(&yard, &first);
    assert_eq!(codes(&reasons), ["queue_paused", "no_worker", "ahead"]);
    assert!(text.starts_with("queue mail is paused\n"), "{text}");

    let later = enqueue(&yard, "later", &["--delay", "1h"]);
    let (reasons, text) = why(&yard, &later);
    assert_eq!(codes(&reasons), ["scheduled"]);
    assert!(reasons[0]["until"].is_string() || reasons[0]["until"].is_number(), "{reasons:?}");
    assert!(text.contains("it was enqueued for later"), "{text}");

    let file = yard.file("flow.yaml");
    let flow = "nodes:\n  - {name: left, type: t}\n  - {name: right, type: t}\n  \
                - {name: both, type: t, depends_on: [left, right]}\n";
    fs::write(&file, flow).unwrap();
    let flow = yard.ok(&["flow", "run", file.to_str().unwrap(), "--detach"]);
    let status = yard.json(&["flow", "status", &flow]).remove(0);
    let nodes = status["nodes"].as_array().unwrap();
    let both = nodes.iter().find(|node| node["name"] == "both").unwrap();
    let (reasons, text) = why(&yard, both["task_id"].as_str().unwrap());
    assert_eq!(codes(&reasons), ["parents"]);
    assert_eq!(reasons[0]["parents"], json!(["left", "right"]));
    assert_eq!(text, "it waits for its parents: left, right");

    let unknown = yard.run(&["task", "why", "6hrp7d20020010000000000001"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""), "{}", unknown.stderr);
}

#[test]
fn a_task_behind_a_concurrency_says_how_many_run() {
    let yard = Yard::start();
    yard.ok(&["queue", "set", "calls", "--concurrency", "2", "--key-concurrency", "1"]);
    let acme = enqueue(&yard, "calls", &["--fairness-key", "acme"]);
    let _worker = yard.work("calls", "sleep 600", &["--concurrency", "4"]);
    yard.until_state(&acme, "claimed");
    let (reasons, _) = why(&yard, &acme);
    assert_eq!(codes(&reasons), ["running"]);

    let second = enqueue(&yard, "calls", &["--fairness-key", "acme"]);
    let (reasons, text) = why(&yard, &second);
    assert_eq!(codes(&reasons), ["key_concurrency", "ahead"]);
    assert_eq!(reasons[0]["key"], "acme");
    assert_eq!((&reasons[0]["claimed"], &reasons[0]["limit"]), (&json!(1), &json!(1)));
    assert!(text.starts_with("key acme runs 1 task; its limit is 1\n"), "{text}");

    let bolt = enqueue(&yard, "calls", &["--fairness-key", "bolt"]);
    yard.until_state(&bolt, "claimed");
    let coil = enqueue(&yard, "calls", &["--fairness-key", "coil"]);
    let (reasons, text) = why(&yard, &coil);
    assert_eq!(codes(&reasons), ["queue_concurrency", "ahead"]);
    assert_eq!((&reasons[0]["claimed"], &reasons[0]["limit"]), (&json!(2), &json!(2)));
    assert!(text.starts_with("queue calls runs 2 tasks; its limit is 2\n"), "{text}");

    // A raised limit takes effect at once.
    yard.ok(&["queue", "set", "calls", "--concurrency", "3"]);
    yard.until_state(&coil, "claimed");
    assert_eq!(yard.task(&second)["state"], "ready");
}

#[test]
fn a_task_behind_a_bucket_says_when_it_refills() {
    let yard = Yard::start();
    yard.ok(&["queue", "set", "slow", "--rate", "1/h", "--burst", "1"]);
    yard.ok(&["queue", "set", "keys", "--key-rate", "1/h", "--key-burst", "1"]);
    let _worker = yard.work("slow", "true", &["--queue", "keys"]);
    let first = enqueue(&yard, "slow", &[]);
    yard.until_state(&first, "succeeded");
    let (reasons, text) = why(&yard, &first);
    assert_eq!(codes(&reasons), ["finished"]);
    assert_eq!(text, "it does not wait: it is succeeded");

    let second = enqueue(&yard, "slow", &[]);
    let (reasons, text) = why(&yard, &second);
    assert_eq!(codes(&reasons), ["queue_rate", "ahead"]);
    assert!(!reasons[0]["until"].is_null(), "{reasons:?}");
    assert!(
        text.starts_with("queue slow has used up its rate; its bucket refills in 59 min"),
        "{text}"
    );

    let first = enqueue(&yard, "keys", &["--fairness-key", "acme"]);
    yard.until_state(&first, "succeeded");
    let second = enqueue(&yard, "keys", &["--fairness-key", "acme"]);
    let other = enqueue(&yard, "keys", &["--fairness-key", "bolt"]);
    yard.until_state(&other, "succeeded");
    let (reasons, text) = why(&yard, &second);
    assert_eq!(codes(&reasons), ["key_rate", "ahead"]);
    assert_eq!(reasons[0]["key"], "acme");
    assert!(
        text.starts_with("key acme has used up its rate; its bucket refills in 59 min"),
        "{text}"
    );
}

#[test]
fn limits_of_a_queue_are_set_one_by_one_and_shown() {
    let yard = Yard::start();
    let text = yard.ok(&[
        "queue",
        "set",
        "calls",
        "--rate",
        "90/m",
        "--burst",
        "5",
        "--concurrency",
        "7",
        "--key-concurrency",
        "2",
        "--key-rate",
        "10/s",
        "--weight",
        "acme=3",
        "--ageing",
        "1m",
    ]);
    let shown = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect()
    };
    for line in [
        "concurrency 7",
        "rate 1.5/s, 5 at once",
        "key-concurrency 2",
        "weights acme=3",
        "ageing 1m",
    ] {
        assert!(shown(&text).iter().any(|shown| shown == line), "no {line:?} in {text}");
    }
    let settings = || yard.json(&["queue", "get", "calls"]).remove(0)["settings"].take();
    let set = settings();
    assert_eq!(set["rate"], json!({"per_second": 1.5, "burst": 5}));
    assert_eq!(set["per_key"]["concurrency"], 2);
    assert_eq!(set["per_key"]["rate"]["per_second"], 10.0);
    assert_eq!(set["weights"], json!({"acme": 3}));

    for (wrong, part) in [
        (&["--concurrency", "0"][..], "pause the queue"),
        (&["--key-concurrency", "0"], "pause the queue"),
        (&["--rate", "0/s"], "is not a rate"),
        (&["--rate", "fast"], "is not a rate"),
        (&["--weight", "acme=0"], "weight"),
    ] {
        let ran = yard.run(&[&["queue", "set", "calls"], wrong].concat());
        assert_ne!(ran.code, 0, "{wrong:?}");
        assert!(ran.stderr.contains(part), "{wrong:?}: {}", ran.stderr);
        assert_eq!(settings(), set, "{wrong:?} changes nothing");
    }

    yard.ok(&["queue", "set", "calls", "--unset", "rate", "--unset", "key-rate"]);
    let set = settings();
    assert_eq!((&set["rate"], &set["per_key"]["rate"]), (&Value::Null, &Value::Null));
    assert_eq!((&set["concurrency"], &set["per_key"]["concurrency"]), (&json!(7), &json!(2)));
}
