//! Client: the connection of a program to a broker, for producers and operators alike.
//!
//! Cheap to clone; clones share connections, the choice of server, and the gathering of concurrent
//! enqueues into few requests.

use crate::{
    Batch, Enqueue, Error, NewTask, Task,
    connection::{Connection, RETURN_AFTER, Repeat, Server, Wire},
    gather::Gather,
};
use bytes::Bytes;
use serde::Serialize;
use std::{fmt, future::Future, sync::Arc, time::Duration};
use taskyard_proto::v1;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// The timeout of a call, retries included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest timeout: the broker remembers wire batches for ten minutes, and a repetition must
/// come well within that.
const TIMEOUT_MAX: Duration = Duration::from_secs(9 * 60);
/// How long a server may take to accept a connection before the client tries the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A client of a broker. Cheap to clone; clones share everything. Its connections belong to the
/// runtime in which it is first used.
///
/// ```no_run
/// # async fn example() -> Result<(), taskyard::Error> {
/// use taskyard::Client;
///
/// let client = Client::connect("http://127.0.0.1:7400").await?;
/// let task = client.task("send_mail", &"ada@example.com").queue("mail").await?;
/// println!("enqueued {}", task.id());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    connection: Connection,
    gather: Gather,
    timeout: Duration,
    /// The limit of a wait for the end of a task or flow, if the caller gives none; `None` means no
    /// limit.
    patience: Option<Duration>,
}

/// The settings with which a [`Client`] reaches its broker. Made by [`Client::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` or `connect`"]
pub struct ClientBuilder {
    servers: Vec<String>,
    token: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    no_quorum_timeout: Option<Duration>,
    return_after: Duration,
}

impl Client {
    /// Connects to one server and waits for its answer.
    pub async fn connect(server: impl Into<String>) -> Result<Client, Error> {
        Client::builder([server]).connect().await
    }

    /// Starts with the servers of one cluster, in the order in which the client tries them. If a
    /// server does not answer, the client moves to the next. Once the first is ready again, the
    /// client and its workers go back to it. So name the nodes in a different order in each
    /// program: clients are then spread over the cluster again after every restart of a node.
    pub fn builder(servers: impl IntoIterator<Item = impl Into<String>>) -> ClientBuilder {
        ClientBuilder {
            servers: servers.into_iter().map(Into::into).collect(),
            token: None,
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            no_quorum_timeout: None,
            return_after: RETURN_AFTER,
        }
    }

    /// Enqueues a task of a declared type: set its options, then await it.
    ///
    /// Concurrent enqueues share requests, so enqueue as many at once as you like. A call without
    /// an answer is repeated, on other servers too, until the client's timeout. The repetition
    /// never enqueues the task twice.
    pub fn enqueue<T: Task>(&self, task: T) -> Enqueue<T::Output> {
        Enqueue::new(self.clone(), task.into())
    }

    /// Enqueues a task whose type is known by name alone. The payload is encoded as JSON.
    pub fn task(&self, kind: impl Into<String>, payload: &impl Serialize) -> Enqueue {
        self.enqueue_new(NewTask::new(kind, payload))
    }

    /// Enqueues a task that was prepared before.
    pub fn enqueue_new(&self, task: NewTask) -> Enqueue {
        Enqueue::new(self.clone(), task)
    }

    /// Enqueues a task with these bytes as its payload: JSON, unless `content_type` names another
    /// type.
    pub fn raw_task(&self, kind: impl Into<String>, payload: impl Into<Bytes>) -> Enqueue {
        self.enqueue_new(NewTask::raw(kind, payload))
    }

    /// Starts a batch for one queue: all of its tasks are enqueued, or none.
    pub fn batch(&self, queue: impl Into<String>) -> Batch {
        Batch::new(self.clone(), queue.into())
    }

    pub(crate) fn with(connection: Connection, timeout: Duration) -> Client {
        let gather = Gather::new(connection.clone());
        Client(Arc::new(Shared { connection, gather, timeout, patience: None }))
    }

