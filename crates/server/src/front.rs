//! Fronts: gRPC and HTTP on one port. A front decodes, calls the broker, encodes.

use crate::Broker;
use std::{io, net::SocketAddr, time::Duration};
use tokio::{io::DuplexStream, net::TcpListener};

/// The running fronts of a node.
#[derive(Debug)]
pub struct Front {}

impl Front {
    /// Serves the broker on `listener`, if there is one, and on in-process connections.
    pub fn start(broker: Broker, listener: Option<TcpListener>) -> io::Result<Front> {
        let _ = (broker, listener);
        unimplemented!("fronts")
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        unimplemented!("fronts")
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it.
    pub fn connect(&self) -> DuplexStream {
        unimplemented!("fronts")
    }

    /// Takes no new connections and calls, ends long polls and worker streams, and waits up to
    /// `grace` for calls in flight. Stop this before the shards.
    pub async fn stop(self, grace: Duration) {
        let _ = grace;
        unimplemented!("fronts")
    }
}
