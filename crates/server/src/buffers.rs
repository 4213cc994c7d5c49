//! Buffers: what requests and answers in flight take of this node's memory.
//!
//! There is one number for the node, and one for each connection. A request takes its bytes before
//! they are read, and is refused when they do not fit; nothing has happened by then. An answer is
//! counted and sent in any case, because it tells what has happened: the next requests wait for it.
//! Requests of up to [`SMALL_BYTES`] may use all of the budget and larger ones three quarters, so
//! that a few large ones never keep out the many small ones.

use crate::Error;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// A request that comes to no more than this is small.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// Less would not hold one request of the largest size beside others.
const BYTES_MIN: usize = 64 << 20;

/// The same for one connection.
const CONNECTION_BYTES_MIN: usize = 40 << 20;

/// The budget, as one connection or the node itself uses it. Cheap to clone.
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

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    buffers: Buffers,
    bytes: usize,
}

impl Count {
    fn new(bytes_max: usize) -> Arc<Count> {
        Arc::new(Count { bytes_max, bytes: AtomicUsize::new(0) })
    }

    /// Adds to the count, unless it would pass `bytes_max`. What is refused is never in the count,
    /// not even for a moment: something smaller that fits must not be refused because of it.
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
    /// The budget of a node whose memory has this budget in all: a quarter of it.
    pub(crate) fn new(memory_bytes_max: u64) -> Buffers {
        let quarter = usize::try_from(memory_bytes_max / 4).unwrap_or(usize::MAX / 2);
        Buffers { node: Count::new(quarter.max(BYTES_MIN)), connection: None }
    }

    /// The same budget as one more connection uses it: about half of it at most.
    pub(crate) fn of_connection(&self) -> Buffers {
        let own = (self.node.bytes_max / 2).max(CONNECTION_BYTES_MIN);
        let connection = Some(Count::new(own));
        Buffers { node: Arc::clone(&self.node), connection }
    }

    /// Bytes in flight on this node.
    pub(crate) fn bytes(&self) -> usize {
        self.node.bytes.load(Relaxed)
    }

    /// A count of nothing, to be added to.
    pub(crate) fn none(&self) -> Reserved {
        Reserved { buffers: self.clone(), bytes: 0 }
    }

    /// Counts bytes of a request, or says why there is no room for them.
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
    /// Bytes that this counts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts more, or says why there is no room for it and changes nothing. What could never fit
    /// is told so: to send it again later would be in vain.
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

    /// Counts more whether there is room for it or not: it is there already.
    pub(crate) fn charge(&mut self, more: usize) {
        self.buffers.add(more);
        self.bytes += more;
    }

    /// Counts so many, fewer than now.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let fewer = self.bytes.saturating_sub(bytes);
        self.buffers.subtract(fewer);
        self.bytes -= fewer;
    }

    /// Hands over a part of what this counts.
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
    fn what_does_not_fit_is_refused_and_changes_nothing() {
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
    fn answers_are_counted_beyond_the_budget_and_let_go_in_parts() {
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
