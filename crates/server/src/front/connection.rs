//! Connections: HTTP/1 and HTTP/2 on one socket, each with a bounded cost.
//!
//! A client that sends nothing or half a request, or that reads nothing, loses its connection;
//! other clients do not notice. Each connection takes a place. Without a free place, a client gets
//! a refusal. Health checks are answered even then, because a full node must still be seen to live.

use super::{
    outflow::{Door, PERIODS_MAX},
    problem::Problem,
};
use crate::{buffers::Buffers, limits};
use axum::{
    Router,
    http::{Request, StatusCode},
    response::IntoResponse,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, MissedTickBehavior, Sleep, interval_at, sleep, timeout},
};
use tower::Service;

/// Paths that are answered over HTTP/1 even if every place is taken.
pub(super) const ALWAYS_ANSWERED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// How long a client without a place may take to send its first bytes.
const FIRST_BYTES_WITHIN: Duration = Duration::from_millis(limits::REFUSAL_MS_MAX / 5);

/// How long the answer to a refused client may take.
const REFUSED_WITHIN: Duration = Duration::from_millis(limits::REFUSAL_MS_MAX);

/// How often refusals are logged: refused clients try again at once, and must not fill the log.
const LOG_REFUSALS_EVERY: Duration = Duration::from_secs(10);

/// How long the node waits for a client.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// For the first request after connecting.
    first_request: Duration,
    /// For the whole head of a request over HTTP/1, and between two of them.
    head: Duration,
    /// For a write of more bytes.
    write: Duration,
    /// For a piece of an answer, even if the client takes other answers.
    answer: Duration,
    /// Between two pings to an HTTP/2 client, and for its answer.
    ping_every: Duration,
    ping_answer: Duration,
}

const PATIENCE: Patience = Patience {
    first_request: Duration::from_millis(limits::FIRST_REQUEST_MS_MAX),
    head: Duration::from_millis(limits::HEAD_MS_MAX),
    write: Duration::from_millis(limits::WRITE_MS_MAX),
    answer: Duration::from_millis(limits::ANSWER_TAKEN_MS_MAX),
    ping_every: Duration::from_millis(limits::PING_EVERY_MS),
    ping_answer: Duration::from_millis(limits::PING_ANSWER_MS_MAX),
};

/// All connections of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    router: Router,
    builder: auto::Builder<TokioExecutor>,
    buffers: Buffers,
    patience: Patience,
    places_max: usize,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    /// Whether a refusal was logged a moment ago, so that the next ones are not.
    refusal_logged: Arc<AtomicBool>,
    phase: Arc<watch::Sender<Phase>>,
}

/// What connections may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Finish calls in flight, take no new ones.
    Closing,
    /// End now.
    Closed,
}

impl Connections {
    /// Takes up to `places_max` connections.
    pub(super) fn new(router: Router, places_max: usize, buffers: Buffers) -> Connections {
        Connections::with_patience(router, places_max, buffers, PATIENCE)
    }

