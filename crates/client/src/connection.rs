//! Connection: the servers of one cluster, the present server, and failover.
//!
//! Channels are opened when first needed. A call without an answer moves all clones to the next
//! server, and waits longer after each round. The failed server gets a new channel when its turn
//! comes again, because a channel repairs itself only while its own task lives, and that task ends
//! for good when no thread is left to look up a name.
//!
//! A client prefers its first server. A client of another server checks now and then whether the
//! first one is ready again, and goes back to it: otherwise a rolling restart would move all
//! clients to the node that was restarted first. No call waits for this check, and calls under way
//! end on their server.
//!
//! The first answer names the cluster of the servers. Each later request names this cluster, so
//! that a server of another cluster refuses the request before it changes anything.
//!
//! A call that gives up reports the last answer of a broker, if there is one: the `no_quorum` of a
//! live server says more than the unreachable address of a dead one.

use crate::{Error, random};
use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use taskyard_proto::v1::taskyard_client::TaskyardClient;
use tokio::time::Instant;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::http,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tower::ServiceExt;

/// The generated client.
pub(crate) type Wire = TaskyardClient<Channel>;

/// The bound of the largest answers: a page of tasks with payloads, a list of claimed tasks.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The interval of keep-alive pings. A dead peer is noticed after two, even if no packet reports
/// it.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
/// The metadata by which servers and clients name a cluster.
const CLUSTER_KEY: &str = "taskyard-cluster";
/// Waits between tries start here and double.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The shortest time for a try. The deadline would cut off a shorter one, and a call that is known
/// to have changed nothing would end with an unknown outcome.
const TRY_FOR_MIN: Duration = Duration::from_millis(50);
/// The longest wait between tries, within which a returned server is found.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How often a client away from its first server checks that server; the pause is at least half as
/// long.
pub(crate) const RETURN_AFTER: Duration = Duration::from_secs(60);
/// A first server that takes longer to answer does not count as back.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// The servers of one cluster. Cheap to clone; clones share channels and the choice of server.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    servers: Vec<Server>,
    token: Option<MetadataValue<Ascii>>,
    /// The cluster's id, from the first answer.
    cluster: Arc<OnceLock<MetadataValue<Ascii>>>,
    /// The server in use, modulo the number of servers. Only grows.
    current: AtomicUsize,
    channels: Mutex<Vec<Option<Channel>>>,
    return_after: Duration,
    /// How long a call goes on after a `no_quorum` answer.
    no_quorum_timeout: Option<Duration>,
    /// When to check the first server next, while another is in use.
    look_back_at: Mutex<Instant>,
}

/// One server, and how to reach it.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) dial: Dial,
}

/// Opens a channel to a server. Called inside the runtime that then carries its traffic.
pub(crate) type Dial = Arc<dyn Fn() -> Channel + Send + Sync>;

/// Whether a call without an answer is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The call changes nothing, so that it may be sent again.
    Read,
    /// Repeating the call has the same effect as sending it once.
    Always,
    /// Only while it is certain that no server accepted the call.
    IfNotTaken,
}

impl Server {
    /// A server at an address such as `http://127.0.0.1:7400`.
    pub(crate) fn at(url: &str, connect_timeout: Duration) -> Result<Server, Error> {
        let url = url.trim_end_matches('/');
        let invalid = |why: &str| {
            Error::Invalid(format!("server address {url}: {why}; say it as http://HOST:7400"))
        };
        if url.starts_with("https://") {
            return Err(invalid("this build speaks no TLS"));
        }
        if !url.starts_with("http://") {
            return Err(invalid("it must start with http://"));
        }
        let endpoint =
            Endpoint::from_shared(url.to_string()).map_err(|error| invalid(&error.to_string()))?;
        // A path would silently be left out of every call.
        if endpoint.uri().path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(invalid("it has a path or query, and a broker has none"));
        }
        let endpoint = tuned(endpoint).connect_timeout(connect_timeout);
        Ok(Server { name: url.to_string(), dial: Arc::new(move || endpoint.connect_lazy()) })
    }
}

/// The settings of every connection, over a network or not.
pub(crate) fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_EVERY)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
}

impl Connection {
    pub(crate) fn new(
        servers: Vec<Server>,
        token: Option<&str>,
        return_after: Duration,
    ) -> Result<Connection, Error> {
        if servers.is_empty() {
            return Err(Error::Invalid("no server address given; say at least one".to_string()));
        }
        let token = token.map(bearer).transpose()?;
        Ok(Connection::with(servers, token, Arc::default(), 0, return_after, None))
    }

