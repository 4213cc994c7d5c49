//! The parts of gRPC that HTTP lacks: many enqueues in one call, streams, jobs with progress,
//! backup.

use crate::common::{Broker, code, eventually, queues, task};
use std::collections::{HashMap, HashSet};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

type Client = TaskyardClient<Channel>;

fn many(tasks: Vec<v1::NewTask>) -> v1::EnqueueManyRequest {
    v1::EnqueueManyRequest { tasks, batch_id: vec![] }
}

async fn count(client: &mut Client, queue: &str) -> v1::Queue {
    client.get_queue(v1::QueueRequest { queue: queue.into() }).await.unwrap().into_inner()
}

async fn job(mut reports: Streaming<v1::BulkReply>) -> Vec<v1::BulkReply> {
    let mut all = Vec::new();
    while let Some(report) = reports.message().await.unwrap() {
        all.push(report);
    }
    all
}

#[tokio::test]
async fn a_purge_removes_the_tasks_that_waited_and_no_newer_ones() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let batch = |priority, count| {
        let task = v1::NewTask { priority: Some(priority), ..task("q", "t") };
        v1::EnqueueBatchRequest { queue: "q".into(), tasks: vec![task; count], batch_id: vec![] }
    };
    for _ in 0..6 {
        client.enqueue_batch(batch(5, 5_000)).await.unwrap();
    }
    // The head of the answer comes when the purge has begun, and long before it ends.
    let purge = client.purge_queue(v1::QueueRequest { queue: "q".into() }).await.unwrap();
    let purge = tokio::spawn(job(purge.into_inner()));
    let mut newer = Vec::new();
    while newer.is_empty() || !purge.is_finished() {
        let priority = if newer.len() % 100 == 0 { 9 } else { 1 };
        let added = client.enqueue_batch(batch(priority, 50)).await.unwrap().into_inner();
        newer.extend(added.tasks.into_iter().map(|task| task.id));
    }
    let last = purge.await.unwrap().pop().unwrap();
    assert_eq!((last.changed, last.done), (30_000, true));
    let mut page = v1::ListTasksRequest { limit: 1_000, ..Default::default() };
    let mut left = Vec::new();
    loop {
        let reply = client.list_tasks(page.clone()).await.unwrap().into_inner();
        left.extend(reply.tasks.into_iter().map(|task| task.id));
        page.cursor = reply.cursor;
        if page.cursor.is_empty() {
            break;
        }
    }
    newer.sort();
    assert_eq!(left, newer, "the purge must remove older tasks and keep newer ones");
    broker.stop().await;
}

#[tokio::test]
async fn each_of_many_gets_its_own_answer_in_order() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let mut client = broker.grpc().await;
    let mut tasks: Vec<_> =
        (0..300).map(|n| task(&format!("q{}", n % 30), &format!("t{n}"))).collect();
    tasks[7].priority = Some(12);
    tasks[8].queue = "not a name".into();
    tasks[9].r#type = String::new();
    tasks[10].request_id = Some("same".into());
    tasks[11] = tasks[10].clone();
    let results = client.enqueue_many(many(tasks)).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 300);
    for (n, result) in results.iter().enumerate() {
        match n {
            7..=9 => {
                assert_eq!(result.error.as_ref().unwrap().code, "invalid_argument", "task {n}")
            }
            _ => {
                assert_eq!(result.error, None, "task {n}");
                let id = result.id.clone();
                let request = v1::GetTaskRequest { id, without_payload: false };
                let seen = client.get_task(request).await.unwrap().into_inner();
                let named = if n == 11 { 10 } else { n };
                assert_eq!(seen.r#type, format!("t{named}"));
            }
        }
    }
    assert_eq!(results[10].id, results[11].id);
    assert!(results[11].duplicate && !results[10].duplicate);
    let empty = client.enqueue_many(many(vec![])).await.unwrap().into_inner();
    assert_eq!(empty.results, []);
    let refused = client.enqueue_many(many(vec![task("q", "t"); 10_001])).await.unwrap_err();
    assert!(refused.message().contains("the batch has more than 10000 tasks"), "{refused}");
    broker.stop().await;
}

