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

#[cfg(test)]
mod tests {
    use crate::testing::{Yard, new_task};
    use crate::{NewTask, QueueSettings, limits::DEDUP_WINDOW_MS_DEFAULT};

    fn request(request_id: &str) -> NewTask<'_> {
        NewTask { request_id: Some(request_id), ..new_task() }
    }

    #[test]
    fn a_known_request_gets_the_first_id_in_its_queue_alone() {
        let mut yard = Yard::new();
        let first = yard.enqueue_task("mail", request("r")).unwrap();
        let again = yard.enqueue_task("mail", request("r")).unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true));
        assert!(!yard.enqueue_task("video", request("r")).unwrap().duplicate);
        assert!(!yard.enqueue_task("mail", request("R")).unwrap().duplicate);
    }

    #[test]
    fn a_known_request_is_answered_even_when_full_ended_or_removed() {
        let mut yard = Yard::new();
        let settings = QueueSettings {
            max_length: Some(1),
            retention_count: Some(0),
            ..QueueSettings::default()
        };
        yard.set("mail", settings);
        let first = yard.enqueue_task("mail", request("r")).unwrap().id;
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first, "full");
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        assert_eq!(yard.machine.task(first), None);
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first, "removed");
    }

    #[test]
    fn a_request_is_remembered_for_its_window_and_no_longer() {
        let mut yard = Yard::new();
        let first = yard.enqueue_task("mail", request("r")).unwrap().id;
        yard.wait_ms(DEDUP_WINDOW_MS_DEFAULT - 1);
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first);
        yard.pass_ms(1);
        let second = yard.enqueue_task("mail", request("r")).unwrap();
        assert!(!second.duplicate, "even before ExpireDue has removed the record");
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, second.id);
    }
}
