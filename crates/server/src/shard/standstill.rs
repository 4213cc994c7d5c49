//! Standstill: time that passed without the loop, or for the wall clock alone.
//!
//! The loop looks at the clocks at least once a second. When a look comes late, the process stood
//! still: it was stopped, its machine was paused, or its disk was. Nobody could be heard meanwhile.
//! When the wall clock gains on monotonic time, somebody set it, or the machine slept. Neither is a
//! worker's silence.

use crate::clock::Reading;
use std::time::Duration;

/// How long the loop waits between two looks at most.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What is shorter is an ordinary pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time that workers did not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The loop stood still for so long.
    pub stood: Duration,
    /// The wall clock went so far ahead of the time that passed.
    pub jumped: Duration,
}

impl Lost {
    pub(crate) fn is_none(self) -> bool {
        self == Lost::default()
    }
}

/// When the loop last looked.
#[derive(Debug)]
pub(crate) struct Standstill {
    last: Reading,
}

impl Standstill {
    pub(crate) fn new(reading: Reading) -> Standstill {
        Standstill { last: reading }
    }

    /// What was lost since the last look, before which the loop meant to wait for `waited`.
    pub(crate) fn look(&mut self, reading: Reading, waited: Duration) -> Lost {
        let last = std::mem::replace(&mut self.last, reading);
        let passed = reading.monotonic.saturating_duration_since(last.monotonic);
        let late = match (reading.stood, last.stood) {
            // By a test's clock much may pass at once.
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
