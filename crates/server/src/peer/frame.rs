//! Frames: the layout of messages between two nodes.
//!
//! A frame is a `u32` with the length of the rest, a kind, a `u64` stream and a body; integers are
//! little endian. Decoding is pure: bytes in, frames out. A length is checked before room is made
//! for it. Any input gives frames or a [`FrameError`], never a panic.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The dialer's bytes before its first frame.
pub(super) const PREFACE: &[u8; 16] = b"TASKYARD-PEER 1\n";

const LENGTH_BYTES: usize = 4;

/// Kind and stream: the shortest length of a frame.
const HEAD_BYTES: usize = 1 + 8;

/// The bytes of a frame beside its body.
pub(super) const OVERHEAD_BYTES: usize = LENGTH_BYTES + HEAD_BYTES;

/// Bodies up to this length are copied, so that a small body does not keep the whole buffer in
/// memory.
const COPY_BYTES_MAX: usize = 16 << 10;

/// The purpose of a frame. The numbers are the protocol; a retired number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of the Raft group that the stream names. Not answered.
    Raft = 1,
    /// A call to the peer; the stream is the call's number.
    Call = 2,
    /// The answer to a call.
    Reply = 3,
    /// The caller has gone: the call may be stopped.
    Cancel = 4,
    /// A request for a sign of life, with the sender's wall clock.
    Ping = 5,
    /// The answer to a ping, with the wall clock of the other side.
    Pong = 6,
    /// The call was not begun, and so not executed. The body says why.
    Declined = 7,
    /// The call was begun and has no answer: whether it was executed is unknown.
    Broken = 8,
    /// A message that has no answer.
    Tell = 9,
    /// The dialer's identity.
    Hello = 16,
    /// The acceptor's identity.
    Challenge = 17,
    /// The dialer's proof.
    Proof = 18,
    /// The connection is open.
    Welcome = 19,
    /// The connection is refused, with the reason.
    Refused = 20,
}

impl Kind {
    fn parse(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Raft,
            2 => Kind::Call,
            3 => Kind::Reply,
            4 => Kind::Cancel,
            5 => Kind::Ping,
            6 => Kind::Pong,
            7 => Kind::Declined,
            8 => Kind::Broken,
            9 => Kind::Tell,
            16 => Kind::Hello,
            17 => Kind::Challenge,
            18 => Kind::Proof,
            19 => Kind::Welcome,
            20 => Kind::Refused,
            _ => return None,
        })
    }
}

/// One message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// A call's number, a Raft group, or a ping's number; otherwise 0.
    pub(super) stream: u64,
    pub(super) body: Bytes,
}

impl Frame {
    pub(super) fn new(kind: Kind, stream: u64, body: impl Into<Bytes>) -> Frame {
        Frame { kind, stream, body: body.into() }
    }

    pub(super) fn wire_bytes(&self) -> usize {
        OVERHEAD_BYTES + self.body.len()
    }

    /// Writes everything of the frame but its body.
    pub(super) fn write_head(&self, out: &mut BytesMut) {
        let length = u32::try_from(HEAD_BYTES + self.body.len())
            .expect("bodies are checked against the largest frame before they are queued");
        out.put_u32_le(length);
        out.put_u8(self.kind as u8);
        out.put_u64_le(self.stream);
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        self.write_head(out);
        out.put_slice(&self.body);
    }
}

/// Whether a body of this length fits a frame.
pub(super) fn fits(body_bytes: usize) -> bool {
    body_bytes <= crate::limits::PEER_FRAME_BYTES_MAX - HEAD_BYTES
}

/// Why bytes are no frame. The rest of the stream can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {length} bytes; at most {limit} are taken here")]
    TooLong { length: usize, limit: usize },
    #[error("a frame of {length} bytes, which is too short to be one")]
    TooShort { length: usize },
    #[error("a frame of kind {kind}, which this version does not know")]
    UnknownKind { kind: u8 },
}

/// Decodes frames from a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    /// The longest frame that is accepted.
    pub(super) frame_bytes_max: usize,
}

