//! Faktory: the protocol of Faktory's clients, so that workers of every language run unchanged.
//!
//! ```text
//! frame.rs       lines in, replies out       hello.rs     password and identity
//! connection.rs  one connection              caller.rs    the client of a connection, and its jobs
//! job.rs         a job as a task and back    fields.rs    JSON objects, verbatim
//! push.rs fetch.rs finish.rs                 the life of a job
//! command.rs     which verb does what        glob.rs      patterns of MUTATE
//! fuzz.rs        what the parsers promise for any input
//! batch.rs track.rs queues.rs mutate.rs info.rs   the other verbs
//! ```
//!
//! Written from the description of the protocol and the behaviour of its clients. Nothing here
//! decides a rule about tasks: each verb becomes a call of the broker, like a call of any other
//! front. docs/faktory.md lists the differences.

mod batch;
mod caller;
mod command;
mod connection;
mod fetch;
mod fields;
mod finish;
mod frame;
mod fuzz;
mod glob;
mod hello;
mod info;
mod job;
mod mutate;
mod push;
mod queues;
mod tls;
mod track;

use crate::{Broker, config::Secret, limits};
use caller::Workers;
use frame::Reply;
pub(crate) use fuzz::read_as_client;
use rustix::net::sockopt;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
pub(crate) use tls::Tls;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

/// How long the answer to a refused client may take.
const REFUSED_WITHIN: Duration = Duration::from_millis(limits::REFUSAL_MS_MAX);
/// The node closes a connection after this long without an answer from the client's system.
const GONE_AFTER: Duration = Duration::from_millis(limits::ASKING_SILENCE_MS_MAX);

/// The Faktory front of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Faktory(Arc<Shared>);

/// What all connections share.
#[derive(Debug)]
struct Shared {
    broker: Broker,
    password: Secret,
    tls: Option<Tls>,
    workers: Workers,
    /// One place per connection of the node, of any protocol.
    places: Arc<Semaphore>,
    places_max: usize,
    /// Limits the lines that need much memory.
    large: Semaphore,
    /// Limits the mutations in progress.
    mutations: Semaphore,
    connections: AtomicUsize,
    commands: AtomicU64,
    started: Instant,
    /// Queues that were removed, with their total then. A queue is not listed until its total
    /// grows.
    removed: Mutex<HashMap<String, u64>>,
}

impl Faktory {
    pub(super) fn new(
        broker: Broker,
        password: Secret,
        tls: Option<Tls>,
        (places, places_max): (Arc<Semaphore>, usize),
    ) -> Faktory {
        let started = broker.clock().monotonic();
        Faktory(Arc::new(Shared {
            broker,
            password,
            tls,
            workers: Workers::default(),
            places,
            places_max,
            large: Semaphore::new(limits::FAKTORY_LARGE_LINES_MAX),
            mutations: Semaphore::new(limits::FAKTORY_MUTATIONS_MAX),
            connections: AtomicUsize::new(0),
            commands: AtomicU64::new(0),
            started,
            removed: Mutex::default(),
        }))
    }

    /// Takes connections until it is dropped.
    pub(super) async fn accept(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => self.admit(socket, from),
                Err(error) => {
                    // The process is probably out of file descriptors; open connections are served
                    // meanwhile.
                    tracing::warn!(%error, "a Faktory connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn admit(&self, socket: TcpStream, from: SocketAddr) {
        if let Err(error) = prepare(&socket) {
            tracing::debug!(%error, %from, "a Faktory connection closed before it was served");
            return;
        }
        let this = self.clone();
        match self.0.places.clone().try_acquire_owned() {
            Ok(place) => drop(tokio::spawn(this.serve(socket, place))),
            Err(_none_left) => {
                let text = format!("too many connections: {}", self.0.places_max);
                tokio::spawn(timeout(REFUSED_WITHIN, refuse(socket, text)));
            }
        }
    }

    async fn serve(self, socket: TcpStream, _place: OwnedSemaphorePermit) {
        let shared = &self.0;
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&shared.connections);
        match &shared.tls {
            None => connection::serve(shared, socket).await,
            Some(tls) => {
                let hello = Duration::from_millis(limits::FAKTORY_HELLO_MS_MAX);
                if let Ok(Ok(stream)) = timeout(hello, tls.accept(socket)).await {
                    connection::serve(shared, stream).await;
                }
            }
        }
    }
}

/// Sends replies without delay, and has the system probe the client. Clients may be silent for any
/// time, but the systems of live clients answer.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, GONE_AFTER / 2)?;
    sockopt::set_tcp_keepintvl(socket, GONE_AFTER / 8)?;
    Ok(sockopt::set_tcp_keepcnt(socket, 4)?)
}

/// Sends an error and closes.
async fn refuse(mut socket: TcpStream, text: String) -> io::Result<()> {
    let mut out = Vec::new();
    Reply::error(text).write(&mut out);
    socket.write_all(&out).await?;
    socket.shutdown().await
}

/// Counts a connection until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
