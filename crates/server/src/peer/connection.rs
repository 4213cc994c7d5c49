//! An open connection: frames in, frames out, and when it counts as dead.
//!
//! Both sides send pings. Invariant: a connection ends if nothing arrives for the time `silence`,
//! or if the other side reads nothing for as long. No read or write waits for ever.

use super::{
    frame::{Decoder, Frame, FrameError},
    hearing::LOOKS_MAX,
    queue::SendQueue,
};
use crate::limits;
use bytes::{Buf, BytesMut};
use std::{fmt, io, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{MissedTickBehavior, interval, timeout},
};

/// The room for each read.
const READ_BYTES: usize = 64 << 10;

/// A larger buffer is freed once it is empty, because one large frame may have grown it.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// How long a node waits for its peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) handshake: Duration,
    pub(super) ping_every: Duration,
    pub(super) silence: Duration,
    /// How often hearing is checked: see `hearing.rs`.
    pub(super) look_every: Duration,
    /// The longest pause between two attempts to reach a peer.
    pub(super) redial_max: Duration,
}

pub(super) const PATIENCE: Patience = Patience {
    handshake: Duration::from_millis(limits::PEER_HANDSHAKE_MS_MAX),
    ping_every: Duration::from_millis(limits::PEER_PING_EVERY_MS),
    silence: Duration::from_millis(limits::PEER_SILENCE_MS_MAX),
    look_every: Duration::from_millis(limits::PEER_QUIET_MS_MAX / LOOKS_MAX as u64),
    redial_max: Duration::from_millis(limits::PEER_REDIAL_MS_MAX),
};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the other side closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broke(#[from] io::Error),
    #[error("nothing was heard for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the other side read nothing for {} ms", .0.as_millis())]
    Stalled(Duration),
    #[error("the other side sent {0}")]
    NoFrame(#[from] FrameError),
    #[error("the other side sent {0}")]
    OutOfTurn(String),
    #[error("the other side does not read its answers")]
    AnswersUnread,
}

/// Reads frames from a connection.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    reader: R,
    buffer: BytesMut,
    decoder: Decoder,
    /// Called for everything that arrives, once the sender is known.
    heard: Option<Heard>,
}

/// A callback for arriving bytes.
pub(super) struct Heard(pub(super) Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heard").finish_non_exhaustive()
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Accepts the small frames of a handshake, until `trust`.
    pub(super) fn new(reader: R) -> FrameReader<R> {
        let decoder = Decoder { frame_bytes_max: limits::PEER_HANDSHAKE_BYTES_MAX };
        FrameReader { reader, buffer: BytesMut::new(), decoder, heard: None }
    }

    /// The handshake is done: accepts frames of full size.
    pub(super) fn trust(&mut self) {
        self.decoder = Decoder { frame_bytes_max: limits::PEER_FRAME_BYTES_MAX };
    }

    /// Calls `heard` now and for everything that arrives from now on.
    pub(super) fn tell(&mut self, heard: Heard) {
        (heard.0)();
        self.heard = Some(heard);
    }

    /// The next frame; the caller bounds the time.
    pub(super) async fn frame(&mut self) -> Result<Frame, Ended> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.buffer)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// The next frame, unless nothing arrives for `silence`. Half a frame is a sign of life too.
    pub(super) async fn frame_within(&mut self, silence: Duration) -> Result<Frame, Ended> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.buffer)? {
                return Ok(frame);
            }
            match timeout(silence, self.fill()).await {
                Ok(filled) => filled?,
                Err(_elapsed) => return Err(Ended::Silent(silence)),
            }
        }
    }

    /// Reads more bytes into the buffer.
    pub(super) async fn fill(&mut self) -> Result<(), Ended> {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(READ_BYTES.min(self.decoder.frame_bytes_max));
        match self.reader.read_buf(&mut self.buffer).await? {
            0 => return Err(Ended::Closed),
            _ => {
                if let Some(heard) = &self.heard {
                    (heard.0)();
                }
            }
        }
        Ok(())
    }

    /// The buffered bytes.
    pub(super) fn unread(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }
}