    /// A connection to the same servers, whose calls end this long after a `no_quorum` answer.
    pub(crate) fn no_quorum_timeout(self, timeout: Option<Duration>) -> Connection {
        let Shared { servers, token, cluster, return_after, .. } = &*self.0;
        let (servers, token, cluster) = (servers.clone(), token.clone(), cluster.clone());
        Connection::with(servers, token, cluster, 0, *return_after, timeout)
    }

    fn with(
        servers: Vec<Server>,
        token: Option<MetadataValue<Ascii>>,
        cluster: Arc<OnceLock<MetadataValue<Ascii>>>,
        turn: usize,
        return_after: Duration,
        no_quorum_timeout: Option<Duration>,
    ) -> Connection {
        let channels = Mutex::new(vec![None; servers.len()]);
        let look_back_at = Mutex::new(Instant::now() + random::jittered(return_after));
        let current = AtomicUsize::new(turn);
        Connection(Arc::new(Shared {
            servers,
            token,
            cluster,
            current,
            channels,
            return_after,
            no_quorum_timeout,
            look_back_at,
        }))
    }

    /// A connection to the same servers with channels of its own, for another runtime.
    pub(crate) fn separate(&self) -> Connection {
        let Shared { servers, token, cluster, current, return_after, .. } = &*self.0;
        let turn = current.load(Ordering::Relaxed);
        let (servers, token, cluster) = (servers.clone(), token.clone(), cluster.clone());
        let timeout = self.0.no_quorum_timeout;
        Connection::with(servers, token, cluster, turn, *return_after, timeout)
    }

    /// Checks the first server if it is time; if it is back, all clones move there. No call waits
    /// for this.
    pub(crate) fn look_back(&self) {
        let Shared { servers, current, look_back_at, return_after, .. } = &*self.0;
        let turn = current.load(Ordering::Relaxed);
        if turn.is_multiple_of(servers.len()) {
            return;
        }
        let mut look_back_at = look_back_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= *look_back_at {
            // Only one check runs at a time.
            *look_back_at = now + BACK_WITHIN + random::jittered(*return_after);
            tokio::spawn(self.clone().go_back(turn));
        }
    }

    fn look_back_later(&self) {
        let Shared { look_back_at, return_after, .. } = &*self.0;
        let mut look_back_at = look_back_at.lock().unwrap_or_else(PoisonError::into_inner);
        *look_back_at = Instant::now() + random::jittered(*return_after);
    }

    /// Moves all clones back to the first server if it answers, unless a call has moved on
    /// meanwhile.
    async fn go_back(self, turn: usize) {
        let Shared { servers, current, channels, .. } = &*self.0;
        let channel = (servers[0].dial)();
        // A server without known leaders is cut off, and of no use.
        let ready =
            http::Request::get("/readyz").body(Body::empty()).expect("a path and nothing else");
        let asked = tokio::time::timeout(BACK_WITHIN, channel.clone().oneshot(ready)).await;
        if !matches!(asked, Ok(Ok(answer)) if answer.status().is_success()) {
            return self.look_back_later();
        }
        let mut channels = channels.lock().unwrap_or_else(PoisonError::into_inner);
        let first = turn.next_multiple_of(servers.len());
        if current.compare_exchange(turn, first, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            channels[0] = Some(channel);
            tracing::info!(server = servers[0].name, "the first server is back and in use");
        }
    }

    /// The server in use now. [`Attempt::failed`] moves on to the next.
    pub(crate) fn current(&self) -> Attempt {
        self.look_back();
        let mut channels = self.0.channels.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the turn belongs to the channel.
        let turn = self.0.current.load(Ordering::Relaxed);
        let index = turn % self.0.servers.len();
        let server = &self.0.servers[index];
        let channel = channels[index].get_or_insert_with(|| (server.dial)()).clone();
        Attempt { connection: self.clone(), turn, index, wire: wire_on(channel) }
    }

