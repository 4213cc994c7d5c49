//! Buckets: how often something may happen.
//!
//! A bucket counts billionths of a token, so that a rate in millionths per second is exactly the
//! gain of one millisecond. Passing time does not change a bucket: the current level is computed
//! from the level at the last change.

use crate::Timestamp;
use crate::limits::{BUCKET_GRID_MS, RATE_BURST_MAX, RATE_MILLIONTHS_MAX, RATE_REFILL_MS_MAX};
use crate::rejection::{Rejection, at_most};
use crate::wire::wire_struct;

/// A rate: how many tokens come in per second, and how many can be saved up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Millionths of a token per second, at least 1.
    pub per_second_millionths: u64,
    /// The most tokens that an idle bucket saves up, at least 1.
    pub burst: u32,
}

wire_struct!(Rate { per_second_millionths, burst });

/// Billionths of one token.
const TOKEN: u64 = 1_000_000_000;

impl Rate {
    pub(crate) fn check(self, what: &str) -> Result<(), Rejection> {
        let Rate { per_second_millionths, burst } = self;
        if per_second_millionths == 0 {
            return Err(Rejection::invalid(format!(
                "per_second of {what} is below 0.000001; pause the queue to stop it"
            )));
        }
        if per_second_millionths > RATE_MILLIONTHS_MAX {
            return Err(Rejection::invalid(format!(
                "per_second of {what} is {}; at most {} is allowed",
                per_second_millionths / 1_000_000,
                RATE_MILLIONTHS_MAX / 1_000_000
            )));
        }
        if burst == 0 {
            return Err(Rejection::invalid(format!("burst of {what} is 0; give at least 1")));
        }
        at_most(&format!("burst of {what}"), burst.into(), RATE_BURST_MAX.into())?;
        let refill_ms = self.capacity().div_ceil(per_second_millionths);
        if refill_ms > RATE_REFILL_MS_MAX {
            return Err(Rejection::invalid(format!(
                "an empty bucket of {what} would take {refill_ms} ms to fill; at most \
                 {RATE_REFILL_MS_MAX} ms are allowed: raise per_second or lower burst"
            )));
        }
        Ok(())
    }

    fn capacity(self) -> u64 {
        u64::from(self.burst) * TOKEN
    }
}

/// The level of a bucket at its last change, and the moment of that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    billionths: u64,
    at: Timestamp,
}

wire_struct!(Bucket { billionths, at });

impl Bucket {
    /// A level that is full under any rate.
    pub(crate) const FULL: Bucket = Bucket { billionths: u64::MAX, at: Timestamp(0) };

    fn level(self, rate: Rate, now: Timestamp) -> u64 {
        let gained = now.ms_since(self.at).saturating_mul(rate.per_second_millionths);
        self.billionths.saturating_add(gained).min(rate.capacity())
    }

    /// The whole tokens in the bucket.
    pub(crate) fn tokens(self, rate: Rate, now: Timestamp) -> u64 {
        self.level(rate, now) / TOKEN
    }

    /// The bucket with one token less.
    pub(crate) fn taken(self, rate: Rate, now: Timestamp) -> Bucket {
        Bucket { billionths: self.level(rate, now).saturating_sub(TOKEN), at: now }
    }

    /// The bucket with one token more, up to the burst.
    pub(crate) fn given(self, rate: Rate, now: Timestamp) -> Bucket {
        let billionths = self.level(rate, now).saturating_add(TOKEN);
        Bucket { billionths, at: now }.settled(rate, now)
    }

    /// The bucket, with one fixed value for every full bucket.
    pub(crate) fn settled(self, rate: Rate, now: Timestamp) -> Bucket {
        if self.level(rate, now) == rate.capacity() { Bucket::FULL } else { self }
    }

    /// The bucket with its level as of now.
    pub(crate) fn looked_at(self, rate: Rate, now: Timestamp) -> Bucket {
        Bucket { billionths: self.level(rate, now), at: now }.settled(rate, now)
    }

    /// Whether the bucket had no whole token when it last changed.
    pub(crate) fn was_empty(self) -> bool {
        self.billionths < TOKEN
    }

    /// When to look for a token again. The moment is rounded up a little, so that many tokens are
    /// found at once, but never so far that the bucket overflows.
    pub(crate) fn opens_at(self, rate: Rate) -> Timestamp {
        let exact = self.reaches(TOKEN, rate);
        let on_grid = Timestamp(exact.0.next_multiple_of(BUCKET_GRID_MS));
        on_grid.min(self.full_at(rate)).max(exact)
    }

    pub(crate) fn full_at(self, rate: Rate) -> Timestamp {
        self.reaches(rate.capacity(), rate)
    }

    fn reaches(self, billionths: u64, rate: Rate) -> Timestamp {
        let missing = billionths.saturating_sub(self.billionths);
        self.at.plus_ms(missing.div_ceil(rate.per_second_millionths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn rate(per_second: u64, burst: u32) -> Rate {
        Rate { per_second_millionths: per_second * 1_000_000, burst }
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_the_rate_exactly() {
        let rate = rate(3, 5);
        let mut bucket = Bucket::FULL;
        for left in (0..5).rev() {
            bucket = bucket.taken(rate, NOW);
            assert_eq!(bucket.tokens(rate, NOW), left);
        }
        // One every third of a second: 300 in 100 seconds, not one more or less.
        let mut taken = 0;
        for ms in 1..=100_000 {
            let now = NOW.plus_ms(ms);
            if bucket.tokens(rate, now) > 0 {
                bucket = bucket.taken(rate, now);
                taken += 1;
            }
        }
        assert_eq!(taken, 300);
    }

    #[test]
    fn it_opens_on_a_grid_but_never_so_late_that_something_overflows() {
        let empty = |rate| (0..rate_burst(rate)).fold(Bucket::FULL, |b, _| b.taken(rate, NOW));
        fn rate_burst(rate: Rate) -> u32 {
            rate.burst
        }
        let wide = rate(400, 100);
        assert_eq!(empty(wide).opens_at(wide), NOW.plus_ms(10), "2.5 ms would do");
        let narrow = rate(400, 1);
        assert_eq!(empty(narrow).opens_at(narrow), NOW.plus_ms(3), "it holds no more than one");
        let slow = Rate { per_second_millionths: 500_000, burst: 4 };
        assert_eq!(empty(slow).opens_at(slow), NOW.plus_ms(2_000));
        assert_eq!(empty(slow).full_at(slow), NOW.plus_ms(8_000));
    }

    #[test]
    fn giving_back_stops_at_the_burst() {
        let rate = rate(1, 2);
        let one_less = Bucket::FULL.taken(rate, NOW);
        assert_eq!(one_less.given(rate, NOW), Bucket::FULL);
        assert_eq!(Bucket::FULL.given(rate, NOW), Bucket::FULL);
        assert_eq!(one_less.settled(rate, NOW.plus_ms(1_000)), Bucket::FULL);
        assert_eq!(one_less.settled(rate, NOW.plus_ms(999)), one_less);
    }

    #[test]
    fn the_smallest_and_the_largest_rate_do_not_overflow() {
        let slowest = Rate { per_second_millionths: 1, burst: 1 };
        let fastest = Rate { per_second_millionths: RATE_MILLIONTHS_MAX, burst: RATE_BURST_MAX };
        for rate in [slowest, fastest] {
            rate.check("rate").unwrap();
            let late = Timestamp(u64::MAX);
            assert_eq!(Bucket::FULL.taken(rate, NOW).tokens(rate, late), rate.burst.into());
        }
    }
}
