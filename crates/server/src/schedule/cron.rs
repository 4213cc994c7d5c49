//! Cron expressions in a time zone.
//!
//! The library finds matching local times. This file turns them into moments, by one of two rules.
//! An expression that names all 24 hours follows elapsed time: it fires at every moment whose local
//! time matches, and a change of the clock causes no pause. Any other expression fires once per
//! local time: for a time that the clock skips, at the end of the gap; for a time that the clock
//! repeats, the first time.

use crate::Error;
use croner::parser::{CronParser, Seconds, Year};
use jiff::{
    SignedDuration, civil,
    tz::{AmbiguousOffset, Offset, TimeZone},
};
use taskyard_machine::Timestamp;

/// Macros of cron, and their expressions.
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The fields of an expression with seconds, and their values.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31, L for the last"),
    ("month", "1 to 12 or JAN to DEC"),
    ("weekday", "0 to 7 or SUN to SAT, both 0 and 7 for Sunday"),
];

/// An expression and its time zone.
#[derive(Debug)]
pub(super) struct Cron {
    expression: String,
    pattern: croner::Cron,
    zone: TimeZone,
    follows_elapsed_time: bool,
}

impl Cron {
    pub(super) fn parse(expression: &str, zone: TimeZone) -> Result<Cron, Error> {
        let refused = |why: String| {
            let shown: String = expression.chars().take(128).collect();
            Error::Invalid(format!("cron {shown:?}: {why}"))
        };
        let text = expression.trim();
        let fields = match text.strip_prefix('@') {
            Some(_) => {
                let known = MACROS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
                known.map(|(_, fields)| *fields).ok_or_else(|| {
                    let names: Vec<&str> = MACROS.iter().map(|(name, _)| *name).collect();
                    refused(format!("unknown macro; there are {}", names.join(", ")))
                })?
            }
            None => text,
        };
        let count = fields.split_whitespace().count();
        if !(5..=6).contains(&count) {
            return Err(refused(format!(
                "it has {count} fields; give 5 (minute hour day month weekday) or 6 (second first)"
            )));
        }
        let parser =
            CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let pattern = parser.parse(fields).map_err(|error| {
            let why = in_our_style(&error.to_string());
            refused(match wrong_field(&parser, fields) {
                Some((name, field, values)) => format!("{name} {field:?}: {why}; give {values}"),
                None => why,
            })
        })?;
        let follows_elapsed_time =
            (0..24).all(|hour| pattern.pattern.hour_match(hour).is_ok_and(|is| is));
        Ok(Cron { expression: text.into(), pattern, zone, follows_elapsed_time })
    }

    pub(super) fn expression(&self) -> &str {
        &self.expression
    }

    /// The first occurrence after a moment.
    pub(super) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let after = moment(after)?;
        let next = match self.follows_elapsed_time {
            true => self.next_elapsed(after),
            false => self.next_local(after),
        };
        next.and_then(timestamp)
    }

    /// The last occurrence at or before a moment.
    pub(super) fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        let until = moment(until)?;
        let last = match self.follows_elapsed_time {
            true => self.last_elapsed(until),
            false => self.last_local(until),
        };
        last.and_then(timestamp)
    }

    /// Local times become moments in their own order, so the first later moment is the answer.
    fn next_local(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut local = self.zone.to_datetime(after);
        loop {
            local = self.next_match(local, false)?;
            let at = self.moment_of(local)?;
            if at > after {
                return Some(at);
            }
        }
    }

    fn last_local(&self, until: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut local = self.zone.to_datetime(until);
        // Where the clock was set back, later local times than this have passed already.
        if let AmbiguousOffset::Fold { before, .. } =
            self.zone.to_ambiguous_timestamp(local).offset()
        {
            local = local.max(before.to_datetime(until));
        }
        let mut inclusive = true;
        loop {
            local = self.last_match(local, inclusive)?;
            inclusive = false;
            let at = self.moment_of(local)?;
            if at <= until {
                return Some(at);
            }
        }
    }

    /// The moment of a local time: the first of two, or the end of the gap around it.
    fn moment_of(&self, local: civil::DateTime) -> Option<jiff::Timestamp> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // The clock after the gap puts a local time inside the gap before the end of the
                // gap.
                let before_the_end = after.to_timestamp(local).ok()?;
                self.zone.following(before_the_end).next().map(|change| change.timestamp())
            }
        }
    }

    /// Searches between two changes of the clock at a time, where local time is elapsed time.
    fn next_elapsed(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let (mut from, mut inclusive) = (after, false);
        loop {
            let offset = self.zone.to_offset(from);
            let change = self.zone.following(from).next().map(|change| change.timestamp());
            let at = self.next_by(offset, from, inclusive)?;
            match change {
                Some(change) if at >= change => (from, inclusive) = (change, true),
                _ => return Some(at),
            }
        }
    }

    fn last_elapsed(&self, until: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut from = until;
        loop {
            let offset = self.zone.to_offset(from);
            let next_moment = from.checked_add(SignedDuration::from_nanos(1)).ok()?;
            let change = self.zone.preceding(next_moment).next().map(|change| change.timestamp());
            let local = self.last_match(offset.to_datetime(from), true)?;
            let at = offset.to_timestamp(local).ok()?;
            match change {
                Some(change) if at < change => {
                    from = change.checked_sub(SignedDuration::from_secs(1)).ok()?;
                }
                _ => return Some(at),
            }
        }
    }

    fn next_by(
        &self,
        offset: Offset,
        from: jiff::Timestamp,
        inclusive: bool,
    ) -> Option<jiff::Timestamp> {
        let local = self.next_match(offset.to_datetime(from), inclusive)?;
        offset.to_timestamp(local).ok()
    }

    /// The next matching local time. The library gives up after some thousand years.
    fn next_match(&self, from: civil::DateTime, inclusive: bool) -> Option<civil::DateTime> {
        self.pattern.find_next_occurrence(&from, inclusive).ok()
    }

    fn last_match(&self, from: civil::DateTime, inclusive: bool) -> Option<civil::DateTime> {
        self.pattern.find_previous_occurrence(&from, inclusive).ok()
    }
}

/// The first field that is wrong by itself, with its name and its values: the library says what is
/// wrong, but not where.
fn wrong_field<'a>(
    parser: &CronParser,
    fields: &'a str,
) -> Option<(&'static str, &'a str, &'static str)> {
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let names = &FIELDS[FIELDS.len().checked_sub(fields.len())?..];
    let is_wrong = |index: usize| {
        let mut alone = vec!["*"; fields.len()];
        alone[index] = fields[index];
        parser.parse(&alone.join(" ")).is_err()
    };
    let index = (0..fields.len()).find(|&index| is_wrong(index))?;
    let (name, values) = names[index];
    Some((name, fields[index], values))
}

fn moment(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()
}

fn timestamp(at: jiff::Timestamp) -> Option<Timestamp> {
    at.as_millisecond().try_into().ok().map(Timestamp)
}

/// The library's message in the style of this product: lower case, no full stop, no type names.
fn in_our_style(message: &str) -> String {
    let text = message.rsplit(": ").next().unwrap_or(message).trim_end_matches('.');
    let text = text.replace("CronPattern contains", "it contains");
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