    /// Wraps a message into a request with the client's token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.0.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        if let Some(cluster) = self.0.cluster.get() {
            request.metadata_mut().insert(CLUSTER_KEY, cluster.clone());
        }
        request
    }

    /// Remembers the cluster of the first answer.
    pub(crate) fn note_cluster<T>(&self, response: &Response<T>) {
        if self.0.cluster.get().is_none()
            && let Some(cluster) = response.metadata().get(CLUSTER_KEY)
        {
            let _ = self.0.cluster.set(cluster.clone());
        }
    }

    /// Makes a call until it is answered, is known to be pointless, or `deadline` has passed.
    pub(crate) async fn call<Message, Reply, Call, Answer>(
        &self,
        message: Message,
        repeat: Repeat,
        deadline: Instant,
        call: Call,
    ) -> Result<Reply, Error>
    where
        Message: Clone,
        Call: Fn(Wire, Request<Message>) -> Answer,
        Answer: Future<Output = Result<Response<Reply>, Status>>,
    {
        let mut tries = Tries::of(self, deadline);
        // A later refused connection says nothing about a try whose answer was lost.
        let mut unknown = false;
        loop {
            let attempt = self.current();
            let request = self.request(message.clone());
            let answer =
                tokio::time::timeout_at(tries.deadline, call(attempt.wire.clone(), request)).await;
            let error = match answer {
                Ok(Ok(response)) => {
                    self.note_cluster(&response);
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => Error::from_status(attempt.server(), &status),
                Err(_elapsed) => {
                    // The next call should not wait for the same silence: a killed server may leave
                    // a channel on which nothing ends, not even with an error.
                    attempt.failed();
                    let error = attempt.timed_out();
                    return Err(match repeat {
                        Repeat::Read => tries.last_word(error.of_a_read()),
                        Repeat::Always | Repeat::IfNotTaken => error,
                    });
                }
            };
            if error.is_undecided() {
                attempt.failed();
            }
            let again = match repeat {
                Repeat::Read | Repeat::Always => error.is_undecided(),
                Repeat::IfNotTaken => error.is_retryable(),
            };
            let error = match repeat {
                Repeat::Read => error.of_a_read(),
                Repeat::Always | Repeat::IfNotTaken => {
                    unknown |= error.is_outcome_unknown();
                    error
                }
            };
            if !again {
                return Err(error.after(unknown));
            }
            tries.again(error).await.map_err(|error| error.after(unknown))?;
        }
    }
}

fn wire_on(channel: Channel) -> Wire {
    TaskyardClient::new(channel)
        .max_decoding_message_size(ANSWER_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.servers.iter().map(|server| server.name.as_str()).collect();
        f.debug_struct("Connection").field("servers", &names).finish_non_exhaustive()
    }
}

/// One try on one server.
pub(crate) struct Attempt {
    connection: Connection,
    turn: usize,
    index: usize,
    pub(crate) wire: Wire,
}

impl Attempt {
    pub(crate) fn server(&self) -> &str {
        &self.connection.0.servers[self.index].name
    }

    /// Moves to the next server and drops the channel to this one, unless another call already has.
    /// Calls that still run on the channel keep it until they end.
    pub(crate) fn failed(&self) {
        let Shared { current, channels, .. } = &*self.connection.0;
        let mut channels = channels.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turn;
        if current.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            channels[self.index] = None;
            if self.index == 0 {
                self.connection.look_back_later();
            }
        }
    }

    /// Whether this server is still the one in use.
    pub(crate) fn is_current(&self) -> bool {
        self.connection.0.current.load(Ordering::Relaxed) == self.turn
    }

    pub(crate) fn timed_out(&self) -> Error {
        let message = format!("{} gave no answer in time", self.server());
        Error::OutcomeUnknown { message }
    }
}

/// The waits between tries: none while some servers were not asked yet, then doubling, with jitter.
pub(crate) struct Backoff {
    fresh: usize,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(servers: usize) -> Backoff {
        Backoff { fresh: servers.saturating_sub(1), next: BACKOFF_MIN }
    }

    pub(crate) fn of(connection: &Connection) -> Backoff {
        Backoff::new(connection.0.servers.len())
    }

    pub(crate) fn next(&mut self) -> Duration {
        if self.fresh > 0 {
            self.fresh -= 1;
            return Duration::ZERO;
        }
        let wait = random::jittered(self.next);
        self.next = (self.next * 2).min(BACKOFF_MAX);
        wait
    }

    /// Waits; `false` if there would be no time for a try afterwards.
    async fn wait_until(&mut self, deadline: Instant) -> bool {
        let wait = self.next();
        if Instant::now() + wait + TRY_FOR_MIN > deadline {
            return false;
        }
        tokio::time::sleep(wait).await;
        true
    }
}

/// The tries of one call: their end, and the call's final error.
pub(crate) struct Tries {
    backoff: Backoff,
    /// When the call gives up. A `no_quorum` answer may bring the deadline forward.
    pub(crate) deadline: Instant,
    no_quorum_timeout: Option<Duration>,
    /// The last answer of a broker.
    answered: Option<Error>,
}