#[tokio::test]
async fn a_repeated_batch_id_is_the_same_batch() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    // Large enough to become several commands per shard.
    let large = v1::NewTask { payload: vec![b'1'; 5_000].into(), ..task("", "t") };
    let tasks: Vec<_> =
        (0..200).map(|n| v1::NewTask { queue: format!("q{}", n % 3), ..large.clone() }).collect();
    let request = v1::EnqueueManyRequest { tasks, batch_id: vec![7; 16] };
    let first = client.enqueue_many(request.clone()).await.unwrap().into_inner();
    let again = client.enqueue_many(request).await.unwrap().into_inner();
    let ids = |reply: &v1::EnqueueManyReply| {
        reply.results.iter().map(|result| result.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), ids(&again));
    assert_eq!(ids(&first).iter().collect::<HashSet<_>>().len(), 200);
    let tasks = vec![v1::NewTask { queue: "b".into(), ..large }; 100];
    for tasks in [tasks[..3].to_vec(), tasks] {
        let batch_id = vec![tasks.len() as u8; 16];
        let request = v1::EnqueueBatchRequest { queue: "b".into(), tasks, batch_id };
        let first = client.enqueue_batch(request.clone()).await.unwrap().into_inner();
        let again = client.enqueue_batch(request).await.unwrap().into_inner();
        let ids = |reply: v1::EnqueueBatchReply| reply.tasks.into_iter().map(|task| task.id);
        assert!(ids(first).eq(ids(again)));
    }
    assert_eq!(count(&mut client, "b").await.ready, 103);
    broker.stop().await;
}

#[tokio::test]
async fn a_stream_answers_in_the_order_of_its_requests() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let (requests, outbound) = mpsc::channel(4);
    let sender = tokio::spawn(async move {
        for n in 0..100 {
            let queue = format!("q{}", n % 5);
            let tasks = vec![task(&queue, &format!("t{n}")); n % 7 + 1];
            requests.send(many(tasks)).await.unwrap();
        }
    });
    let mut replies =
        client.enqueue_stream(ReceiverStream::new(outbound)).await.unwrap().into_inner();
    let mut types = HashMap::new();
    for n in 0..100 {
        let reply = replies.message().await.unwrap().unwrap();
        assert_eq!(reply.results.len(), n % 7 + 1, "reply {n}");
        types.insert(format!("t{n}"), reply.results[0].id.clone());
    }
    assert_eq!(replies.message().await.unwrap(), None, "ends with the requests");
    sender.await.unwrap();
    for (task_type, id) in types {
        let request = v1::GetTaskRequest { id, without_payload: true };
        assert_eq!(client.get_task(request).await.unwrap().into_inner().r#type, task_type);
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_stream_with_a_bad_batch_ends_with_the_reason() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let good = many(vec![task("q", "t")]);
    let bad = v1::EnqueueManyRequest { batch_id: vec![1], ..good.clone() };
    let requests = tokio_stream::iter([good.clone(), bad, good]);
    let mut replies = client.enqueue_stream(requests).await.unwrap().into_inner();
    assert_eq!(replies.message().await.unwrap().unwrap().results.len(), 1);
    assert_eq!(code(&replies.message().await.unwrap_err()), "invalid_argument");
    broker.stop().await;
}

#[tokio::test]
async fn a_purge_reports_its_progress() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    for _ in 0..3 {
        client.enqueue_many(many(vec![task("q", "t"); 1_000])).await.unwrap();
    }
    let claim = v1::ClaimRequest { queues: queues(&["q"]), max: 5, ..Default::default() };
    assert_eq!(client.claim(claim).await.unwrap().into_inner().tasks.len(), 5);
    let request = v1::QueueRequest { queue: "q".into() };
    let reports = job(client.purge_queue(request).await.unwrap().into_inner()).await;
    let last = reports.last().unwrap();
    assert_eq!((last.changed, last.skipped, last.done), (2_995, 0, true));
    assert!(reports.iter().rev().skip(1).all(|report| !report.done), "{reports:?}");
    let counts = count(&mut client, "q").await;
    assert_eq!((counts.ready, counts.claimed), (0, 5), "the purge must keep running tasks");
    let status = client.purge_queue(v1::QueueRequest { queue: "none".into() }).await.unwrap_err();
    assert_eq!(code(&status), "not_found");
    broker.stop().await;
}

