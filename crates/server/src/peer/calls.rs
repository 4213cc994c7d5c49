//! Calls: a connection that this node dialled, and the calls under way on it.
//!
//! Invariant: a call that ends with [`CallError::NotSent`] was not executed: its frame was never
//! written, or the other side declined it. Each call gets one answer, at the latest when the
//! connection ends. A caller that goes away leaves nothing behind: its call is withdrawn, or
//! cancelled on the other side.

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
    /// The call was not executed: it may be sent again, here or elsewhere.
    #[error("the call was not sent: {why}")]
    NotSent {
        /// The reason, for people.
        why: Cow<'static, str>,
    },
    /// The call was not sent, because the most calls are already parked at the peer. Another try
    /// soon does not help.
    #[error("the call was not sent: {parked} calls wait at the peer, which is the limit")]
    TooManyParked {
        /// How many calls are parked there.
        parked: usize,
    },
    /// The connection broke during the call: whether it was executed is unknown.
    #[error("the connection broke during the call; whether it was executed is unknown")]
    Lost,
    /// No answer came in time: whether the call was executed is unknown.
    #[error("no answer came in time; whether the call was executed is unknown")]
    TimedOut,
}

impl CallError {
    pub(super) fn not_sent(why: impl Into<Cow<'static, str>>) -> CallError {
        CallError::NotSent { why: why.into() }
    }
}

/// Receives an answer that came after its caller had gone. Called on the network's threads: it may
/// not block.
pub type LateReply = Arc<dyn Fn(Bytes) + Send + Sync>;

/// The options of a call.
#[derive(Clone, Default)]
pub struct CallOptions {
    /// The call may be parked on the other side until something happens there. Parked calls have a
    /// bound of their own, so that urgent calls still get through.
    pub parks: bool,
    /// Receives the answer if the caller has gone, because what the answer hands over must not be
    /// lost. Until then the call counts as under way.
    pub late: Option<LateReply>,
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("parks", &self.parks).finish_non_exhaustive()
    }
}

/// The most calls under way on one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallsMax {
    pub(super) all: usize,
    /// The most of them that may be parked.
    pub(super) parked: usize,
}

pub(super) const CALLS_MAX: CallsMax =
    CallsMax { all: limits::PEER_CALLS_MAX, parked: limits::PEER_PARKED_CALLS_MAX };

/// The bounds of the queue of a dialled connection.
pub(super) const BOUNDS: Bounds = Bounds {
    raft_frames_max: limits::PEER_RAFT_FRAMES_MAX,
    raft_bytes_max: limits::PEER_RAFT_BYTES_MAX,
    tell_bytes_max: limits::PEER_TELL_BYTES_MAX,
    notice_bytes_max: 0,
    bulk_bytes_max: limits::PEER_CALL_BYTES_MAX,
};

/// A connection that this node dialled. It carries Raft messages and calls to the peer, and answers
/// back.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) peer: PeerHello,
    /// The wall time of the handshake.
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
    /// The calls under way that may be parked.
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

    pub(super) async fn call(
        self: Arc<Dialled>,
        request: Bytes,
        wait: Duration,
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        self.begin(request, options)?.answer_within(wait).await
    }

    /// Queues a call. Dropping the result withdraws the call, or cancels it on the other side.
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
            return Err(CallError::not_sent("the queue to the peer is full"));
        };
        calls.next_stream = stream;
        calls.parked += usize::from(parks);
        let under_way = UnderWay { ticket, answer: sender, parks, late: late.clone() };
        calls.under_way.insert(stream, under_way);
        drop(calls);
        Ok(Waiting { dialled: self, stream, answer, late, is_withdrawn: false })
    }

    /// Runs the connection until it ends, and returns why.
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

    /// Asks the peer for a sign of life.
    pub(super) fn ping(&self) {
        self.queue.set_ping(self.next_ping());
    }

    fn next_ping(&self) -> Frame {
        let number = self.pings().begin(self.clock.monotonic());
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
        // A cancelled call has no caller, but its late answer may still matter.
        if let Some(UnderWay { answer: sender, late, .. }) = under_way
            && let (Err(Ok(reply)), Some(late)) = (sender.send(answer), late)
        {
            late(reply);
        }
    }

    /// Ends all calls under way: those that were not written yet were not executed.
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

/// The caller's side of a call; dropping it ends the call.
pub(super) struct Waiting {
    dialled: Arc<Dialled>,
    stream: u64,
    answer: oneshot::Receiver<Result<Bytes, CallError>>,
    late: Option<LateReply>,
    is_withdrawn: bool,
}

impl Waiting {
    async fn answer_within(mut self, wait: Duration) -> Result<Bytes, CallError> {
        match tokio::time::timeout(wait, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_gone)) => Err(CallError::Lost),
            Err(_elapsed) => self.give_up(),
        }
    }

    /// The wait is over.
    fn give_up(&mut self) -> Result<Bytes, CallError> {
        match self.withdraw() {
            Some(true) => Err(CallError::not_sent("the call was not written in the time given")),
            Some(false) => Err(CallError::TimedOut),
            // The answer came at this very moment.
            None => self.answer.try_recv().unwrap_or(Err(CallError::Lost)),
        }
    }

    /// Withdraws the call. Returns whether it was certainly not written; `None` if it is already
    /// answered. A call with a receiver for late answers stays listed until the other side answers.
    fn withdraw(&mut self) -> Option<bool> {
        self.is_withdrawn = true;
        let mut calls = self.dialled.calls();
        let ticket = calls.under_way.get(&self.stream)?.ticket;
        let withdrawn = self.dialled.queue.withdraw(ticket);
        if withdrawn || self.late.is_none() {
            calls.remove(self.stream);
        }
        // First, so that an answer finds the channel closed and goes to the receiver for late
        // answers.
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
        if !self.is_withdrawn {
            self.withdraw();
        }
        self.answer.close();
        // The answer may have come without being read.
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
