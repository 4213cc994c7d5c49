//! A queue over several shards, for producers, workers and operators: a change of spread loses
//! nothing, a request id makes one task, and settings apply on all shards.

use crate::common::{Broker, DEADLINE, code, http, queues, task};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use taskyard_machine::{
    Command, EncodedCommand, Enqueue, NewTask, QueueSettings, SetQueue, ShardId, TaskId,
    home_shard, request_shard, spread_shards,
};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tokio::time::timeout;
use tonic::{Status, transport::Channel};

type Client = TaskyardClient<Channel>;

const QUEUE: &str = "clicks";
const SHARDS: u16 = 4;
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn try_set(broker: &Broker, settings: &Value) -> http::Answer {
    http::put(broker.address, "/v1/queues/clicks/settings", &settings.to_string()).await
}

async fn spread(broker: &Broker, spread: u16) {
    let told = try_set(broker, &json!({ "spread": spread })).await.ok();
    assert_eq!(told, json!({ "spread": spread }));
}

fn shard_of(id: &str) -> u16 {
    id.parse::<TaskId>().unwrap().home.0
}

/// The number of these tasks on each shard.
fn by_shard<'a>(ids: impl IntoIterator<Item = &'a String>) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    ids.into_iter().for_each(|id| *counts.entry(shard_of(id)).or_default() += 1);
    counts
}

async fn enqueue(client: &mut Client, task: v1::NewTask) -> Result<v1::EnqueueReply, Status> {
    let request = v1::EnqueueRequest { task: Some(task) };
    client.enqueue(request).await.map(|reply| reply.into_inner())
}

async fn enqueue_plain(client: &mut Client, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(enqueue(client, task(QUEUE, "t")).await.unwrap().id);
    }
    ids
}

fn request(request_id: &str) -> v1::NewTask {
    v1::NewTask { request_id: Some(request_id.into()), ..task(QUEUE, "t") }
}

async fn enqueue_many(
    client: &mut Client,
    tasks: Vec<v1::NewTask>,
    batch: u8,
) -> Vec<v1::EnqueueResult> {
    let request = v1::EnqueueManyRequest { tasks, batch_id: vec![batch; 16] };
    let results = client.enqueue_many(request).await.unwrap().into_inner().results;
    assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
    results
}

async fn claim(
    client: &mut Client,
    names: &[&str],
    max: u32,
    wait_ms: u64,
) -> Vec<v1::ClaimedTask> {
    let worker = "w".to_owned();
    let request = v1::ClaimRequest {
        queues: queues(names),
        max,
        wait_ms,
        worker,
        lease_ms: 0,
        types: vec![],
    };
    let reply = timeout(DEADLINE, client.claim(request)).await.expect("an answer in time");
    reply.unwrap().into_inner().tasks
}

/// Claims and acks until no task is left.
async fn work_off(client: &mut Client) -> Vec<String> {
    let mut done = Vec::new();
    loop {
        let held = claim(client, &[QUEUE], 7, 0).await;
        if held.is_empty() {
            return done;
        }
        for task in held {
            let (id, claim_token) = (task.id.clone(), task.claim_token);
            client.ack(v1::AckRequest { id, claim_token, ..Default::default() }).await.unwrap();
            done.push(task.id);
        }
    }
}

async fn queue(client: &mut Client) -> v1::Queue {
    let request = v1::QueueRequest { queue: QUEUE.into() };
    client.get_queue(request).await.unwrap().into_inner()
}

fn spread_over(spread: u16) -> BTreeSet<u16> {
    spread_shards(QUEUE, spread, SHARDS).map(|shard| shard.0).collect()
}

fn shards_of(ids: &[String]) -> BTreeSet<u16> {
    by_shard(ids).into_keys().collect()
}

#[tokio::test]
async fn nothing_is_lost_when_the_spread_grows_and_shrinks() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let mut made = BTreeSet::new();
    for (over, count) in [(1, 8), (4, 40), (2, 12)] {
        spread(&broker, over).await;
        let ids = enqueue_plain(&mut client, count).await;
        let counts = by_shard(&ids);
        assert_eq!(counts.keys().copied().collect::<BTreeSet<_>>(), spread_over(over));
        let even = count / usize::from(over);
        assert!(counts.values().all(|found| *found == even), "they take turns: {counts:?}");
        made.extend(ids);
    }
    let seen = queue(&mut client).await;
    assert_eq!((seen.ready, seen.enqueued_total), (60, 60));
    let listed =
        client.list_queues(v1::ListQueuesRequest::default()).await.unwrap().into_inner().queues;
    assert_eq!(listed.len(), 1, "a spread queue is listed once");
    assert_eq!((listed[0].ready, listed[0].enqueued_total), (60, 60));
    let metrics = http::get(broker.address, "/metrics").await.text;
    let line = "taskyard_queue_tasks{queue=\"clicks\",state=\"ready\"} 60";
    assert_eq!(metrics.matches(line).count(), 1, "{metrics}");
    let done: BTreeSet<String> = work_off(&mut client).await.into_iter().collect();
    assert_eq!(done, made, "claims look beyond a narrower spread");
    assert_eq!(queue(&mut client).await.succeeded_total, 60);
    broker.stop().await;
}

