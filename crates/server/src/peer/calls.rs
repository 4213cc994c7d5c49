//! Calls: an open connection that this node dialled, and the calls under way on it.
//!
//! Invariant: a call that ends with [`CallError::NotSent`] was surely not executed: its frame was never
//! handed to the connection, or the other side declined it. Each call is answered once, at the latest when
//! the connection ends. A caller that goes away leaves nothing behind: its call is taken back, or the
//! other side is told.

use super::{
    connection::{Ended, FrameReader, Patience, write_frames},
    frame::{Frame, Kind, fits},
    handshake::PeerHello,
    pings::Pings,
    queue::{Bounds, SendQueue, Ticket},
};
use crate::{clock::Clock, limits};
use bytes::Bytes;
use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

/// Why a call to a peer has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It was surely not executed: it may be sent again, here or elsewhere.
    #[error("the call was not sent: {why}")]
    NotSent {
        /// For people.
        why: Cow<'static, str>,
    },
    /// The connection broke while it was under way: whether it was executed is unknown.
    #[error("the connection broke under the call; whether it was executed is unknown")]
    Lost,
    /// No answer came in time: whether it was executed is unknown.
    #[error("no answer came in time; whether the call was executed is unknown")]
    TimedOut,
}

impl CallError {
    pub(super) fn not_sent(why: impl Into<Cow<'static, str>>) -> CallError {
        CallError::NotSent { why: why.into() }
    }
}

/// Takes an answer that came when its caller had gone. Called on the network's threads: it may not
/// block.
pub type LateReply = Arc<dyn Fn(Bytes) + Send + Sync>;

/// What waits at most for a connection that this node dialled.
pub(super) const BOUNDS: Bounds = Bounds {
    raft_frames_max: limits::PEER_RAFT_FRAMES_MAX,
    raft_bytes_max: limits::PEER_RAFT_BYTES_MAX,
    bulk_bytes_max: limits::PEER_CALL_BYTES_MAX,
};

/// A connection that this node dialled. It carries Raft messages and calls there, and answers back.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) peer: PeerHello,
    /// Wall time of the handshake.
    pub(super) since_ms: u64,
    pub(super) queue: SendQueue,
    calls: Mutex<Calls>,
    pings: Mutex<Pings>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Calls {
    ended: bool,
    next_stream: u64,
    under_way: HashMap<u64, UnderWay>,
}

