//! Embedded: the broker inside the program's own process, on a directory, with the same API.
//!
//! The broker has threads and a small runtime of its own, so that a handler that blocks the
//! program's runtime cannot stop it. Clients use in-process connections; the broker listens on no
//! port.

use crate::{
    Client, Error, Worker, WorkerBuilder,
    client::TIMEOUT,
    connection::{Connection, RETURN_AFTER, Server, tuned},
};
use hyper_util::rt::TokioIo;
#[cfg(feature = "testing")]
use std::time::Duration;
use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use taskyard_server::{Config, Node};
use tokio::{
    io::DuplexStream,
    runtime::{Handle, Runtime},
};
use tonic::transport::Endpoint;

/// The threads that serve the broker's calls. Consensus and disk have threads of their own.
const THREADS: usize = 2;

/// A broker inside this process. It lives until it is closed or dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), taskyard::Error> {
/// use taskyard::Embedded;
///
/// let broker = Embedded::open("./queue").await?;
/// broker.client().task("send_mail", &"ada@example.com").await?;
/// broker.close().await;
/// # Ok(()) }
/// ```
///
/// Only one process at a time can open a directory; a second one gets an error.
pub struct Embedded {
    node: Arc<Running>,
    client: Client,
    runtime: Option<Runtime>,
}

/// The node, until it is closed.
struct Running(Mutex<Option<Node>>);

impl Embedded {
    /// Opens the broker on a directory, and creates the directory if it does not exist.
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Embedded, Error> {
        Embedded::start(Config { listen: None, ..Config::new(directory) }).await
    }

    pub(crate) async fn start(config: Config) -> Result<Embedded, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("taskyard-broker")
            .enable_all()
            .build()
            .map_err(|error| Error::Invalid(format!("cannot start a runtime: {error}")))?;
        let started = runtime.spawn(Node::start(config)).await;
        let started = match started {
            Ok(started) => started.map_err(|error| Error::unavailable(error.to_string())),
            Err(error) => Err(Error::unavailable(format!("the broker did not start: {error}"))),
        };
        let node = match started {
            Ok(node) => Arc::new(Running(Mutex::new(Some(node)))),
            Err(error) => {
                // A runtime must not be dropped where the drop would wait for its threads.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let connection = in_process(&node, runtime.handle().clone())?;
        let client = Client::with(connection, TIMEOUT);
        Ok(Embedded { node, client, runtime: Some(runtime) })
    }

    /// A client of this broker.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Starts a worker of this broker.
    pub fn worker(&self) -> WorkerBuilder {
        Worker::builder(&self.client)
    }

    /// Sets the limit of waits for which the broker's clients give none.
    #[cfg(feature = "testing")]
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.client = self.client.with_patience(patience);
    }

    /// Whether no message is on its way between the broker's shards.
    #[cfg(feature = "testing")]
    pub(crate) async fn is_settled(&self) -> Result<bool, Error> {
        let shards = self.node.lock().as_ref().map(Node::shards);
        let Some(shards) = shards else { return Ok(true) };
        shards.are_settled().await.map_err(|error| Error::unavailable(error.to_string()))
    }

    /// Stops the broker gracefully. Stop its workers first, because their tasks would otherwise
    /// wait for the end of their leases.
    pub async fn close(mut self) {
        let node = self.node.lock().take();
        let (Some(node), Some(runtime)) = (node, self.runtime.take()) else { return };
        // This fails only if the stop itself panicked, which the broker's log shows.
        let _ = runtime.spawn(node.stop()).await;
        runtime.shutdown_background();
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let node = self.node.lock().take();
            let entered = runtime.enter();
            drop(node);
            drop(entered);
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Option<Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, runtime: &Handle) -> io::Result<DuplexStream> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the embedded broker is closed");
        let node = self.lock();
        let node = node.as_ref().ok_or_else(gone)?;
        // The broker's end of the connection runs on the broker's runtime.
        let _entered = runtime.enter();
        Ok(node.connect())
    }
}

/// A connection without a network. It does not keep the broker alive.
fn in_process(node: &Arc<Running>, runtime: Handle) -> Result<Connection, Error> {
    let node = Arc::downgrade(node);
    let endpoint = tuned(Endpoint::from_static("http://localhost"));
    let dial = move || {
        let (node, runtime) = (Weak::clone(&node), runtime.clone());
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = match node.upgrade() {
                Some(node) => node.connect(&runtime),
                None => Err(io::Error::new(io::ErrorKind::NotConnected, "the broker is gone")),
            };
            std::future::ready(stream.map(TokioIo::new))
        });
        endpoint.connect_with_connector_lazy(connector)
    };
    let server = Server { name: "the embedded broker".to_string(), dial: Arc::new(dial) };
    Connection::new(vec![server], None, RETURN_AFTER)
}
