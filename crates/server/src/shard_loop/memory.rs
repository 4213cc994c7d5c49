//! MemoryBudget: the memory that tasks and their bodies may take on this node.
//!
//! Requests, answers and commands in flight count too, up to half of the budget. Above four fifths
//! of the budget, stored bodies are evicted, and a shard whose bodies are in no checkpoint yet gets
//! one. At the whole budget, enqueues are refused.

use super::{checkpoints::Checkpoints, local::LocalShard, local_shards::LocalShards};
use crate::{Error, buffers::Buffers};

/// Bytes that one turn evicts at most, because freeing takes time per allocation.
const EVICT_BYTES_PER_TURN: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: u64,
    bytes: u64,
    buffers: Buffers,
    /// The budget was used up and has not been clearly below since, so that each change is logged
    /// once.
    is_short: bool,
    /// The shard with which evicting begins next; it changes each turn, so that none is emptied
    /// first.
    next_shard: usize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: u64, buffers: Buffers) -> MemoryBudget {
        MemoryBudget { bytes_max, bytes: 0, buffers, is_short: false, next_shard: 0 }
    }

    /// Bytes that all shards take, as of the last turn.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that all shards and requests in flight take. The latter count up to half of the
    /// budget, so that some tasks always fit.
    fn bytes_in_all(&self) -> u64 {
        self.bytes + self.in_flight_bytes().min(self.bytes_max / 2)
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Notes what a changed shard takes.
    pub(crate) fn note(&mut self, shard: &mut LocalShard) {
        let bytes = shard.state().memory_bytes();
        self.bytes = self.bytes - shard.memory_bytes + bytes;
        shard.memory_bytes = bytes;
    }

    /// Forgets a shard that is removed from this node.
    pub(crate) fn forget(&mut self, shard: &LocalShard) {
        self.bytes -= shard.memory_bytes;
    }

    /// Bytes of requests, answers and commands in flight.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.buffers.bytes() as u64
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes_in_all() >= self.bytes_max
    }

    /// Refuses new tasks while the budget is used up.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if !self.is_full() {
            return Ok(());
        }
        let (bytes, bytes_max) = (self.bytes, self.bytes_max);
        let in_flight = self.bytes_in_all() - bytes;
        Err(Error::LimitExceeded(format!(
            "tasks take {bytes} bytes of memory and requests in flight take {in_flight}; memory_bytes_max \
             is {bytes_max}: enqueue again when some tasks are done, or raise memory_bytes_max"
        )))
    }

    /// Evicts bodies that are stored on disk, and asks for a checkpoint of bodies that are not.
    pub(crate) fn enforce(&mut self, shards: &mut LocalShards) {
        self.tell();
        let aim = self.bytes_max / 5 * 4;
        let bytes = self.bytes_in_all();
        if bytes <= aim {
            return;
        }
        let mut left = (bytes - aim).min(EVICT_BYTES_PER_TURN);
        let first = self.next_shard % shards.count().max(1);
        self.next_shard = first + 1;
        for number in (first..shards.count()).chain(0..first) {
            if left == 0 {
                return;
            }
            let Some(shard) = shards.get_mut(number) else { continue };
            let freed = shard.replica.machine_mut().bodies.evict(left);
            left = left.saturating_sub(freed);
            if freed > 0 {
                self.note(shard);
            }
        }
        if left > 0 {
            let unstored = |shard: &&mut LocalShard| shard.state().bodies.bytes_unstored();
            if let Some(shard) = shards.iter_mut().max_by_key(unstored)
                && unstored(&shard) > self.bytes_max / 100
            {
                Checkpoints::want(shard);
            }
        }
    }

    fn tell(&mut self) {
        let (bytes, bytes_max) = (self.bytes_in_all(), self.bytes_max);
        if !self.is_short && self.is_full() {
            self.is_short = true;
            tracing::warn!(
                "tasks and requests in flight take {bytes} bytes of memory; memory_bytes_max is \
                 {bytes_max}: enqueues are refused until some tasks are done or stored"
            );
        } else if self.is_short && bytes < bytes_max - bytes_max / 20 {
            self.is_short = false;
            tracing::info!(
                "tasks and requests in flight take {bytes} bytes of memory: enqueues are taken again"
            );
        }
    }
}
