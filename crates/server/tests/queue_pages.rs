//! Lists of queues: page by page and by name, over all shards.

use crate::common::{
    Broker, code,
    faktory::{Client, listens},
    http::{get, put},
    task,
};
use serde_json::Value;
use std::net::SocketAddr;
use taskyard_proto::v1;

/// Enqueues a task into each queue.
async fn fill(broker: &Broker, queues: &[String]) {
    let mut client = broker.grpc().await;
    for queues in queues.chunks(500) {
        let tasks = queues.iter().map(|queue| task(queue, "t")).collect();
        let request = v1::EnqueueManyRequest { tasks, batch_id: Vec::new() };
        let made = client.enqueue_many(request).await.unwrap().into_inner();
        assert_eq!(made.results.len(), queues.len());
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("queue-{number:05}")).collect()
}

async fn page(at: SocketAddr, query: &str) -> (Vec<String>, Option<String>) {
    let page = get(at, &format!("/v1/queues?{query}")).await.ok();
    let name = |queue: &Value| queue["name"].as_str().unwrap().to_owned();
    let names = page["queues"].as_array().unwrap().iter().map(name).collect();
    (names, page.get("cursor").map(|cursor| cursor.as_str().unwrap().to_owned()))
}

/// The names of all pages, and the number of pages.
async fn all_pages(at: SocketAddr, limit: usize) -> (Vec<String>, usize) {
    let (mut all, mut query) = (Vec::new(), format!("limit={limit}"));
    for pages in 1.. {
        let (names, cursor) = page(at, &query).await;
        assert!(names.len() <= limit, "{names:?}");
        all.extend(names);
        match cursor {
            Some(cursor) => query = format!("limit={limit}&cursor={cursor}"),
            None => return (all, pages),
        }
    }
    unreachable!()
}

#[tokio::test]
async fn queues_are_listed_page_by_page_over_http_and_grpc() {
    let broker = Broker::start().await;
    let names = numbered(120);
    fill(&broker, &names).await;
    for (limit, pages) in [(1, 120), (7, 18), (60, 2), (119, 2), (120, 1), (121, 1), (1_000, 1)] {
        let listed = all_pages(broker.address, limit).await;
        assert_eq!(listed, (names.clone(), pages), "{limit} at a time");
    }
    let (first, cursor) = page(broker.address, "").await;
    assert_eq!((first, cursor.is_some()), (names[..50].to_vec(), true), "50 unless asked");

    let mut client = broker.grpc().await;
    let (mut listed, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = v1::ListQueuesRequest { cursor, limit: 0 };
        let page = client.list_queues(request).await.unwrap().into_inner();
        assert!(page.queues.iter().all(|queue| queue.ready == 1));
        listed.extend(page.queues.into_iter().map(|queue| queue.name));
        pages += 1;
        cursor = page.cursor;
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!((listed, pages), (names, 3));
    broker.stop().await;
}

#[tokio::test]
async fn a_cursor_holds_while_queues_come_between() {
    let broker = Broker::start().await;
    let at = broker.address;
    let names = numbered(40);
    fill(&broker, &names).await;
    let (first, cursor) = page(at, "limit=20").await;
    assert_eq!(first, names[..20]);
    // Before the cursor, right behind it, and at the end.
    let new = ["queue-00003b", "queue-00019b", "queue-00039b"].map(str::to_owned);
    fill(&broker, &new).await;
    let (second, end) = page(at, &format!("limit=1000&cursor={}", cursor.unwrap())).await;
    let mut expected = names[20..].to_vec();
    expected.extend(new[1..].iter().cloned());
    expected.sort();
    assert_eq!(
        (second, end),
        (expected, None),
        "each queue once, in order, and new queues only behind the cursor"
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_page_of_queues_that_cannot_be_is_refused() {
    let broker = Broker::start().await;
    let at = broker.address;
    fill(&broker, &numbered(3)).await;
    let (_, cursor) = page(at, "limit=1").await;
    put(at, "/v1/schedules/a", r#"{"every_ms": 60000, "task": {"type": "t"}}"#).await;
    put(at, "/v1/schedules/b", r#"{"every_ms": 60000, "task": {"type": "t"}}"#).await;
    let of_schedules = get(at, "/v1/schedules?limit=1").await.ok();
    let of_schedules = of_schedules["cursor"].as_str().unwrap();
    for (query, words) in [
        ("limit=0", "limit 0 is not 1 to 1000"),
        ("limit=1001", "limit 1001 is not 1 to 1000"),
        ("cursor=what", "cursor \"what\" is not from this broker"),
        (&format!("cursor={of_schedules}"), "is not from this broker"),
        (&format!("cursor={}x", cursor.as_ref().unwrap()), "is not from this broker"),
        ("page=2", "page"),
    ] {
        let (status, code, detail) = get(at, &format!("/v1/queues?{query}")).await.problem();
        assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{query}");
        assert!(detail.contains(words), "{query}: {detail}");
    }
    let mut client = broker.grpc().await;
    for (cursor, limit) in [("what", 0), ("", 1_001)] {
        let request = v1::ListQueuesRequest { cursor: cursor.into(), limit };
        let status = client.list_queues(request).await.unwrap_err();
        assert_eq!(code(&status), "invalid_argument", "{status:?}");
    }
    let of_queues = cursor.unwrap();
    let refused = get(at, &format!("/v1/schedules?cursor={of_queues}")).await.problem();
    assert_eq!(refused.0, 400, "{refused:?}");
    broker.stop().await;
}

/// Lists, metrics and Faktory's INFO need every queue, so they read a shard page by page.
#[tokio::test]
async fn whatever_needs_all_queues_sees_more_than_a_page_of_a_shard() {
    let broker = Broker::with(|config| {
        config.shards = Some(1);
        listens(config);
    })
    .await;
    let names = numbered(2_100);
    fill(&broker, &names).await;
    assert_eq!(all_pages(broker.address, 1_000).await, (names.clone(), 3));
    let metrics = get(broker.address, "/metrics").await.text;
    assert!(metrics.lines().any(|line| line == "taskyard_queues 2100"), "{metrics}");
    let info = Client::open(&broker).await.call("INFO").await.json();
    let faktory = &info["faktory"];
    assert_eq!(
        (&faktory["total_queues"], &faktory["total_enqueued"]),
        (&2_100.into(), &2_100.into())
    );
    broker.stop().await;
}
