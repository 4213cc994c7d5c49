//! Fronts: gRPC and HTTP on one port, Faktory's protocol on another. A front decodes a request,
//! calls the broker, and encodes the answer.

mod browser;
mod cluster_id;
mod connection;
mod edge;
mod faktory;
mod grpc;
mod http;
mod intake;
mod json;
mod outflow;
mod problem;
mod routes;
mod unique;

use crate::{Broker, config::Secret};
pub(crate) use browser::Hosts;
use connection::Connections;
use faktory::Faktory;
pub(crate) use faktory::Tls;
pub use json::check_json;
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
    faktory_address: Option<SocketAddr>,
    accepting: Vec<JoinHandle<()>>,
    reporting: JoinHandle<()>,
    completing: JoinHandle<()>,
}

/// The port of Faktory's clients, and what they must prove.
#[derive(Debug)]
pub(crate) struct FaktoryDoor {
    pub(crate) listener: TcpListener,
    pub(crate) password: Secret,
    pub(crate) tls: Option<Tls>,
}

impl Front {
    /// Serves the broker on `listener` and on the port of Faktory's clients, if given, and on
    /// in-process connections, up to `connections_max` in all. Clients may call the node by the
    /// names in `hosts`.
    pub(crate) fn start(
        broker: Broker,
        listener: Option<TcpListener>,
        faktory: Option<FaktoryDoor>,
        hosts: Hosts,
        connections_max: usize,
    ) -> io::Result<Front> {
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let buffers = broker.buffers().clone();
        let connections = Connections::new(routes::all(&broker, hosts), connections_max, buffers);
        let mut accepting = Vec::new();
        if let Some(listener) = listener {
            accepting.push(tokio::spawn(connections.clone().accept(listener)));
        }
        let mut faktory_address = None;
        if let Some(FaktoryDoor { listener, password, tls }) = faktory {
            faktory_address = Some(listener.local_addr()?);
            let faktory = Faktory::new(broker.clone(), password, tls, connections.places());
            accepting.push(tokio::spawn(faktory.accept(listener)));
        }
        let reporting = tokio::spawn(broker.sessions().clone().keep_reporting());
        let completing = tokio::spawn(broker.clone().keep_completing_spreads());
        Ok(Front {
            broker,
            address,
            faktory_address,
            connections,
            accepting,
            reporting,
            completing,
        })
    }

    /// The address of HTTP and gRPC, if the front listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The address of Faktory's port, if the front listens there.
    pub fn faktory_address(&self) -> Option<SocketAddr> {
        self.faktory_address
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it, to the host `localhost`.
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        self.connections.serve(ours);
        theirs
    }

    /// Takes no new connections and calls, ends long polls and worker streams, and waits up to
    /// `grace` for calls in flight. Stop the front before the shards.
    pub async fn stop(self, grace: Duration) {
        for accepting in self.accepting {
            // Awaited, so that the port is free when this returns.
            accepting.abort();
            let _ = accepting.await;
        }
        self.broker.stop_waiting();
        self.connections.stop(grace).await;
        self.reporting.abort();
        self.completing.abort();
    }
}

/// Reads bytes like Faktory's wire, and panics if its parsers break a promise. For fuzzing.
#[doc(hidden)]
pub fn read_as_faktory_client(bytes: &[u8]) {
    faktory::read_as_client(bytes);
}