    fn with_patience(
        router: Router,
        places_max: usize,
        buffers: Buffers,
        patience: Patience,
    ) -> Connections {
        let places_max = places_max.min(Semaphore::MAX_PERMITS);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(patience.head)
            .max_buf_size(limits::HEADER_BYTES_MAX as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(patience.ping_every)
            .keep_alive_timeout(patience.ping_answer)
            .max_concurrent_streams(limits::STREAMS_MAX)
            .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
            .max_frame_size(limits::FRAME_BYTES_MAX)
            .max_header_list_size(limits::HEADER_BYTES_MAX);
        Connections {
            router,
            builder,
            buffers,
            patience,
            places_max,
            places: Arc::new(Semaphore::new(places_max)),
            refusals: Arc::new(Semaphore::new(limits::REFUSALS_MAX)),
            refusal_logged: Arc::default(),
            phase: Arc::new(watch::Sender::new(Phase::Open)),
        }
    }

    /// The places of connections of any protocol, and their number.
    pub(super) fn places(&self) -> (Arc<Semaphore>, usize) {
        (self.places.clone(), self.places_max)
    }

    /// Takes connections until it is dropped.
    pub(super) async fn accept(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%error, "a connection closed before it was served");
                        continue;
                    }
                    self.serve_socket(socket);
                }
                Err(error) => {
                    // The process is probably out of file descriptors; open connections are served
                    // meanwhile.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn serve_socket(&self, socket: TcpStream) {
        match self.places.clone().try_acquire_owned() {
            Ok(place) => self.serve_at(socket, place),
            Err(_none_left) => self.refuse(socket),
        }
    }

    /// Closes a connection at once, after an answer if there is room for one.
    fn refuse(&self, socket: TcpStream) {
        let places_max = self.places_max;
        if !self.refusal_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!("connections are refused: all {places_max} are in use");
            let logged = self.refusal_logged.clone();
            tokio::spawn(async move {
                sleep(LOG_REFUSALS_EVERY).await;
                logged.store(false, Ordering::Relaxed);
            });
        }
        if let Ok(refusal) = self.refusals.clone().try_acquire_owned() {
            let this = self.clone();
            tokio::spawn(async move {
                let _refusal = refusal;
                let answered = async {
                    match asks_for_health(&socket).await {
                        true => this.serve_health(socket).await,
                        false => drop(refuse_full(socket, places_max).await),
                    }
                };
                let _ = timeout(REFUSED_WITHIN, answered).await;
            });
        }
    }

    /// Answers health checks alone, on a connection without a place.
    async fn serve_health(&self, socket: TcpStream) {
        let (router, places_max) = (self.router.clone(), self.places_max);
        let service = tower::service_fn(move |request: Request<_>| {
            let mut router = router.clone();
            async move {
                if ALWAYS_ANSWERED.contains(&request.uri().path()) {
                    return router.call(request).await;
                }
                let status = StatusCode::TOO_MANY_REQUESTS;
                let problem = Problem::new(status, "limit_exceeded", all_in_use(places_max));
                Ok(problem.into_response())
            }
        });
        let service = TowerToHyperService::new(service);
        // The client decides how this ends.
        let _ = self.builder.serve_connection(TokioIo::new(socket), service).await;
    }

    /// Serves a connection that is no socket; closes it if there is no place.
    pub(super) fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            self.serve_at(io, place);
        }
    }

    fn serve_at(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        place: OwnedSemaphorePermit,
    ) {
        let asked = Arc::new(AtomicBool::new(false));
        let door = Door::new(&self.buffers);
        let service =
            Calls { router: self.router.clone(), asked: asked.clone(), door: door.clone() };
        let io = TokioIo::new(Impatient { io, write: self.patience.write, stalled: None });
        let connection = self.builder.serve_connection(io, TowerToHyperService::new(service));
        let connection = connection.into_owned();
        let (patience, mut phase) = (self.patience, self.phase.subscribe());
        if *phase.borrow() != Phase::Open {
            return;
        }
        tokio::spawn(async move {
            let _place = place;
            let mut connection = pin!(connection);
            let mut first_request = pin!(sleep(patience.first_request));
            let mut waits_for_first = true;
            let period = patience.answer / PERIODS_MAX as u32;
            let mut periods = interval_at(Instant::now() + period, period);
            periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    // The client decides how the connection ends.
                    _ = connection.as_mut() => return,
                    () = &mut first_request, if waits_for_first => {
                        if !asked.load(Ordering::Relaxed) {
                            return;
                        }
                        waits_for_first = false;
                    }
                    _ = periods.tick() => {
                        if door.next_period() {
                            tracing::debug!("a connection is closed: its client takes no answers");
                            return;
                        }
                    }
                    changed = phase.changed() => {
                        let now = *phase.borrow_and_update();
                        // The sender of phases is gone.
                        let alone = changed.is_err();
                        if alone || now == Phase::Closed || !asked.load(Ordering::Relaxed) {
                            return;
                        }
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        });
    }

    /// Waits for calls in flight, for at most `grace`.
    pub(super) async fn stop(&self, grace: Duration) {
        self.phase.send_replace(Phase::Closing);
        let all = u32::try_from(self.places_max).unwrap_or(u32::MAX);
        if timeout(grace, self.places.acquire_many(all)).await.is_err() {
            tracing::warn!("connections were closed with calls under way after {grace:?}");
        }
        self.phase.send_replace(Phase::Closed);
        self.places.close();
    }
}