struct UnderWay {
    ticket: Ticket,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
    late: Option<LateReply>,
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Dialled {
    pub(super) fn new(peer: PeerHello, clock: Clock, bounds: Bounds) -> Dialled {
        Dialled {
            peer,
            since_ms: clock.wall_ms(),
            queue: SendQueue::new(bounds),
            calls: Mutex::default(),
            pings: Mutex::default(),
            clock,
        }
    }

    /// Sends a call and waits for its answer.
    pub(super) async fn call(
        self: Arc<Dialled>,
        request: Bytes,
        wait: Duration,
    ) -> Result<Bytes, CallError> {
        self.begin(request)?.answer_within(wait).await
    }

    /// The same. The answer goes to `late` if nobody waits for it when it comes; the call is counted as
    /// under way until then.
    pub(super) async fn call_minding(
        self: Arc<Dialled>,
        request: Bytes,
        wait: Duration,
        late: LateReply,
    ) -> Result<Bytes, CallError> {
        self.begin_minding(request, Some(late))?.answer_within(wait).await
    }

    /// Sends a call. Dropping what this gives takes the call back, or cancels it on the other side.
    pub(super) fn begin(self: Arc<Dialled>, request: Bytes) -> Result<Waiting, CallError> {
        self.begin_minding(request, None)
    }

    fn begin_minding(
        self: Arc<Dialled>,
        request: Bytes,
        late: Option<LateReply>,
    ) -> Result<Waiting, CallError> {
        if !fits(request.len()) {
            let why = format!(
                "{} bytes are more than the {} of a frame",
                request.len(),
                limits::PEER_FRAME_BYTES_MAX
            );
            return Err(CallError::not_sent(why));
        }
        let (sender, answer) = oneshot::channel();
        let mut calls = self.calls();
        if calls.ended {
            return Err(CallError::not_sent("the peer is not connected"));
        }
        if calls.under_way.len() >= limits::PEER_CALLS_MAX {
            return Err(CallError::not_sent("too many calls to the peer are under way"));
        }
        let stream = calls.next_stream + 1;
        let Ok(ticket) = self.queue.push_bulk(Frame::new(Kind::Call, stream, request)) else {
            return Err(CallError::not_sent("too much waits for the peer already"));
        };
        calls.next_stream = stream;
        calls.under_way.insert(stream, UnderWay { ticket, answer: sender, late: late.clone() });
        drop(calls);
        Ok(Waiting { dialled: self, stream, answer, late, has_left: false })
    }

    /// Runs the connection until it ends, and says why.
    pub(super) async fn run(
        &self,
        mut reader: FrameReader<impl AsyncRead + Unpin>,
        writer: impl AsyncWrite + Unpin,
        patience: Patience,
    ) -> Ended {
        let read = async {
            loop {
                let frame = match reader.frame_within(patience.silence).await {
                    Ok(frame) => frame,
                    Err(ended) => return ended,
                };
                if let Err(ended) = self.take(frame) {
                    return ended;
                }
            }
        };
        tokio::select! {
            ended = read => ended,
            ended = write_frames(writer, &self.queue, patience, || self.next_ping()) => ended,
        }
    }

    /// Asks for a sign of life.
    pub(super) fn ping(&self) {
        self.queue.set_ping(self.next_ping());
    }

    fn next_ping(&self) -> Frame {
        let number = self.pings().leave(self.clock.monotonic());
        Frame::new(Kind::Ping, number, wall_clock(&self.clock))
    }

    fn take(&self, frame: Frame) -> Result<(), Ended> {
        match frame.kind {
            Kind::Reply => self.answer(frame.stream, Ok(frame.body)),
            Kind::Declined => {
                let why = String::from_utf8_lossy(&frame.body).into_owned();
                self.answer(frame.stream, Err(CallError::not_sent(why)));
            }
            Kind::Broken => self.answer(frame.stream, Err(CallError::Lost)),
            Kind::Ping => self.queue.set_pong(pong(&frame, &self.clock)),
            Kind::Pong => {
                let peer_wall_ms = read_wall_clock(&frame)?;
                let (now, wall_ms) = (self.clock.monotonic(), self.clock.wall_ms());
                self.pings().answered(frame.stream, peer_wall_ms, now, wall_ms);
            }
            other => return Err(Ended::OutOfTurn(format!("a {other:?} frame to who dialled"))),
        }
        Ok(())
    }

    fn answer(&self, stream: u64, answer: Result<Bytes, CallError>) {
        let under_way = self.calls().under_way.remove(&stream);
        // Nobody waits for a call that was cancelled; what it brings may matter all the same.
        if let Some(UnderWay { answer: sender, late, .. }) = under_way
            && let (Err(Ok(reply)), Some(late)) = (sender.send(answer), late)
        {
            late(reply);
        }
    }

    /// Ends every call that is under way: those that were not written yet were surely not executed.
    pub(super) fn end(&self) {
        let mut calls = self.calls();
        calls.ended = true;
        for (_, under_way) in calls.under_way.drain() {
            let error = match self.queue.withdraw(under_way.ticket) {
                true => CallError::not_sent("the connection broke before the call was written"),
                false => CallError::Lost,
            };
            let _ = under_way.answer.send(Err(error));
        }
    }

    pub(super) fn calls_under_way(&self) -> usize {
        self.calls().under_way.len()
    }

    pub(super) fn pings(&self) -> MutexGuard<'_, Pings> {
        self.pings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that waits. When it goes away, its call does.
pub(super) struct Waiting {
    dialled: Arc<Dialled>,
    stream: u64,
    answer: oneshot::Receiver<Result<Bytes, CallError>>,
    late: Option<LateReply>,
    has_left: bool,
}

impl Waiting {
    async fn answer_within(mut self, wait: Duration) -> Result<Bytes, CallError> {
        match tokio::time::timeout(wait, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_gone)) => Err(CallError::Lost),
            Err(_elapsed) => self.give_up(),
        }
    }

