//! `queue set --spread` as people and scripts use it, against a real broker.

use crate::yard::Yard;
use serde_json::json;

#[test]
fn a_queue_is_spread_shown_and_laid_on_one_shard_again() {
    let yard = Yard::start();
    yard.ok(&["queue", "set", "clicks", "--spread", "4", "--timeout", "5m"]);
    let settings =
        |yard: &Yard| yard.json(&["queue", "get", "clicks"]).remove(0)["settings"].clone();
    assert_eq!(settings(&yard), json!({"spread": 4, "timeout_ms": 300_000}));
    assert!(yard.ok(&["queue", "get", "clicks"]).contains("spread                4"));
    for _ in 0..8 {
        yard.ok(&["enqueue", "count", "--queue", "clicks"]);
    }
    let ready = |yard: &Yard| yard.json(&["queue", "list"]).remove(0)["ready"].clone();
    assert_eq!(ready(&yard), 8, "on however many shards");

    let refused = yard.run(&["queue", "set", "clicks", "--concurrency", "5"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert!(refused.stderr.contains("exclude each other"), "{}", refused.stderr);
    yard.ok(&["queue", "set", "clicks", "--unset", "spread"]);
    assert_eq!(settings(&yard), json!({"timeout_ms": 300_000}));
    let refused = yard.run(&["queue", "set", "clicks", "--concurrency", "5"]);
    assert!(refused.stderr.contains("3 other shards may still keep tasks"), "{}", refused.stderr);
    assert_eq!(yard.json(&["queue", "purge", "clicks", "--yes"])[0]["removed"], 8);
    yard.ok(&["queue", "set", "clicks", "--concurrency", "5"]);
    assert_eq!(settings(&yard)["concurrency"], 5);

    let yard = yard.restart();
    assert_eq!(settings(&yard)["concurrency"], 5);
    let far = yard.run(&["queue", "set", "clicks", "--unset", "concurrency", "--spread", "9"]);
    assert_eq!(far.code, 2);
    assert!(far.stderr.contains("give 1 to 4"), "{}", far.stderr);
}
