//! LeaderClock: the time that a leader stamps on its entries.
//!
//! Invariant: this time never goes back and never stands still, whatever the wall clock does. It
//! starts at the later of the wall clock and the last time in the state. It follows a wall clock
//! that is ahead at once. While this time is ahead of the wall clock, it runs a little slower until
//! both are level, so that delays, leases and rates keep their lengths. See
//! docs/decisions/015-time-of-a-shard.md.

use crate::clock::Reading;
use std::time::{Duration, Instant};
use taskyard_machine::Timestamp;

/// The clock of a shard's leader, for one term.
#[derive(Debug)]
pub(crate) struct LeaderClock {
    /// In nanoseconds since the epoch, so that short steps add up.
    now_ns: u128,
    looked_at: Instant,
}

const NS_PER_MS: u128 = 1_000_000;

/// The share of time that the clock loses while it is ahead of the wall clock: 3 %. A clock that is
/// an hour ahead is level after 32 hours.
const SLOWER_BY_ONE_IN: u128 = 32;

impl LeaderClock {
    /// The clock of a leader whose state was last changed at `last`.
    pub(crate) fn new(last: Timestamp, reading: Reading) -> LeaderClock {
        let now_ns = u128::from(last.0.max(reading.wall_ms)) * NS_PER_MS;
        LeaderClock { now_ns, looked_at: reading.monotonic }
    }

    /// The time to stamp now.
    pub(crate) fn now(&mut self, reading: Reading) -> Timestamp {
        let passed = self.passed(reading);
        self.looked_at = self.looked_at.max(reading.monotonic);
        let wall_ns = wall_ns(reading);
        let at_full_speed = self.now_ns + passed;
        // The wall clock is read in whole milliseconds: within one millisecond, both are level.
        let is_ahead = at_full_speed > wall_ns + NS_PER_MS;
        let lost = if is_ahead { passed / SLOWER_BY_ONE_IN } else { 0 };
        self.now_ns = (at_full_speed - lost).max(wall_ns);
        Timestamp((self.now_ns / NS_PER_MS) as u64)
    }

    /// Advances the clock. Returns by how much a jump of the wall clock moved it.
    pub(crate) fn step(&mut self, reading: Reading) -> Duration {
        let level = self.now_ns + self.passed(reading);
        self.now(reading);
        nanos(self.now_ns.saturating_sub(level))
    }

    /// How far the clock is ahead of the wall clock.
    pub(crate) fn ahead(&self, reading: Reading) -> Duration {
        let now_ns = self.now_ns + self.passed(reading);
        nanos(now_ns.saturating_sub(wall_ns(reading) + NS_PER_MS))
    }

    /// How long until the clock shows `due`, if the wall clock does not jump.
    pub(crate) fn until(&self, due: Timestamp, reading: Reading) -> Duration {
        let left = (u128::from(due.0) * NS_PER_MS).saturating_sub(self.now_ns);
        // The clock may be level before `due`, and then runs at full speed.
        let by_then = self.now_ns.saturating_sub(wall_ns(reading) + NS_PER_MS);
        nanos(left + by_then.min(left.div_ceil(SLOWER_BY_ONE_IN - 1)))
    }

    fn passed(&self, reading: Reading) -> u128 {
        reading.monotonic.saturating_duration_since(self.looked_at).as_nanos()
    }
}

