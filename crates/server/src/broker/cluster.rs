//! The cluster: its state, its workers, and what operators ask of both.

use super::Broker;
use crate::{
    Error,
    cluster::{ClusterView, Operation, Workers},
    sessions::Activity,
    shard::BackupPart,
};
use taskyard_machine::{ShardId, ask};
use tokio::sync::mpsc;

impl Broker {
    /// The nodes and shards of this cluster, as this node sees them.
    pub async fn cluster(&self) -> ClusterView {
        self.0.cluster.view().await
    }

    /// A consistent copy of all shards, see [`crate::shard::Shards::backup`].
    pub async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        self.0.cluster.backup().await
    }

    /// Carries out an operator's request through the control group's leader.
    pub async fn operate(&self, operation: Operation) -> Result<(), Error> {
        self.0.cluster.operate(operation).await
    }

    /// The workers of all nodes that answer.
    pub async fn workers(&self) -> Result<Workers, Error> {
        self.0.cluster.workers().await
    }

    /// Asks a worker to be quiet or to stop, on whichever node it is.
    pub async fn order_worker(&self, id: &str, activity: Activity) -> Result<(), Error> {
        self.0.cluster.order_worker(id, activity).await
    }

    /// Checks that this node can route every request to a node that answers it.
    pub async fn check_ready(&self) -> Result<(), Error> {
        let routes = self.shards().routes();
        if routes.control().cluster().is_none() {
            let text = "this node has joined and does not know the cluster's map yet; wait";
            return Err(Error::Unavailable(text.into()));
        }
        for shard in (0..self.shards().count()).map(ShardId) {
            if routes.leader(shard).is_some() {
                continue;
            }
            if routes.control().replica_on(u64::from(shard.0) + 1, routes.me()).is_some() {
                let text = format!("shard {shard} has no leader that is known here; wait");
                return Err(Error::Unavailable(text));
            }
            // Nodes do not announce the leaders of shards without a replica here: a call finds
            // them.
            self.shards().ask(shard, ask::Now {}).await?;
        }
        Ok(())
    }
}
