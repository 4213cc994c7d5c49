//! LeaderClock: the time that a leader stamps on entries. It starts from the later of the state's
//! time and the wall clock, follows the wall clock forward, and runs slower by a little while ahead
//! of it. So a shard's time never goes back, whatever clocks do, and never stands still.

/// The wall clock's value when a run begins, in ms since the epoch.
pub(crate) const RUN_BEGINS_AT_MS: u64 = 1_700_000_000_000;

/// A leader's time loses one part in so many while it is ahead of the wall clock.
const SLOWER_BY_ONE_IN: u64 = 32;

/// One leader's time on one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderClock {
    /// In parts of a ms, so that nothing is lost between two stamps.
    parts: u64,
    /// Of the node's monotonic clock, in ms.
    stamped_at: u64,
}

impl LeaderClock {
    /// Begins a term on a state whose last entry has the time `state_now`.
    pub(crate) fn begin(state_now: u64, wall: u64, monotonic: u64) -> LeaderClock {
        LeaderClock { parts: SLOWER_BY_ONE_IN * state_now.max(wall), stamped_at: monotonic }
    }

    /// The time of the next entry, in ms.
    pub(crate) fn stamp(&mut self, wall: u64, monotonic: u64) -> u64 {
        let elapsed = monotonic - self.stamped_at;
        self.stamped_at = monotonic;
        let slower = self.parts + elapsed * (SLOWER_BY_ONE_IN - 1);
        self.parts = slower.max(SLOWER_BY_ONE_IN * wall);
        self.parts / SLOWER_BY_ONE_IN
    }

    /// How far a leader's time gets at least while so much passes, but for rounding.
    pub(crate) fn advance_min(passed_ms: u64) -> u64 {
        passed_ms - passed_ms.div_ceil(SLOWER_BY_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_follows_the_wall_forward_and_is_a_little_slower_when_ahead() {
        let mut clock = LeaderClock::begin(1_000, 900, 0);
        let stamps =
            [(910, 10), (932, 32), (932, 32), (964, 64), (2_000, 74), (500, 84), (820, 404)]
                .map(|(wall, monotonic)| clock.stamp(wall, monotonic));
        assert_eq!(stamps, [1_009, 1_031, 1_031, 1_062, 2_000, 2_009, 2_319]);
    }
}