/// Whether the first bytes of a connection ask for a path that is always answered.
async fn asks_for_health(socket: &TcpStream) -> bool {
    let mut start = [0; 16];
    let seen = match timeout(FIRST_BYTES_WITHIN, socket.peek(&mut start)).await {
        Ok(Ok(seen)) => &start[..seen],
        _ => return false,
    };
    ALWAYS_ANSWERED.iter().any(|path| seen.starts_with(format!("GET {path}").as_bytes()))
}

fn all_in_use(places_max: usize) -> String {
    format!("all {places_max} connections of this broker are in use; close some or use another")
}

/// Refuses a client without a place over HTTP/1, which every client can show.
async fn refuse_full(mut socket: TcpStream, places_max: usize) -> io::Result<()> {
    let body = format!(
        r#"{{"type":"urn:taskyard:limit_exceeded","title":"a limit is reached","status":429,"code":"limit_exceeded","detail":"{}"}}"#,
        all_in_use(places_max)
    );
    let length = body.len();
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.shutdown().await
}

/// The routes for one connection: whether it ever sent a request, and its bytes in flight.
#[derive(Clone)]
struct Calls {
    router: Router,
    asked: Arc<AtomicBool>,
    door: Door,
}

impl<B> Service<Request<B>> for Calls
where
    Router: Service<Request<B>>,
{
    type Response = <Router as Service<Request<B>>>::Response;
    type Error = <Router as Service<Request<B>>>::Error;
    type Future = <Router as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.router.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.asked.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(self.door.clone());
        self.router.call(request)
    }
}