    /// The same client, whose waits without a limit end after so long.
    #[cfg(feature = "testing")]
    pub(crate) fn with_patience(&self, patience: Duration) -> Client {
        let (connection, timeout) = (self.connection().clone(), self.0.timeout);
        let gather = Gather::new(connection.clone());
        Client(Arc::new(Shared { connection, gather, timeout, patience: Some(patience) }))
    }

    /// How long a wait lasts that has no limit of its own; `None` is for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.0.patience
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    pub(crate) fn gather(&self) -> &Gather {
        &self.0.gather
    }

    /// When a call that starts now gives up.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline_after(Duration::ZERO)
    }

    /// When a call that starts now, and waits on the broker for this long, gives up.
    pub(crate) fn deadline_after(&self, wait: Duration) -> Instant {
        Instant::now() + self.0.timeout + wait
    }

    pub(crate) async fn call<Message, Reply, Call, Answer>(
        &self,
        message: Message,
        repeat: Repeat,
        call: Call,
    ) -> Result<Reply, Error>
    where
        Message: Clone,
        Call: Fn(Wire, Request<Message>) -> Answer,
        Answer: Future<Output = Result<Response<Reply>, Status>>,
    {
        self.0.connection.call(message, repeat, self.deadline(), call).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.connection).finish()
    }
}

impl ClientBuilder {
    /// The token to show to a broker that asks for one.
    pub fn token(mut self, token: impl Into<String>) -> ClientBuilder {
        self.token = Some(token.into());
        self
    }

    /// Sets how long a call may take, retries and failover included; 30 s by default, 9 minutes at
    /// most.
    ///
    /// With a short timeout a failover shows as an error; with a long one a caller hangs while the
    /// cluster is away.
    pub fn timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.timeout = timeout;
        self
    }

    /// Sets how long one server may take to accept a connection; 3 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a call goes on after a node has answered that there is no majority
    /// (`no_quorum`); by default until the timeout.
    ///
    /// A program should wait for the missing nodes; a person should learn it soon.
    pub fn no_quorum_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.no_quorum_timeout = Some(timeout);
        self
    }

    /// Sets the pause between two looks whether the first server is ready again, while the client
    /// uses another; a minute by default. No call waits for such a look, or fails because of it.
    pub fn return_after(mut self, pause: Duration) -> ClientBuilder {
        self.return_after = pause;
        self
    }

    /// Makes a client that connects when it is first used.
    pub fn build(self) -> Result<Client, Error> {
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            let timeout = self.timeout;
            let message = format!("timeout {timeout:?} is not between 1 ms and {TIMEOUT_MAX:?}");
            return Err(Error::Invalid(message));
        }
        let servers = self.servers.iter().map(|url| Server::at(url, self.connect_timeout));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let connection = Connection::new(servers, self.token.as_deref(), self.return_after)?;
        let connection = connection.no_quorum_timeout(self.no_quorum_timeout);
        Ok(Client::with(connection, self.timeout))
    }

    /// Makes a client after one of its servers has answered.
    pub async fn connect(self) -> Result<Client, Error> {
        // A mistyped address should be reported soon, not after the timeout of a failover.
        let servers = u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
        let patience = self.connect_timeout.saturating_mul(servers).min(self.timeout);
        let client = self.build()?;
        let deadline = Instant::now() + patience;
        let hello = client.0.connection.call(
            v1::GetInfoRequest {},
            Repeat::Read,
            deadline,
            |mut wire, request| async move { wire.get_info(request).await },
        );
        hello.await?;
        Ok(client)
    }
}

impl fmt::Debug for ClientBuilder {
    /// Leaves out the token, because it is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("servers", &self.servers)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("no_quorum_timeout", &self.no_quorum_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let builder = Client::builder(["http://127.0.0.1:7400"]).token("secret");
        let shown = format!("{builder:?} {:?}", builder.clone().build().unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_timeout_stays_within_what_the_broker_remembers() {
        for (timeout, good) in [(0, false), (1, true), (540, true), (541, false)] {
            let builder = Client::builder(["http://127.0.0.1:7400"]);
            let client = builder.timeout(Duration::from_secs(timeout)).build();
            assert_eq!(client.is_ok(), good, "{timeout} s");
        }
    }
}
