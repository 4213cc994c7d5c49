//! Operating a broker: its workers, a backup, and what it says about itself.

use crate::{Client, Error, Timestamp, connection::Repeat};
use bytes::Bytes;
use serde::Serialize;
use taskyard_proto::v1;
use tonic::Streaming;

impl Client {
    /// The workers of all nodes that answer: those that have a session, and those lost within a day.
    pub async fn workers(&self) -> Result<WorkerList, Error> {
        let reply = self
            .call(v1::ListWorkersRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.list_workers(request).await
            })
            .await?;
        let workers = reply.workers.into_iter().map(WorkerDetails::from).collect();
        Ok(WorkerList { workers, missing_nodes: reply.missing_nodes })
    }

    /// Asks a worker to finish what it has and claim nothing more, whichever node it is connected to.
    /// `not_found` if it is connected nowhere; `unavailable`, after the client's timeout, if it may be
    /// connected to a node that does not answer.
    pub async fn quiet_worker(&self, id: impl Into<String>) -> Result<(), Error> {
        let request = v1::WorkerRequest { id: id.into() };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.quiet_worker(request).await
        })
        .await?;
        Ok(())
    }

    /// Asks a worker to shut down gracefully. It is found as [`Client::quiet_worker`] finds it.
    pub async fn stop_worker(&self, id: impl Into<String>) -> Result<(), Error> {
        let request = v1::WorkerRequest { id: id.into() };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.stop_worker(request).await
        })
        .await?;
        Ok(())
    }

    /// A consistent copy of everything the broker holds, to be written to a file as it comes.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let chunks = self
            .call(v1::BackupRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.backup(request).await
            })
            .await?;
        Ok(Backup { chunks, complete: false })
    }

    /// What the broker says about itself.
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
    /// Those connected longest first.
    pub workers: Vec<WorkerDetails>,
    /// Nodes that did not answer in time: their workers are not in the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_nodes: Vec<u64>,
}

/// A worker as the broker sees it. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerDetails {
    /// Its id: that of its session, fresh each time a worker starts.
    pub id: String,
    /// What it calls itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The machine it runs on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its process there; 0 if it does not say.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub pid: u32,
    /// The version of its SDK.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The queues it claims from.
    pub queues: Vec<String>,
    /// The types of the tasks that it takes; empty: any type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// How many it runs now.
    pub busy: u32,
    /// `running`, `quiet`, `stopping` or `lost`.
    pub state: String,
    /// The node that it is connected to, or was last.
    pub node: u64,
    /// Since when it is there.
    pub connected_at: Timestamp,
    /// When it was last heard of.
    pub beat_at: Timestamp,
    /// The memory it uses, in bytes; 0 if it does not know.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub rss_bytes: u64,
}

/// What a worker does not say is left out.
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

/// What a broker says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BrokerDetails {
    /// Its version.
    pub version: String,
    /// Which cluster it belongs to.
    pub cluster_id: String,
    /// How many shards its data is in.
    pub shards: u32,
    /// Its clock.
    pub now: Timestamp,
}

/// A backup as it comes. Made by [`Client::backup`].
#[derive(Debug)]
pub struct Backup {
    chunks: Streaming<v1::BackupChunk>,
    /// The last chunk said that all shards are in.
    complete: bool,
}

/// The next bytes of a backup, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupChunk {
    /// To be written after those before.
    pub data: Bytes,
    /// Shards that are complete.
    pub shards_done: u32,
    /// Shards in all.
    pub shards: u32,
}

impl Backup {
    /// The next chunk; `None` when the backup is complete. After an error what was written is
    /// incomplete and of no use.
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
