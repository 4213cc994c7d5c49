//! MemoryBudget: what tasks and their bodies may take of this node's memory, beside what is in
//! flight.
//!
//! Requests, answers and commands on their way count too, up to half of the budget. Past four
//! fifths of it, stored bodies are evicted, and shards whose bodies are in no checkpoint yet get
//! one. At all of it, enqueues are refused: what is left are the tasks themselves.

use super::{checkpoints::Checkpoints, held::Held, local::LocalShard};
use crate::{Error, buffers::Buffers};

/// What one turn evicts at most: it frees allocation by allocation.
const EVICT_BYTES_PER_TURN: u64 = 8 << 20;

/// The budget of all shards of this node.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: u64,
    bytes: u64,
    /// What is in flight counts too.
    buffers: Buffers,
    /// It was used up and has not been clearly below since: told once each way.
    is_short: bool,
    /// Where evicting begins next: each turn with another shard, so that none is drained first.
    next_shard: usize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: u64, buffers: Buffers) -> MemoryBudget {
        MemoryBudget { bytes_max, bytes: 0, buffers, is_short: false, next_shard: 0 }
    }

    /// Taken by all shards, as of the last turn.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Taken by all shards and by what is in flight: of that no more than half of the budget
    /// counts, so that there is always room for some tasks.
    fn bytes_in_all(&self) -> u64 {
        self.bytes + self.in_flight_bytes().min(self.bytes_max / 2)
    }

    /// What they may take.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// A shard has changed.
    pub(crate) fn note(&mut self, shard: &mut LocalShard) {
        let bytes = shard.state().memory_bytes();
        self.bytes = self.bytes - shard.memory_bytes + bytes;
        shard.memory_bytes = bytes;
    }

    /// A shard is gone from this node.
    pub(crate) fn forget(&mut self, shard: &LocalShard) {
        self.bytes -= shard.memory_bytes;
    }

    /// Taken by requests, answers and commands on their way.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.buffers.bytes() as u64
    }

    /// Whether new tasks are refused.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes_in_all() >= self.bytes_max
    }

    /// Whether more tasks may be taken.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if !self.is_full() {
            return Ok(());
        }
        let (bytes, bytes_max) = (self.bytes, self.bytes_max);
        let in_flight = self.bytes_in_all() - bytes;
        Err(Error::LimitExceeded(format!(
            "tasks take {bytes} bytes of memory and requests in flight {in_flight}, the budget \
             memory_bytes_max is {bytes_max}; enqueue again when some are done, or raise it"
        )))
    }

    /// Evicts what can be had again from disk, and asks for checkpoints of what can't.
    pub(crate) fn enforce(&mut self, shards: &mut Held) {
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
                "tasks and requests in flight take {bytes} bytes of memory, the budget \
                 memory_bytes_max is {bytes_max}: enqueues are refused until some are done or stored"
            );
        } else if self.is_short && bytes < bytes_max - bytes_max / 20 {
            self.is_short = false;
            tracing::info!(
                "tasks and requests in flight take {bytes} bytes of memory: enqueues are taken again"
            );
        }
    }
}