#[tokio::test]
async fn lists_and_purges_look_at_every_shard() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 4).await;
    let made: BTreeSet<String> = enqueue_plain(&mut client, 20).await.into_iter().collect();
    enqueue(&mut client, task("other", "t")).await.unwrap();
    spread(&broker, 1).await;
    let (mut listed, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let filter = Some(v1::TaskFilter { queue: QUEUE.into(), ..Default::default() });
        let request = v1::ListTasksRequest { filter, cursor, limit: 3, ..Default::default() };
        let page = client.list_tasks(request).await.unwrap().into_inner();
        for task in page.tasks {
            assert!(listed.insert(task.id), "each is listed once");
        }
        cursor = page.cursor;
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(listed, made);
    let purged = http::post(broker.address, "/v1/queues/clicks/purge", "").await.ok();
    assert_eq!(purged["changed"], json!(20));
    assert_eq!(queue(&mut client).await.ready, 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_request_makes_one_task_across_changes_of_spread() {
    let broker = Broker::manual().await;
    let mut client = broker.grpc().await;
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for (round, over) in [1, 4, 2, 3].into_iter().enumerate() {
        spread(&broker, over).await;
        for (request_id, id) in &known {
            let again = enqueue(&mut client, request(request_id)).await.unwrap();
            assert_eq!((&again.id, again.duplicate), (id, true), "{request_id} over {over}");
        }
        let many: Vec<v1::NewTask> = known.keys().map(|id| request(id)).collect();
        let again = enqueue_many(&mut client, many, round as u8).await;
        assert!(again.iter().all(|result| result.duplicate));
        assert!(again.iter().map(|result| &result.id).eq(known.values()));
        let fresh: Vec<String> = (0..24).map(|n| format!("r{round}-{n}")).collect();
        let (alone, together) = fresh.split_at(12);
        let mut ids = Vec::new();
        for request_id in alone {
            let made = enqueue(&mut client, request(request_id)).await.unwrap();
            assert!(!made.duplicate);
            ids.push(made.id);
        }
        let many = together.iter().map(|id| request(id)).collect();
        let made = enqueue_many(&mut client, many, 100 + round as u8).await;
        ids.extend(made.into_iter().map(|result| result.id));
        assert_eq!(shards_of(&ids), spread_over(over), "requests are spread too");
        known.extend(fresh.into_iter().zip(ids));
        broker.clock.advance(Duration::from_secs(3600));
    }
    assert_eq!(queue(&mut client).await.enqueued_total, 96);
    broker.clock.advance(DAY);
    let again = enqueue(&mut client, request("r0-0")).await.unwrap();
    assert!(!again.duplicate, "the window for duplicates is over");
    broker.stop().await;
}

#[tokio::test]
async fn a_wire_batch_that_is_sent_again_goes_to_the_same_shards() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 4).await;
    let mixed = |n: usize| match n % 3 {
        0 => task(QUEUE, "t"),
        1 => request(&format!("r{n}")),
        _ => task("other", "t"),
    };
    let tasks: Vec<v1::NewTask> = (0..60).map(mixed).collect();
    let ids = |results: &[v1::EnqueueResult]| -> Vec<String> {
        results.iter().map(|result| result.id.clone()).collect()
    };
    let mut shards = BTreeSet::new();
    for batch in 0..20 {
        let first = enqueue_many(&mut client, tasks.clone(), batch).await;
        let again = enqueue_many(&mut client, tasks.clone(), batch).await;
        assert_eq!(ids(&first), ids(&again));
        shards.insert(shard_of(&first[0].id));
    }
    assert_eq!(shards, spread_over(4), "batches are spread");
    assert_eq!(queue(&mut client).await.enqueued_total, 20 * 20 + 20);
    broker.stop().await;
}

