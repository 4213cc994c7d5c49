//! Serving: the calls of a peer that dialled this node.
//!
//! Invariants: a call is executed once, or declined and not begun. A call that is cancelled, or
//! whose connection ends, is dropped. While a peer does not read its answers, its new calls are not
//! begun, but its Raft messages and other messages are still taken. Finished calls wait for room
//! for their answers; a peer that reads no answers is cut off.

use super::{
    PeerHandler,
    calls::{pong, wall_clock},
    connection::{Ended, FrameReader, Patience, write_frames},
    frame::{Frame, Kind, fits},
    queue::{Bounds, SendQueue},
};
use crate::{clock::Clock, limits};
use bytes::Bytes;
use futures_util::FutureExt;
use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use taskyard_replica::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    task::{AbortHandle, JoinSet},
};

/// What one peer may have under way here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub(super) calls_max: usize,
    pub(super) request_bytes_max: usize,
    /// Bytes of unread answers above which no call of the peer is begun.
    pub(super) answer_bytes_soft_max: usize,
    /// Bytes of unread answers above which further answers wait for room.
    pub(super) answer_bytes_max: usize,
}

pub(super) const ALLOWANCE: Allowance = Allowance {
    calls_max: limits::PEER_CALLS_MAX,
    request_bytes_max: limits::PEER_SERVED_BYTES_MAX,
    answer_bytes_soft_max: limits::PEER_ANSWER_BYTES_SOFT_MAX,
    answer_bytes_max: limits::PEER_ANSWER_BYTES_MAX,
};

#[derive(Debug)]
struct Served {
    allowance: Allowance,
    queue: SendQueue,
    under_way: Mutex<UnderWay>,
    /// Calls wait in turn until answers are read, before they are begun.
    turn: tokio::sync::Mutex<()>,
    /// There was no room even for a notice.
    overflowed: Notify,
}

#[derive(Debug, Default)]
struct UnderWay {
    calls: HashMap<u64, (AbortHandle, usize)>,
    request_bytes: usize,
    /// Finished calls whose answers wait for room.
    answering: usize,
}

/// Serves a peer until its connection ends, and returns why.
pub(super) async fn serve(
    (mut reader, writer): (FrameReader<impl AsyncRead + Unpin>, impl AsyncWrite + Unpin),
    from: NodeId,
    handler: Arc<dyn PeerHandler>,
    (patience, allowance): (Patience, Allowance),
    clock: Clock,
) -> Ended {
    let bounds = Bounds {
        raft_frames_max: 0,
        raft_bytes_max: 0,
        tell_bytes_max: 0,
        notice_bytes_max: allowance.answer_bytes_soft_max,
        bulk_bytes_max: allowance.answer_bytes_max,
    };
    let served = Arc::new(Served {
        allowance,
        queue: SendQueue::new(bounds),
        under_way: Mutex::default(),
        turn: tokio::sync::Mutex::default(),
        overflowed: Notify::new(),
    });
    // Dropped with the connection, and with it every call under way.
    let mut tasks = JoinSet::new();
    let read = async {
        loop {
            let frame = match reader.frame_within(patience.silence).await {
                Ok(frame) => frame,
                Err(ended) => return ended,
            };
            while tasks.try_join_next().is_some() {}
            match frame.kind {
                Kind::Raft => handler.raft(from, frame.stream, frame.body),
                Kind::Tell => handler.told(from, frame.body),
                Kind::Call => {
                    let (handler, request) = (handler.clone(), frame.body);
                    let (stream, bytes) = (frame.stream, request.len());
                    let call = move || handler.call(from, request);
                    if let Err(ended) = served.begin(&mut tasks, stream, bytes, call) {
                        return ended;
                    }
                }
                Kind::Cancel => served.cancel(frame.stream),
                Kind::Ping => served.queue.set_pong(pong(&frame, &clock)),
                Kind::Pong => {}
                other => return Ended::OutOfTurn(format!("a {other:?} frame to who was dialled")),
            }
        }
    };
    let ping = || Frame::new(Kind::Ping, 0, wall_clock(&clock));
    tokio::select! {
        ended = read => ended,
        ended = write_frames(writer, &served.queue, patience, ping) => ended,
        () = served.overflowed.notified() => Ended::AnswersUnread,
    }
}

impl Served {
    fn begin<F>(
        self: &Arc<Served>,
        tasks: &mut JoinSet<()>,
        stream: u64,
        bytes: usize,
        call: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), Ended>
    where
        F: Future<Output = Bytes> + Send + 'static,
    {
        if self.under_way().calls.contains_key(&stream) {
            return Err(Ended::OutOfTurn(format!("call {stream} twice")));
        }
        // Calls are begun one after the other, so that the room found here stays free.
        if self.is_full(bytes) {
            let why = "too many calls are under way on the other side";
            self.notice(Frame::new(Kind::Declined, stream, why));
            return Ok(());
        }
        let served = self.clone();
        let mut under_way = self.under_way();
        // The task can't end before it is listed, because its end takes the same lock.
        let task = tasks.spawn(async move {
            served.until_answers_read().await;
            // A handler's panic is in the log; its caller must still get an answer.
            let answer = AssertUnwindSafe(async { call().await }).catch_unwind().await;
            if !served.under_way().begin_answer(stream) {
                return;
            }
            let answer = match answer {
                Ok(body) if fits(body.len()) => Frame::new(Kind::Reply, stream, body),
                Ok(body) => {
                    tracing::error!(bytes = body.len(), "an answer to a peer does not fit a frame");
                    Frame::new(Kind::Broken, stream, Bytes::new())
                }
                Err(_panic) => Frame::new(Kind::Broken, stream, Bytes::new()),
            };
            // A cancellation no longer stops the call: what its answer hands over must arrive.
            served.queue.push_bulk_in_turn(answer).await;
            served.under_way().answering -= 1;
        });
        under_way.request_bytes += bytes;
        under_way.calls.insert(stream, (task, bytes));
        Ok(())
    }

    fn is_full(&self, bytes: usize) -> bool {
        let under_way = self.under_way();
        under_way.calls.len() + under_way.answering >= self.allowance.calls_max
            || under_way.request_bytes + bytes > self.allowance.request_bytes_max
    }

    /// Cancels a call. Tells the caller that no answer will come, unless one is on its way, because
    /// a receiver for late answers must know when to forget the call.
    fn cancel(&self, stream: u64) {
        let task = self.under_way().remove(stream);
        if let Some(task) = task {
            task.abort();
            self.notice(Frame::new(Kind::Broken, stream, Bytes::new()));
        }
    }

    /// Waits until the peer has read enough answers to begin a call. Calls wait one after the
    /// other.
    async fn until_answers_read(&self) {
        let _turn = self.turn.lock().await;
        self.queue.drained_to(self.allowance.answer_bytes_soft_max).await;
    }

    /// Queues a notice that a call has no answer. A peer that keeps its bounds and reads never has
    /// too many.
    fn notice(&self, frame: Frame) {
        if self.queue.push_notice(frame).is_err() {
            self.overflowed.notify_one();
        }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    fn remove(&mut self, stream: u64) -> Option<AbortHandle> {
        let (task, bytes) = self.calls.remove(&stream)?;
        self.request_bytes -= bytes;
        Some(task)
    }

    /// Marks a finished call as answering; `false` if it was cancelled.
    fn begin_answer(&mut self, stream: u64) -> bool {
        let is_wanted = self.remove(stream).is_some();
        self.answering += usize::from(is_wanted);
        is_wanted
    }
}
