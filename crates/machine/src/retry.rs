//! RetryPolicy: how long to wait after a failure, and when to give up.
//!
//! Fractions are thousandths, so that every replica computes the same wait.

use crate::{TaskId, Timestamp};

/// When a failed task runs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How the wait grows.
    pub backoff: Backoff,
    /// Attempts in all, the first included. 1 never retries.
    pub max_attempts: u32,
    /// Added to each wait: up to this share of it, in thousandths, drawn from task and attempt.
    pub jitter_thousandths: u32,
}

/// How the wait before the next attempt follows from the failures so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// `delay_ms` x `factor`^(failures - 1), up to `delay_max_ms`.
    Exponential {
        /// The first wait.
        delay_ms: u64,
        /// Growth per failure, in thousandths: 2000 doubles.
        factor_thousandths: u32,
        /// The longest wait.
        delay_max_ms: u64,
    },
    /// Always `delay_ms`.
    Fixed {
        /// Every wait.
        delay_ms: u64,
    },
    /// `delay_ms` x failures, up to `delay_max_ms`.
    Linear {
        /// The first wait, and what each failure adds.
        delay_ms: u64,
        /// The longest wait.
        delay_max_ms: u64,
    },
    /// Sidekiq's and Faktory's formula: n^4 + 15 s + r x (n + 1) s, n the failures before this one, r from 0 to 29.
    Polynomial,
    /// The n-th failure waits the n-th delay; the last one repeats.
    List {
        /// The waits, at least one.
        delays_ms: Box<[u64]>,
    },
}

impl Default for RetryPolicy {
    /// 30 s doubling up to 1 h, up to a quarter of jitter, 25 attempts.
    fn default() -> RetryPolicy {
        RetryPolicy {
            backoff: Backoff::Exponential {
                delay_ms: 30_000,
                factor_thousandths: 2_000,
                delay_max_ms: 3_600_000,
            },
            max_attempts: 25,
            jitter_thousandths: 250,
        }
    }
}

impl RetryPolicy {
    /// The wait after the `failures`-th failure of `task` (from 1), jitter included.
    pub fn delay_after(&self, failures: u32, task: TaskId) -> u64 {
        let _ = (failures, task, Timestamp(0));
        unimplemented!("machine crate")
    }
}
