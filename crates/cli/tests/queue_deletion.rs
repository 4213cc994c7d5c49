//! `queue delete` as people and scripts use it, against a real broker.

use crate::yard::Yard;
use serde_json::{Value, json};

#[test]
fn a_mistyped_queue_is_deleted_once_nothing_waits_in_it() {
    let yard = Yard::start();
    for queue in ["mail", "mial"] {
        yard.ok(&["enqueue", "send", "--queue", queue]);
    }
    let refused = yard.run(&["queue", "delete", "mial"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    let text = "queue mial has 1 waiting task; purge it first: taskyard queue purge mial";
    assert!(refused.stderr.contains(text), "{}", refused.stderr);
    let refused = yard.run(&["queue", "delete", "mial", "--json"]);
    let error: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!((refused.code, &error["code"]), (1, &json!("queue_not_empty")));

    yard.ok(&["queue", "purge", "mial", "--yes"]);
    let deleted = yard.json(&["queue", "delete", "mial"]);
    assert_eq!(deleted, [json!({"queue": "mial", "deleted": true})]);
    let names = |yard: &Yard| {
        let queues = yard.json(&["queue", "list"]);
        queues.iter().map(|queue| queue["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&yard), ["mail"]);
    let unknown = yard.run(&["queue", "delete", "mial"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""));
    let text = "queue mial does not exist; did you mean mail?";
    assert!(unknown.stderr.contains(text), "{}", unknown.stderr);

    let yard = yard.restart();
    assert_eq!(names(&yard), ["mail"], "it stays gone");
    yard.ok(&["enqueue", "send", "--queue", "mial"]);
    assert_eq!(names(&yard), ["mail", "mial"], "its first task makes it anew");
}
