//! Every: the occurrences of a schedule with an interval, from its start to its end.

use taskyard_machine::{Occurrences, Rhythm, ScheduleSpec, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Every {
    ms: u64,
    start: u64,
    end: Option<u64>,
}

impl Every {
    /// # Panics
    /// If its rhythm is not an interval, because the simulator parses no cron expression.
    pub(crate) fn of(spec: &ScheduleSpec<'_>) -> Every {
        let Rhythm::Every { ms } = spec.rhythm else { panic!("{:?} is no interval", spec.rhythm) };
        let start = spec.start_at.map_or(0, |at| at.0);
        Every { ms, start, end: spec.end_at.map(|at| at.0) }
    }

    pub(crate) fn has_end(self) -> bool {
        self.end.is_some()
    }

    /// Whether this moment is one of its occurrences.
    pub(crate) fn names(self, at: Timestamp) -> bool {
        self.last_until(at) == Some(at)
    }
}

impl Occurrences for Every {
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let passed = (after.0 + 1).saturating_sub(self.start).div_ceil(self.ms);
        let next = self.start + passed * self.ms;
        self.end.is_none_or(|end| next <= end).then_some(Timestamp(next))
    }

    fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        let until = self.end.map_or(until.0, |end| end.min(until.0));
        let since = until.checked_sub(self.start)?;
        Some(Timestamp(until - since % self.ms))
    }

    fn count_between(&self, after: Timestamp, before: Timestamp, _max: u64) -> u64 {
        self.after(after).take_while(|at| *at < before).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_are_the_same_forwards_and_backwards() {
        let every = Every { ms: 1_000, start: 2_500, end: Some(5_000) };
        let all: Vec<Timestamp> = every.after(Timestamp(0)).collect();
        assert_eq!(all, [2_500, 3_500, 4_500].map(Timestamp));
        assert_eq!(every.last_until(Timestamp(2_499)), None);
        assert_eq!(every.last_until(Timestamp(3_499)), Some(Timestamp(2_500)));
        assert_eq!(every.last_until(Timestamp(9_000)), Some(Timestamp(4_500)));
        assert_eq!(every.count_between(Timestamp(2_500), Timestamp(4_500), 10), 1);
        assert!(every.names(Timestamp(4_500)) && !every.names(Timestamp(5_000)));
    }
}