/// A connection that fails when the client takes no bytes for too long.
struct Impatient<T> {
    io: T,
    write: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Impatient<T> {
    /// Passes on the result of a write, unless it has waited for too long.
    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let write = self.write;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(write)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Impatient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Impatient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(context);
        self.watch(context, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::intake;
    use axum::{middleware::from_fn_with_state, routing::get};
    use tokio::io::{AsyncReadExt, DuplexStream};

    const SHORT: Duration = Duration::from_millis(100);
    const PLACES: usize = 10;
    /// Far longer than the tests take, and far shorter than the default patience.
    const DEADLINE: Duration = Duration::from_secs(20);

    fn connect(router: Router, patience: Patience) -> (DuplexStream, Connections) {
        let connections = Connections::with_patience(router, PLACES, Buffers::new(0), patience);
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        connections.serve(ours);
        (theirs, connections)
    }

    async fn closes(mut client: DuplexStream) -> Vec<u8> {
        let mut read = Vec::new();
        timeout(DEADLINE, client.read_to_end(&mut read)).await.expect("closed in time").unwrap();
        read
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_is_closed() {
        let (client, _all) = connect(Router::new(), Patience { first_request: SHORT, ..PATIENCE });
        assert_eq!(closes(client).await, b"");
    }

    #[tokio::test]
    async fn a_client_that_sends_half_a_preface_is_closed() {
        let (mut client, _all) =
            connect(Router::new(), Patience { first_request: SHORT, ..PATIENCE });
        client.write_all(b"PRI * HT").await.unwrap();
        assert_eq!(closes(client).await, b"");
    }

    #[tokio::test]
    async fn half_a_head_is_closed() {
        let (mut client, _all) = connect(Router::new(), Patience { head: SHORT, ..PATIENCE });
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-").await.unwrap();
        let answer = closes(client).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{answer:?}");
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_closed_and_others_are_served() {
        let large = Router::new().route("/", get(|| async { vec![b'x'; 10 << 20] }));
        let (mut client, all) = connect(large, Patience { write: SHORT, ..PATIENCE });
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        // The place is free again once the connection is closed.
        let closed = async {
            while all.places.available_permits() < PLACES {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, closed).await.expect("closed in time");
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read.len() < 10 << 20, "{} bytes", read.len());
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Asks for `/` on HTTP/2 stream 1, and gives the answer this window.
    fn asks_with_window(window: u32) -> Vec<u8> {
        const SETTINGS: u8 = 4;
        const HEADERS: u8 = 1;
        let window = [&[0, 4][..], &window.to_be_bytes()].concat();
        // GET, http, /, and the authority `a`.
        let head = [0x82, 0x86, 0x84, 0x01, 1, b'a'];
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        [preface, frame(SETTINGS, 0, 0, &window), frame(HEADERS, 5, 1, &head)].concat()
    }

    /// Answers pings, and counts them and the bytes of answers until the connection closes.
    async fn answer_pings(client: &mut DuplexStream) -> (usize, usize) {
        const DATA: u8 = 0;
        const PING: u8 = 6;
        let (mut pings, mut bytes) = (0, 0);
        loop {
            let mut head = [0; 9];
            if client.read_exact(&mut head).await.is_err() {
                return (pings, bytes);
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            client.read_exact(&mut payload).await.unwrap();
            match (head[3], head[4] & 1) {
                (DATA, _) => bytes += length,
                (PING, 0) => {
                    pings += 1;
                    let _ = client.write_all(&frame(PING, 1, 0, &payload)).await;
                }
                _ => {}
            }
        }
    }

    #[tokio::test]
    async fn answers_that_the_client_does_not_take_end_a_connection_that_answers_pings() {
        let large = || {
            let large = get(|| async { vec![b'x'; 10 << 20] });
            let counted = from_fn_with_state(Buffers::new(0), intake::count);
            Router::new().route("/", large).layer(counted)
        };
        let patience =
            Patience { answer: 8 * SHORT, ping_every: SHORT, ping_answer: DEADLINE, ..PATIENCE };
        for window in [0, 1_000] {
            let (mut client, all) = connect(large(), patience);
            client.write_all(&asks_with_window(window)).await.unwrap();
            let ended = timeout(DEADLINE, answer_pings(&mut client)).await;
            let (pings, bytes) = ended.expect("closed in time");
            assert!(pings >= 3, "{pings} pings were answered");
            assert_eq!(bytes, window as usize);
            let closed = async {
                while all.places.available_permits() < PLACES {
                    tokio::task::yield_now().await;
                }
            };
            timeout(DEADLINE, closed).await.expect("its place is free");
        }
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (mut client, _all) = connect(Router::new(), PATIENCE);
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n", "y".repeat(64 << 10));
        let exchange = async {
            // The connection may be closed before all of it is sent.
            let _ = client.write_all(head.as_bytes()).await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        let answer = timeout(DEADLINE, exchange).await.expect("answered before its end");
        assert!(answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    }

    #[tokio::test]
    async fn a_call_under_way_ends_before_its_connection() {
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(Some(released)));
        let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
        let handler = move || async move {
            let released = released.lock().unwrap().take().unwrap();
            arrived.send(()).await.unwrap();
            released.await.unwrap();
            "done"
        };
        let (mut client, all) = connect(Router::new().route("/", get(handler)), PATIENCE);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        arrivals.recv().await.unwrap();
        let stopping = tokio::spawn(async move { all.stop(DEADLINE).await });
        release.send(()).unwrap();
        let answer = closes(client).await;
        assert!(answer.ends_with(b"done"), "{answer:?}");
        timeout(DEADLINE, stopping).await.expect("stopped in time").unwrap();
    }

    #[tokio::test]
    async fn calls_that_do_not_end_are_cut_after_the_grace() {
        let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
        let handler = move || async move {
            arrived.send(()).await.unwrap();
            std::future::pending::<()>().await;
        };
        let (mut client, all) = connect(Router::new().route("/", get(handler)), PATIENCE);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        arrivals.recv().await.unwrap();
        timeout(DEADLINE, all.stop(SHORT)).await.expect("stopped in time");
        assert_eq!(closes(client).await, b"");
    }
}