#[tokio::test]
async fn an_atomic_batch_goes_to_one_shard_or_is_refused() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 4).await;
    let batch = |tasks: Vec<v1::NewTask>, batch: u8| v1::EnqueueBatchRequest {
        queue: QUEUE.into(),
        tasks,
        batch_id: vec![batch; 16],
    };
    let mut shards = BTreeSet::new();
    for number in 0..20 {
        let request = batch(vec![task(QUEUE, "t"); 5], number);
        let first = client.enqueue_batch(request.clone()).await.unwrap().into_inner().tasks;
        let again = client.enqueue_batch(request).await.unwrap().into_inner().tasks;
        let ids = |made: Vec<v1::EnqueueReply>| made.into_iter().map(|made| made.id).collect();
        let (first, again): (Vec<String>, Vec<String>) = (ids(first), ids(again));
        assert_eq!(first, again);
        assert_eq!(by_shard(&first).len(), 1);
        shards.insert(shard_of(&first[0]));
    }
    assert_eq!(shards, spread_over(4));
    let several = (0..10).map(|n| request(&format!("r{n}"))).collect();
    let refused = client.enqueue_batch(batch(several, 50)).await.unwrap_err();
    assert_eq!(code(&refused), "invalid_argument");
    assert!(refused.message().contains("belong to several of its shards"), "{refused}");
    let alone = client.enqueue_batch(batch(vec![request("r0")], 51)).await.unwrap().into_inner();
    let again = enqueue(&mut client, request("r0")).await.unwrap();
    assert_eq!((&again.id, again.duplicate), (&alone.tasks[0].id, true));
    broker.stop().await;
}

#[tokio::test]
async fn unique_keys_live_on_the_home_shard() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 4).await;
    let unique = Some(v1::Unique { key: Some("one".into()), ..Default::default() });
    let keyed = v1::NewTask { unique, ..task(QUEUE, "t") };
    let first = enqueue(&mut client, keyed.clone()).await.unwrap();
    assert_eq!(shard_of(&first.id), home_shard(QUEUE, SHARDS).0);
    for over in [4, 2] {
        spread(&broker, over).await;
        let again = enqueue(&mut client, keyed.clone()).await.unwrap();
        assert_eq!((&again.id, again.duplicate), (&first.id, true));
    }
    broker.stop().await;
}

#[tokio::test]
async fn pause_resume_and_settings_hold_on_every_shard() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 4).await;
    enqueue_plain(&mut client, 8).await;
    http::post(broker.address, "/v1/queues/clicks/pause", "").await.ok();
    assert_eq!(
        claim(&mut client, &[QUEUE], 10, 0).await,
        [],
        "the queue must be paused once the call has returned"
    );
    assert!(queue(&mut client).await.paused);
    http::post(broker.address, "/v1/queues/clicks/resume", "").await.ok();
    let told = try_set(&broker, &json!({"spread": 4, "timeout_ms": 90_000})).await.ok();
    assert_eq!(told["timeout_ms"], json!(90_000));
    let held = claim(&mut client, &[QUEUE], 10, 0).await;
    assert_eq!(held.len(), 8);
    assert!(held.iter().all(|task| task.timeout_ms == Some(90_000)), "{held:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_paused_queue_that_is_spread_is_paused_on_its_new_shards() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    enqueue_plain(&mut client, 1).await;
    http::post(broker.address, "/v1/queues/clicks/pause", "").await.ok();
    spread(&broker, 4).await;
    enqueue_plain(&mut client, 8).await;
    assert_eq!(claim(&mut client, &[QUEUE], 10, 0).await, []);
    http::post(broker.address, "/v1/queues/clicks/resume", "").await.ok();
    assert_eq!(work_off(&mut client).await.len(), 9);
    broker.stop().await;
}

#[tokio::test]
async fn a_limit_and_a_spread_are_refused_together_until_all_is_on_one_shard() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    for limit in [
        json!({"max_length": 5}),
        json!({"concurrency": 5}),
        json!({"rate": {"per_second": 1.0}}),
        json!({"per_key": {"concurrency": 1}}),
    ] {
        let mut both = limit.clone();
        both["spread"] = json!(2);
        let (status, code, detail) = try_set(&broker, &both).await.problem();
        assert_eq!((status, &*code), (400, "invalid_argument"));
        assert!(detail.contains("and a spread of 2 exclude each other"), "{detail}");
    }
    for wrong in [0, 5, 70_000] {
        let (status, code, _) = try_set(&broker, &json!({ "spread": wrong })).await.problem();
        assert_eq!((status, &*code), (400, "invalid_argument"), "{wrong}");
    }
    spread(&broker, 4).await;
    enqueue_plain(&mut client, 8).await;
    let (_, _, detail) = try_set(&broker, &json!({"concurrency": 5})).await.problem();
    assert!(detail.contains("3 other shards may still keep tasks"), "{detail}");
    spread(&broker, 1).await;
    let (_, _, detail) = try_set(&broker, &json!({"concurrency": 5})).await.problem();
    assert!(detail.contains("3 other shards may still keep tasks"), "{detail}");
    http::post(broker.address, "/v1/queues/clicks/purge", "").await.ok();
    try_set(&broker, &json!({"concurrency": 1})).await.ok();
    let ids = enqueue_plain(&mut client, 4).await;
    assert_eq!(shards_of(&ids), spread_over(1));
    assert_eq!(claim(&mut client, &[QUEUE], 10, 0).await.len(), 1, "the limit holds");
    broker.stop().await;
}