#[tokio::test]
async fn dead_letters_are_retried_by_id_and_discarded_over_all_shards() {
    let broker = Broker::with(|config| config.shards = Some(16)).await;
    let mut client = broker.grpc().await;
    let names: Vec<_> = (0..10).map(|n| format!("q{n}")).collect();
    let mut ids = Vec::new();
    for name in &names {
        client.enqueue_many(many(vec![task(name, "t"); 3])).await.unwrap();
        let claim = v1::ClaimRequest { queues: queues(&[name]), max: 3, ..Default::default() };
        for claimed in client.claim(claim).await.unwrap().into_inner().tasks {
            let (id, claim_token) = (claimed.id.clone(), claimed.claim_token);
            let error = Some(v1::TaskError { r#type: "Oops".into(), ..Default::default() });
            let fail = v1::FailRequest {
                id,
                claim_token,
                error,
                not_retryable: true,
                ..Default::default()
            };
            assert_eq!(client.fail(fail).await.unwrap().into_inner().state, "dead");
            ids.push(claimed.id);
        }
    }
    let unknown = "0".repeat(26);
    let request =
        v1::DeadRequest { ids: vec![ids[0].clone(), ids[29].clone(), unknown], filter: None };
    let last = job(client.retry_dead(request).await.unwrap().into_inner()).await.pop().unwrap();
    assert_eq!((last.changed, last.skipped, last.done), (2, 1, true));
    let filter = v1::TaskFilter { error: "Oops".into(), ..Default::default() };
    let request = v1::DeadRequest { ids: vec![], filter: Some(filter) };
    let last = job(client.discard_dead(request).await.unwrap().into_inner()).await.pop().unwrap();
    assert_eq!((last.changed, last.done), (28, true));
    let status = client.retry_dead(v1::DeadRequest::default()).await.unwrap_err();
    assert_eq!(code(&status), "invalid_argument");
    let listed = client.list_tasks(v1::ListTasksRequest::default()).await.unwrap().into_inner();
    let states: Vec<_> = listed.tasks.iter().map(|task| task.state.as_str()).collect();
    assert_eq!(states, ["ready", "ready"]);
    broker.stop().await;
}

#[tokio::test]
async fn a_page_with_payloads_stays_within_a_message() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let large = v1::NewTask { payload: vec![b'1'; 900_000].into(), ..task("q", "t") };
    for _ in 0..10 {
        client.enqueue_many(many(vec![large.clone()])).await.unwrap();
    }
    let mut request =
        v1::ListTasksRequest { with_payload: true, limit: 1000, ..Default::default() };
    let mut seen = HashSet::new();
    loop {
        let page = client.list_tasks(request.clone()).await.unwrap().into_inner();
        assert!(page.tasks.len() <= 4, "{} tasks", page.tasks.len());
        for task in page.tasks {
            assert_eq!(task.payload.unwrap().len(), 900_000);
            assert!(seen.insert(task.id));
        }
        request.cursor = page.cursor;
        if request.cursor.is_empty() {
            break;
        }
    }
    assert_eq!(seen.len(), 10);
    broker.stop().await;
}

#[tokio::test]
async fn settings_and_retries_survive_the_wire() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let settings = v1::QueueSettings {
        max_length: Some(10),
        retry: Some(v1::RetryPolicy {
            policy: v1::retry_policy::Kind::Exponential.into(),
            max_attempts: Some(4),
            delay_ms: Some(1_000),
            factor: Some(1.5),
            delay_max_ms: Some(60_000),
            jitter: Some(0.125),
            delays_ms: vec![],
        }),
        timeout_ms: Some(5_000),
        ..Default::default()
    };
    let request =
        v1::SetQueueSettingsRequest { queue: "q".into(), settings: Some(settings.clone()) };
    assert_eq!(client.set_queue_settings(request).await.unwrap().into_inner(), settings);
    let request = v1::QueueRequest { queue: "q".into() };
    assert_eq!(client.get_queue_settings(request).await.unwrap().into_inner(), settings);
    let request = v1::EnqueueRequest { task: Some(task("q", "t")) };
    let id = client.enqueue(request).await.unwrap().into_inner().id;
    let request = v1::GetTaskRequest { id, without_payload: true };
    let seen = client.get_task(request).await.unwrap().into_inner();
    assert_eq!((seen.max_attempts, seen.timeout_ms), (4, Some(5_000)));
    broker.stop().await;
}

