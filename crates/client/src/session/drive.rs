//! Drive: runs a session: streams, timers and shutdown, on a thread of its own.
//!
//! The thread has its own small runtime and its own connection. A handler that blocks the program's
//! runtime can therefore stop neither the beats nor the answers of the other handlers, which
//! run on the program's runtime.

use super::{Assigned, Phase, Report, Session};
use crate::{
    CancelReason, Error,
    attempt::{Attempts, CANCEL_GRACE},
    connection::{Attempt, Backoff, Connection},
};
use std::{fs, future::Future, pin::Pin, thread, time::Duration};
use taskyard_proto::v1::{self, broker_message, worker_message};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// The most messages on their way to the socket: few, so that waiting ones are gathered into one.
const OUTGOING_MAX: usize = 4;
/// How long a server may take to welcome the worker before the next one is tried.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which progress is sent and undecided answers are repeated.
const CATCH_UP_EVERY: Duration = Duration::from_millis(500);
/// How long a leaving worker waits for the confirmation of its last answers.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// How long a leaving worker waits for the broker to close the stream.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);
/// A stream that has lived this long was good, so that the next one is opened without delay.
const STABLE_AFTER: Duration = Duration::from_secs(2);
/// The interval between beats if the broker names none.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// The longest silence if the broker names none.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The parts that a session needs to run.
pub(crate) struct Plan {
    pub(crate) hello: v1::Hello,
    pub(crate) connection: Connection,
    pub(crate) attempts: Attempts,
    pub(crate) reports: mpsc::UnboundedReceiver<Report>,
    pub(crate) shutdown_grace: Duration,
    /// The runtime of the handlers.
    pub(crate) runtime: runtime::Handle,
}

/// Starts the session's thread. The receiver gets the result when the session has ended.
pub(crate) fn start(plan: Plan) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
    let (ended, end) = oneshot::channel();
    let own = runtime::Builder::new_current_thread().enable_all().build();
    let own = own.map_err(|error| Error::Invalid(format!("cannot start a runtime: {error}")))?;
    thread::Builder::new()
        .name("taskyard-session".to_string())
        .spawn(move || {
            let result = own.block_on(Drive::new(plan).run());
            let _ = ended.send(result);
        })
        .map_err(|error| Error::Invalid(format!("cannot start a thread: {error}")))?;
    Ok(end)
}

struct Drive {
    session: Session,
    connection: Connection,
    attempts: Attempts,
    reports: mpsc::UnboundedReceiver<Report>,
    shutdown_grace: Duration,
    runtime: runtime::Handle,
    line: Line,
    backoff: Backoff,
    catch_up_at: Instant,
    leaving: Leaving,
}

/// The stream to the broker.
enum Line {
    Up(Box<Stream>),
    Opening(Pin<Box<dyn Future<Output = Result<Box<Stream>, Error>> + Send>>),
}

struct Stream {
    attempt: Attempt,
    outgoing: Option<mpsc::Sender<v1::WorkerMessage>>,
    incoming: Streaming<v1::BrokerMessage>,
    session_secret: Vec<u8>,
    beat_every: Duration,
    silence_max: Duration,
    opened_at: Instant,
    beat_at: Instant,
    heard_at: Instant,
}

/// The progress of a leaving worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The worker stays.
    No,
    /// The handlers may finish.
    Draining { until: Instant },
    /// The handlers were asked to stop.
    Yielding { until: Instant },
    /// The last answers are on their way.
    Settling { until: Instant },
    /// The worker has said goodbye.
    Gone { until: Instant },
}

enum Happened {
    Report(Option<Report>),
    Message(Result<Option<v1::BrokerMessage>, Status>),
    Writable,
    Opened(Result<Box<Stream>, Error>),
    Time,
}

impl Drive {
    fn new(plan: Plan) -> Drive {
        let mut session = Session::new(plan.hello);
        let line = Line::Opening(open(&plan.connection, &mut session, Duration::ZERO));
        Drive {
            session,
            backoff: Backoff::of(&plan.connection),
            connection: plan.connection,
            attempts: plan.attempts,
            reports: plan.reports,
            shutdown_grace: plan.shutdown_grace,
            runtime: plan.runtime,
            line,
            catch_up_at: Instant::now() + CATCH_UP_EVERY,
            leaving: Leaving::No,
        }
    }

