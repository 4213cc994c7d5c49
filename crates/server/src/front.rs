//! Fronts: gRPC and HTTP on one port. A front decodes, calls the broker, encodes.

mod connection;
mod edge;
mod grpc;
mod http;
mod json;
mod problem;
mod routes;
mod unique;

use crate::Broker;
use connection::Connections;
use std::{io, net::SocketAddr, time::Duration};
use tokio::{io::DuplexStream, net::TcpListener, task::JoinHandle};

/// Bytes in flight each way on an in-process connection.
const DUPLEX_BYTES: usize = 256 << 10;

/// The running fronts of a node.
#[derive(Debug)]
pub struct Front {
    broker: Broker,
    address: Option<SocketAddr>,
    connections: Connections,
    accepting: Option<JoinHandle<()>>,
    telling: JoinHandle<()>,
    settling: JoinHandle<()>,
}

impl Front {
    /// Serves the broker on `listener`, if there is one, and on in-process connections, up to
    /// `connections_max` of both.
    pub fn start(
        broker: Broker,
        listener: Option<TcpListener>,
        connections_max: usize,
    ) -> io::Result<Front> {
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let connections = Connections::new(routes::all(&broker), connections_max);
        let accepting = listener.map(|listener| tokio::spawn(connections.clone().accept(listener)));
        let telling = tokio::spawn(broker.sessions().clone().keep_telling());
        let settling = tokio::spawn(broker.clone().keep_settling_spreads());
        Ok(Front { broker, address, connections, accepting, telling, settling })
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it.
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        self.connections.serve(ours);
        theirs
    }

    /// Takes no new connections and calls, ends long polls and worker streams, and waits up to
    /// `grace` for calls in flight. Stop this before the shards.
    pub async fn stop(self, grace: Duration) {
        if let Some(accepting) = self.accepting {
            // Awaited, so that the port is free when this returns.
            accepting.abort();
            let _ = accepting.await;
        }
        self.broker.stop_waiting();
        self.connections.stop(grace).await;
        self.telling.abort();
        self.settling.abort();
    }
}
