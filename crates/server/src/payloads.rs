//! Bodies: the bodies of one shard's tasks that are in memory.
//!
//! Invariant: the body of every task in the state is in memory, in the checkpoint store, or in
//! both. A body leaves memory with its task, or once a synced checkpoint contains it. The newest
//! bodies are evicted first, because queues are served oldest first.
//!
//! While a cut is frozen, a body may belong to the cut and to no checkpoint yet. Such a body
//! outlives its task: it is set aside until the cut's record of the task is written, because a
//! backup must never contain the record without the body.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use taskyard_machine::{Payloads, TaskId};

/// Bodies of neighbouring ids share a chunk, so that a growing map never moves bodies.
const CHUNK_BODIES: usize = 128;
/// The overhead of a body, approximately: its slot, its allocation, its share of the tree.
const OVERHEAD_BYTES: u64 = 96;

/// Whether a body is in a checkpoint too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// No: it is in the log alone.
    No,
    /// In a checkpoint that is being written.
    Soon,
    /// In a synced checkpoint.
    Yes,
}

#[derive(Debug)]
struct Body {
    bytes: Bytes,
    stored: Stored,
    /// The task has ended: people may read the body, workers do not need it.
    is_cold: bool,
    /// The number of the last cut that was frozen before the body came.
    after_cut: u32,
}

/// Up to `CHUNK_BODIES` bodies with neighbouring ids.
#[derive(Debug)]
struct Chunk {
    bodies: Box<[Option<Body>]>,
    held: usize,
    /// How many of the bodies can be evicted.
    stored: usize,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { bodies: (0..CHUNK_BODIES).map(|_| None).collect(), held: 0, stored: 0 }
    }
}

/// The bodies of one shard that are in memory.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    chunks: BTreeMap<u128, Chunk>,
    /// Chunks with bodies that can be evicted.
    evictable: BTreeSet<u128>,
    bytes: u64,
    bytes_unstored: u64,
    /// How many cuts were frozen, and whether the last one has records left to write.
    cuts: u32,
    is_frozen: bool,
    /// Bodies of the frozen cut whose tasks no longer have them.
    set_aside: BTreeMap<TaskId, Bytes>,
}

/// The chunk of a task and its slot there.
fn place(task: TaskId) -> (u128, usize) {
    let id = task.to_u128();
    (id / CHUNK_BODIES as u128, (id % CHUNK_BODIES as u128) as usize)
}

fn cost(bytes: &Bytes) -> u64 {
    bytes.len() as u64 + OVERHEAD_BYTES
}

impl Bodies {
    pub(crate) fn get(&self, task: TaskId) -> Option<Bytes> {
        let (chunk, slot) = place(task);
        let body = self.chunks.get(&chunk)?.bodies[slot].as_ref()?;
        Some(body.bytes.clone())
    }

    /// Memory taken, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of bodies that no checkpoint contains yet, and that can't be evicted.
    pub(crate) fn bytes_unstored(&self) -> u64 {
        self.bytes_unstored
    }

    /// Begins a cut: the bodies in memory belong to it until `thaw`.
    pub(crate) fn freeze(&mut self) {
        self.cuts = self.cuts.wrapping_add(1);
        self.is_frozen = true;
    }

    /// Ends a cut whose records are all handed out.
    pub(crate) fn thaw(&mut self) {
        self.is_frozen = false;
        for bytes in std::mem::take(&mut self.set_aside).into_values() {
            self.bytes -= cost(&bytes);
            self.bytes_unstored -= cost(&bytes);
        }
    }

    /// The body for the frozen cut's record of this task, if the checkpoint must contain it.
    /// `checkpointed` follows when the checkpoint is synced.
    pub(crate) fn take_unstored(&mut self, task: TaskId) -> Option<Bytes> {
        if let Some(bytes) = self.set_aside.remove(&task) {
            self.bytes -= cost(&bytes);
            self.bytes_unstored -= cost(&bytes);
            return Some(bytes);
        }
        let (chunk, slot) = place(task);
        let body = self.chunks.get_mut(&chunk)?.bodies[slot].as_mut()?;
        // A body that came after the cut is for the next checkpoint.
        if body.stored != Stored::No || body.after_cut == self.cuts {
            return None;
        }
        body.stored = Stored::Soon;
        Some(body.bytes.clone())
    }

