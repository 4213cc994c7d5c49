//! Durations and moments in JSON.

use crate::moment::{InWords, NEARER};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Expected, Unexpected, Visitor},
};
use std::fmt;
use taskyard_machine::Timestamp;
use utoipa::ToSchema;

/// A duration in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = u64)]
pub(in crate::front) struct Ms(pub(in crate::front) u64);

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ms, D::Error> {
        deserializer.deserialize_u64(MsVisitor)
    }
}

struct MsVisitor;

impl Visitor<'_> for MsVisitor {
    type Value = Ms;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whole milliseconds, 0 or more")
    }

    fn visit_u64<E>(self, value: u64) -> Result<Ms, E> {
        Ok(Ms(value))
    }
}

/// A moment as RFC 3339, shown in UTC and always to the millisecond, so that all have one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub(in crate::front) struct Moment(pub(in crate::front) Timestamp);

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Moment {
        Moment(at)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        deserializer.deserialize_str(MomentVisitor)
    }
}

struct MomentVisitor;

impl Visitor<'_> for MomentVisitor {
    type Value = Moment;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a moment such as \"2026-03-01T12:00:30Z\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Moment, E> {
        // Any moment before 1970 has passed, like 1970 itself.
        Ok(Moment(Timestamp(milliseconds(text, &self)?.try_into().unwrap_or(0))))
    }
}

/// A moment that is used as a date, so that one before 1970 is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub(in crate::front) struct MomentSince1970(pub(in crate::front) Timestamp);

impl<'de> Deserialize<'de> for MomentSince1970 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MomentSince1970, D::Error> {
        struct Since1970Visitor;
        impl Visitor<'_> for Since1970Visitor {
            type Value = MomentSince1970;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                MomentVisitor.expecting(f)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MomentSince1970, E> {
                match milliseconds::<E>(text, &self)?.try_into() {
                    Ok(ms) => Ok(MomentSince1970(Timestamp(ms))),
                    Err(_) => {
                        Err(E::custom(format!("{text} is before 1970; choose a later moment")))
                    }
                }
            }
        }
        deserializer.deserialize_str(Since1970Visitor)
    }
}

/// The milliseconds since 1970 of a moment in text; negative before 1970.
fn milliseconds<E: serde::de::Error>(text: &str, expected: &dyn Expected) -> Result<i64, E> {
    let moment: jiff::Timestamp = text.parse().map_err(|_| match is_in_9999(text) {
        true => E::custom(format!("{text} is more than ten years ahead; {NEARER}")),
        false => E::invalid_value(Unexpected::Str(text), expected),
    })?;
    Ok(moment.as_millisecond())
}

/// Whether the text is on the last day of 9999, which people write for "never" and the library
/// can't represent.
fn is_in_9999(text: &str) -> bool {
    let same_in_2001 = text.strip_prefix("9999").map(|rest| format!("2001{rest}"));
    same_in_2001.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok())
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&InWords(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_utc_with_milliseconds_and_take_any_offset() {
        for (text, ms, shown) in [
            ("2026-03-01T12:00:30Z", 1_772_366_430_000, "2026-03-01T12:00:30.000Z"),
            ("2026-03-01T13:00:30.25+01:00", 1_772_366_430_250, "2026-03-01T12:00:30.250Z"),
            ("1969-12-31T23:59:59Z", 0, "1970-01-01T00:00:00.000Z"),
        ] {
            let moment: Moment = serde_json::from_value(text.into()).unwrap();
            assert_eq!(moment, Moment(Timestamp(ms)), "{text}");
            assert_eq!(serde_json::to_value(moment).unwrap(), shown);
        }
    }

    #[test]
    fn invalid_moments_and_durations_are_refused() {
        for text in ["", "tomorrow", "2026-03-01", "2026-03-01T12:00:30", "+10000-01-01T00:00:00Z"]
        {
            let error = serde_json::from_value::<Moment>(text.into()).unwrap_err().to_string();
            assert!(error.contains("expected a moment"), "{text}: {error}");
        }
        for text in ["9999-12-31T23:59:59Z", "9999-12-31T00:00:00-11:00"] {
            let error = serde_json::from_value::<Moment>(text.into()).unwrap_err().to_string();
            assert!(error.contains(&format!("{text} is more than ten years ahead")), "{error}");
        }
        for json in ["-5", "1.5", "\"5\"", "1e3", "18446744073709551616"] {
            let error = serde_json::from_str::<Ms>(json).unwrap_err().to_string();
            assert!(error.contains("expected whole milliseconds"), "{json}: {error}");
        }
    }
}
