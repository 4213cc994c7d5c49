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

    /// Adds to the count, unless the count would pass `bytes_max`. A refused request is never in
    /// the count, not even for a moment, because smaller requests that fit would be refused
    /// meanwhile.
    fn try_add(&self, bytes: usize, bytes_max: usize) -> bool {
        let add = |before: usize| before.checked_add(bytes).filter(|sum| *sum <= bytes_max);
        self.bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }
}

/// What large requests may use of a node's budget.
fn large_bytes_max(bytes_max: usize) -> usize {
    bytes_max / 4 * 3
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

    /// The most bytes of one request, when there is nothing else.
    fn request_bytes_max(&self) -> usize {
        let large = large_bytes_max(self.node.bytes_max);
        self.connection.as_ref().map_or(large, |own| own.bytes_max.min(large))
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
        let within = if is_small { bytes_max } else { large_bytes_max(bytes_max) };
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

    /// Reserves more bytes. If there is no room, says why and changes nothing. A request that can
    /// never fit gets an error of its own, because sending it again later is in vain.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Error> {
        let (bytes, bytes_max) =
            (self.bytes.saturating_add(more), self.buffers.request_bytes_max());
        if bytes > bytes_max {
            return Err(Error::RequestTooLarge { bytes, bytes_max });
        }
        let is_small = bytes <= SMALL_BYTES;
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
        assert_eq!(refused.code(), "payload_too_large", "it could never fit");
        assert_eq!((large.bytes(), buffers.bytes()), (46 * MIB, 46 * MIB));
        large.grow(2 * MIB).unwrap();
        drop(large);
        assert_eq!(buffers.bytes(), 0);
    }

    /// Whoever is told to send it again later does so for ever.
    #[test]
    fn what_could_never_fit_is_too_large_and_what_finds_no_room_now_is_not() {
        let buffers = Buffers::new(0);
        let connection = buffers.of_connection();
        for (buffers, bytes_max) in [(&buffers, 48 * MIB), (&connection, 40 * MIB)] {
            let refused = buffers.reserve(bytes_max + 1).unwrap_err();
            assert_eq!(refused, Error::RequestTooLarge { bytes: bytes_max + 1, bytes_max });
            let _small = buffers.reserve(1).unwrap();
            assert_eq!(buffers.reserve(bytes_max).unwrap_err().code(), "limit_exceeded");
        }
        buffers.reserve(48 * MIB).unwrap();
        connection.reserve(40 * MIB).unwrap();
    }

    /// Two threads: one asks for more than there is, the other for what is there.
    #[test]
    fn what_is_refused_takes_no_room_from_what_fits() {
        const FREE: usize = 100;
        const TRIES: usize = 200_000;
        let count = Count::new(10 * FREE);
        assert!(count.try_add(9 * FREE, count.bytes_max));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..TRIES {
                    assert!(!count.try_add(FREE + 1, count.bytes_max));
                }
            });
            for tried in 0..TRIES {
                assert!(count.try_add(FREE, count.bytes_max), "the try {tried}");
                count.bytes.fetch_sub(FREE, Relaxed);
            }
        });
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