    /// Notes that the checkpoint with this body is synced. A body that was replaced meanwhile waits
    /// for the next checkpoint.
    pub(crate) fn checkpointed(&mut self, task: TaskId) {
        let (key, slot) = place(task);
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        if let Some(body) = &mut chunk.bodies[slot]
            && body.stored == Stored::Soon
        {
            body.stored = Stored::Yes;
            chunk.stored += 1;
            self.evictable.insert(key);
            self.bytes_unstored -= cost(&body.bytes);
            if body.is_cold {
                self.drop_body(task);
            }
        }
    }

    /// Notes that the task has ended: its body leaves memory once a checkpoint contains it.
    pub(crate) fn cool(&mut self, task: TaskId) {
        let (chunk, slot) = place(task);
        let body = self.chunks.get_mut(&chunk).and_then(|chunk| chunk.bodies[slot].as_mut());
        if let Some(body) = body {
            body.is_cold = true;
            if body.stored == Stored::Yes {
                self.drop_body(task);
            }
        }
    }

    /// Evicts stored bodies, newest first, until `bytes` are free. Returns how many were freed.
    /// Looks only at chunks with such bodies.
    pub(crate) fn evict(&mut self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes
            && let Some(&key) = self.evictable.last()
        {
            let chunk = self.chunks.get_mut(&key).expect("an evictable chunk is there");
            for slot in chunk.bodies.iter_mut().rev() {
                if freed >= bytes || chunk.stored == 0 {
                    break;
                }
                if let Some(body) = slot.take_if(|body| body.stored == Stored::Yes) {
                    freed += cost(&body.bytes);
                    chunk.held -= 1;
                    chunk.stored -= 1;
                }
            }
            self.update_chunk(key);
        }
        self.bytes -= freed;
        freed
    }

    /// Sets aside or forgets a body that its task no longer has.
    fn displaced(&mut self, task: TaskId, body: Body) {
        if self.is_frozen && body.stored == Stored::No && body.after_cut != self.cuts {
            self.set_aside.insert(task, body.bytes);
        } else {
            self.forget(&body);
        }
    }

    /// Removes a chunk that is empty, or its mark if nothing in it can be evicted.
    fn update_chunk(&mut self, key: u128) {
        let Some(chunk) = self.chunks.get(&key) else { return };
        if chunk.stored == 0 {
            self.evictable.remove(&key);
        }
        if chunk.held == 0 {
            self.chunks.remove(&key);
        }
    }

    fn forget(&mut self, body: &Body) {
        self.bytes -= cost(&body.bytes);
        if body.stored != Stored::Yes {
            self.bytes_unstored -= cost(&body.bytes);
        }
    }
}

impl Payloads for Bodies {
    fn put(&mut self, task: TaskId, body: &[u8]) {
        let (key, slot) = place(task);
        let bytes = Bytes::copy_from_slice(body);
        let cost = cost(&bytes);
        let chunk = self.chunks.entry(key).or_insert_with(Chunk::new);
        let body = Body { bytes, stored: Stored::No, is_cold: false, after_cut: self.cuts };
        match chunk.bodies[slot].replace(body) {
            Some(replaced) => {
                chunk.stored -= usize::from(replaced.stored == Stored::Yes);
                self.update_chunk(key);
                self.displaced(task, replaced);
            }
            None => chunk.held += 1,
        }
        self.bytes += cost;
        self.bytes_unstored += cost;
    }

    fn remove(&mut self, task: TaskId) {
        self.drop_body(task);
    }
}

