//! Lists on the command line: their order, and mistyped queues.

use serde_json::Value;

use crate::yard::Yard;

#[test]
fn lists_begin_with_the_newest_and_can_be_of_a_time() {
    let yard = Yard::start();
    // Each task has its own queue, so that the tasks are on several shards.
    let enqueued: Vec<String> =
        (0..12).map(|n| yard.ok(&["enqueue", "a", "--queue", &format!("q{n}")])).collect();
    let ids = |list: Vec<Value>| -> Vec<String> {
        list.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    let newest_first: Vec<String> = enqueued.iter().rev().cloned().collect();
    assert_eq!(ids(yard.json(&["task", "list"])), newest_first);
    let page = yard.run(&["task", "list", "--limit", "5", "--json"]);
    let cursor = page.stderr.trim().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(page.stdout.lines().count(), 5);
    assert_eq!(ids(yard.json(&["task", "list", "--cursor", &cursor])), newest_first[5..]);

    let of_the_eighth = yard.task(&enqueued[7])["enqueued_at"].as_str().unwrap().to_owned();
    let since = ids(yard.json(&["task", "list", "--since", &of_the_eighth]));
    assert!(since.len() >= 5 && since == newest_first[..since.len()], "{since:?}");
    assert_eq!(yard.json(&["task", "list", "--since", "1h"]).len(), 12);
    assert!(yard.json(&["dead", "list", "--since", "1h"]).is_empty());
    let ran = yard.run(&["task", "list", "--since", "soon"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("neither how long ago"), "{}", ran.stderr);
}

#[test]
fn a_queue_that_does_not_exist_is_named_with_the_one_that_was_meant() {
    let yard = Yard::start();
    yard.ok(&["enqueue", "a", "--queue", "mail"]);
    for command in ["list", "retry", "discard"] {
        let ran = yard.run(&["dead", command, "-q", "mial"]);
        assert_eq!(ran.code, 1, "{command}: {}", ran.stdout);
        let said = "queue mial does not exist; did you mean mail?";
        assert!(ran.stderr.contains(said), "{command}: {}", ran.stderr);
        assert!(!ran.stdout.contains('0'), "{command}: {}", ran.stdout);
    }
    let ran = yard.run(&["dead", "retry", "-q", "reports"]);
    assert!(ran.stderr.contains("see taskyard queue list"), "{}", ran.stderr);
    assert_eq!(yard.json(&["dead", "retry", "-q", "mail"])[0]["changed"], 0);
}

/// Lists larger than one page of the broker: the CLI follows them to the end.
#[tokio::test]
async fn queues_are_listed_to_the_last_whatever_a_page_holds() {
    let yard = Yard::start();
    let names: Vec<String> = (0..1_100).map(|number| format!("queue-{number:05}")).collect();
    let client = taskyard::Client::connect(&yard.url).await.unwrap();
    let enqueues = names.iter().map(|name| {
        let enqueue = client.task("t", &()).queue(name);
        tokio::spawn(async move { enqueue.await.map(drop) })
    });
    for enqueue in enqueues.collect::<Vec<_>>() {
        enqueue.await.unwrap().unwrap();
    }
    let named = |list: Vec<Value>| -> Vec<String> {
        list.iter().map(|queue| queue["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(named(yard.json(&["queue", "list"])), names);
    assert_eq!(yard.ok(&["queue", "list"]).lines().count(), 1 + names.len());
    let page = yard.run(&["queue", "list", "--limit", "40", "--json"]);
    assert_eq!(page.stdout.lines().count(), 40);
    let told = "there may be more: continue with --cursor ";
    let cursor = page.stderr.trim().strip_prefix(told).unwrap();
    let rest = yard.run(&["queue", "list", "--cursor", cursor, "--json"]);
    assert_eq!((rest.stdout.lines().count(), &*rest.stderr), (1_060, ""));
    let ran = yard.run(&["queue", "list", "--cursor", "what"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("cursor \"what\" is not from this broker"), "{}", ran.stderr);
    assert_eq!(yard.run(&["queue", "list", "--limit", "0"]).code, 2);
    // The typo stands for the last queue of the list.
    let ran = yard.run(&["dead", "list", "-q", "qeue-01099"]);
    assert!(ran.stderr.contains("did you mean queue-01099?"), "{}", ran.stderr);

    let of = |queues: Vec<taskyard::QueueDetails>| -> Vec<String> {
        queues.into_iter().map(|queue| queue.name).collect()
    };
    assert_eq!(of(client.queues().await.unwrap()), names);
    let mut list = client.queues().page_size(300);
    assert_eq!(of(list.page().await.unwrap().unwrap()), names[..300]);
    let mut rest = client.queues().after(list.cursor().unwrap()).page_size(300);
    assert_eq!(rest.next().await.unwrap().unwrap().name, names[300]);
    assert_eq!(of(rest.await.unwrap()), names[301..]);
    let mut each = 0;
    while let Some(queue) = list.next().await.unwrap() {
        assert_eq!(queue.name, names[300 + each]);
        each += 1;
    }
    assert_eq!((each, list.cursor()), (800, None));
    assert_eq!(list.page().await.unwrap(), None);
}

#[test]
fn dead_letters_are_listed_retried_and_discarded() {
    let yard = Yard::start();
    let worker = yard.work("q", "echo $TASKYARD_TYPE is bad >&2; exit 65", &[]);
    let ids: Vec<String> =
        ["a", "a", "b"].map(|kind| yard.ok(&["enqueue", kind, "--queue", "q"])).to_vec();
    for id in &ids {
        yard.until_state(id, "dead");
    }
    drop(worker);
    let newest_first = |list: Vec<Value>| -> Vec<String> {
        list.iter().map(|task| task["finished_at"].as_str().unwrap().to_owned()).collect()
    };
    let died = newest_first(yard.json(&["dead", "list", "--queue", "q"]));
    assert!(died.len() == 3 && died.is_sorted_by(|one, next| one >= next), "{died:?}");
    // One count is of tasks and one of attempts; each task here had one attempt.
    let text = yard.ok(&["queue", "list"]);
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let header = "QUEUE READY SCHEDULED BLOCKED CLAIMED DEAD SUCCEEDED FAILED ATTEMPTS OLDEST";
    assert_eq!(lines.next().as_deref(), Some(header));
    assert_eq!(lines.next().as_deref(), Some("q 0 0 0 0 3 0 3"));
    assert_eq!(yard.json(&["dead", "list", "--error", "b is bad"])[0]["id"], ids[2]);
    let text = yard.ok(&["dead", "list"]);
    assert!(text.contains("b is bad"), "{text}");

    assert_eq!(yard.json(&["dead", "retry", "--type", "a"])[0]["changed"], 2);
    assert_eq!(yard.task(&ids[0])["state"], "ready");
    assert_eq!(yard.json(&["dead", "discard", &ids[2]])[0]["changed"], 1);
    assert!(yard.json(&["dead", "list"]).is_empty());
}
