//! A backup of a cluster: any node with all replicas gives it, whoever leads; restored, it is a cluster of
//! one with everything that was acknowledged.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{
    Broker,
    cluster::{SHARDS, queues, three},
    task,
};
use taskyard_proto::v1;
use taskyard_server::restore;

const TASKS_PER_QUEUE: usize = 50;

async fn back_up(broker: &Broker) -> Vec<u8> {
    let reply = broker.grpc().await.backup(v1::BackupRequest {}).await;
    let mut chunks = reply.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend_from_slice(&chunk.data);
    }
    bytes
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
