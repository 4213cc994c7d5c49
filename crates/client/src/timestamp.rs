//! Timestamp: a moment, in milliseconds since the Unix epoch, as the broker keeps it.

use serde::{Serialize, Serializer};
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A moment in UTC, to the millisecond. Shown and serialized as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment this many milliseconds after the start of 1970.
    pub const fn from_millis(millis: u64) -> Timestamp {
        Timestamp(millis)
    }

    /// Milliseconds since the start of 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Parses the broker's format: RFC 3339 in UTC, to the millisecond, as `Display` prints it.
    pub(crate) fn parse(text: &str) -> Option<Timestamp> {
        let part = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
        let (year, month, day) = (part(0..4)?, part(5..7)?, part(8..10)?);
        let (hour, minute, second) = (part(11..13)?, part(14..16)?, part(17..19)?);
        let of_day = hour * 3_600 + minute * 60 + second;
        let days = days_since_1970(year, month, day)?;
        let found = Timestamp((days * 86_400 + of_day) * 1_000 + part(20..23)?);
        // Other formats and impossible dates print differently.
        (found.to_string() == text).then_some(found)
    }
}

impl From<SystemTime> for Timestamp {
    /// Moments before 1970 become the start of 1970.
    fn from(time: SystemTime) -> Timestamp {
        Timestamp(millis(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(timestamp.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0 / 1_000, self.0 % 1_000);
        let (year, month, day) = civil(seconds / 86_400);
        let of_day = seconds % 86_400;
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A duration as the wire encodes it. A longer one becomes the longest of the wire.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
///
/// The computation uses eras of 400 years that start on 1 March, so that the leap day is the last
/// of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`civil`], for days from 1970 on.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let from_march = (month + 9) % 12;
    let year = year.checked_sub(u64::from(month <= 2))?;
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (153 * from_march + 2) / 5 + day;
    days.checked_sub(719_469)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_as_rfc_3339() {
        for (millis, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_000_000_000_123, "2001-09-09T01:46:40.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_000, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), shown);
            assert_eq!(Timestamp::parse(shown), Some(Timestamp::from_millis(millis)));
        }
    }

    #[test]
    fn invalid_moments_are_refused() {
        for text in [
            "",
            "2030-02-30T00:00:00.000Z",
            "2030-13-01T00:00:00.000Z",
            "2030-00-01T00:00:00.000Z",
            "2030-01-01T00:00:00.000+02:00",
            "2030-01-01T00:00:00Z",
            "1969-12-31T00:00:00.000Z",
            "0000-01-01T00:00:00.000Z",
            "2030-01-0äT00:00:00.000Z",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn system_time_converts_both_ways() {
        let timestamp = Timestamp::from_millis(1_700_000_000_001);
        assert_eq!(Timestamp::from(SystemTime::from(timestamp)), timestamp);
        let before_1970 = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(before_1970), Timestamp::from_millis(0));
    }
}
