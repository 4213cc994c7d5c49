//! Payloads: the trait through which payload bytes are kept beside the state.
//!
//! The machine has the length and the checksum of a body. Whether the bytes are in memory or
//! spilled to disk is no part of the state, so that replicas may differ in it.

use crate::TaskId;

/// The store for the bodies of one shard's tasks: content type, headers and payload, encoded as
/// [`crate::Body`].
pub trait Payloads {
    /// Keeps `body` under `task` and replaces an earlier one, such as that of an edited dead
    /// letter.
    fn put(&mut self, task: TaskId, body: &[u8]);
    /// Forgets the body, because the task has left the state.
    fn remove(&mut self, task: TaskId);
}

/// Keeps nothing, for replays and models that look at the state alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPayloads;

impl Payloads for NoPayloads {
    fn put(&mut self, _task: TaskId, _body: &[u8]) {}
    fn remove(&mut self, _task: TaskId) {}
}
