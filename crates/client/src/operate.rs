//! Operating a broker: its workers, a backup, its own details.

use crate::{Client, Error, Timestamp, connection::Repeat};
use bytes::Bytes;
use serde::Serialize;
use taskyard_proto::v1;
use tonic::Streaming;

impl Client {
    /// The workers of all nodes that answer: workers with a session, and workers lost within a day.
    pub async fn workers(&self) -> Result<WorkerList, Error> {
        let reply = self
            .call(v1::ListWorkersRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.list_workers(request).await
            })
            .await?;
        let workers = reply.workers.into_iter().map(WorkerDetails::from).collect();
        Ok(WorkerList { workers, missing_nodes: reply.missing_nodes })
    }

    /// Asks a worker on any node to finish its tasks and claim no more. `not_found` if the worker
    /// is not connected; `unavailable`, after the client's timeout, if it may be connected to a
    /// node that does not answer.
    pub async fn quiet_worker(&self, id: impl Into<String>) -> Result<(), Error> {
        let request = v1::WorkerRequest { id: id.into() };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.quiet_worker(request).await
        })
        .await?;
        Ok(())
    }

    /// Asks a worker to shut down gracefully, with the same errors as [`Client::quiet_worker`].
    pub async fn stop_worker(&self, id: impl Into<String>) -> Result<(), Error> {
        let request = v1::WorkerRequest { id: id.into() };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.stop_worker(request).await
        })
        .await?;
        Ok(())
    }

    /// A consistent copy of all data of the broker, to be written to a file chunk by chunk.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let chunks = self
            .call(v1::BackupRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.backup(request).await
            })
            .await?;
        Ok(Backup { chunks, complete: false })
    }

    /// The details of the broker.
    pub async fn info(&self) -> Result<BrokerDetails, Error> {
        let reply = self
            .call(v1::GetInfoRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.get_info(request).await
            })
            .await?;
        Ok(BrokerDetails {
            version: reply.version,
            cluster_id: reply.cluster_id,
            shards: reply.shards,
            now: Timestamp::from_millis(reply.now),
        })
    }
}

/// The workers of a cluster. Serialized as on the HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerList {
    /// The workers, those with the oldest connection first.
    pub workers: Vec<WorkerDetails>,
    /// Nodes that did not answer in time; their workers are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_nodes: Vec<u64>,
}

/// The details of a worker. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerDetails {
    /// The id of the worker's session, a new one each time a worker starts.
    pub id: String,
    /// The worker's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The host on which the worker runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The worker's process id; 0 if unknown.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub pid: u32,
    /// The version of the worker's SDK.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The queues from which the worker claims.
    pub queues: Vec<String>,
    /// The types of the tasks that the worker runs; empty means any type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// How many tasks the worker runs at once.
    pub slots: u32,
    /// The number of tasks that the worker runs now.
    pub busy: u32,
    /// `running`, `quiet`, `stopping` or `lost`.
    pub state: String,
    /// The node to which the worker is or was connected.
    pub node: u64,
    /// When the worker connected.
    pub connected_at: Timestamp,
    /// When the worker was last heard.
    pub beat_at: Timestamp,
    /// The memory that the worker uses, in bytes; 0 if unknown.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub rss_bytes: u64,
}

/// Leaves out values that the worker did not send.
fn is_unsaid(number: &(impl Default + PartialEq)) -> bool {
    *number == Default::default()
}

impl From<v1::Worker> for WorkerDetails {
    fn from(wire: v1::Worker) -> WorkerDetails {
        WorkerDetails {
            id: wire.id,
            name: wire.name,
            host: wire.host,
            pid: wire.pid,
            version: wire.version,
            queues: wire.queues,
            types: wire.types,
            slots: wire.slots,
            busy: wire.busy,
            state: wire.state,
            node: wire.node,
            connected_at: Timestamp::from_millis(wire.connected_at),
            beat_at: Timestamp::from_millis(wire.beat_at),
            rss_bytes: wire.rss_bytes,
        }
    }
}

/// The details of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BrokerDetails {
    /// The broker's version.
    pub version: String,
    /// The broker's cluster.
    pub cluster_id: String,
    /// The number of shards.
    pub shards: u32,
    /// The broker's clock.
    pub now: Timestamp,
}

/// A backup, chunk by chunk. Made by [`Client::backup`].
#[derive(Debug)]
pub struct Backup {
    chunks: Streaming<v1::BackupChunk>,
    /// Whether the last chunk had all shards.
    complete: bool,
}

/// The next bytes of a backup, and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupChunk {
    /// The bytes to append to the file.
    pub data: Bytes,
    /// The number of complete shards.
    pub shards_done: u32,
    /// The number of all shards.
    pub shards: u32,
}

impl Backup {
    /// The next chunk; `None` when the backup is complete. After an error, the file is incomplete
    /// and of no use.
    pub async fn next(&mut self) -> Result<Option<BackupChunk>, Error> {
        let chunk = self.chunks.message().await;
        let chunk = chunk.map_err(|status| Error::from_status("the broker", &status))?;
        let Some(v1::BackupChunk { data, shards_done, shards }) = chunk else {
            let cut = || Error::unavailable("the backup ended before its last shard; take another");
            return if self.complete { Ok(None) } else { Err(cut()) };
        };
        self.complete = shards > 0 && shards_done == shards;
        Ok(Some(BackupChunk { data, shards_done, shards }))
    }
}
