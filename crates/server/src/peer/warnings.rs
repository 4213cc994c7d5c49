//! Warnings: what the peer port refuses, counted by kind, and logged at most once a minute.
//!
//! A port scanner or a misconfigured node comes back for ever; the log must not grow with it.

use crate::clock::Clock;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between two log lines of one kind.
const LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Warnings {
    clock: Clock,
    kinds: Mutex<BTreeMap<&'static str, Seen>>,
}

#[derive(Debug)]
struct Seen {
    total: u64,
    logged_at: Instant,
    /// Warnings since the last log line.
    unlogged: u64,
}

impl Warnings {
    pub(super) fn new(clock: Clock) -> Warnings {
        Warnings { clock, kinds: Mutex::default() }
    }

    /// Counts a warning about `whom`, and logs it unless one of its kind was logged lately.
    pub(super) fn warn(
        &self,
        kind: &'static str,
        whom: impl fmt::Display,
        words: impl fmt::Display,
    ) {
        if let Some(unlogged) = self.count(kind) {
            tracing::warn!(kind, from = %whom, unlogged, "peer port: {words}");
        }
    }

    /// The number of warnings of each kind.
    pub(super) fn totals(&self) -> BTreeMap<&'static str, u64> {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().map(|(kind, seen)| (*kind, seen.total)).collect()
    }

    /// Counts a warning. Returns the number of unlogged ones before it if it is to be logged.
    fn count(&self, kind: &'static str) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = kinds.get_mut(kind) else {
            kinds.insert(kind, Seen { total: 1, logged_at: now, unlogged: 0 });
            return Some(0);
        };
        seen.total += 1;
        if now.saturating_duration_since(seen.logged_at) < LOG_EVERY {
            seen.unlogged += 1;
            return None;
        }
        seen.logged_at = now;
        Some(std::mem::take(&mut seen.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_a_minute_with_the_number_left_out() {
        let clock = Clock::manual(0);
        let warnings = Warnings::new(clock.clone());
        assert_eq!(warnings.count("garbage"), Some(0));
        for _ in 0..1_000 {
            assert_eq!(warnings.count("garbage"), None);
        }
        assert_eq!(warnings.count("secret"), Some(0));
        clock.advance(LOG_EVERY);
        assert_eq!(warnings.count("garbage"), Some(1_000));
        assert_eq!(warnings.count("garbage"), None);
        assert_eq!(warnings.totals(), BTreeMap::from([("garbage", 1_003), ("secret", 1)]));
    }
}