impl Decoder {
    /// The next whole frame, if it has arrived; the buffer keeps the rest.
    pub(super) fn next(self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.frame_bytes_max {
            return Err(FrameError::TooLong { length, limit: self.frame_bytes_max });
        }
        if length < HEAD_BYTES {
            return Err(FrameError::TooShort { length });
        }
        // The kind is checked before the rest has arrived, so that garbage is not gathered.
        let kind = match buffer.get(LENGTH_BYTES) {
            None => return Ok(None),
            Some(&kind) => Kind::parse(kind).ok_or(FrameError::UnknownKind { kind })?,
        };
        if buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        buffer.advance(LENGTH_BYTES + 1);
        let stream = buffer.get_u64_le();
        let body = buffer.split_to(length - HEAD_BYTES);
        let body = match body.len() {
            0..=COPY_BYTES_MAX => Bytes::copy_from_slice(&body),
            _ => body.freeze(),
        };
        Ok(Some(Frame { kind, stream, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODER: Decoder = Decoder { frame_bytes_max: 100_000 };

    fn frames() -> Vec<Frame> {
        vec![
            Frame::new(Kind::Hello, 0, &b"who"[..]),
            Frame::new(Kind::Raft, u64::MAX, Bytes::new()),
            Frame::new(Kind::Call, 7, vec![9; 20_000]),
            Frame::new(Kind::Broken, 8, &b"x"[..]),
        ]
    }

    fn wire(frames: &[Frame]) -> BytesMut {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        assert_eq!(bytes.len(), frames.iter().map(Frame::wire_bytes).sum::<usize>());
        bytes
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bytes = wire(&frames());
        for piece in [1, 2, 3, 12, 13, 14, 1_000, bytes.len()] {
            let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(piece) {
                buffer.extend_from_slice(part);
                while let Some(frame) = DECODER.next(&mut buffer).unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames(), "in pieces of {piece}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn every_kind_reads_back_as_itself_and_no_other_byte_is_one() {
        let mut known = 0;
        for byte in 0..=u8::MAX {
            if let Some(kind) = Kind::parse(byte) {
                assert_eq!(kind as u8, byte);
                known += 1;
            }
        }
        assert_eq!(known, 14);
    }

    #[test]
    fn a_length_is_judged_before_the_rest_has_come() {
        for (bytes, expected) in [
            (&[0xa1, 0x86, 1, 0][..], FrameError::TooLong { length: 100_001, limit: 100_000 }),
            (&[255; 4], FrameError::TooLong { length: u32::MAX as usize, limit: 100_000 }),
            (&[0; 4], FrameError::TooShort { length: 0 }),
            (&[8, 0, 0, 0], FrameError::TooShort { length: 8 }),
            (&[9, 0, 0, 0, 99], FrameError::UnknownKind { kind: 99 }),
            // The first bytes of other protocols.
            (b"GET / HTTP", FrameError::TooLong { length: 0x2054_4547, limit: 100_000 }),
            (&[22, 3, 1, 2, 0], FrameError::TooLong { length: 0x0201_0316, limit: 100_000 }),
        ] {
            let mut buffer = BytesMut::from(bytes);
            let capacity = buffer.capacity();
            assert_eq!(DECODER.next(&mut buffer), Err(expected), "{bytes:?}");
            assert_eq!(buffer.capacity(), capacity);
        }
    }

    #[test]
    fn a_body_at_the_limit_fits_and_one_byte_more_does_not() {
        let limit = crate::limits::PEER_FRAME_BYTES_MAX;
        assert!(fits(limit - HEAD_BYTES));
        assert!(!fits(limit - HEAD_BYTES + 1));
    }

    #[test]
    fn any_bytes_give_frames_or_an_error() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..40 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Small numbers often, so that some lengths and kinds are valid.
                bytes.push((seed >> 33) as u8 & if seed >> 63 == 0 { 0x1f } else { 0xff });
            }
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = (Decoder { frame_bytes_max: 64 }).next(&mut buffer) {}
            assert!(buffer.len() <= bytes.len());
        }
    }
}