    /// Runs until the worker has left, or the broker refuses it.
    async fn run(mut self) -> Result<(), Error> {
        loop {
            match self.next().await {
                Happened::Report(report) => self.report(report.unwrap_or(Report::Abandon)),
                Happened::Message(Ok(Some(message))) => self.receive(message),
                Happened::Message(Ok(None)) => {
                    if matches!(self.leaving, Leaving::Gone { .. }) {
                        return Ok(());
                    }
                    self.lost(&Error::unavailable("the broker closed the stream"))?;
                }
                Happened::Message(Err(status)) => {
                    if matches!(self.leaving, Leaving::Gone { .. }) {
                        return Ok(());
                    }
                    self.lost(&Error::from_status(self.server(), &status))?;
                }
                Happened::Writable => self.write(),
                Happened::Opened(Ok(stream)) => self.opened(stream),
                Happened::Opened(Err(error)) => self.lost(&error)?,
                Happened::Time => {}
            }
            self.keep_time()?;
            if self.leave() {
                return Ok(());
            }
        }
    }

    async fn next(&mut self) -> Happened {
        let wake_at = self.wake_at();
        let has_outgoing = self.session.has_outgoing();
        let reports = &mut self.reports;
        match &mut self.line {
            Line::Opening(opening) => tokio::select! {
                report = reports.recv() => Happened::Report(report),
                opened = opening => Happened::Opened(opened),
                () = tokio::time::sleep_until(wake_at) => Happened::Time,
            },
            Line::Up(stream) => {
                let Stream { outgoing, incoming, .. } = &mut **stream;
                let writable = async {
                    match outgoing {
                        // This fails only if the stream is gone, which `incoming` reports.
                        Some(outgoing) if has_outgoing => match outgoing.reserve().await {
                            Ok(_) => {}
                            Err(_) => std::future::pending().await,
                        },
                        _ => std::future::pending().await,
                    }
                };
                tokio::select! {
                    report = reports.recv() => Happened::Report(report),
                    message = incoming.message() => Happened::Message(message),
                    () = writable => Happened::Writable,
                    () = tokio::time::sleep_until(wake_at) => Happened::Time,
                }
            }
        }
    }

    /// When the next timer is due.
    fn wake_at(&self) -> Instant {
        let mut at = self.catch_up_at;
        if let Line::Up(stream) = &self.line {
            at = at.min(stream.beat_at).min(stream.heard_at + stream.silence_max);
        }
        match self.leaving {
            Leaving::No => at,
            Leaving::Draining { until }
            | Leaving::Yielding { until }
            | Leaving::Settling { until }
            | Leaving::Gone { until } => at.min(until),
        }
    }

    /// Handles a report, and all further reports that have arrived, so that they share the next
    /// message.
    fn report(&mut self, first: Report) {
        let mut next = Some(first);
        while let Some(report) = next {
            if matches!(report, Report::Abandon) {
                // The worker's owner is gone: handlers get no more time, the goodbye a little.
                self.leaving = Leaving::Yielding { until: Instant::now() + GOODBYE_WITHIN };
            }
            self.session.report(report);
            next = self.reports.try_recv().ok();
        }
    }

    fn receive(&mut self, message: v1::BrokerMessage) {
        if let Line::Up(stream) = &mut self.line {
            stream.heard_at = Instant::now();
        }
        let Some(message) = message.message else { return };
        let received = self.session.receive(message);
        // "Started" goes out before the handlers start. If one of them kills this process, the
        // broker then knows which tasks had begun.
        self.write();
        received.run.into_iter().for_each(|assigned| self.run_attempt(assigned));
        if let Some(phase) = received.asked {
            if self.session.phase() == Phase::Running {
                tracing::info!(?phase, "an operator asked this worker to change its state");
            }
            self.session.enter(phase);
        }
    }

