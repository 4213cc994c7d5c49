//! The cluster: how it stands, and what operators ask of it.

use super::Broker;
use crate::{
    Error,
    cluster::{ClusterView, Operation},
};
use taskyard_machine::ShardId;

impl Broker {
    /// The nodes and shards of this cluster, as this node sees them.
    pub async fn cluster(&self) -> ClusterView {
        self.0.cluster.view().await
    }

    /// Does what an operator asks for; goes to the control group's leader.
    pub async fn operate(&self, operation: Operation) -> Result<(), Error> {
        self.0.cluster.operate(operation).await
    }

    /// Whether this node can pass every request on to somebody who answers it.
    pub async fn check_ready(&self) -> Result<(), Error> {
        let routes = self.shards().routes();
        if routes.control().cluster().is_none() {
            let text = "this node has joined and does not know the cluster's map yet; wait";
            return Err(Error::Unavailable(text.into()));
        }
        let mut shards = (0..self.shards().count()).map(ShardId);
        match shards.find(|shard| routes.leader(*shard).is_none()) {
            None => Ok(()),
            Some(shard) => Err(Error::Unavailable(format!(
                "shard {shard} has no leader that is known here; wait"
            ))),
        }
    }
}
