//! Calls: an open connection that this node dialled, and the calls under way on it.
//!
//! Invariant: a call that ends with [`CallError::NotSent`] was surely not executed: its frame was
//! never handed to the connection, or the other side declined it. Each call is answered once, at
//! the latest when the connection ends. A caller that goes away leaves nothing behind: its call is
//! taken back, or the other side is told.

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
    /// It was not sent, for as many calls as may are parked at the peer already: asking again soon,
    /// or somebody else, helps nothing.
    #[error("the call was not sent: {parked} calls wait at the peer, which is the limit")]
    TooManyParked {
        /// How many.
        parked: usize,
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

/// What a call may be beside one that is answered soon and that nobody misses the answer of.
#[derive(Clone, Default)]
pub struct CallOptions {
    /// It waits on the other side until something happens there. Those are bounded by themselves,
    /// so that however many wait, what must be done soon still gets through.
    pub parks: bool,
    /// Takes the answer if nobody waits for it when it comes: what it hands over must not get lost.
    /// The call is counted as under way until then.
    pub late: Option<LateReply>,
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("parks", &self.parks).finish_non_exhaustive()
    }
}

/// How many calls may be under way on one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallsMax {
    pub(super) all: usize,
    /// Those of them that park.
    pub(super) parked: usize,
}

pub(super) const CALLS_MAX: CallsMax =
    CallsMax { all: limits::PEER_CALLS_MAX, parked: limits::PEER_PARKED_CALLS_MAX };

/// What waits at most for a connection that this node dialled.
pub(super) const BOUNDS: Bounds = Bounds {
    raft_frames_max: limits::PEER_RAFT_FRAMES_MAX,
    raft_bytes_max: limits::PEER_RAFT_BYTES_MAX,
    tell_bytes_max: limits::PEER_TELL_BYTES_MAX,
    notice_bytes_max: 0,
    bulk_bytes_max: limits::PEER_CALL_BYTES_MAX,
};

/// A connection that this node dialled. It carries Raft messages and calls there, and answers back.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) peer: PeerHello,
    /// Wall time of the handshake.
    pub(super) since_ms: u64,
    pub(super) queue: SendQueue,
    calls_max: CallsMax,
    calls: Mutex<Calls>,
    pings: Mutex<Pings>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Calls {
    ended: bool,
    next_stream: u64,
    under_way: HashMap<u64, UnderWay>,
    /// Those under way that park.
    parked: usize,
}

impl Calls {
    fn remove(&mut self, stream: u64) -> Option<UnderWay> {
        let removed = self.under_way.remove(&stream)?;
        self.parked -= usize::from(removed.parks);
        Some(removed)
    }
}

struct UnderWay {
    ticket: Ticket,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
    parks: bool,
    late: Option<LateReply>,
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Dialled {
    pub(super) fn new(peer: PeerHello, clock: Clock, calls_max: CallsMax) -> Dialled {
        Dialled {
            peer,
            since_ms: clock.wall_ms(),
            queue: SendQueue::new(BOUNDS),
            calls_max,
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
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        self.begin(request, options)?.answer_within(wait).await
    }

    /// Sends a call. Dropping what this gives takes the call back, or cancels it on the other side.
    fn begin(
        self: Arc<Dialled>,
        request: Bytes,
        CallOptions { parks, late }: CallOptions,
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
        if parks && calls.parked >= self.calls_max.parked {
            return Err(CallError::TooManyParked { parked: calls.parked });
        }
        if calls.under_way.len() >= self.calls_max.all {
            return Err(CallError::not_sent("too many calls to the peer are under way"));
        }
        let stream = calls.next_stream + 1;
        let Ok(ticket) = self.queue.push_bulk(Frame::new(Kind::Call, stream, request)) else {
            return Err(CallError::not_sent("too much waits for the peer already"));
        };
        calls.next_stream = stream;
        calls.parked += usize::from(parks);
        let under_way = UnderWay { ticket, answer: sender, parks, late: late.clone() };
        calls.under_way.insert(stream, under_way);
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
        let under_way = self.calls().remove(stream);
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
        (calls.ended, calls.parked) = (true, 0);
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

    /// The time is over.
    fn give_up(&mut self) -> Result<Bytes, CallError> {
        match self.leave() {
            Some(true) => Err(CallError::not_sent("the peer took nothing in the time given")),
            Some(false) => Err(CallError::TimedOut),
            // Answered in this very moment.
            None => self.answer.try_recv().unwrap_or(Err(CallError::Lost)),
        }
    }

    /// Takes the call back, and says whether it was surely not written; `None` if it is over. If
    /// its answer is minded, the call stays known until the other side says what became of it.
    fn leave(&mut self) -> Option<bool> {
        self.has_left = true;
        let mut calls = self.dialled.calls();
        let ticket = calls.under_way.get(&self.stream)?.ticket;
        let withdrawn = self.dialled.queue.withdraw(ticket);
        if withdrawn || self.late.is_none() {
            calls.remove(self.stream);
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
mod tests;