    fn run_attempt(&self, assigned: Assigned) {
        self.runtime.spawn(self.attempts.clone().run(assigned));
    }

    /// Passes messages to the stream as long as it takes them.
    fn write(&mut self) {
        let Line::Up(stream) = &self.line else { return };
        let Some(outgoing) = &stream.outgoing else { return };
        while self.session.has_outgoing() {
            let Ok(permit) = outgoing.try_reserve() else { return };
            match self.session.outgoing(rss_bytes) {
                Some(message) => permit.send(message),
                None => return,
            }
        }
    }

    fn opened(&mut self, stream: Box<Stream>) {
        tracing::info!(server = stream.attempt.server(), "the worker is connected");
        self.session.welcome(stream.session_secret.clone());
        self.line = Line::Up(stream);
        self.write();
    }

    /// Opens another stream after one is lost or never came, unless that is pointless.
    fn lost(&mut self, error: &Error) -> Result<(), Error> {
        if let Error::Rejected { code, .. } = error {
            match code.as_str() {
                "not_found" if self.session.is_open() => self.session.forget(),
                "unauthenticated" | "permission_denied" | "invalid_argument" => {
                    tracing::error!(%error, "the broker refuses this worker");
                    return Err(error.clone());
                }
                _ => {}
            }
        }
        if let Line::Up(stream) = &self.line {
            stream.attempt.failed();
            // A broker that welcomes the worker and hangs up must not be called without a pause.
            if stream.opened_at.elapsed() >= STABLE_AFTER {
                self.backoff = Backoff::of(&self.connection);
            }
        }
        let wait = self.backoff.next();
        tracing::warn!(%error, ?wait, running = self.session.running(), "the worker reconnects");
        self.line = Line::Opening(open(&self.connection, &mut self.session, wait));
        Ok(())
    }

    fn server(&self) -> &str {
        match &self.line {
            Line::Up(stream) => stream.attempt.server(),
            Line::Opening(_) => "the broker",
        }
    }

    /// Does what is due: beat, catch-up, return to the first server, detection of silence.
    fn keep_time(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now >= self.catch_up_at {
            self.catch_up_at = now + CATCH_UP_EVERY;
            self.session.catch_up();
        }
        let Line::Up(stream) = &mut self.line else { return Ok(()) };
        self.connection.look_back();
        if self.leaving == Leaving::No && !stream.attempt.is_current() {
            // The session is resumed there, as after a loss; messages that were on their way are
            // repeated.
            tracing::info!(
                from = stream.attempt.server(),
                "the worker goes back to its first server"
            );
            self.line = Line::Opening(open(&self.connection, &mut self.session, Duration::ZERO));
            return Ok(());
        }
        if now >= stream.beat_at {
            stream.beat_at = now + stream.beat_every;
            self.session.beat();
        }
        if now >= stream.heard_at + stream.silence_max {
            let (server, silence) = (stream.attempt.server(), stream.silence_max);
            tracing::error!(server, ?silence, "the broker has gone silent; the worker reconnects");
            let message = format!("{server} said nothing for {silence:?}");
            return self.lost(&Error::unavailable(message));
        }
        Ok(())
    }

    /// Takes the next step of leaving; returns `true` when the worker may go.
    fn leave(&mut self) -> bool {
        let now = Instant::now();
        loop {
            let next = match self.leaving {
                Leaving::No if self.session.phase() == Phase::Stopping => {
                    let running = self.session.running();
                    let grace = self.shutdown_grace;
                    tracing::info!(running, ?grace, "the worker stops claiming and finishes");
                    Leaving::Draining { until: now + grace }
                }
                Leaving::Draining { .. } | Leaving::Yielding { .. }
                    if self.session.running() == 0 =>
                {
                    Leaving::Settling { until: now + SETTLE_WITHIN }
                }
                Leaving::Draining { until } if now >= until => {
                    let running = self.session.running();
                    tracing::warn!(running, "the grace is over; the rest is stopped and released");
                    self.session.stop_all(CancelReason::Shutdown);
                    Leaving::Yielding { until: now + CANCEL_GRACE + GOODBYE_WITHIN }
                }
                Leaving::Yielding { until } if now >= until => {
                    Leaving::Settling { until: now + SETTLE_WITHIN }
                }
                Leaving::Settling { until } if self.session.is_settled() || now >= until => {
                    if !self.session.is_settled() {
                        tracing::warn!("the worker leaves before its last answers were confirmed");
                    }
                    match self.say_goodbye() {
                        Goodbye::Said => Leaving::Gone { until: now + GOODBYE_WITHIN },
                        Goodbye::NoRoom if now < until => return false,
                        Goodbye::NoRoom | Goodbye::NoStream => return true,
                    }
                }
                Leaving::Gone { until } => return now >= until,
                Leaving::No
                | Leaving::Draining { .. }
                | Leaving::Yielding { .. }
                | Leaving::Settling { .. } => return false,
            };
            self.leaving = next;
        }
    }

