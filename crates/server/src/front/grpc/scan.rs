//! Scan: estimates what gRPC messages will take in memory, while their bytes come in.
//!
//! An empty task takes two bytes on the wire and about five hundred in memory. So a message is
//! refused before it is decoded, at the first byte that is too much. The scan reads the frame
//! around each message, and the tags and lengths of its fields; it skips their contents.

use super::shapes::{Many, Part, Shape, of_call};
use crate::{
    Error,
    buffers::{Reserved, SMALL_BYTES},
    limits::{BODY_BYTES_MAX, DECODED_BYTES_MAX},
};

/// The most levels of nested messages; the contract has five.
const DEPTH_MAX: usize = 8;
/// The head of a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;
/// The step in which the memory of a message is counted.
const STEP_BYTES: usize = 64 << 10;

/// The calls whose requests are streams of messages.
const STREAMS: [&str; 2] = ["EnqueueStream", "Work"];

/// The scan of one call's messages.
#[derive(Debug)]
pub(in crate::front) struct Scan {
    shape: &'static Shape,
    is_stream: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Between messages, with the first bytes of the next head.
    Head {
        bytes: [u8; HEAD_BYTES],
        count: usize,
    },
    Message(Box<Message>),
    /// The decoder will refuse the message.
    Refused,
}

/// A message of which some bytes have come.
#[derive(Debug)]
struct Message {
    length: usize,
    /// Whether a small message is always taken, because a worker must be able to report its
    /// results.
    is_of_stream: bool,
    /// The bytes still to come.
    left: usize,
    levels: Vec<Level>,
    /// The bytes of a field's contents that are skipped.
    skip: usize,
    varint: Varint,
    next: Next,
    /// The memory that its parts take beyond their bytes.
    decoded: usize,
    /// The part of `decoded` that is reserved.
    counted: usize,
}

/// The meaning of the next number in a message.
#[derive(Clone, Copy, Debug)]
enum Next {
    Tag,
    /// The length of this field.
    Length(u32),
    /// The value of a field that is a number.
    Value,
}

/// A message, or a message inside it.
#[derive(Debug)]
struct Level {
    shape: &'static Shape,
    /// The number of bytes of the whole message that follow this one.
    ends_at: usize,
    count: usize,
}

/// A number of which some bytes have come.
#[derive(Debug, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

impl Varint {
    /// Takes one more byte. Returns the number once it is whole.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, Error> {
        if self.bits >= 70 {
            return Err(unreadable("a number has more than ten bytes"));
        }
        self.value |= u64::from(byte & 0x7f).checked_shl(self.bits).unwrap_or(0);
        self.bits += 7;
        Ok((byte & 0x80 == 0).then(|| std::mem::take(self).value))
    }
}

fn unreadable(why: &str) -> Error {
    Error::Invalid(format!("the message can't be read: {why}"))
}

impl Scan {
    /// The scan for the requests of a call, by its path.
    pub(in crate::front) fn new(path: &str) -> Scan {
        let method = path.rsplit('/').next().unwrap_or_default();
        let state = State::Head { bytes: [0; HEAD_BYTES], count: 0 };
        Scan { shape: of_call(method), is_stream: STREAMS.contains(&method), state }
    }

    /// Whether the client owes no bytes: a stream may be silent between two messages.
    pub(in crate::front) fn is_at_rest(&self) -> bool {
        self.is_stream && matches!(self.state, State::Head { count: 0, .. } | State::Refused)
    }

