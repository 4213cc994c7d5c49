//! Buffers: the budget of this node's memory for requests and answers in flight.
//!
//! The node has one budget, and each connection has a part of it. A request reserves its bytes
//! before they are read. If they do not fit, the request is refused and nothing has happened. An
//! answer is counted and sent in any case, because it reports what has happened; later requests
//! wait for it. Requests of up to [`SMALL_BYTES`] may use the whole budget, and larger ones three
//! quarters. A few large requests therefore never keep out the many small ones.

use crate::Error;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The largest request that counts as small.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// The smallest budget of a node: room for one request of the largest size beside others.
const BYTES_MIN: usize = 64 << 20;

/// The smallest budget of a connection.
const CONNECTION_BYTES_MIN: usize = 40 << 20;

/// The budget of the node, or of one connection and the node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    node: Arc<Count>,
    connection: Option<Arc<Count>>,
}

#[derive(Debug)]
struct Count {
    bytes_max: usize,
    bytes: AtomicUsize,
}

/// Reserved bytes; dropping this frees them.
#[derive(Debug)]
pub(crate) struct Reserved {
    buffers: Buffers,
    bytes: usize,
}

impl Count {
    fn new(bytes_max: usize) -> Arc<Count> {
        Arc::new(Count { bytes_max, bytes: AtomicUsize::new(0) })
    }

    /// Adds to the count, unless the count would pass `bytes_max`.
    fn try_add(&self, bytes: usize, bytes_max: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes) <= bytes_max;
        if !fits {
            self.bytes.fetch_sub(bytes, Relaxed);
        }
        fits
    }
}

impl Buffers {
    /// A quarter of the node's memory budget.
    pub(crate) fn new(memory_bytes_max: u64) -> Buffers {
        let quarter = usize::try_from(memory_bytes_max / 4).unwrap_or(usize::MAX / 2);
        Buffers { node: Count::new(quarter.max(BYTES_MIN)), connection: None }
    }

    /// The budget of one more connection: about half of the node's at most.
    pub(crate) fn of_connection(&self) -> Buffers {
        let own = (self.node.bytes_max / 2).max(CONNECTION_BYTES_MIN);
        let connection = Some(Count::new(own));
        Buffers { node: Arc::clone(&self.node), connection }
    }

    /// Bytes in flight on this node.
    pub(crate) fn bytes(&self) -> usize {
        self.node.bytes.load(Relaxed)
    }

    /// A reservation of no bytes, which can grow.
    pub(crate) fn none(&self) -> Reserved {
        Reserved { buffers: self.clone(), bytes: 0 }
    }

    /// Reserves bytes for a request, or says why there is no room for them.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Reserved, Error> {
        let mut reserved = self.none();
        reserved.grow(bytes)?;
        Ok(reserved)
    }

    fn try_add(&self, bytes: usize, is_small: bool) -> Result<(), Error> {
        if let Some(own) = &self.connection
            && !own.try_add(bytes, own.bytes_max)
        {
            let text = format!(
                "requests and answers of this connection take {} bytes, and {} more are over its \
                 limit of {}; take the answers that wait, then send it again",
                own.bytes.load(Relaxed),
                bytes,
                own.bytes_max
            );
            return Err(Error::LimitExceeded(text));
        }
        let bytes_max = self.node.bytes_max;
        let within = if is_small { bytes_max } else { bytes_max / 4 * 3 };
        if self.node.try_add(bytes, within) {
            return Ok(());
        }
        if let Some(own) = &self.connection {
            own.bytes.fetch_sub(bytes, Relaxed);
        }
        Err(Error::LimitExceeded(format!(
            "requests and answers in flight take {} bytes of this node, and {bytes} more are over \
             the limit of {within}; send it again later, send less at once, or raise \
             memory_bytes_max",
            self.node.bytes.load(Relaxed)
        )))
    }

    fn add(&self, bytes: usize) {
        self.node.bytes.fetch_add(bytes, Relaxed);
        if let Some(own) = &self.connection {
            own.bytes.fetch_add(bytes, Relaxed);
        }
    }

    fn subtract(&self, bytes: usize) {
        self.node.bytes.fetch_sub(bytes, Relaxed);
        if let Some(own) = &self.connection {
            own.bytes.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Reserved {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes. If there is no room, says why and changes nothing.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Error> {
        let is_small = self.bytes.saturating_add(more) <= SMALL_BYTES;
        self.buffers.try_add(more, is_small)?;
        self.bytes += more;
        Ok(())
    }

    /// Counts more bytes whether or not there is room: they are in memory already.
    pub(crate) fn charge(&mut self, more: usize) {
        self.buffers.add(more);
        self.bytes += more;
    }

    /// Frees all bytes beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let fewer = self.bytes.saturating_sub(bytes);
        self.buffers.subtract(fewer);
        self.bytes -= fewer;
    }

    /// Splits off a part of the reserved bytes.
    pub(crate) fn split(&mut self, bytes: usize) -> Reserved {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reserved { buffers: self.buffers.clone(), bytes }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.buffers.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn bytes_that_do_not_fit_are_refused_and_change_nothing() {
        let buffers = Buffers::new(0);
        let mut large = buffers.reserve(46 * MIB).unwrap();
        let refused = large.grow(3 * MIB).unwrap_err();
        assert_eq!(refused.code(), "limit_exceeded");
        assert_eq!((large.bytes(), buffers.bytes()), (46 * MIB, 46 * MIB));
        large.grow(2 * MIB).unwrap();
        drop(large);
        assert_eq!(buffers.bytes(), 0);
    }

    #[test]
    fn large_requests_leave_a_quarter_to_small_ones() {
        let buffers = Buffers::new(0);
        let _large = buffers.reserve(48 * MIB).unwrap();
        assert!(buffers.reserve(SMALL_BYTES + 1).is_err());
        let small: Vec<_> =
            std::iter::from_fn(|| buffers.reserve(SMALL_BYTES).ok()).take(1_000).collect();
        assert_eq!(small.len(), 16 * MIB / SMALL_BYTES);
    }

    #[test]
    fn one_connection_leaves_room_to_others() {
        let buffers = Buffers::new(0);
        let [first, second] = [(); 2].map(|()| buffers.of_connection());
        let _held = first.reserve(35 * MIB).unwrap();
        let refused = first.reserve(10 * MIB).unwrap_err().to_string();
        assert!(refused.contains("this connection"), "{refused}");
        assert_eq!(buffers.bytes(), 35 * MIB, "the refused bytes are not counted");
        let _other = second.reserve(10 * MIB).unwrap();
    }

    #[test]
    fn answers_are_counted_beyond_the_budget_and_freed_in_parts() {
        let buffers = Buffers::new(0);
        let mut answer = buffers.none();
        answer.charge(200 * MIB);
        assert!(buffers.reserve(1).is_err());
        let part = answer.split(MIB);
        drop(part);
        answer.shrink_to(MIB);
        assert_eq!(buffers.bytes(), MIB);
        drop(answer);
        assert_eq!(buffers.bytes(), 0);
    }
}