/// Writes queued frames, and pings at intervals, until the connection fails.
pub(super) async fn write_frames(
    mut writer: impl AsyncWrite + Unpin,
    queue: &SendQueue,
    patience: Patience,
    mut ping: impl FnMut() -> Frame,
) -> Ended {
    let mut pings = interval(patience.ping_every);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first ping goes out before anything else, so that distance and clocks are known early.
    pings.reset();
    queue.set_ping(ping());
    loop {
        tokio::select! {
            biased;
            _ = pings.tick() => queue.set_ping(ping()),
            () = queue.filled() => {}
        }
        loop {
            let pieces = queue.take();
            if pieces.is_empty() {
                break;
            }
            for mut piece in pieces {
                if let Err(ended) = write_piece(&mut writer, &mut piece, patience.silence).await {
                    return ended;
                }
            }
        }
    }
}

/// Writes a whole piece, as long as there is progress.
pub(super) async fn write_piece(
    writer: &mut (impl AsyncWrite + Unpin),
    piece: &mut impl Buf,
    silence: Duration,
) -> Result<(), Ended> {
    while piece.has_remaining() {
        match timeout(silence, writer.write_buf(piece)).await {
            Ok(Ok(0)) => return Err(Ended::Closed),
            Ok(written) => drop(written?),
            Err(_elapsed) => return Err(Ended::Stalled(silence)),
        }
    }
    Ok(())
}

/// Writes one frame of a handshake; the caller bounds the time.
pub(super) async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin),
    frame: &Frame,
) -> Result<(), Ended> {
    let mut bytes = BytesMut::with_capacity(frame.wire_bytes());
    frame.write(&mut bytes);
    Ok(writer.write_all(&bytes).await?)
}

#[cfg(test)]
mod tests {
    use super::{super::frame::Kind, super::queue::Bounds, *};
    use bytes::Bytes;

    const BOUNDS: Bounds = Bounds {
        raft_frames_max: 1_000,
        raft_bytes_max: 1 << 20,
        tell_bytes_max: 1 << 20,
        notice_bytes_max: 1 << 20,
        bulk_bytes_max: 1 << 20,
    };

    fn ping() -> Frame {
        Frame::new(Kind::Ping, 1, Bytes::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_says_nothing_is_given_up() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let mut reader = FrameReader::new(near);
        let ended = reader.frame_within(PATIENCE.silence).await.unwrap_err();
        assert!(matches!(ended, Ended::Silent(_)), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_reads_nothing_is_given_up_and_the_queue_stays_bounded() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let queue = SendQueue::new(BOUNDS);
        for stream in 0..1_000 {
            queue.push_raft(Frame::new(Kind::Raft, stream, vec![0; 100_000]));
        }
        let ended = write_frames(near, &queue, PATIENCE, ping).await;
        assert!(matches!(ended, Ended::Stalled(_)), "{ended}");
        assert!(queue.waiting().1 <= BOUNDS.raft_bytes_max);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sides_keep_each_other_alive() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let queue = SendQueue::new(BOUNDS);
        let mut reader = FrameReader::new(far);
        let read = async {
            for _ in 0..100 {
                let frame = reader.frame_within(PATIENCE.silence).await.unwrap();
                assert_eq!(frame, ping());
            }
        };
        tokio::select! {
            ended = write_frames(near, &queue, PATIENCE, ping) => panic!("{ended}"),
            () = read => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_on_a_slow_line_is_a_sign_of_life() {
        let (mut near, far) = tokio::io::duplex(1 << 10);
        let mut reader = FrameReader::new(far);
        reader.trust();
        let frame = Frame::new(Kind::Call, 1, vec![7; 50_000]);
        let mut bytes = BytesMut::new();
        frame.write(&mut bytes);
        let slow = async {
            for piece in bytes.chunks(1_000) {
                near.write_all(piece).await.unwrap();
                tokio::time::sleep(PATIENCE.silence / 2).await;
            }
        };
        let (read, ()) = tokio::join!(reader.frame_within(PATIENCE.silence), slow);
        assert_eq!(read.unwrap(), frame);
    }

    #[tokio::test]
    async fn a_stranger_gets_no_more_room_than_a_handshake_needs() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut bytes = BytesMut::new();
        Frame::new(Kind::Hello, 0, vec![0; 5_000]).write(&mut bytes);
        near.write_all(&bytes).await.unwrap();
        let mut reader = FrameReader::new(far);
        let ended = reader.frame().await.unwrap_err();
        assert!(matches!(ended, Ended::NoFrame(FrameError::TooLong { limit: 4_096, .. })));
    }
}
