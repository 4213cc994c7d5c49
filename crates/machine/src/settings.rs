//! QueueSettings: what a queue decides for its tasks. What is `None` is the default of `limits.rs`.

use crate::RetryPolicy;

/// A queue's own rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Most waiting tasks (ready, scheduled, blocked); no bound by default.
    pub max_length: Option<u64>,
    /// How long a request_id is remembered.
    pub dedup_window_ms: Option<u64>,
    /// How long finished tasks are kept at most.
    pub retention_ms: Option<u64>,
    /// How many finished tasks are kept at most.
    pub retention_count: Option<u32>,
    /// How long dead letters are kept.
    pub dead_retention_ms: Option<u64>,
    /// How many dead letters are kept at most; no bound by default. 0 ends tasks as Failed instead.
    pub dead_retention_count: Option<u32>,
    /// For tasks that bring none.
    pub retry: Option<RetryPolicy>,
    /// For tasks that bring none.
    pub timeout_ms: Option<u64>,
}
