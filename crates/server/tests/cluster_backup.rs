//! Any node can back up the whole cluster, whatever replicas it has. The restored backup is a
//! cluster of one node with every acknowledged task. No shard in it has a message that the sending
//! shard lacks.

use crate::common;

use crate::common::{
    Broker,
    cluster::{SHARDS, are_three, five, founder, joiner, queues, three, voters},
    eventually,
    slow::SlowProxy,
    task,
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use taskyard_server::restore;
use tonic::{Status, transport::Channel};

const TASKS_PER_QUEUE: usize = 50;

async fn back_up(broker: &Broker) -> Vec<u8> {
    let reply = broker.grpc().await.backup(v1::BackupRequest {}).await;
    let mut chunks = reply.unwrap().into_inner();
    let mut bytes = Vec::new();
    let mut last = v1::BackupChunk::default();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend_from_slice(&chunk.data);
        assert!(chunk.shards_done >= last.shards_done);
        last = chunk;
    }
    assert_eq!((last.shards_done, last.shards), (SHARDS as u32, SHARDS as u32));
    bytes
}

/// A cluster of one, from a backup.
async fn restored(dir: &Path, name: &str, backup: &[u8]) -> Broker {
    let (file, data) = (dir.join(format!("{name}.backup")), dir.join(name));
    std::fs::write(&file, backup).unwrap();
    restore(&file, &data, |_| {}).unwrap();
    Broker::with(|config| (config.data, config.shards) = (data, None)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_from_any_node_has_everything_acknowledged_before_it() {
    let nodes = three().await;
    let queues = queues(&nodes[0]);
    for queue in &queues {
        for number in 0..TASKS_PER_QUEUE {
            let request = v1::EnqueueRequest { task: Some(task(queue, "test")) };
            nodes[number % 3].grpc().await.enqueue(request).await.unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for (number, node) in nodes.iter().enumerate() {
        let file = dir.path().join(format!("backup-{number}"));
        std::fs::write(&file, back_up(node).await).unwrap();
        let restored = restore(&file, &dir.path().join(format!("new-{number}")), |_| {}).unwrap();
        assert_eq!(restored.tasks, (SHARDS * TASKS_PER_QUEUE) as u64);
    }
    let data = dir.path().join("new-2");
    let alone = Broker::with(|config| (config.data, config.shards) = (data, None)).await;
    assert_ne!(alone.node.shards().cluster(), nodes[0].node.shards().cluster());
    for queue in &queues {
        let request = v1::EnqueueRequest { task: Some(task(queue, "test")) };
        alone.grpc().await.enqueue(request).await.unwrap();
    }
    alone.stop().await;
    for node in nodes {
        node.stop().await;
    }
}

/// Clients that keep enqueueing on every shard, and ack with follow-ups on the next two shards.
struct Chains {
    running: Arc<AtomicBool>,
    /// The request ids and task ids of all acknowledged tasks.
    acknowledged: Arc<Mutex<BTreeMap<String, String>>>,
    clients: Vec<tokio::task::JoinHandle<Result<(), Status>>>,
}

impl Chains {
    /// Starts two clients for each queue, on different nodes.
    async fn start(nodes: &[Broker], queues: &[String]) -> Chains {
        let running = Arc::new(AtomicBool::new(true));
        let acknowledged = Arc::default();
        let mut chains = Chains { running, acknowledged, clients: Vec::new() };
        for (number, queue) in queues.iter().enumerate() {
            let next = [1, queues.len() - 1].map(|step| &queues[(number + step) % queues.len()]);
            let producer = produce(
                nodes[number % nodes.len()].grpc().await,
                queue.clone(),
                Arc::clone(&chains.running),
                Arc::clone(&chains.acknowledged),
            );
            let worker = work(
                nodes[(number + 1) % nodes.len()].grpc().await,
                queue.clone(),
                next.map(|queue| next_queue(queue)),
                Arc::clone(&chains.running),
            );
            chains.clients.extend([tokio::spawn(producer), tokio::spawn(worker)]);
        }
        chains
    }

    /// The tasks that were acknowledged by now.
    fn acknowledged(&self) -> BTreeMap<String, String> {
        self.acknowledged.lock().unwrap().clone()
    }

    /// Waits until `count` more tasks are acknowledged.
    async fn more(&self, count: usize) {
        let before = self.acknowledged().len();
        eventually("clients get on", async || {
            (self.acknowledged().len() >= before + count).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.running.store(false, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap().unwrap();
        }
    }
}

async fn produce(
    mut client: TaskyardClient<Channel>,
    queue: String,
    running: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, String>>>,
) -> Result<(), Status> {
    let mut number = 0;
    while running.load(Ordering::Relaxed) {
        number += 1;
        let request_id = format!("{queue}/{number}");
        let task = v1::NewTask { request_id: Some(request_id.clone()), ..task(&queue, "first") };
        let reply = client.enqueue(v1::EnqueueRequest { task: Some(task) }).await?.into_inner();
        acknowledged.lock().unwrap().insert(request_id, reply.id);
    }
    Ok(())
}

async fn work(
    mut client: TaskyardClient<Channel>,
    queue: String,
    next: [String; 2],
    running: Arc<AtomicBool>,
) -> Result<(), Status> {
    while running.load(Ordering::Relaxed) {
        let claim = v1::ClaimRequest {
            queues: common::queues(&[&queue]),
            max: 4,
            wait_ms: 100,
            ..Default::default()
        };
        for claimed in client.claim(claim).await?.into_inner().tasks {
            let follow_up = |queue: &String| {
                let payload = claimed.id.clone().into();
                v1::NewTask { payload, ..task(queue, "second") }
            };
            let enqueue = next.iter().map(follow_up).collect();
            let (id, claim_token) = (claimed.id, claimed.claim_token);
            let ack = v1::AckRequest { id, claim_token, enqueue, result: None };
            client.ack(ack).await?;
        }
    }
    Ok(())
}

/// A queue on the shard of `queue`, for tasks that no client claims.
fn next_queue(queue: &str) -> String {
    use taskyard_machine::home_shard;
    let home = home_shard(queue, SHARDS as u16);
    let mut names = (0..).map(|number| format!("{queue}-next-{number}"));
    names.find(|name| home_shard(name, SHARDS as u16) == home).unwrap()
}

/// All tasks of one type.
async fn tasks(broker: &Broker, task_type: &str) -> Vec<v1::Task> {
    let mut client = broker.grpc().await;
    let filter = v1::TaskFilter { r#type: task_type.into(), ..Default::default() };
    let mut request = v1::ListTasksRequest {
        filter: Some(filter),
        limit: 1_000,
        with_payload: true,
        ..Default::default()
    };
    let mut tasks = Vec::new();
    loop {
        let page = client.list_tasks(request.clone()).await.unwrap().into_inner();
        tasks.extend(page.tasks);
        if page.cursor.is_empty() {
            return tasks;
        }
        request.cursor = page.cursor;
    }
}

/// Checks that a task is acked exactly if each follow-up of its ack exists once. Every task that
/// was acknowledged before the backup must exist under its request id.
async fn check_chains(restored: &Broker, acknowledged: &BTreeMap<String, String>) {
    eventually("all messages between shards are delivered", async || {
        restored.node.shards().are_settled().await.unwrap().then_some(())
    })
    .await;
    let mut follow_ups: BTreeMap<String, usize> = BTreeMap::new();
    for follow_up in tasks(restored, "second").await {
        let parent = String::from_utf8(follow_up.payload.unwrap()).unwrap();
        *follow_ups.entry(parent).or_default() += 1;
    }
    let mut states = BTreeMap::new();
    for first in tasks(restored, "first").await {
        let expected = if first.state == "succeeded" { 2 } else { 0 };
        let found = follow_ups.remove(&first.id).unwrap_or(0);
        assert_eq!(found, expected, "{} is {} in {}", first.id, first.state, first.queue);
        states.insert(first.id, first.state);
    }
    assert!(follow_ups.is_empty(), "they follow from nothing: {follow_ups:?}");
    let succeeded = states.values().filter(|state| *state == "succeeded").count();
    println!("{} tasks, {succeeded} succeeded, {} promised", states.len(), acknowledged.len());
    for (request, id) in acknowledged {
        assert!(states.contains_key(id), "{request} was acknowledged as {id}");
    }
    let mut client = restored.grpc().await;
    for (request, id) in acknowledged.iter().step_by(17) {
        let (queue, _) = request.split_once('/').unwrap();
        let again = v1::NewTask { request_id: Some(request.clone()), ..task(queue, "first") };
        let again = client.enqueue(v1::EnqueueRequest { task: Some(again) }).await.unwrap();
        assert_eq!((again.get_ref().id.as_str(), again.get_ref().duplicate), (id.as_str(), true));
    }
}

/// Backs up every node under load, and checks each backup.
async fn check_backups_under_load(nodes: &[Broker], rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let chains = Chains::start(nodes, &queues(&nodes[0])).await;
    let mut backups = Vec::new();
    for _ in 0..rounds {
        for node in nodes {
            chains.more(20).await;
            let acknowledged = chains.acknowledged();
            backups.push((back_up(node).await, acknowledged));
        }
    }
    // Each backup is independent, and none ends the views of another.
    let acknowledged = chains.acknowledged();
    let at_once = nodes.iter().map(|node| async { (back_up(node).await, acknowledged.clone()) });
    backups.extend(futures_util::future::join_all(at_once).await);
    chains.stop().await;
    for (number, (backup, acknowledged)) in backups.into_iter().enumerate() {
        let broker = restored(dir.path(), &format!("new-{number}"), &backup).await;
        check_chains(&broker, &acknowledged).await;
        broker.stop().await;
    }
}

/// The third node gets messages late from one node but not from the other. So its replicas are at
/// different moments.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_from_a_node_that_hears_late_of_some_shards_fits_together() {
    let proxy = SlowProxy::open(Duration::from_millis(150)).await;
    let first = founder(|_| ()).await;
    let second = joiner(&first, |_| ()).await;
    let third = joiner(&first, |config| config.advertise = Some(proxy.address.to_string())).await;
    proxy.set_target(third.node.peer_address().unwrap());
    let nodes = are_three([first, second, third]).await;
    check_backups_under_load(&nodes, 2).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_in_which_no_node_has_all_shards_is_backed_up_from_any() {
    let nodes = five().await;
    check_backups_under_load(&nodes, 1).await;
    for node in nodes {
        node.stop().await;
    }
}

/// Two of the three nodes that have the first shard are lost while a node without that shard copies
/// it from them.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_goes_on_from_another_node_when_one_is_lost() {
    const TASKS: usize = 60;
    let mut nodes = five().await;
    let queues = queues(&nodes[0]);
    let payload = bytes::Bytes::from(vec![b'7'; 200_000]);
    for queue in &queues {
        let mut client = nodes[0].grpc().await;
        for _ in 0..TASKS {
            let task = v1::NewTask { payload: payload.clone(), ..task(queue, "large") };
            client.enqueue(v1::EnqueueRequest { task: Some(task) }).await.unwrap();
        }
    }
    let holders = voters(&nodes[0]).await.unwrap().remove(0);
    let asked = (0..5).find(|place| !holders.contains(&(*place as u64 + 1))).unwrap();
    let mut client = nodes[asked].grpc().await;
    let mut chunks = client.backup(v1::BackupRequest {}).await.unwrap().into_inner();
    let mut bytes = chunks.message().await.unwrap().unwrap().data.to_vec();
    for lost in holders.iter().skip(1).rev() {
        drop(nodes.remove(*lost as usize - 1));
    }
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend_from_slice(&chunk.data);
    }
    let dir = tempfile::tempdir().unwrap();
    let broker = restored(dir.path(), "new", &bytes).await;
    let found = tasks(&broker, "large").await;
    assert_eq!(found.len(), SHARDS * TASKS);
    assert!(found.iter().all(|task| task.payload.as_deref() == Some(&payload[..])));
    broker.stop().await;
}
