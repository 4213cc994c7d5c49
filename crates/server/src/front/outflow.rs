//! Outflow: counts answers until the client has taken their bytes.
//!
//! An HTTP/2 client can leave an answer unread for ever and still answer pings. So an answer is
//! sent in pieces, and each piece is counted until the socket has it. Each connection knows whether
//! a piece has waited for its client for too long.

use crate::{
    Error,
    buffers::{Buffers, Reserved, SMALL_BYTES},
};
use axum::{
    body::{Body, Bytes, HttpBody},
    http::HeaderMap,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tonic::Status;

/// The bytes that are handed to the socket at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The number of periods that the counts tell apart.
const PERIODS: usize = 8;

/// A piece that waits for more periods than this has waited for too long.
pub(super) const PERIODS_MAX: usize = 4;

/// A connection, for its calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Door {
    buffers: Buffers,
    waiting: Arc<Waiting>,
}

/// The number of pieces that wait for a client, by the period in which their wait began.
#[derive(Debug, Default)]
struct Waiting {
    period: AtomicUsize,
    pieces: [AtomicUsize; PERIODS],
}

/// One waiting piece.
#[derive(Debug)]
struct Waits {
    waiting: Arc<Waiting>,
    period: usize,
}

impl Door {
    pub(super) fn new(buffers: &Buffers) -> Door {
        Door { buffers: buffers.of_connection(), waiting: Arc::default() }
    }

    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn wait(&self) -> Waits {
        let period = self.waiting.period.load(Relaxed) % PERIODS;
        self.waiting.pieces[period].fetch_add(1, Relaxed);
        Waits { waiting: Arc::clone(&self.waiting), period }
    }

    /// Begins the next period. Returns whether a piece has waited for more than `PERIODS_MAX` whole
    /// periods.
    pub(super) fn next_period(&self) -> bool {
        let period = self.waiting.period.fetch_add(1, Relaxed) + 1;
        let oldest = (period + PERIODS - PERIODS_MAX - 1) % PERIODS;
        self.waiting.pieces[oldest].load(Relaxed) > 0
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.waiting.pieces[self.period].fetch_sub(1, Relaxed);
    }
}

/// A piece of an answer, until the socket has it.
struct Piece {
    bytes: Bytes,
    _reserved: Reserved,
    _waits: Waits,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An answer.
pub(super) struct Outflow {
    body: Body,
    door: Door,
    /// Bytes of the body that are not sent yet.
    rest: Bytes,
    /// Counts `rest`, and the bytes that the body is known to have.
    reserved: Reserved,
    /// The cost of the call until it is over.
    _call: Reserved,
    /// Set while bytes wait to be sent.
    waits: Option<Waits>,
    is_read: bool,
    is_grpc: bool,
    /// Whether the answer ended before its body.
    is_over: bool,
}

impl Outflow {
    /// Counts an answer. Only the answer to a read may be refused, with the reason.
    pub(super) fn count(
        response: Response,
        door: &Door,
        call: Reserved,
        is_read: bool,
        is_grpc: bool,
    ) -> Result<Response, Error> {
        if response.body().is_end_stream() {
            return Ok(response);
        }
        let mut reserved = door.buffers.none();
        let known = response.body().size_hint().exact().unwrap_or(0);
        count(&mut reserved, usize::try_from(known).unwrap_or(usize::MAX), is_read)?;
        let waits = (known > 0).then(|| door.wait());
        let outflow = |body| {
            Body::new(Outflow {
                body,
                door: door.clone(),
                rest: Bytes::new(),
                reserved,
                _call: call,
                waits,
                is_read,
                is_grpc,
                is_over: false,
            })
        };
        Ok(response.map(outflow))
    }

    /// Takes the next bytes of the body.
    fn take(&mut self, bytes: Bytes) -> Result<(), Error> {
        let more = bytes.len().saturating_sub(self.reserved.bytes());
        count(&mut self.reserved, more, self.is_read)?;
        self.rest = bytes;
        Ok(())
    }

    fn next_piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        let _reserved = self.reserved.split(bytes.len());
        let goes_on = !self.rest.is_empty() || self.reserved.bytes() > 0;
        self.waits = goes_on.then(|| self.door.wait());
        Bytes::from_owner(Piece { bytes, _reserved, _waits: self.door.wait() })
    }
}

/// Small answers, and answers that report a change, are always sent.
fn count(reserved: &mut Reserved, bytes: usize, is_read: bool) -> Result<(), Error> {
    if is_read && bytes > SMALL_BYTES {
        return reserved.grow(bytes);
    }
    reserved.charge(bytes);
    Ok(())
}

impl HttpBody for Outflow {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        while self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            let bytes = match frame.into_data() {
                Ok(bytes) => bytes,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            };
            let Err(error) = self.take(bytes) else { continue };
            self.is_over = true;
            return Poll::Ready(Some(match self.is_grpc {
                true => {
                    let mut trailers = HeaderMap::new();
                    let added = Status::from(error).add_header(&mut trailers);
                    added.map(|()| Frame::trailers(trailers)).map_err(axum::Error::new)
                }
                false => Err(axum::Error::new(error)),
            }));
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        match body.exact() {
            Some(bytes) => SizeHint::with_exact(rest + bytes),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_more_than_four_whole_periods_is_too_long() {
        let door = Door::new(&Buffers::new(0));
        let first = door.wait();
        for _ in 0..PERIODS_MAX {
            assert!(!door.next_period());
        }
        let second = door.wait();
        assert!(door.next_period(), "the first has waited");
        drop(first);
        for period in 0..8 {
            // The second has waited since one period.
            assert_eq!(door.next_period(), period == 3, "period {period}");
        }
        drop(second);
    }
}
