//! Dedup: a `request_id` makes at most one task in its queue within the queue's window.
//!
//! Only a 128-bit hash of queue and request_id is kept, with the task's id. A record outlives its
//! task and is never forgotten early.

use crate::kept::Keep;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{TaskId, Timestamp};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

#[derive(Debug, PartialEq)]
pub(crate) struct DedupRecord {
    pub(crate) id: TaskId,
    pub(crate) expires_at: Timestamp,
}

wire_struct!(DedupRecord { id, expires_at });

impl Keep for DedupRecord {
    type Key = u128;
    const KIND: u8 = 3;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }
}

impl Turn<'_> {
    /// The task that this request made before.
    pub(crate) fn known_request(&self, queue: &str, request_id: Option<&str>) -> Option<TaskId> {
        let record = self.shard.dedup.get(request_key(queue, request_id?))?;
        (record.expires_at > self.now).then_some(record.id)
    }

    /// Remembers for the queue's window that this request made `id`.
    pub(crate) fn remember_request(&mut self, queue: Slot, request_id: Option<&str>, id: TaskId) {
        let Some(request_id) = request_id else { return };
        let queue = self.shard.queues.get(queue);
        let window_ms = queue.dedup_window_ms();
        if window_ms > 0 {
            let key = request_key(queue.name.as_str(), request_id);
            let record = DedupRecord { id, expires_at: self.now.plus_ms(window_ms) };
            self.shard.dedup.insert(key, record);
        }
    }
}

/// The queue's hash is the seed, so that equal request ids of two queues are two requests.
fn request_key(queue: &str, request_id: &str) -> u128 {
    xxh3_128_with_seed(request_id.as_bytes(), xxh3_64(queue.as_bytes()))
}