impl Tries {
    pub(crate) fn of(connection: &Connection, deadline: Instant) -> Tries {
        let no_quorum_timeout = connection.0.no_quorum_timeout;
        Tries { backoff: Backoff::of(connection), deadline, no_quorum_timeout, answered: None }
    }

    /// Waits before the next try; an error if there is no time for one.
    pub(crate) async fn again(&mut self, error: Error) -> Result<(), Error> {
        if matches!(error, Error::Unavailable { answered: true, .. }) {
            self.answered = Some(error.clone());
        }
        if error.code() == "no_quorum"
            && let Some(timeout) = self.no_quorum_timeout.take()
        {
            self.deadline = self.deadline.min(Instant::now() + timeout);
        }
        if self.backoff.wait_until(self.deadline).await {
            return Ok(());
        }
        Err(self.last_word(error))
    }

    /// The final error of a call whose last try failed with `error`. If no broker answered that
    /// try, an earlier answer is returned instead.
    pub(crate) fn last_word(&mut self, error: Error) -> Error {
        match error {
            Error::Unavailable { answered: false, .. } => self.answered.take().unwrap_or(error),
            error => error,
        }
    }
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>, Error> {
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| {
        Error::Invalid("the token has characters that no header can carry".to_string())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_they_are_used() {
        for (url, good) in [
            ("http://127.0.0.1:7400", true),
            ("http://127.0.0.1:7400/", true),
            ("http://queue.internal:7400", true),
            ("https://127.0.0.1:7400", false),
            ("127.0.0.1:7400", false),
            ("http://not a host", false),
            ("http://127.0.0.1:7400/queues", false),
            ("http://127.0.0.1:7400?a=b", false),
        ] {
            let server = Server::at(url, Duration::from_secs(1));
            assert_eq!(server.is_ok(), good, "{url}");
        }
        assert!(Connection::new(Vec::new(), None, RETURN_AFTER).is_err());
    }

    #[test]
    fn every_server_is_asked_once_before_waiting() {
        let mut backoff = Backoff::new(3);
        assert_eq!(backoff.next(), Duration::ZERO);
        assert_eq!(backoff.next(), Duration::ZERO);
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let wait = backoff.next();
            assert!(wait >= BACKOFF_MIN / 2 && wait <= BACKOFF_MAX, "{wait:?}");
            longest = longest.max(wait);
        }
        assert!(longest > BACKOFF_MAX / 2 - BACKOFF_MIN, "{longest:?}");
    }

    #[tokio::test]
    async fn two_failures_of_one_server_move_on_once() {
        let server = |url| Server::at(url, Duration::from_secs(1)).unwrap();
        let servers = vec![server("http://127.0.0.1:1"), server("http://127.0.0.1:2")];
        let connection = Connection::new(servers, None, RETURN_AFTER).unwrap();
        let (first, second) = (connection.current(), connection.current());
        first.failed();
        second.failed();
        assert_eq!(connection.current().server(), "http://127.0.0.1:2");
    }

    #[tokio::test]
    async fn a_call_that_got_no_answer_in_time_moves_on() {
        // A server that accepts connections and stays silent.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = format!("http://{}", silent.local_addr().unwrap());
        let servers = [silent.as_str(), "http://127.0.0.1:1"]
            .map(|url| Server::at(url, Duration::from_secs(60)).unwrap());
        let connection = Connection::new(servers.to_vec(), None, RETURN_AFTER).unwrap();
        for repeat in [Repeat::IfNotTaken, Repeat::Read] {
            while connection.current().server() != silent {
                connection.current().failed();
            }
            let deadline = Instant::now() + Duration::from_millis(50);
            let request = taskyard_proto::v1::QueueRequest { queue: "mail".to_string() };
            let call = connection.call(request, repeat, deadline, |mut wire, request| async move {
                wire.get_queue(request).await
            });
            let error = call.await.unwrap_err();
            assert!(error.to_string().contains("gave no answer in time"), "{error}");
            assert_eq!(connection.current().server(), "http://127.0.0.1:1", "{repeat:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_failed_is_dialled_anew() {
        let dials = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dials);
        let dial = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Endpoint::from_static("http://127.0.0.1:1").connect_lazy()
        };
        let server = Server { name: "one".to_string(), dial: Arc::new(dial) };
        let connection = Connection::new(vec![server], None, RETURN_AFTER).unwrap();
        let (first, second) = (connection.current(), connection.current());
        assert_eq!(dials.load(Ordering::Relaxed), 1, "they share it");
        first.failed();
        let third = connection.current();
        second.failed();
        drop((third, connection.current()));
        assert_eq!(dials.load(Ordering::Relaxed), 2, "one failure is one reason");
    }
}
