//! Pings: the distance of a peer, and the difference between its clock and this node's.
//!
//! Of the last answers, the one with the shortest round trip counts for the clock: its error is at
//! most half of that round trip.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The answers that are remembered.
const SAMPLES_MAX: usize = 8;

/// The pings of one connection.
#[derive(Debug, Default)]
pub(super) struct Pings {
    next: u64,
    /// The ping under way, and when it was sent.
    under_way: Option<(u64, Instant)>,
    samples: VecDeque<Sample>,
}

/// The result of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) round_trip: Duration,
    /// Positive if the peer's clock is ahead of this node's.
    pub(super) clock_skew_ms: i64,
}

impl Pings {
    /// The number of a ping that is sent now. An unanswered ping keeps its number, so that an
    /// answer slower than the interval between pings still counts.
    pub(super) fn begin(&mut self, now: Instant) -> u64 {
        match self.under_way {
            Some((number, _)) => number,
            None => {
                self.next += 1;
                self.under_way = Some((self.next, now));
                self.next
            }
        }
    }

    /// Takes an answer; an answer to no open ping is ignored.
    pub(super) fn answered(&mut self, number: u64, peer_wall_ms: u64, now: Instant, wall_ms: u64) {
        let Some((_, left_at)) = self.under_way.take_if(|(waited_for, _)| *waited_for == number)
        else {
            return;
        };
        let round_trip = now.saturating_duration_since(left_at);
        let one_way_ms = i128::try_from(round_trip.as_millis() / 2).unwrap_or(i128::MAX);
        // The peer read its clock about half way through the round trip.
        let skew_ms = i128::from(peer_wall_ms) - (i128::from(wall_ms) - one_way_ms);
        let bounded = skew_ms.clamp(i64::MIN.into(), i64::MAX.into());
        let clock_skew_ms = i64::try_from(bounded).expect("just clamped");
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { round_trip, clock_skew_ms });
    }

    /// The last round trip.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.samples.back().map(|sample| sample.round_trip)
    }

    /// How far the peer's clock is ahead of this node's, or behind if negative.
    pub(super) fn clock_skew_ms(&self) -> Option<i64> {
        // Among equals the newest, because a clock may have been set.
        let nearest = self.samples.iter().rev().min_by_key(|sample| sample.round_trip);
        nearest.map(|sample| sample.clock_skew_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays pings of (round trip in ms, the peer's lead in ms); both ways take equally long, and
    /// this node's clock begins at one million.
    fn played(trips: &[(u64, i64)]) -> Pings {
        let (mut pings, start) = (Pings::default(), crate::clock::real_now());
        for (index, (way_ms, lead_ms)) in (0u64..).zip(trips) {
            let left_ms = index * 100_000;
            let number = pings.begin(start + Duration::from_millis(left_ms));
            let back_ms = left_ms + way_ms;
            let read_ms = (1_000_000 + left_ms + way_ms / 2).saturating_add_signed(*lead_ms);
            let back_at = start + Duration::from_millis(back_ms);
            pings.answered(number, read_ms, back_at, 1_000_000 + back_ms);
        }
        pings
    }

    #[test]
    fn the_shortest_way_tells_the_clocks_and_the_last_one_the_distance() {
        for (trips, way_ms, skew_ms) in [
            (&[][..], None, None),
            (&[(10, 0)], Some(10), Some(0)),
            (&[(10, 3_600_000)], Some(10), Some(3_600_000)),
            (&[(2, -5_000), (4_000, 7_000)], Some(4_000), Some(-5_000)),
            (&[(4, 10), (4, 20)], Some(4), Some(20)),
        ] {
            let pings = played(trips);
            assert_eq!(pings.round_trip(), way_ms.map(Duration::from_millis), "{trips:?}");
            assert_eq!(pings.clock_skew_ms(), skew_ms, "{trips:?}");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_noticed_within_some_answers() {
        let mut trips = vec![(2, 0)];
        trips.extend([(10, 900); SAMPLES_MAX]);
        assert_eq!(played(&trips).clock_skew_ms(), Some(900));
    }

    #[test]
    fn unexpected_answers_are_ignored() {
        let (mut pings, now) = (Pings::default(), crate::clock::real_now());
        pings.answered(1, 5, now, 5);
        let number = pings.begin(now);
        assert_eq!(pings.begin(now + Duration::from_secs(1)), number);
        pings.answered(number + 1, 5, now, 5);
        assert_eq!(pings.round_trip(), None);
        pings.answered(number, u64::MAX, now, 0);
        assert_eq!(pings.clock_skew_ms(), Some(i64::MAX));
        pings.answered(number, 5, now, 5);
        assert_eq!(pings.clock_skew_ms(), Some(i64::MAX), "answered once");
    }
}
