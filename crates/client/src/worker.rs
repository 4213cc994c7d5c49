//! Worker: claims tasks from a broker and runs handlers for them.

mod builder;

use crate::{
    Client, Error,
    attempt::{self, Attempts},
    session::{self, Plan, Report, Reports},
};
use std::{fmt, future::Future, time::Duration};
use taskyard_proto::v1;
use tokio::sync::mpsc;

pub use builder::WorkerBuilder;

/// Claims tasks from a broker and runs handlers for them.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use taskyard::{Fail, Worker};
///
/// async fn send_mail(to: String) -> Result<(), Fail> {
///     println!("mail to {to}");
///     Ok(())
/// }
///
/// let worker = Worker::builder("http://localhost:7400")
///     .queue("mail")
///     .concurrency(16)
///     .shutdown_grace(Duration::from_secs(25))
///     .handler("send_mail", send_mail)
///     .build()?;
/// worker.run_until(tokio::signal::ctrl_c()).await?;
/// # Ok(()) }
/// ```
///
/// The worker sends beats to the broker from a thread of its own, so neither a long task nor a
/// blocked runtime loses its claims. After a lost connection the worker reconnects and resumes its
/// session; handlers notice nothing.
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    client: Client,
    hello: v1::Hello,
    attempts: Attempts,
    inbox: mpsc::UnboundedReceiver<Report>,
    shutdown_grace: Duration,
}

impl Worker {
    /// Describes a worker of the broker at this address, or of the broker of this [`Client`].
    pub fn builder(broker: impl Into<Broker>) -> WorkerBuilder {
        WorkerBuilder::new(broker.into())
    }

    /// A handle that stops the worker from elsewhere.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle(self.attempts.reports.clone())
    }

    /// Runs until its [`handle`](Worker::handle) or an operator stops the worker.
    ///
    /// The worker keeps trying to reach an unreachable broker. An error means that the broker
    /// refuses this worker.
    pub async fn run(self) -> Result<(), Error> {
        self.run_until(std::future::pending::<()>()).await
    }

    /// Runs until `signal` completes, then stops gracefully: claims nothing more, gives handlers
    /// the shutdown grace to finish, then cancels them and releases their tasks.
    ///
    /// Dropping the returned future stops the worker at once: running handlers are dropped, and
    /// their tasks are released.
    pub async fn run_until(self, signal: impl Future) -> Result<(), Error> {
        attempt::watch_panics();
        let reports = self.attempts.reports.clone();
        let mut ended = session::start(Plan {
            hello: self.hello,
            connection: self.client.connection().separate(),
            attempts: self.attempts,
            reports: self.inbox,
            shutdown_grace: self.shutdown_grace,
            runtime: tokio::runtime::Handle::current(),
        })?;
        let mut guard = Abandoned { reports: reports.clone(), armed: true };
        let result = tokio::select! {
            biased;
            result = &mut ended => result,
            _ = signal => {
                reports.send(Report::Stop);
                ended.await
            }
        };
        guard.armed = false;
        result.unwrap_or_else(|_| {
            let message = "the worker's own thread ended unexpectedly".to_string();
            Err(Error::OutcomeUnknown { message })
        })
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.hello.name)
            .field("slots", &self.hello.slots)
            .finish_non_exhaustive()
    }
}

/// Makes the session leave at once when the future of [`Worker::run_until`] is dropped.
struct Abandoned {
    reports: Reports,
    armed: bool,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if self.armed {
            self.reports.send(Report::Abandon);
        }
    }
}

/// Quiets or stops a worker from elsewhere. Cheap to clone. Made by [`Worker::handle`].
#[derive(Clone, Debug)]
pub struct WorkerHandle(Reports);

impl WorkerHandle {
    /// Makes the worker claim nothing more. It finishes its tasks and stays connected.
    pub fn quiet(&self) {
        self.0.send(Report::Quiet);
    }

    /// Stops the worker gracefully; [`run`](Worker::run) then returns.
    pub fn stop(&self) {
        self.0.send(Report::Stop);
    }
}

/// A worker's broker: an address, or a client to share.
#[derive(Debug)]
pub struct Broker(Result<Client, Error>);

impl From<Client> for Broker {
    fn from(client: Client) -> Broker {
        Broker(Ok(client))
    }
}

impl From<&Client> for Broker {
    fn from(client: &Client) -> Broker {
        Broker(Ok(client.clone()))
    }
}

impl From<&str> for Broker {
    fn from(address: &str) -> Broker {
        Broker(Client::builder([address]).build())
    }
}

impl From<String> for Broker {
    fn from(address: String) -> Broker {
        Broker::from(address.as_str())
    }
}
