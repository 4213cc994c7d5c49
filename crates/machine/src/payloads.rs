//! Payloads: the trait through which payload bytes are kept beside the state.
//!
//! The machine holds length and checksum; what is in memory and what is spilled to disk is no part
//! of the state, so replicas may differ in it.

use crate::TaskId;

/// Keeps the body (content type, headers and payload, encoded as [`crate::Body`]) of each task of one shard.
pub trait Payloads {
    /// Keeps `body` under `task`; replaces an earlier one (an edited dead letter).
    fn put(&mut self, task: TaskId, body: &[u8]);
    /// Forgets the body; the task has left the state.
    fn remove(&mut self, task: TaskId);
}

/// Keeps nothing: for replays and models that look at the state alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPayloads;

impl Payloads for NoPayloads {
    fn put(&mut self, _task: TaskId, _body: &[u8]) {}
    fn remove(&mut self, _task: TaskId) {}
}
