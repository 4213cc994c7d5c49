//! LeaderClock: the time that a leader stamps on entries. It starts from the later of the state's
//! time and the wall clock, follows the wall clock forward, and runs at half speed while ahead of
//! it. A shard's time therefore never goes back and never stands still, whatever the clocks do.

/// The wall clock's value when a run begins, in ms since the epoch.
pub(crate) const RUN_BEGINS_AT_MS: u64 = 1_700_000_000_000;

/// One leader's time on one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderClock {
    /// In halves of a millisecond, so that half speed loses nothing between two stamps.
    halves: u64,
    /// The node's monotonic clock at the last stamp, in ms.
    stamped_at: u64,
}

impl LeaderClock {
    /// Begins a term on a state whose last entry has the time `state_now`.
    pub(crate) fn begin(state_now: u64, wall: u64, monotonic: u64) -> LeaderClock {
        LeaderClock { halves: 2 * state_now.max(wall), stamped_at: monotonic }
    }

    /// The time of the next entry, in ms.
    pub(crate) fn stamp(&mut self, wall: u64, monotonic: u64) -> u64 {
        let elapsed = monotonic - self.stamped_at;
        self.stamped_at = monotonic;
        self.halves = (self.halves + elapsed).max(2 * wall);
        self.halves / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_follows_the_wall_forward_and_halves_when_ahead() {
        let mut clock = LeaderClock::begin(1_000, 900, 0);
        let stamps =
            [(910, 10), (920, 20), (921, 21), (922, 22), (2_000, 30), (500, 40), (540, 80)]
                .map(|(wall, monotonic)| clock.stamp(wall, monotonic));
        assert_eq!(stamps, [1_005, 1_010, 1_010, 1_011, 2_000, 2_005, 2_025]);
    }
}
