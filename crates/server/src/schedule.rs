//! When a schedule fires: pure functions from its rules to moments.
//!
//! Only a leader or a gateway computes moments. The command carries them, so that replicas agree
//! even if their zone data differ. Zone data is compiled in and does not depend on the host.
//!
//! Invariant: occurrences strictly increase, and searches forward and backward find the same ones.

mod cron;
#[cfg(test)]
mod tests;
mod zone;

use crate::{Error, moment::InWords};
use cron::Cron;
use taskyard_machine::{Occurrences, Rhythm, Timestamp, limits};

/// The occurrences of one schedule.
#[derive(Debug)]
pub(crate) struct Timetable {
    beat: Beat,
    /// No occurrence is before this.
    start_at: Timestamp,
    /// No occurrence is after this.
    end_at: Timestamp,
}

#[derive(Debug)]
enum Beat {
    Cron(Box<Cron>),
    /// At `anchor`, and every `ms` milliseconds from there.
    Every {
        ms: u64,
        anchor: Timestamp,
    },
}

impl Timetable {
    /// Reads the rules of a schedule; the error says which rule is wrong.
    pub(crate) fn new(
        rhythm: &Rhythm<'_>,
        start_at: Option<Timestamp>,
        end_at: Option<Timestamp>,
    ) -> Result<Timetable, Error> {
        let beat = match *rhythm {
            Rhythm::Cron { expression, timezone } => {
                Beat::Cron(Box::new(Cron::parse(expression, zone::find(timezone)?)?))
            }
            Rhythm::Every { ms } => {
                Beat::Every { ms: ms.max(1), anchor: start_at.unwrap_or(Timestamp(0)) }
            }
        };
        let start_at = start_at.unwrap_or(Timestamp(0));
        let end_at = end_at.unwrap_or(Timestamp(u64::MAX));
        Ok(Timetable { beat, start_at, end_at })
    }

    /// The first occurrence of a schedule that is set at `now`; the error says why there is none.
    pub(crate) fn first_after(&self, now: Timestamp) -> Result<Timestamp, Error> {
        let from = now.max(self.start_at);
        match self.next_after(now) {
            Some(at) if at.ms_since(from) <= limits::HORIZON_MS_MAX => Ok(at),
            None if self.unbounded_next_after(now).is_some() => Err(Error::Invalid(format!(
                "the schedule has no occurrence up to its end_at {}; choose a later one",
                InWords(self.end_at)
            ))),
            _ => Err(Error::Invalid(match &self.beat {
                Beat::Cron(cron) => format!(
                    "cron {:?} does not fire within ten years; check its day and month",
                    cron.expression()
                ),
                Beat::Every { ms, .. } => {
                    format!("every_ms {ms} is more than ten years; choose a shorter interval")
                }
            })),
        }
    }

    fn unbounded_next_after(&self, after: Timestamp) -> Option<Timestamp> {
        // An occurrence at `start_at` counts.
        let after = after.max(Timestamp(self.start_at.0.saturating_sub(1)));
        match &self.beat {
            Beat::Cron(cron) => cron.next_after(after),
            Beat::Every { ms, anchor } if after < *anchor => Some(*anchor).filter(|_| *ms > 0),
            Beat::Every { ms, anchor } => {
                let beats = after.ms_since(*anchor) / ms + 1;
                Some(Timestamp(anchor.0.checked_add(beats.checked_mul(*ms)?)?))
            }
        }
    }
}

impl Occurrences for Timetable {
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.unbounded_next_after(after).filter(|&at| at <= self.end_at)
    }

    fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        let until = until.min(self.end_at);
        let last = match &self.beat {
            Beat::Cron(cron) => cron.last_until(until),
            Beat::Every { anchor, .. } if until < *anchor => None,
            Beat::Every { ms, anchor } => Some(Timestamp(until.0 - until.ms_since(*anchor) % ms)),
        };
        last.filter(|&at| at >= self.start_at)
    }

    fn count_between(&self, after: Timestamp, before: Timestamp, max: u64) -> u64 {
        match &self.beat {
            Beat::Every { ms, .. } => {
                let first = self.next_after(after).filter(|at| *at < before);
                first.map_or(0, |first| (before.0 - first.0).div_ceil(*ms))
            }
            Beat::Cron(_) => {
                let between = self.after(after).take_while(|at| *at < before);
                between.take(max as usize).count() as u64
            }
        }
    }
}
