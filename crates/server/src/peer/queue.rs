//! SendQueue: the frames that wait to be written to one connection.
//!
//! Pings leave first, then Raft messages, then messages without an answer, then calls and answers,
//! so that no large call makes a leader or a worker look dead.
//!
//! Invariant: every lane is bounded, and no lane blocks another. When a lane is full, a new Raft
//! message replaces the oldest, because Raft sends again; a new message without an answer does the
//! same; a call is refused; an answer waits. A ping replaces the one before.

use super::frame::{Frame, Kind};
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, Semaphore};

/// About the bytes of one write.
const WRITE_BYTES: usize = 256 << 10;

/// Bodies up to this length are copied together, so that many frames are one write.
const COPY_BYTES_MAX: usize = 32 << 10;

/// About the memory of a queued frame beside its bytes.
const WAITING_BYTES: usize = 96;

/// The bounds of the lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) raft_frames_max: usize,
    pub(super) raft_bytes_max: usize,
    pub(super) tell_bytes_max: usize,
    pub(super) notice_bytes_max: usize,
    /// Calls and answers together.
    pub(super) bulk_bytes_max: usize,
}

#[derive(Debug)]
pub(super) struct SendQueue {
    bounds: Bounds,
    lanes: Mutex<Lanes>,
    /// The free bytes for calls and answers. Waiting answers get room in turn.
    room: Semaphore,
    /// There are frames to write.
    filled: Notify,
    /// Calls and answers were taken out.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Lanes {
    pong: Option<Frame>,
    ping: Option<Frame>,
    /// At most one per call that was written and not answered.
    cancels: VecDeque<u64>,
    raft: VecDeque<Frame>,
    raft_bytes: usize,
    tells: VecDeque<Frame>,
    tell_bytes: usize,
    notices: VecDeque<Frame>,
    notice_bytes: usize,
    /// By ticket, in order.
    bulk: BTreeMap<u64, Frame>,
    bulk_bytes: usize,
    next_ticket: u64,
}

