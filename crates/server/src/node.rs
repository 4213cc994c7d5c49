//! Node: opens shards, starts fronts, stops them in reverse order.

use crate::{
    Broker, Config, Error, Front, clock, descriptors,
    shard::{Engine, Shards},
};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;

/// A longer grace than this is no grace: a clock can't count to it.
const STOP_FOR_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A running node.
#[derive(Debug)]
pub struct Node {
    front: Front,
    engine: Engine,
    shutdown_grace: Duration,
}

impl Node {
    /// Opens the data directory, recovers every shard and starts to listen.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        config.validate()?;
        // Before the data directory: a port that is taken is found out in no time.
        let listener = match config.listen {
            None => None,
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                StartError(format!(
                    "can't listen on {address}: {error}; stop what uses it or choose another address"
                ))
            })?),
        };
        // Not for a node inside another program: that one's limit is its own business.
        let connections_max = match config.listen {
            None => config.connections_max,
            Some(_) => descriptors::connections_max(config.connections_max),
        };
        let shutdown_grace = config.shutdown_grace;
        let opening = config.clone();
        let engine = tokio::task::spawn_blocking(move || Engine::start(&opening)).await;
        let engine = engine.map_err(|error| StartError(format!("recovery ended: {error}")))??;
        let broker = Broker::new(engine.shards(), &config);
        let front = Front::start(broker, listener, connections_max)
            .map_err(|error| StartError(format!("the fronts can't be started: {error}")))?;
        Ok(Node { front, engine, shutdown_grace })
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.front.address()
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it.
    pub fn connect(&self) -> tokio::io::DuplexStream {
        self.front.connect()
    }

    /// The handle to its shards.
    pub fn shards(&self) -> Shards {
        self.engine.shards()
    }

    /// Completes when the node has stopped by itself because it could not go on (a failed disk).
    pub async fn failed(&self) -> Error {
        Error::Unavailable(self.engine.failed().await)
    }

    /// Stops gracefully: no new calls, those in flight end, parked claims return, state is checkpointed.
    /// All of it within `shutdown_grace`: what calls in flight take of it, checkpoints don't get.
    pub async fn stop(self) {
        let Node { front, engine, shutdown_grace } = self;
        let grace = shutdown_grace.min(STOP_FOR_MAX);
        let until = clock::real_now() + grace;
        front.stop(grace).await;
        let _ = tokio::task::spawn_blocking(move || engine.stop_by(until)).await;
    }
}

/// Why a node could not start; says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
