//! Occurrences: what a leader proposes for a due schedule.
//!
//! This is not part of `apply`. Only the leader computes occurrences, because the machine has no
//! time zones; the machine checks the proposal like any other command.

use crate::limits::OCCURRENCES_PER_ENTRY_MAX;
use crate::{CatchUp, DueSchedule, FireSchedule, Timestamp};

/// The count of occurrences that can only be missed stops here.
const LEFT_OUT_COUNTED_MAX: u64 = 1_000;

/// About how much the runs of one entry may add to the log.
const RUNS_BYTES_MAX: usize = 1 << 20;

/// The moments of a schedule's rules, strictly increasing. A search forwards and a search backwards
/// find the same moments.
pub trait Occurrences {
    /// The first occurrence after a moment.
    fn next_after(&self, after: Timestamp) -> Option<Timestamp>;

    /// The last occurrence that is not after a moment.
    fn last_until(&self, until: Timestamp) -> Option<Timestamp>;

    /// The number of occurrences after one moment and before another. A count that needs a search
    /// may stop at `max`.
    fn count_between(&self, after: Timestamp, before: Timestamp, max: u64) -> u64;

    /// Occurrences after a moment, in order.
    fn after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_after(after), |&at| self.next_after(at))
    }
}

impl<'m> DueSchedule<'m> {
    /// The command for what is due at `now`: the next occurrence, and the later ones that may still
    /// fire.
    pub fn fire(&self, timetable: &impl Occurrences, now: Timestamp) -> FireSchedule<'m> {
        let spec = &self.spec;
        let first = self.next_run_at;
        // An occurrence before this moment can only be missed.
        let from = match spec.catch_up {
            CatchUp::Last => timetable.last_until(now).unwrap_or(first),
            CatchUp::None | CatchUp::All => spec.fires_from(now),
        };
        let after = first.max(Timestamp(from.0.saturating_sub(1)));
        let task_bytes = spec.enqueue.task.body.payload.len().max(1);
        let count_max = (RUNS_BYTES_MAX / task_bytes).clamp(2, OCCURRENCES_PER_ENTRY_MAX);
        let later = timetable.after(after).take_while(|at| *at <= now);
        let occurrences: Vec<Timestamp> =
            std::iter::once(first).chain(later).take(count_max).collect();
        let fires_again_at = occurrences.get(1).copied().unwrap_or(after.plus_ms(1));
        let left_out = timetable.count_between(first, fires_again_at, LEFT_OUT_COUNTED_MAX);
        let last = *occurrences.last().unwrap_or(&first);
        let next_run_at = timetable.next_after(last.max(after));
        let (name, revision) = (self.name, self.revision);
        FireSchedule { name, revision, occurrences, left_out, next_run_at }
    }
}