/// The place of a call or an answer in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// There is no room for another call or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl SendQueue {
    pub(super) fn new(bounds: Bounds) -> SendQueue {
        SendQueue {
            bounds,
            lanes: Mutex::default(),
            room: Semaphore::new(bounds.bulk_bytes_max),
            filled: Notify::new(),
            drained: Notify::new(),
        }
    }

    /// Queues a Raft message. Returns how many older ones were dropped for it.
    pub(super) fn push_raft(&self, frame: Frame) -> u64 {
        let mut lanes = self.lanes();
        lanes.raft_bytes += cost(&frame);
        lanes.raft.push_back(frame);
        let mut dropped = 0;
        while lanes.raft.len() > self.bounds.raft_frames_max
            || lanes.raft_bytes > self.bounds.raft_bytes_max
        {
            let Some(oldest) = lanes.raft.pop_front() else { break };
            lanes.raft_bytes -= cost(&oldest);
            dropped += 1;
        }
        drop(lanes);
        self.filled.notify_one();
        dropped
    }

    pub(super) fn forget_raft(&self, group: u64) {
        let mut lanes = self.lanes();
        lanes.raft.retain(|frame| frame.stream != group);
        lanes.raft_bytes = lanes.raft.iter().map(cost).sum();
    }

    /// Queues a message without an answer. The newest is always taken, whatever its size; older
    /// ones are dropped for it.
    pub(super) fn push_tell(&self, frame: Frame) {
        let mut lanes = self.lanes();
        lanes.tell_bytes += cost(&frame);
        lanes.tells.push_back(frame);
        while lanes.tell_bytes > self.bounds.tell_bytes_max && lanes.tells.len() > 1 {
            let Some(oldest) = lanes.tells.pop_front() else { break };
            lanes.tell_bytes -= cost(&oldest);
        }
        drop(lanes);
        self.filled.notify_one();
    }

    /// Queues a notice that a call has no answer. A notice can't wait for room.
    pub(super) fn push_notice(&self, frame: Frame) -> Result<(), Full> {
        let mut lanes = self.lanes();
        let bytes = lanes.notice_bytes + cost(&frame);
        if bytes > self.bounds.notice_bytes_max {
            return Err(Full);
        }
        lanes.notice_bytes = bytes;
        lanes.notices.push_back(frame);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Queues a call. An empty queue takes a call of any size.
    pub(super) fn push_bulk(&self, frame: Frame) -> Result<Ticket, Full> {
        let room = self.room.try_acquire_many(self.share(&frame)).map_err(|_full| Full)?;
        room.forget();
        Ok(self.push(frame))
    }

    /// Queues an answer once there is room for it, in turn with other answers.
    pub(super) async fn push_bulk_in_turn(&self, frame: Frame) {
        let room = self.room.acquire_many(self.share(&frame)).await;
        room.expect("nobody closes it").forget();
        self.push(frame);
    }

    fn push(&self, frame: Frame) -> Ticket {
        let mut lanes = self.lanes();
        let ticket = lanes.next_ticket;
        lanes.next_ticket += 1;
        lanes.bulk_bytes += cost(&frame);
        lanes.bulk.insert(ticket, frame);
        drop(lanes);
        self.filled.notify_one();
        Ticket(ticket)
    }

    /// Withdraws a call; `false` if it may have been written.
    pub(super) fn withdraw(&self, ticket: Ticket) -> bool {
        let mut lanes = self.lanes();
        let Some(frame) = lanes.bulk.remove(&ticket.0) else { return false };
        self.free_room(&mut lanes, &frame);
        true
    }

    /// Frees the room of a call or an answer.
    fn free_room(&self, lanes: &mut Lanes, frame: &Frame) {
        lanes.bulk_bytes -= cost(frame);
        self.room.add_permits(self.share(frame) as usize);
    }

    /// The room that a frame takes; all room if it is larger.
    fn share(&self, frame: &Frame) -> u32 {
        u32::try_from(cost(frame).min(self.bounds.bulk_bytes_max)).unwrap_or(u32::MAX)
    }

    /// Queues the cancellation of a call that was written.
    pub(super) fn push_cancel(&self, stream: u64) {
        self.lanes().cancels.push_back(stream);
        self.filled.notify_one();
    }

    /// Sets the next ping, which replaces an unwritten one.
    pub(super) fn set_ping(&self, frame: Frame) {
        self.lanes().ping = Some(frame);
        self.filled.notify_one();
    }

    /// Sets the answer to the newest ping of the other side.
    pub(super) fn set_pong(&self, frame: Frame) {
        self.lanes().pong = Some(frame);
        self.filled.notify_one();
    }

    /// Waits until there may be something to write.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Waits until at most `bytes` of calls and answers are queued.
    pub(super) async fn drained_to(&self, bytes: usize) {
        loop {
            let drained = self.drained.notified();
            if self.lanes().bulk_bytes <= bytes {
                return;
            }
            drained.await;
        }
    }

    /// The number and bytes of queued frames.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let lanes = self.lanes();
        let frames = lanes.raft.len() + lanes.tells.len() + lanes.notices.len() + lanes.bulk.len();
        let bytes = lanes.raft_bytes + lanes.tell_bytes + lanes.notice_bytes + lanes.bulk_bytes;
        (frames, bytes)
    }

    /// Takes about one write's worth of frames, most urgent first. Includes at least one message
    /// without an answer, and one call or answer, so that Raft messages do not starve them.
    pub(super) fn take(&self) -> Vec<Bytes> {
        let mut batch = Batch::default();
        let mut lanes = self.lanes();
        let signs = [lanes.pong.take(), lanes.ping.take()];
        signs.into_iter().flatten().for_each(|frame| batch.push(&frame));
        while let Some(stream) = lanes.cancels.pop_front() {
            batch.push(&Frame::new(Kind::Cancel, stream, Bytes::new()));
        }
        while batch.bytes < WRITE_BYTES {
            let Some(frame) = lanes.raft.pop_front() else { break };
            lanes.raft_bytes -= cost(&frame);
            batch.push(&frame);
        }
        while let Some(frame) = lanes.tells.pop_front() {
            lanes.tell_bytes -= cost(&frame);
            batch.push(&frame);
            if batch.bytes >= WRITE_BYTES {
                break;
            }
        }
        while let Some(frame) = lanes.notices.pop_front() {
            lanes.notice_bytes -= cost(&frame);
            batch.push(&frame);
        }
        while let Some((_, frame)) = lanes.bulk.pop_first() {
            self.free_room(&mut lanes, &frame);
            batch.push(&frame);
            if batch.bytes >= WRITE_BYTES {
                break;
            }
        }
        drop(lanes);
        self.drained.notify_one();
        batch.finish()
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cost(frame: &Frame) -> usize {
    frame.wire_bytes() + WAITING_BYTES
}

/// Frames as pieces to write: small frames together, large bodies uncopied.
#[derive(Default)]
struct Batch {
    pieces: Vec<Bytes>,
    gathered: BytesMut,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, frame: &Frame) {
        self.bytes += frame.wire_bytes();
        if frame.body.len() <= COPY_BYTES_MAX {
            frame.write(&mut self.gathered);
            return;
        }
        frame.write_head(&mut self.gathered);
        self.pieces.push(self.gathered.split().freeze());
        self.pieces.push(frame.body.clone());
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.gathered.is_empty() {
            self.pieces.push(self.gathered.freeze());
        }
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::{super::frame::Decoder, *};
    use futures_util::FutureExt;

    const BOUNDS: Bounds = Bounds {
        raft_frames_max: 1_000,
        raft_bytes_max: 1 << 20,
        tell_bytes_max: 1 << 20,
        notice_bytes_max: 1 << 20,
        bulk_bytes_max: 1 << 20,
    };

    fn raft(group: u64, bytes: usize) -> Frame {
        Frame::new(Kind::Raft, group, vec![0; bytes])
    }

    fn call(stream: u64, bytes: usize) -> Frame {
        Frame::new(Kind::Call, stream, vec![0; bytes])
    }

    /// Kinds and streams of the frames of one write.
    fn taken(queue: &SendQueue) -> Vec<(Kind, u64)> {
        let mut bytes = BytesMut::new();
        queue.take().iter().for_each(|piece| bytes.extend_from_slice(piece));
        let decoder = Decoder { frame_bytes_max: 24 << 20 };
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next(&mut bytes).unwrap() {
            frames.push((frame.kind, frame.stream));
        }
        assert!(bytes.is_empty());
        frames
    }

    #[test]
    fn dropping_one_groups_messages_keeps_the_others() {
        let queue = SendQueue::new(BOUNDS);
        for group in [7, 8, 7, 9] {
            queue.push_raft(raft(group, 10));
        }
        queue.forget_raft(7);
        let cost = cost(&raft(8, 10));
        assert_eq!(queue.waiting(), (2, 2 * cost));
        assert_eq!(taken(&queue), [(Kind::Raft, 8), (Kind::Raft, 9)]);
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn the_urgent_leaves_first_and_the_rest_in_order() {
        let queue = SendQueue::new(BOUNDS);
        queue.push_bulk(call(1, 100_000)).unwrap();
        queue.push_bulk(call(2, 10)).unwrap();
        queue.push_raft(raft(7, 10));
        queue.push_raft(raft(8, 10));
        queue.push_cancel(5);
        queue.set_ping(Frame::new(Kind::Ping, 1, Bytes::new()));
        queue.set_ping(Frame::new(Kind::Ping, 2, Bytes::new()));
        queue.set_pong(Frame::new(Kind::Pong, 9, Bytes::new()));
        let expected = [
            (Kind::Pong, 9),
            (Kind::Ping, 2),
            (Kind::Cancel, 5),
            (Kind::Raft, 7),
            (Kind::Raft, 8),
            (Kind::Call, 1),
            (Kind::Call, 2),
        ];
        assert_eq!(taken(&queue), expected);
        assert_eq!(queue.waiting(), (0, 0));
        assert!(queue.take().is_empty());
    }

    #[test]
    fn the_oldest_raft_messages_go_when_there_are_too_many_or_too_much() {
        let queue = SendQueue::new(Bounds { raft_frames_max: 3, ..BOUNDS });
        let dropped: u64 = (0..5).map(|group| queue.push_raft(raft(group, 1))).sum();
        assert_eq!(dropped, 2);
        assert_eq!(taken(&queue), [(Kind::Raft, 2), (Kind::Raft, 3), (Kind::Raft, 4)]);

        let queue = SendQueue::new(Bounds { raft_bytes_max: 3_500, ..BOUNDS });
        let dropped: u64 = (0..5).map(|group| queue.push_raft(raft(group, 1_000))).sum();
        assert_eq!(dropped, 2);
        assert_eq!(taken(&queue), [(Kind::Raft, 2), (Kind::Raft, 3), (Kind::Raft, 4)]);
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn every_write_has_a_message_without_answer_and_a_full_lane_drops_the_oldest() {
        let tell = |number, bytes| Frame::new(Kind::Tell, number, vec![0; bytes]);
        let queue = SendQueue::new(Bounds { tell_bytes_max: 3_500, ..BOUNDS });
        for number in 0..30 {
            queue.push_raft(raft(number, 10_000));
        }
        queue.push_bulk(call(1, 10)).unwrap();
        (0..5).for_each(|number| queue.push_tell(tell(number, 1_000)));
        let sent = |frames: Vec<(Kind, u64)>| -> Vec<u64> {
            let told = frames.iter().filter(|(kind, _)| *kind == Kind::Tell);
            told.map(|(_, number)| *number).collect()
        };
        // One such message beside a full write of Raft messages.
        assert_eq!(sent(taken(&queue)), [2]);
        assert_eq!(sent(taken(&queue)), [3, 4]);
        assert_eq!(queue.waiting(), (0, 0));
        queue.push_tell(tell(9, 5_000));
        assert_eq!(taken(&queue), [(Kind::Tell, 9)], "one alone is sent, whatever its size");
    }

    #[test]
    fn a_call_beyond_the_bound_is_refused_and_one_alone_never() {
        let queue = SendQueue::new(Bounds { bulk_bytes_max: 1_000, ..BOUNDS });
        queue.push_bulk(call(1, 5_000)).unwrap();
        assert_eq!(queue.push_bulk(call(2, 1)), Err(Full));
        assert_eq!(taken(&queue), [(Kind::Call, 1)]);
        queue.push_bulk(call(3, 1)).unwrap();
    }

    #[test]
    fn a_call_can_be_taken_back_until_it_is_written() {
        let queue = SendQueue::new(BOUNDS);
        let first = queue.push_bulk(call(1, 10)).unwrap();
        let second = queue.push_bulk(call(2, 10)).unwrap();
        assert!(queue.withdraw(first));
        assert!(!queue.withdraw(first));
        assert_eq!(taken(&queue), [(Kind::Call, 2)]);
        assert!(!queue.withdraw(second));
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn one_write_is_bounded_and_neither_lane_starves() {
        let queue = SendQueue::new(Bounds { raft_bytes_max: 8 << 20, ..BOUNDS });
        for number in 0..100 {
            queue.push_raft(raft(number, 10_000));
        }
        for number in 0..3 {
            queue.push_bulk(call(number, 100_000)).unwrap();
        }
        let (mut writes, mut found) = (Vec::new(), 0);
        while found < 103 {
            writes.push(taken(&queue));
            found += writes.last().unwrap().len();
        }
        let calls = |write: &[(Kind, u64)]| write.iter().filter(|(k, _)| *k == Kind::Call).count();
        assert_eq!(writes.iter().map(|write| calls(write)).collect::<Vec<_>>(), [1, 1, 1, 0]);
        assert!(writes[..3].iter().all(|write| write.len() == 28), "{writes:?}");
    }

    #[tokio::test]
    async fn answers_wait_for_room_in_turn_and_words_about_calls_do_not() {
        let queue = SendQueue::new(Bounds { bulk_bytes_max: 1_000, ..BOUNDS });
        queue.push_bulk_in_turn(call(1, 5_000)).now_or_never().expect("alone it is taken");
        let mut second = std::pin::pin!(queue.push_bulk_in_turn(call(2, 500)));
        let mut third = std::pin::pin!(queue.push_bulk_in_turn(call(3, 500)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        queue.push_notice(Frame::new(Kind::Broken, 9, Bytes::new())).unwrap();
        assert_eq!(taken(&queue), [(Kind::Broken, 9), (Kind::Call, 1)]);
        second.await;
        assert!(third.as_mut().now_or_never().is_none(), "there is room for one");
        assert_eq!(taken(&queue), [(Kind::Call, 2)]);
        third.await;
        assert_eq!(taken(&queue), [(Kind::Call, 3)]);
        assert_eq!(queue.waiting(), (0, 0));

        let queue = SendQueue::new(Bounds { notice_bytes_max: 200, ..BOUNDS });
        queue.push_notice(Frame::new(Kind::Broken, 1, Bytes::new())).unwrap();
        assert_eq!(queue.push_notice(Frame::new(Kind::Broken, 2, Bytes::new())), Err(Full));
    }

    #[tokio::test]
    async fn a_wait_for_room_ends_when_there_is_room() {
        let queue = SendQueue::new(BOUNDS);
        queue.push_bulk(call(1, 500)).unwrap();
        let waiting = queue.drained_to(100);
        tokio::pin!(waiting);
        assert!((&mut waiting).now_or_never().is_none());
        queue.take();
        waiting.await;
    }
}
