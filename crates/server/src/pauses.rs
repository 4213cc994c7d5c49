//! Pauses between attempts: each twice as long as the last, up to a bound. A random part keeps
//! nodes from retrying at the same time.

use crate::random::random_u64;
use std::time::Duration;

/// The pauses between attempts at one thing.
#[derive(Debug)]
pub(crate) struct Pauses {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pauses {
    pub(crate) fn between(min: Duration, max: Duration) -> Pauses {
        Pauses { min, max, next: min }
    }

    /// The attempt has succeeded.
    pub(crate) fn begin_again(&mut self) {
        self.next = self.min;
    }

    /// The attempt has succeeded, and lasted for `held`. Only a long success starts the pauses
    /// over: one that breaks at once would otherwise come again and again, and fill the log.
    pub(crate) fn after(&mut self, held: Duration) {
        if held >= self.max {
            self.begin_again();
        }
    }

    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        self.draw(random_u64())
    }

    /// Three to four quarters of the pause, so that nodes that lost the same peer do not come back
    /// together.
    fn draw(&mut self, random: u64) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause - pause / 4 * (random % 1_000) as u32 / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(2);

    #[test]
    fn pauses_double_up_to_their_bound_and_begin_again_after_what_held() {
        let mut pauses = Pauses::between(MIN, MAX);
        for pause_ms in [50, 100, 200, 400, 800, 1_600, 2_000, 2_000] {
            pauses.after(Duration::from_millis(1_999));
            assert_eq!(pauses.draw(0), Duration::from_millis(pause_ms));
        }
        pauses.after(MAX);
        assert_eq!(pauses.draw(0), MIN);
    }

    #[test]
    fn pauses_differ_by_up_to_a_quarter() {
        for (random, pause_ms) in [(0, 2_000), (500, 1_750), (999, 1_500), (u64::MAX, 1_692)] {
            let mut pauses = Pauses::between(MAX, MAX);
            let pause = pauses.draw(random);
            assert!(pause.as_millis().abs_diff(pause_ms) <= 1, "{random}: {pause:?}");
        }
    }
}
