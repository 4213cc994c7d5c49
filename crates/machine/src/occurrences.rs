//! What a leader proposes of a schedule that is due. No part of `apply`: only a leader asks, of
//! occurrences that it alone can name, and the machine judges the answer like any other command.

use crate::limits::OCCURRENCES_PER_ENTRY_MAX;
use crate::{CatchUp, DueSchedule, FireSchedule, Timestamp};

/// Occurrences that can only be missed are counted up to this.
const LEFT_OUT_COUNTED_MAX: u64 = 1_000;

/// What the runs of one entry may add to the log, about.
const RUNS_BYTES_MAX: usize = 1 << 20;

/// The moments that a schedule's rules name: strictly increasing, and the same ones forwards and
/// backwards.
pub trait Occurrences {
    /// The first occurrence after a moment.
    fn next_after(&self, after: Timestamp) -> Option<Timestamp>;

    /// The last occurrence that is not after a moment.
    fn last_until(&self, until: Timestamp) -> Option<Timestamp>;

    /// How many occurrences are after one moment and before another, counted up to `max` where they
    /// must be looked for.
    fn count_between(&self, after: Timestamp, before: Timestamp, max: u64) -> u64;

    /// Occurrences after a moment, in order.
    fn after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_after(after), |&at| self.next_after(at))
    }
}

impl<'m> DueSchedule<'m> {
    /// What is due of it at `now`: its next occurrence, and of those after it what may still fire.
    pub fn fire(&self, timetable: &impl Occurrences, now: Timestamp) -> FireSchedule<'m> {
        let spec = &self.spec;
        let first = self.next_run_at;
        // Before this an occurrence can only be missed.
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