#[tokio::test]
async fn a_waiting_claim_follows_a_change_of_spread() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    enqueue(&mut client, task("other", "t")).await.unwrap();
    assert_eq!(claim(&mut client, &["other"], 1, 0).await.len(), 1);
    for names in [&[QUEUE][..], &["other", QUEUE]] {
        spread(&broker, 1).await;
        let mut worker = broker.grpc().await;
        let names_len = names.len();
        let names: Vec<&'static str> = names.to_vec();
        let waits = tokio::spawn(async move { claim(&mut worker, &names, 1, 60_000).await });
        tokio::task::yield_now().await;
        spread(&broker, 4).await;
        // Enqueue on a shard other than the one where the claim began to wait.
        let requests = (0..).map(|n| format!("{names_len}-{n}"));
        let home = home_shard(QUEUE, SHARDS);
        let is_elsewhere = |id: &String| request_shard(QUEUE, id, 4, SHARDS) != home;
        let request_id = requests.into_iter().find(is_elsewhere).unwrap();
        let made = enqueue(&mut client, request(&request_id)).await.unwrap().id;
        assert_ne!(shard_of(&made), home.0);
        let claimed =
            timeout(Duration::from_secs(20), waits).await.expect("the claim finds the task");
        assert_eq!(claimed.unwrap()[0].id, made);
    }
    broker.stop().await;
}

#[tokio::test]
async fn an_unfinished_change_is_completed_by_the_next_call() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    enqueue(&mut client, request("old")).await.unwrap();
    // As if the gateway crashed after it had changed only the home shard.
    let settings = QueueSettings { spread: Some(4), ..QueueSettings::default() };
    let set = Command::SetQueue(SetQueue { queue: QUEUE, settings });
    let home: ShardId = home_shard(QUEUE, SHARDS);
    broker.node.shards().propose(home, EncodedCommand::new(&set), false).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..24 {
        ids.push(enqueue(&mut client, request(&format!("r{n}"))).await.unwrap().id);
    }
    assert_eq!(shards_of(&ids), spread_over(4));
    let again = enqueue(&mut client, request("old")).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(work_off(&mut client).await.len(), 25);
    broker.stop().await;
}

#[tokio::test]
async fn an_unfinished_change_is_completed_without_a_call() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let settings = QueueSettings { spread: Some(4), ..QueueSettings::default() };
    let set = EncodedCommand::new(&Command::SetQueue(SetQueue { queue: QUEUE, settings }));
    let shards = broker.node.shards();
    shards.propose(home_shard(QUEUE, SHARDS), set, false).await.unwrap();
    // As in a restored backup: a task is on a shard where no gateway looks yet.
    let new = NewTask { task_type: "t", ..NewTask::default() };
    let lost = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: QUEUE, task: new }));
    let last = spread_shards(QUEUE, 4, SHARDS).last().unwrap();
    shards.propose(last, lost, true).await.unwrap();
    let held = claim(&mut client, &[QUEUE], 1, 60_000).await;
    assert_eq!(held.len(), 1, "the claim that waits hears of it");
    broker.stop().await;
}

#[tokio::test]
async fn a_spread_survives_a_restart() {
    let broker = Broker::start().await;
    spread(&broker, 3).await;
    let dir = broker.stop().await;
    let broker = Broker::on(dir, |_| ()).await;
    let mut client = broker.grpc().await;
    let ids = enqueue_plain(&mut client, 9).await;
    assert_eq!(shards_of(&ids), spread_over(3));
    let told = http::get(broker.address, "/v1/queues/clicks/settings").await.ok();
    assert_eq!(told, json!({"spread": 3}));
    assert_eq!(work_off(&mut client).await.len(), 9);
    broker.stop().await;
}

/// Each shard has tasks for all claims. If claims always began at one shard, they would never reach
/// the other.
#[tokio::test]
async fn no_shard_of_a_spread_queue_comes_last_each_time() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    spread(&broker, 2).await;
    enqueue_plain(&mut client, 200).await;
    let mut claimed = Vec::new();
    for _ in 0..100 {
        claimed.extend(claim(&mut client, &[QUEUE], 1, 0).await.into_iter().map(|task| task.id));
    }
    let taken = by_shard(&claimed);
    assert_eq!(claimed.len(), 100);
    assert!(taken.len() == 2 && taken.values().all(|count| *count >= 20), "{taken:?}");
}