    /// Takes the next bytes of a call, or says why they may not be decoded. `reserved` counts their
    /// message.
    pub(in crate::front) fn take(
        &mut self,
        mut bytes: &[u8],
        reserved: &mut Reserved,
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Refused => return Ok(()),
                State::Head { bytes: head, count } => {
                    let part = bytes.len().min(HEAD_BYTES - *count);
                    head[*count..*count + part].copy_from_slice(&bytes[..part]);
                    *count += part;
                    bytes = &bytes[part..];
                    if *count == HEAD_BYTES {
                        let [flag, length @ ..] = *head;
                        self.begin(flag, u32::from_be_bytes(length) as usize, reserved)?;
                    }
                }
                State::Message(message) => {
                    let part = bytes.len().min(message.left);
                    message.take(&bytes[..part], reserved)?;
                    bytes = &bytes[part..];
                    if message.left == 0 {
                        self.state = State::Head { bytes: [0; HEAD_BYTES], count: 0 };
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, flag: u8, length: usize, reserved: &mut Reserved) -> Result<(), Error> {
        // The library refuses compressed messages and larger ones.
        if flag != 0 || length > BODY_BYTES_MAX {
            self.state = State::Refused;
            return Ok(());
        }
        if self.is_stream {
            // The handler is done with the previous message when it asks for this one.
            reserved.shrink_to(0);
        }
        if self.is_stream && length <= SMALL_BYTES {
            reserved.charge(length);
        } else {
            reserved.grow(length)?;
        }
        self.state = match length {
            0 => State::Head { bytes: [0; HEAD_BYTES], count: 0 },
            _ => State::Message(Box::new(Message::new(self.shape, length, self.is_stream))),
        };
        Ok(())
    }
}

impl Message {
    fn new(shape: &'static Shape, length: usize, is_of_stream: bool) -> Message {
        Message {
            length,
            left: length,
            is_of_stream,
            levels: vec![Level { shape, ends_at: 0, count: 0 }],
            skip: 0,
            varint: Varint::default(),
            next: Next::Tag,
            decoded: 0,
            counted: 0,
        }
    }

    fn take(&mut self, mut bytes: &[u8], reserved: &mut Reserved) -> Result<(), Error> {
        while let Some(&byte) = bytes.first() {
            if self.skip > 0 {
                let part = self.skip.min(bytes.len());
                (self.skip, self.left) = (self.skip - part, self.left - part);
                bytes = &bytes[part..];
            } else {
                self.left -= 1;
                bytes = &bytes[1..];
                if let Some(value) = self.varint.push(byte)? {
                    self.number(value)?;
                }
            }
            if self.skip == 0 && self.varint.bits == 0 && matches!(self.next, Next::Tag) {
                self.leave_ended();
            }
        }
        if self.decoded <= self.counted {
            return Ok(());
        }
        let is_small = self.length + self.decoded <= SMALL_BYTES;
        let decoded =
            if is_small { self.decoded } else { self.decoded.next_multiple_of(STEP_BYTES) };
        let more = decoded - self.counted;
        match is_small && self.is_of_stream {
            true => reserved.charge(more),
            false => reserved.grow(more)?,
        }
        self.counted += more;
        Ok(())
    }

    /// Takes a number that is whole.
    fn number(&mut self, value: u64) -> Result<(), Error> {
        match std::mem::replace(&mut self.next, Next::Tag) {
            Next::Length(field) => self.field(field, value),
            Next::Value => Ok(()),
            Next::Tag => self.tag(value),
        }
    }

    fn tag(&mut self, value: u64) -> Result<(), Error> {
        let field = u32::try_from(value >> 3).map_err(|_| unreadable("a field has no number"))?;
        match value & 7 {
            0 => self.next = Next::Value,
            1 => self.skip(8)?,
            2 => self.next = Next::Length(field),
            5 => self.skip(4)?,
            kind => return Err(unreadable(&format!("field {field} is of kind {kind}"))),
        }
        Ok(())
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Error> {
        let ends_at = self.levels.last().map_or(0, |level| level.ends_at);
        if bytes > self.left.saturating_sub(ends_at) {
            return Err(unreadable("a field is longer than its message"));
        }
        self.skip = bytes;
        Ok(())
    }

    /// Begins a field with contents of this length.
    fn field(&mut self, field: u32, length: u64) -> Result<(), Error> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(level) = self.levels.last_mut() else {
            return Err(unreadable("it continues after its end"));
        };
        let part = level.shape.0.iter().find(|(known, _)| *known == field);
        let inner = match part {
            None => None,
            Some((_, Part::One(shape))) => Some(*shape),
            Some((_, Part::Numbers)) => {
                self.decoded += 8 * length.min(self.left);
                None
            }
            Some((_, Part::Many(Many { bytes, count_max, of }))) => {
                level.count += 1;
                self.decoded += bytes;
                if let Some((count_max, what)) = count_max
                    && level.count > *count_max
                {
                    return Err(Error::Invalid(format!(
                        "{what} more than {count_max} tasks; split it"
                    )));
                }
                *of
            }
        };
        if self.decoded > DECODED_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the message comes to more than {DECODED_BYTES_MAX} bytes in memory; send less at once"
            )));
        }
        let Some(shape) = inner else { return self.skip(length) };
        // Checked like a skipped field, then read.
        self.skip(length)?;
        self.skip = 0;
        if self.levels.len() == DEPTH_MAX {
            return Err(unreadable("it is nested too deeply"));
        }
        self.levels.push(Level { shape, ends_at: self.left - length, count: 0 });
        Ok(())
    }

    fn leave_ended(&mut self) {
        while self.levels.len() > 1
            && self.levels.last().is_some_and(|level| level.ends_at >= self.left)
        {
            self.levels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Buffers;
    use std::collections::HashMap;
    use taskyard_proto::v1::{self, worker_message::Message as Said};

    fn framed(message: &impl prost::Message) -> Vec<u8> {
        framed_bytes(&message.encode_to_vec())
    }

    fn framed_bytes(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    /// What the bytes of a call take when they arrive in pieces of this length, and how many were
    /// taken.
    fn scanned(call: &str, bytes: &[u8], piece: usize) -> (Result<usize, Error>, usize) {
        let (mut scan, mut taken) = (Scan::new(&format!("/taskyard.v1.Taskyard/{call}")), 0);
        let mut reserved = Buffers::new(0).none();
        for piece in bytes.chunks(piece) {
            taken += piece.len();
            if let Err(error) = scan.take(piece, &mut reserved) {
                return (Err(error), taken);
            }
        }
        (Ok(reserved.bytes()), taken)
    }

    fn task(number: usize) -> v1::NewTask {
        v1::NewTask {
            queue: "mail".into(),
            r#type: format!("type-{number}"),
            payload: vec![0xff; 300].into(),
            headers: HashMap::from([("a".into(), "b".into()), ("c".into(), String::new())]),
            priority: Some(7),
            run_at: Some(u64::MAX),
            retry: Some(v1::RetryPolicy {
                factor: Some(1.5),
                delays_ms: vec![1, 1 << 40],
                ..Default::default()
            }),
            tags: vec!["x".into(), String::new()],
            unique: Some(v1::Unique { fields: vec!["type".into()], ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn whole_messages_pass_in_any_pieces() {
        let many =
            v1::EnqueueManyRequest { tasks: (0..50).map(task).collect(), batch_id: vec![7; 16] };
        let answer = v1::answer::Answer::Ack(v1::AckRequest {
            enqueue: vec![task(1), v1::NewTask::default()],
            result: Some(vec![1, 2, 3].into()),
            ..Default::default()
        });
        let answers = v1::Answers { answers: vec![v1::Answer { number: 1, answer: Some(answer) }] };
        let worker = v1::worker_message::Message::Answers(answers);
        let worker = v1::WorkerMessage { message: Some(worker) };
        for (call, message) in [("EnqueueMany", framed(&many)), ("Work", framed(&worker))] {
            let twice = [message.as_slice(), &message].concat();
            let whole = scanned(call, &twice, twice.len()).0.unwrap();
            assert!(whole > message.len(), "{call}: {whole}");
            for piece in [1, 2, 3, 7, 64] {
                assert_eq!(scanned(call, &twice, piece).0.unwrap(), whole, "{call} by {piece}");
            }
        }
    }

    #[test]
    fn one_task_too_many_is_refused_at_its_first_byte() {
        let empty = vec![v1::NewTask::default(); 10_000];
        let request = |tasks| v1::EnqueueManyRequest { tasks, batch_id: Vec::new() };
        let (most, _) = scanned("EnqueueMany", &framed(&request(empty)), 1_000);
        // About what they take in memory, counted in steps.
        assert!(most.unwrap() > 10_000 * 300);
        // A million empty tasks would take half a gigabyte in memory.
        let million = framed_bytes(&[0x0a, 0].repeat(1_000_000));
        let (refused, taken) = scanned("EnqueueMany", &million, 2);
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), "invalid_argument");
        assert!(refused.to_string().contains("more than 10000 tasks"), "{refused}");
        assert!(taken <= 20_010, "{taken} bytes were taken");
    }

    #[test]
    fn lists_without_a_number_of_their_own_are_bounded_by_their_memory() {
        // A beat that names four million empty claims.
        let beat = [0x0a, 0].repeat(4 << 20);
        let mut message = vec![0x22];
        prost::encoding::encode_varint(beat.len() as u64, &mut message);
        message.extend(beat);
        let message = framed_bytes(&message);
        let (refused, taken) = scanned("Work", &message, 64 << 10);
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), "payload_too_large", "{refused}");
        assert!(taken < message.len() / 4, "{taken} of {}", message.len());
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for (bytes, why) in [
            (&[0x0a, 0x05, 1][..], "longer than its message"),
            (&[0x0b], "of kind 3"),
            (&[0xff; 11], "more than ten bytes"),
            (&[0x0a, 0x03, 0x2a, 0x05, 0x0a], "longer than its message"),
        ] {
            let refused =
                scanned("EnqueueMany", &framed_bytes(bytes), 100).0.unwrap_err().to_string();
            assert!(refused.contains(why), "{bytes:?}: {refused}");
        }
    }

    #[test]
    fn a_stream_rests_between_messages_and_a_call_does_not() {
        let bytes = framed(&v1::EnqueueManyRequest { tasks: vec![task(1)], batch_id: Vec::new() });
        for (call, rests) in [("EnqueueStream", true), ("EnqueueMany", false)] {
            let mut scan = Scan::new(call);
            let mut reserved = Buffers::new(0).none();
            scan.take(&bytes, &mut reserved).unwrap();
            assert_eq!(scan.is_at_rest(), rests, "{call}");
            scan.take(&bytes[..3], &mut reserved).unwrap();
            assert!(!scan.is_at_rest(), "{call}");
        }
    }

    #[test]
    fn a_full_node_still_takes_and_counts_small_messages_of_workers() {
        let buffers = Buffers::new(0);
        let _large = buffers.reserve(48 << 20).unwrap();
        let claim = v1::HeldClaim { id: "t".repeat(26), claim_token: 7 };
        let queue = v1::QueueWeight { name: "mail".into(), weight: 1 };
        let says = [
            Said::Hello(v1::Hello { queues: vec![queue], ..Default::default() }),
            Said::Beat(v1::Beat { held: vec![claim; 50], ..Default::default() }),
            Said::Answers(v1::Answers { answers: vec![v1::Answer::default()] }),
        ];
        let mut scan = Scan::new("Work");
        let mut reserved = buffers.none();
        for message in says {
            let bytes = framed(&v1::WorkerMessage { message: Some(message) });
            scan.take(&bytes, &mut reserved).unwrap();
            let counted = reserved.bytes();
            assert!(counted > bytes.len() - HEAD_BYTES && counted < 16 << 10, "{counted}");
        }
        // A large message must find room, like any other.
        let ack = v1::AckRequest { result: Some(vec![0; 1 << 20].into()), ..Default::default() };
        let answer =
            v1::Answer { answer: Some(v1::answer::Answer::Ack(ack)), ..Default::default() };
        let large = Said::Answers(v1::Answers { answers: vec![answer] });
        let bytes = framed(&v1::WorkerMessage { message: Some(large) });
        assert_eq!(scan.take(&bytes, &mut reserved).unwrap_err().code(), "limit_exceeded");
    }
}