    /// Completes when the call is over, whatever came of it.
    pub(super) async fn end(mut self) {
        let _ = (&mut self.answer).await;
    }

    /// The time is over.
    fn give_up(&mut self) -> Result<Bytes, CallError> {
        match self.leave() {
            Some(true) => Err(CallError::not_sent("the peer took nothing in the time given")),
            Some(false) => Err(CallError::TimedOut),
            // Answered in this very moment.
            None => self.answer.try_recv().unwrap_or(Err(CallError::Lost)),
        }
    }

    /// Takes the call back, and says whether it was surely not written; `None` if it is over. If its
    /// answer is minded, the call stays known until the other side says what became of it.
    fn leave(&mut self) -> Option<bool> {
        self.has_left = true;
        let mut calls = self.dialled.calls();
        let ticket = calls.under_way.get(&self.stream)?.ticket;
        let withdrawn = self.dialled.queue.withdraw(ticket);
        if withdrawn || self.late.is_none() {
            calls.under_way.remove(&self.stream);
        }
        // Before anybody can answer: an answer must find nobody here, and go to who minds it.
        self.answer.close();
        drop(calls);
        if !withdrawn {
            self.dialled.queue.push_cancel(self.stream);
        }
        Some(withdrawn)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.has_left {
            self.leave();
        }
        self.answer.close();
        // It may have been answered, and nobody looked.
        if let (Ok(Ok(reply)), Some(late)) = (self.answer.try_recv(), &self.late) {
            late(reply);
        }
    }
}

/// The body of pings and pongs.
pub(super) fn wall_clock(clock: &Clock) -> Bytes {
    Bytes::copy_from_slice(&clock.wall_ms().to_le_bytes())
}

pub(super) fn pong(ping: &Frame, clock: &Clock) -> Frame {
    Frame::new(Kind::Pong, ping.stream, wall_clock(clock))
}