    /// Ends the session in good order and closes this side of the stream.
    fn say_goodbye(&mut self) -> Goodbye {
        let Line::Up(stream) = &mut self.line else { return Goodbye::NoStream };
        let Some(outgoing) = &stream.outgoing else { return Goodbye::NoStream };
        let goodbye = worker_message::Message::Goodbye(v1::Goodbye {});
        match outgoing.try_send(v1::WorkerMessage { message: Some(goodbye) }) {
            Ok(()) => {
                stream.outgoing = None;
                Goodbye::Said
            }
            Err(mpsc::error::TrySendError::Full(_)) => Goodbye::NoRoom,
            Err(mpsc::error::TrySendError::Closed(_)) => Goodbye::NoStream,
        }
    }
}

/// The state of a goodbye.
enum Goodbye {
    Said,
    /// Other messages must go out first.
    NoRoom,
    NoStream,
}

/// Opens a stream after `wait` and waits for the broker's welcome.
fn open(
    connection: &Connection,
    session: &mut Session,
    wait: Duration,
) -> Pin<Box<dyn Future<Output = Result<Box<Stream>, Error>> + Send>> {
    let (connection, hello) = (connection.clone(), session.hello());
    Box::pin(async move {
        tokio::time::sleep(wait).await;
        let mut attempt = connection.current();
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        outgoing.try_send(hello).expect("the channel is new and has room");
        let request = connection.request(ReceiverStream::new(messages));
        let welcomed = async {
            let answer = attempt.wire.work(request).await?;
            connection.note_cluster(&answer);
            let mut incoming = answer.into_inner();
            let first = incoming.message().await?;
            Ok::<_, Status>((incoming, first))
        };
        let welcomed = tokio::time::timeout(WELCOME_WITHIN, welcomed).await;
        let (incoming, first) = match welcomed {
            Ok(Ok(welcomed)) => welcomed,
            Ok(Err(status)) => {
                let error = Error::from_status(attempt.server(), &status);
                attempt.failed();
                return Err(error);
            }
            Err(_) => {
                attempt.failed();
                let server = attempt.server();
                let message = format!("{server} gave no welcome within {WELCOME_WITHIN:?}");
                return Err(Error::unavailable(message));
            }
        };
        let first = first.and_then(|message| message.message);
        let Some(broker_message::Message::Welcome(welcome)) = first else {
            attempt.failed();
            let message = format!("{} did not begin with a welcome", attempt.server());
            return Err(Error::unavailable(message));
        };
        let or = |said_ms: u64, default: Duration| match said_ms {
            0 => default,
            said_ms => Duration::from_millis(said_ms),
        };
        let beat_every = or(welcome.beat_every_ms, BEAT_EVERY);
        let now = Instant::now();
        Ok(Box::new(Stream {
            attempt,
            outgoing: Some(outgoing),
            incoming,
            session_secret: welcome.session_secret,
            beat_every,
            silence_max: or(welcome.silence_ms_max, SILENCE_MAX),
            opened_at: now,
            beat_at: now + beat_every,
            heard_at: now,
        }))
    })
}

/// The memory that this process uses, if the system reports it.
fn rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes * 1_024)
}
