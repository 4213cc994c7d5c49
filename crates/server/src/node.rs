//! Node: opens shards, starts fronts, stops them in reverse order.

use crate::{Config, Error};
use std::net::SocketAddr;

/// A running node.
#[derive(Debug)]
pub struct Node {}

impl Node {
    /// Opens the data directory, recovers every shard and starts to listen.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        let _ = config;
        unimplemented!("engine")
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        unimplemented!("engine")
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it.
    pub fn connect(&self) -> tokio::io::DuplexStream {
        unimplemented!("front")
    }

    /// Completes when the node has stopped by itself because it could not go on (a failed disk).
    pub async fn failed(&self) -> Error {
        unimplemented!("engine")
    }

    /// Stops gracefully: no new calls, those in flight end, parked claims return, state is checkpointed.
    pub async fn stop(self) {
        unimplemented!("engine")
    }
}

/// Why a node could not start; says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
