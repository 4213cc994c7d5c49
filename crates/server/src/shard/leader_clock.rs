//! LeaderClock: the time that a leader stamps on its entries.
//!
//! Invariant: it never goes back and never stands still, whatever the wall clock does. It starts at the
//! later of the wall clock and the last time in the state, follows the wall clock forward, and runs at
//! half speed while it is ahead of it.

use crate::clock::Reading;
use std::time::{Duration, Instant};
use taskyard_machine::Timestamp;

/// The clock of one leader in one term.
#[derive(Debug)]
pub(crate) struct LeaderClock {
    /// In nanoseconds since the epoch, so that half speed loses nothing between two looks.
    now_ns: u128,
    looked_at: Instant,
}

const NS_PER_MS: u128 = 1_000_000;

impl LeaderClock {
    /// The clock of a leader whose state was last changed at `last`.
    pub(crate) fn new(last: Timestamp, reading: Reading) -> LeaderClock {
        let now_ns = u128::from(last.0.max(reading.wall_ms)) * NS_PER_MS;
        LeaderClock { now_ns, looked_at: reading.monotonic }
    }

    /// The time to stamp now.
    pub(crate) fn now(&mut self, reading: Reading) -> Timestamp {
        let passed = reading.monotonic.saturating_duration_since(self.looked_at).as_nanos();
        self.looked_at = self.looked_at.max(reading.monotonic);
        let wall_ns = u128::from(reading.wall_ms) * NS_PER_MS;
        let at_full_speed = self.now_ns + passed;
        // The wall clock is read in whole milliseconds: within one of it is level with it.
        let is_ahead = at_full_speed > wall_ns + NS_PER_MS;
        let at_its_speed = if is_ahead { self.now_ns + passed / 2 } else { at_full_speed };
        self.now_ns = at_its_speed.max(wall_ns);
        Timestamp((self.now_ns / NS_PER_MS) as u64)
    }

    /// How far it goes ahead now beyond the time that passed, since the wall clock did.
    pub(crate) fn step(&mut self, reading: Reading) -> Duration {
        let passed = reading.monotonic.saturating_duration_since(self.looked_at).as_nanos();
        let before = self.now_ns;
        self.now(reading);
        let step = self.now_ns.saturating_sub(before + passed);
        Duration::from_nanos(u64::try_from(step).unwrap_or(u64::MAX))
    }

    /// How long until this clock shows `due`, if the wall clock does not jump.
    pub(crate) fn until(&self, due: Timestamp, reading: Reading) -> Duration {
        let due_ns = u128::from(due.0) * NS_PER_MS;
        let left = due_ns.saturating_sub(self.now_ns);
        let is_ahead = self.now_ns > u128::from(reading.wall_ms) * NS_PER_MS + NS_PER_MS;
        let left = if is_ahead { left * 2 } else { left };
        Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    struct World {
        started: Instant,
        passed_ms: u64,
        /// What somebody did to the wall clock.
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
    fn it_follows_an_even_wall_clock() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        assert_eq!(clock.now(world.after(0)), Timestamp(10 * HOUR_MS));
        assert_eq!(clock.now(world.after(1)), Timestamp(10 * HOUR_MS + 1));
        assert_eq!(clock.now(world.after(999)), Timestamp(10 * HOUR_MS + 1000));
    }

    #[test]
    fn a_wall_clock_that_jumps_back_an_hour_slows_it_until_level() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        let before = clock.now(world.after(1000));
        world.jumped_ms = -(HOUR_MS as i64);
        let mut last = before;
        for _ in 0..100 {
            let now = clock.now(world.after(10));
            assert_eq!(now.ms_since(last), 5, "half speed");
            last = now;
        }
        // Half an hour of shard time passes while the wall clock makes good the whole hour.
        let level = clock.now(world.after(2 * HOUR_MS));
        let wall = world.after(0).wall_ms;
        assert!(level.0 >= wall && level.0 - wall < 2000, "{level} against {wall}");
        let later = clock.now(world.after(10_000));
        assert_eq!(later.0, world.after(0).wall_ms, "level again, at full speed");
    }

    #[test]
    fn a_wall_clock_that_jumps_forward_is_followed_at_once() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(0), world.after(0));
        world.jumped_ms = HOUR_MS as i64;
        assert_eq!(clock.now(world.after(5)), Timestamp(11 * HOUR_MS + 5));
        world.jumped_ms = 0;
        let now = clock.now(world.after(10));
        assert_eq!(now, Timestamp(11 * HOUR_MS + 10), "and back again: half speed from there");
    }

    #[test]
    fn it_starts_no_earlier_than_the_state() {
        let mut world = World::new();
        let state = Timestamp(12 * HOUR_MS);
        let mut clock = LeaderClock::new(state, world.after(0));
        assert_eq!(clock.now(world.after(0)), state);
        assert_eq!(clock.now(world.after(8)), Timestamp(state.0 + 4));
        let left = clock.until(Timestamp(state.0 + 104), world.after(0));
        assert_eq!(left, Duration::from_millis(200), "at half speed");
    }

    #[test]
    fn small_steps_add_up() {
        let mut world = World::new();
        let mut clock = LeaderClock::new(Timestamp(20 * HOUR_MS), world.after(0));
        for _ in 0..1000 {
            clock.now(world.after(1));
        }
        assert_eq!(clock.now(world.after(0)), Timestamp(20 * HOUR_MS + 500));
    }
}