#[tokio::test]
async fn a_backup_streams_every_shard() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    client.enqueue_many(many(vec![task("q", "t"); 100])).await.unwrap();
    let mut chunks = client.backup(v1::BackupRequest {}).await.unwrap().into_inner();
    let mut bytes = 0;
    let mut last = None;
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes += chunk.data.len();
        last = Some((chunk.shards_done, chunk.shards));
    }
    assert!(bytes > 100 * 20, "{bytes} bytes");
    assert_eq!(last, Some((4, 4)));
    let info = client.get_info(v1::GetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.shards, info.cluster_id.len()), (4, 32));
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    broker.stop().await;
}

#[tokio::test]
async fn backups_that_are_not_read_delay_no_other_client() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let large = v1::NewTask { payload: vec![b'1'; 1 << 20].into(), ..task("large", "t") };
    for _ in 0..16 {
        client.enqueue(v1::EnqueueRequest { task: Some(large.clone()) }).await.unwrap();
    }
    // The backups are larger than the windows of these connections, and no client reads.
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut other = broker.grpc().await;
        let unread = other.backup(v1::BackupRequest {}).await.unwrap().into_inner();
        deaf.push((other, unread));
    }
    let status = client.backup(v1::BackupRequest {}).await.unwrap_err();
    assert_eq!(code(&status), "limit_exceeded", "{status:?}");
    client.enqueue_many(many(vec![task("q", "t"); 100])).await.unwrap();
    let claim = v1::ClaimRequest { queues: queues(&["q"]), max: 100, ..Default::default() };
    assert_eq!(client.claim(claim).await.unwrap().into_inner().tasks.len(), 100);
    drop(deaf);
    let mut chunks = eventually("a place for a backup", async || {
        client.backup(v1::BackupRequest {}).await.ok().map(tonic::Response::into_inner)
    })
    .await;
    let mut bytes = 0;
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes += chunk.data.len();
    }
    assert!(bytes > 16 << 20, "{bytes} bytes");
    broker.stop().await;
}

#[tokio::test]
async fn a_connection_in_the_same_process_speaks_grpc() {
    let broker = Broker::start().await;
    let io = std::sync::Mutex::new(Some(broker.node.connect()));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let io = io.lock().unwrap().take();
        async move {
            let io = io.ok_or_else(|| std::io::Error::other("one connection"))?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(io))
        }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let mut client = TaskyardClient::new(channel);
    client.enqueue_many(many(vec![task("q", "t"); 3])).await.unwrap();
    assert_eq!(count(&mut client, "q").await.ready, 3);
    drop(client);
    broker.stop().await;
}