impl Bodies {
    fn drop_body(&mut self, task: TaskId) {
        let (key, slot) = place(task);
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let Some(removed) = chunk.bodies[slot].take() else { return };
        chunk.held -= 1;
        chunk.stored -= usize::from(removed.stored == Stored::Yes);
        self.update_chunk(key);
        self.displaced(task, removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::ShardId;

    fn task(sequence: u64) -> TaskId {
        TaskId { incarnation: 1, home: ShardId(2), origin: ShardId(2), sequence }
    }

    fn with_bodies(count: u64) -> Bodies {
        let mut bodies = Bodies::default();
        for sequence in 0..count {
            bodies.put(task(sequence), &[7; 100]);
        }
        bodies
    }

    fn store(bodies: &mut Bodies, sequences: impl IntoIterator<Item = u64>) {
        bodies.freeze();
        for sequence in sequences {
            bodies.take_unstored(task(sequence));
            bodies.checkpointed(task(sequence));
        }
        bodies.thaw();
    }

    #[test]
    fn only_bodies_in_a_checkpoint_are_evicted_newest_first() {
        let mut bodies = with_bodies(300);
        assert_eq!(bodies.evict(u64::MAX), 0, "nothing is stored");
        store(&mut bodies, 0..200);
        assert_eq!(bodies.evict(10 * (100 + OVERHEAD_BYTES)), 10 * (100 + OVERHEAD_BYTES));
        assert!(bodies.get(task(189)).is_some() && bodies.get(task(190)).is_none());
        assert!(bodies.get(task(299)).is_some(), "not stored yet");
        bodies.evict(u64::MAX);
        assert_eq!(bodies.bytes(), bodies.bytes_unstored());
        assert_eq!(bodies.bytes(), 100 * (100 + OVERHEAD_BYTES));
        assert!(bodies.evictable.is_empty(), "nothing is looked at in vain");
    }

    #[test]
    fn a_body_replaced_during_a_checkpoint_waits_for_the_next_one() {
        let mut bodies = with_bodies(1);
        bodies.freeze();
        assert!(bodies.take_unstored(task(0)).is_some());
        assert!(bodies.take_unstored(task(0)).is_none(), "once per checkpoint");
        bodies.put(task(0), b"edited");
        bodies.thaw();
        bodies.checkpointed(task(0));
        assert_eq!(bodies.evict(u64::MAX), 0);
        bodies.freeze();
        assert_eq!(bodies.take_unstored(task(0)).as_deref(), Some(&b"edited"[..]));
        bodies.checkpointed(task(0));
        assert!(bodies.evict(u64::MAX) > 0);
        assert_eq!(bodies.get(task(0)), None);
    }

    #[test]
    fn the_body_of_an_ended_task_leaves_memory_once_it_is_stored() {
        let mut bodies = with_bodies(3);
        store(&mut bodies, [0]);
        bodies.cool(task(0));
        assert_eq!(bodies.get(task(0)), None);
        bodies.cool(task(1));
        assert!(bodies.get(task(1)).is_some(), "in the log alone");
        store(&mut bodies, [1, 2]);
        assert!(bodies.get(task(1)).is_none() && bodies.get(task(2)).is_some());
        assert_eq!(bodies.bytes(), 100 + OVERHEAD_BYTES);
    }

    #[test]
    fn a_frozen_cut_gets_the_bodies_that_its_tasks_had() {
        let mut bodies = with_bodies(4);
        store(&mut bodies, [3]);
        bodies.freeze();
        bodies.remove(task(0));
        bodies.put(task(1), b"edited");
        bodies.put(task(1), b"edited again");
        bodies.remove(task(3));
        bodies.put(task(9), b"new");
        assert_eq!(bodies.get(task(0)), None);
        let old = Some(Bytes::from_static(&[7; 100]));
        assert_eq!(bodies.take_unstored(task(0)), old);
        assert_eq!(bodies.take_unstored(task(1)), old);
        assert_eq!(bodies.take_unstored(task(1)), None, "the edited one is for the next cut");
        assert_eq!(bodies.take_unstored(task(2)), old);
        assert_eq!(bodies.take_unstored(task(3)), None, "stored before");
        assert_eq!(bodies.take_unstored(task(9)), None, "came after the cut");
        bodies.thaw();
        for sequence in 0..10 {
            bodies.checkpointed(task(sequence));
            bodies.remove(task(sequence));
        }
        assert_eq!((bodies.bytes(), bodies.bytes_unstored()), (0, 0));
    }

    #[test]
    fn no_bytes_are_counted_once_all_bodies_are_gone() {
        let mut bodies = with_bodies(500);
        store(&mut bodies, 100..300);
        bodies.evict(5_000);
        bodies.freeze();
        for sequence in 0..500 {
            bodies.remove(task(sequence));
            bodies.remove(task(sequence));
        }
        assert!(bodies.bytes() > 0, "the cut's");
        bodies.thaw();
        assert_eq!((bodies.bytes(), bodies.bytes_unstored()), (0, 0));
        assert!(bodies.chunks.is_empty() && bodies.evictable.is_empty());
    }
}
