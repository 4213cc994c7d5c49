//! Standstill: time that passed without the loop, or only on the wall clock.
//!
//! The loop checks the clocks at least once a second. A late check shows that the process stood
//! still, because it was stopped, its machine was paused, or its disk stalled. No worker could be
//! heard meanwhile. A wall clock that runs ahead of monotonic time was set, or the machine slept.
//! Neither counts as a worker's silence.

use crate::clock::Reading;
use std::time::Duration;

/// The longest wait of the loop between two checks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shorter delays are ordinary.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time that does not count for workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// How long the loop stood still.
    pub stood: Duration,
    /// How far the wall clock went ahead of the time that passed.
    pub jumped: Duration,
}

impl Lost {
    pub(crate) fn is_none(self) -> bool {
        self == Lost::default()
    }
}

/// The clocks at the last check.
#[derive(Debug)]
pub(crate) struct Standstill {
    last: Reading,
}

impl Standstill {
    pub(crate) fn new(reading: Reading) -> Standstill {
        Standstill { last: reading }
    }

    /// The time lost since the last check; the loop meant to wait for `waited` in between.
    pub(crate) fn look(&mut self, reading: Reading, waited: Duration) -> Lost {
        let last = std::mem::replace(&mut self.last, reading);
        let passed = reading.monotonic.saturating_duration_since(last.monotonic);
        let late = match (reading.stood, last.stood) {
            // A test's clock may move far at once.
            (Some(stood), Some(before)) => stood - before,
            _ => passed.saturating_sub(waited),
        };
        let wall_passed = Duration::from_millis(reading.wall_ms.saturating_sub(last.wall_ms));
        let beyond = |time: Duration| if time > PAUSE_MAX { time } else { Duration::ZERO };
        Lost { stood: beyond(late), jumped: beyond(wall_passed.saturating_sub(passed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::real_now;

    #[test]
    fn a_late_look_is_a_standstill_and_a_wall_clock_that_runs_off_is_a_jump() {
        let seconds = Duration::from_secs_f64;
        let begun = real_now();
        let at = |wall: f64, monotonic: f64| Reading {
            wall_ms: (1_000_000.0 + wall * 1_000.0) as u64,
            monotonic: begun + seconds(monotonic),
            stood: None,
        };
        let none = Lost::default();
        for (wall, monotonic, waited, lost) in [
            (1.0, 1.0, 1.0, none),
            (3.0, 3.0, 1.0, none),
            (3.5, 3.5, 1.0, Lost { stood: seconds(2.5), ..none }),
            (20.0, 20.0, 0.0, Lost { stood: seconds(20.0), ..none }),
            (-3_600.0, 1.0, 1.0, none),
            (2.5, 1.0, 1.0, none),
            (3_601.0, 1.0, 1.0, Lost { jumped: seconds(3_600.0), ..none }),
            (3_620.0, 20.0, 0.5, Lost { stood: seconds(19.5), jumped: seconds(3_600.0) }),
        ] {
            let mut standstill = Standstill::new(at(0.0, 0.0));
            let found = standstill.look(at(wall, monotonic), seconds(waited));
            assert_eq!(found, lost, "{wall} {monotonic} {waited}");
            assert!(standstill.look(at(wall, monotonic), seconds(1.0)).is_none(), "told once");
        }
    }
}