fn read_wall_clock(frame: &Frame) -> Result<u64, Ended> {
    match frame.body.first_chunk::<8>() {
        Some(bytes) => Ok(u64::from_le_bytes(*bytes)),
        None => Err(Ended::OutOfTurn("a pong without a clock".to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::connection::{PATIENCE, write_frame},
        *,
    };
    use futures_util::FutureExt;
    use tokio::{
        io::{DuplexStream, ReadHalf, WriteHalf},
        task::JoinHandle,
    };

    const WAIT: Duration = Duration::from_secs(30);

    fn dialled(clock: &Clock) -> Arc<Dialled> {
        let build = "test".to_string();
        let peer = PeerHello { cluster: 1, node: 2, boot: 3, build, rules: 1 };
        Arc::new(Dialled::new(peer, clock.clone(), BOUNDS))
    }

    /// The other side of a connection, played by hand.
    struct Far {
        reader: FrameReader<ReadHalf<DuplexStream>>,
        writer: WriteHalf<DuplexStream>,
    }

    impl Far {
        /// The next frame that is no sign of life.
        async fn frame(&mut self) -> Frame {
            loop {
                let frame = self.reader.frame().await.unwrap();
                if !matches!(frame.kind, Kind::Ping | Kind::Pong) {
                    return frame;
                }
            }
        }

        async fn send(&mut self, kind: Kind, stream: u64, body: &'static [u8]) {
            write_frame(&mut self.writer, &Frame::new(kind, stream, body)).await.unwrap();
        }
    }

    /// Runs a connection in the background; its end is what the task gives.
    fn connect(dialled: &Arc<Dialled>) -> (Far, tokio::task::JoinHandle<Ended>) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(near);
        let near = dialled.clone();
        let running = tokio::spawn(async move {
            let mut reader = FrameReader::new(reader);
            reader.trust();
            let ended = near.run(reader, writer, PATIENCE).await;
            near.end();
            ended
        });
        let (reader, writer) = tokio::io::split(far);
        (Far { reader: FrameReader::new(reader), writer }, running)
    }

    #[tokio::test(start_paused = true)]
    async fn answers_find_their_calls_in_any_order() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        let first = tokio::spawn(dialled.clone().call(Bytes::from("one"), WAIT));
        let one = far.frame().await;
        let second = tokio::spawn(dialled.clone().call(Bytes::from("two"), WAIT));
        let two = far.frame().await;
        assert_eq!((&one.body[..], &two.body[..]), (&b"one"[..], &b"two"[..]));
        far.send(Kind::Reply, two.stream, b"2").await;
        far.send(Kind::Reply, 77, b"for nobody").await;
        far.send(Kind::Reply, one.stream, b"1").await;
        assert_eq!(second.await.unwrap(), Ok(Bytes::from("2")));
        assert_eq!(first.await.unwrap(), Ok(Bytes::from("1")));
        assert_eq!(dialled.calls_under_way(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_is_told_to_the_other_side() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        let caller = tokio::spawn(dialled.clone().call(Bytes::from("long"), WAIT));
        let call = far.frame().await;
        caller.abort();
        assert_eq!(far.frame().await, Frame::new(Kind::Cancel, call.stream, Bytes::new()));
        assert_eq!(dialled.calls_under_way(), 0);
    }

    /// Calls, gives up, and tells what the other side was asked and what came late.
    fn minded(dialled: &Arc<Dialled>, wait: Duration) -> (JoinHandle<()>, Arc<Mutex<Vec<Bytes>>>) {
        let came = Arc::new(Mutex::new(Vec::new()));
        let late = {
            let came = came.clone();
            Arc::new(move |reply| came.lock().unwrap().push(reply))
        };
        let call = dialled.clone().call_minding(Bytes::from("claim"), wait, late);
        (tokio::spawn(async move { drop(call.await) }), came)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_too_late_goes_to_who_minds_it() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        // Its caller goes away, or its time is over.
        for wait in [WAIT, PATIENCE.ping_every] {
            let (caller, came) = minded(&dialled, wait);
            let call = far.frame().await;
            if wait == WAIT {
                caller.abort();
            }
            assert_eq!(far.frame().await.kind, Kind::Cancel);
            assert_eq!(dialled.calls_under_way(), 1);
            far.send(Kind::Reply, call.stream, b"a task").await;
            // Answers come in order, so the late one is there when this one is.
            let after = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
            let call = far.frame().await;
            far.send(Kind::Reply, call.stream, b"").await;
            after.await.unwrap().unwrap();
            assert_eq!(*came.lock().unwrap(), [Bytes::from("a task")]);
            assert_eq!(dialled.calls_under_way(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_looked_at_goes_to_who_minds_it() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        let came = Arc::new(Mutex::new(Vec::new()));
        let late: LateReply = {
            let came = came.clone();
            Arc::new(move |reply| came.lock().unwrap().push(reply))
        };
        let waiting = dialled.clone().begin_minding(Bytes::from("claim"), Some(late)).unwrap();
        let call = far.frame().await;
        far.send(Kind::Reply, call.stream, b"a task").await;
        let after = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
        let call = far.frame().await;
        far.send(Kind::Reply, call.stream, b"").await;
        after.await.unwrap().unwrap();
        assert!(came.lock().unwrap().is_empty());
        drop(waiting);
        assert_eq!(*came.lock().unwrap(), [Bytes::from("a task")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_is_forgotten_when_no_answer_will_come() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        let (caller, came) = minded(&dialled, WAIT);
        let call = far.frame().await;
        caller.abort();
        far.frame().await;
        far.send(Kind::Broken, call.stream, b"").await;
        let after = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
        let call = far.frame().await;
        far.send(Kind::Reply, call.stream, b"").await;
        after.await.unwrap().unwrap();
        assert_eq!((dialled.calls_under_way(), came.lock().unwrap().len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_declined_was_not_sent_and_what_broke_is_unknown() {
        let dialled = dialled(&Clock::system());
        let (mut far, _running) = connect(&dialled);
        for (kind, expected) in
            [(Kind::Declined, CallError::not_sent("too many")), (Kind::Broken, CallError::Lost)]
        {
            let caller = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
            let call = far.frame().await;
            far.send(kind, call.stream, b"too many").await;
            assert_eq!(caller.await.unwrap(), Err(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_time_is_over_is_unknown_once_it_was_written() {
        let dialled = dialled(&Clock::system());
        let (mut far, running) = connect(&dialled);
        // The other side keeps the connection alive, and answers nothing.
        let caller = tokio::spawn(dialled.clone().call(Bytes::new(), PATIENCE.ping_every));
        let call = far.frame().await;
        assert_eq!(caller.await.unwrap(), Err(CallError::TimedOut));
        assert_eq!(far.frame().await, Frame::new(Kind::Cancel, call.stream, Bytes::new()));
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_never_written_was_surely_not_executed() {
        let dialled = dialled(&Clock::system());
        // Nothing runs the connection, so nothing is written.
        let timed_out = dialled.clone().call(Bytes::new(), Duration::from_millis(10)).await;
        assert!(matches!(timed_out, Err(CallError::NotSent { .. })), "{timed_out:?}");

        let call = dialled.clone().call(Bytes::new(), WAIT);
        tokio::pin!(call);
        assert!((&mut call).now_or_never().is_none());
        dialled.end();
        let broken = call.await;
        assert!(matches!(broken, Err(CallError::NotSent { .. })), "{broken:?}");
        let late = dialled.clone().call(Bytes::new(), WAIT).await;
        assert!(matches!(late, Err(CallError::NotSent { .. })), "{late:?}");
        assert_eq!(dialled.queue.waiting(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_were_written_are_lost_with_their_connection() {
        let dialled = dialled(&Clock::system());
        let (mut far, running) = connect(&dialled);
        let caller = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
        far.frame().await;
        drop(far);
        assert_eq!(caller.await.unwrap(), Err(CallError::Lost));
        assert!(matches!(running.await.unwrap(), Ended::Closed | Ended::Broke(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_and_the_size_of_calls_are_bounded() {
        let dialled = dialled(&Clock::system());
        let too_large = Bytes::from(vec![0; limits::PEER_FRAME_BYTES_MAX]);
        let refused = dialled.clone().call(too_large, WAIT).await;
        assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");

        let waiting: Vec<Waiting> = (0..limits::PEER_CALLS_MAX)
            .map(|_| dialled.clone().begin(Bytes::new()).unwrap())
            .collect();
        let refused = dialled.clone().call(Bytes::new(), WAIT).await;
        assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
        drop(waiting);
        assert_eq!((dialled.calls_under_way(), dialled.queue.waiting()), (0, (0, 0)));

        let piece = Bytes::from(vec![0; 20 << 20]);
        let waiting: Vec<_> = (0..4).map(|_| dialled.clone().begin(piece.clone())).collect();
        assert_eq!(waiting.iter().filter(|begun| begun.is_ok()).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_whose_clock_is_an_hour_ahead_is_found_out() {
        let clock = Clock::manual(1_000_000);
        let dialled = dialled(&clock);
        let (mut far, _running) = connect(&dialled);
        let ping = far.reader.frame().await.unwrap();
        assert_eq!((ping.kind, &ping.body[..]), (Kind::Ping, &1_000_000u64.to_le_bytes()[..]));
        clock.advance(Duration::from_millis(20));
        let body = Bytes::copy_from_slice(&4_600_010u64.to_le_bytes());
        let pong = Frame::new(Kind::Pong, ping.stream, body);
        write_frame(&mut far.writer, &pong).await.unwrap();
        // Answers come in order, so this one is behind the pong.
        let caller = tokio::spawn(dialled.clone().call(Bytes::new(), WAIT));
        let call = far.frame().await;
        far.send(Kind::Reply, call.stream, b"").await;
        caller.await.unwrap().unwrap();
        assert_eq!(dialled.pings().clock_skew_ms(), Some(3_600_000));
        assert_eq!(dialled.pings().round_trip(), Some(Duration::from_millis(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_only_a_dialer_sends_end_the_connection() {
        for kind in [Kind::Call, Kind::Raft, Kind::Cancel, Kind::Hello, Kind::Welcome] {
            let dialled = dialled(&Clock::system());
            let (mut far, running) = connect(&dialled);
            far.send(kind, 1, b"").await;
            let ended = running.await.unwrap();
            assert!(matches!(ended, Ended::OutOfTurn(_)), "{kind:?}: {ended}");
        }
    }
}
