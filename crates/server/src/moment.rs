//! Moments in words: RFC 3339 in UTC, always to the millisecond, the same in answers and messages.

use std::fmt;
use taskyard_machine::Timestamp;

/// The advice for a moment past the horizon.
pub(crate) const NEARER: &str = "choose a nearer moment";

/// Shows a moment as people and JSON read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InWords(pub(crate) Timestamp);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.0.0).ok();
        let moment = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        write!(f, "{:.3}", moment.unwrap_or(jiff::Timestamp::MAX))
    }
}