fn wall_ns(reading: Reading) -> u128 {
    u128::from(reading.wall_ms) * NS_PER_MS
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    struct World {
        started: Instant,
        passed_ms: u64,
        /// How far the wall clock was set.
        jumped_ms: i64,
    }

    impl World {
        fn new() -> World {
            World { started: Instant::now(), passed_ms: 0, jumped_ms: 0 }
        }

        fn after(&mut self, ms: u64) -> Reading {
            self.passed_ms += ms;
            let wall = 10 * HOUR_MS as i64 + self.passed_ms as i64 + self.jumped_ms;
            let monotonic = self.started + Duration::from_millis(self.passed_ms);
            Reading { wall_ms: wall as u64, monotonic, stood: None }
        }
    }

    #[test]
    fn the_clock_follows_an_even_wall_clock() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        assert_eq!(clock.now(world.after(0)), Timestamp(10 * HOUR_MS));
        assert_eq!(clock.now(world.after(1)), Timestamp(10 * HOUR_MS + 1));
        assert_eq!(clock.now(world.after(999)), Timestamp(10 * HOUR_MS + 1000));
    }

    #[test]
    fn a_wall_clock_that_jumps_back_an_hour_slows_the_clock_a_little_until_both_are_level() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        let before = clock.now(world.after(1000));
        world.jumped_ms = -(HOUR_MS as i64);
        let mut last = before;
        for _ in 0..100 {
            let now = clock.now(world.after(32));
            assert_eq!(now.ms_since(last), 31, "nobody notices");
            last = now;
        }
        let ahead = clock.ahead(world.after(0));
        assert!(ahead > Duration::from_secs(3_599) && ahead < Duration::from_secs(3_600));
        // Half of the hour is made good in half of the time.
        let halfway = clock.now(world.after(16 * HOUR_MS));
        let ahead_ms = halfway.0 - world.after(0).wall_ms;
        assert!(ahead_ms.abs_diff(HOUR_MS / 2) < 1_000, "{ahead_ms}");
        let level = clock.now(world.after(16 * HOUR_MS));
        let wall = world.after(0).wall_ms;
        assert!(level.0 >= wall && level.0 - wall < 2000, "{level} against {wall}");
        let later = clock.now(world.after(10_000));
        assert_eq!(later.0, world.after(0).wall_ms, "level again, at full speed");
        assert_eq!(clock.ahead(world.after(0)), Duration::ZERO);
    }

    /// A wall clock that is set right again is followed at once.
    #[test]
    fn a_wall_clock_that_is_set_right_again_is_followed_at_once() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        world.jumped_ms = -(HOUR_MS as i64);
        clock.now(world.after(32_000));
        world.jumped_ms = 0;
        let step = clock.step(world.after(1_000));
        assert_eq!(step, Duration::from_secs(1), "as much as it lost");
        assert_eq!(clock.now(world.after(0)).0, world.after(0).wall_ms);
    }

    #[test]
    fn a_wall_clock_that_jumps_forward_is_followed_at_once() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        world.jumped_ms = HOUR_MS as i64;
        assert_eq!(clock.now(world.after(5)), Timestamp(11 * HOUR_MS + 5));
        world.jumped_ms = 0;
        let now = clock.now(world.after(10));
        let ahead = Timestamp(11 * HOUR_MS + 14);
        assert_eq!(now, ahead, "and back again: it goes on from there");
    }

    #[test]
    fn the_clock_starts_no_earlier_than_the_state() {
        let mut world = World::new();
        let state = Timestamp(12 * HOUR_MS);
        let mut clock = LeaderClock::new(state, world.after(0));
        assert_eq!(clock.now(world.after(0)), state);
        assert_eq!(clock.now(world.after(32)), Timestamp(state.0 + 31));
        let left = clock.until(Timestamp(state.0 + 341), world.after(0));
        assert_eq!(left, Duration::from_millis(320), "a little slower");
        // The clock is two hours ahead, and level after 64: the rest runs at full speed.
        let left = clock.until(Timestamp(state.0 + 1_000 * HOUR_MS), world.after(0));
        assert_eq!(left.as_secs().div_ceil(3_600), 1_002);
    }

    #[test]
    fn small_steps_add_up() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(20 * HOUR_MS), world.after(0));
        for _ in 0..3_200 {
            clock.now(world.after(1));
        }
        assert_eq!(clock.now(world.after(0)), Timestamp(20 * HOUR_MS + 3_100));
    }
}
