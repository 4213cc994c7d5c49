//! Comparison: when a shard's leader has its replicas compare their states, and this replica's
//! verdict.
//!
//! After many entries, or a while after the first, the leader proposes a mark. A mark is an entry,
//! so that all replicas keep the digest of the same moment; then the leader attests its digest. A
//! shard with one replica or without new entries compares nothing.

use std::time::{Duration, Instant};
use taskyard_machine::Attest;
use taskyard_replica::{Jury, Members, Statement, Verdict};

/// Entries after which replicas compare.
const ENTRIES_MAX: u64 = 1_024;
/// How long after the last comparison the next one is due, if there were entries.
pub(crate) const COMPARE_AFTER: Duration = Duration::from_secs(60);

/// The comparison of one shard, on one node.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    jury: Jury,
    in_flight: bool,
    /// When this leader last proposed a mark, or noticed the first entry to compare.
    since: Option<Instant>,
}

impl Comparison {
    /// When to propose a mark, given the number of entries since the last one.
    pub(crate) fn due_at(&self, unmarked: u64) -> Option<Instant> {
        let since = self.since.filter(|_| unmarked > 0 && !self.in_flight)?;
        Some(if unmarked >= ENTRIES_MAX { since } else { since + COMPARE_AFTER })
    }

    /// Whether to propose a mark now. If so, the mark counts as in flight.
    pub(crate) fn is_due(&mut self, unmarked: u64, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let is_due = self.due_at(unmarked).is_some_and(|at| at <= now);
        if is_due {
            (self.in_flight, self.since) = (true, Some(now));
        }
        is_due
    }

    /// The mark was applied or lost.
    pub(crate) fn done(&mut self) {
        self.in_flight = false;
    }

    /// This node no longer leads the shard.
    pub(crate) fn end(&mut self) {
        (self.in_flight, self.since) = (false, None);
    }

    /// Takes a replica's digest at a mark; this replica had `own`.
    pub(crate) fn judge(
        &mut self,
        me: u64,
        own: u64,
        attest: Attest,
        members: &Members,
    ) -> Verdict {
        let Attest { mark, replica, digest } = attest;
        self.jury.judge(me, own, Statement { mark, replica, digest }, members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::real_now;

    #[test]
    fn a_mark_is_due_after_many_entries_or_a_minute_after_one_and_never_after_none() {
        let start = real_now();
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut comparison = Comparison::default();
        assert!(!comparison.is_due(5, start), "it has just begun to lead");
        assert!(!comparison.is_due(ENTRIES_MAX - 1, after(59_999)));
        assert!(!comparison.is_due(0, after(90_000)) && comparison.due_at(0).is_none());
        assert_eq!(comparison.due_at(1), Some(after(60_000)));
        assert!(comparison.is_due(1, after(60_000)));
        assert!(!comparison.is_due(ENTRIES_MAX, after(200_000)), "one is in flight");
        comparison.done();
        assert!(comparison.is_due(ENTRIES_MAX, after(60_001)));
        comparison.end();
        assert!(!comparison.is_due(1, after(60_002)));
    }
}
