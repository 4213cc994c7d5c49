//! Tally: the outcomes of the lines, as counts and as the exact lines that were not enqueued.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use taskyard::Enqueued;

use super::lines::Line;
use crate::output::{Output, safe};

/// The number of refused lines that are shown with their reason. The others are listed by number at
/// the end.
const COMPLAINTS_MAX: u64 = 20;

#[derive(Default, Serialize)]
pub(super) struct Counts {
    pub(super) accepted: u64,
    pub(super) duplicate: u64,
    pub(super) refused: u64,
    #[serde(skip_serializing_if = "Numbers::is_empty")]
    pub(super) refused_lines: Numbers,
    /// Lines with an unknown outcome.
    #[serde(skip_serializing_if = "Numbers::is_empty")]
    pub(super) in_doubt_lines: Numbers,
    /// The first line that was not sent; no later line was sent either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_sent_from: Option<u64>,
}

/// Numbers of lines, as ranges: `3-7, 12`.
#[derive(Default)]
pub(super) struct Numbers(Vec<(u64, u64)>);

impl Numbers {
    pub(super) fn add(&mut self, number: u64) {
        // Answers come nearly in order, so that a search from the end is short.
        let after = self.0.iter().rposition(|&(first, _)| first <= number).map_or(0, |at| at + 1);
        if after > 0 && self.0[after - 1].1 + 1 >= number {
            self.0[after - 1].1 = self.0[after - 1].1.max(number);
        } else {
            self.0.insert(after, (number, number));
        }
        let grown = after.saturating_sub(1);
        if let [one, next, ..] = self.0[grown..]
            && one.1 + 1 == next.0
        {
            self.0[grown].1 = next.1;
            self.0.remove(grown + 1);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Numbers {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

/// The outcomes of the lines so far.
pub(super) struct Tally<'a> {
    output: Output,
    bar: &'a ProgressBar,
    pub(super) counts: Counts,
    refused: Option<File>,
}

impl Tally<'_> {
    /// `refused` is the file for lines that were not enqueued.
    pub(super) fn new<'a>(
        output: Output,
        bar: &'a ProgressBar,
        refused: Option<&Path>,
    ) -> Result<Tally<'a>> {
        let refused = refused.map(|path| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let file = options.open(path);
            file.with_context(|| format!("cannot write {}", path.display()))
        });
        Ok(Tally { output, bar, counts: Counts::default(), refused: refused.transpose()? })
    }

    /// Prints a message without damaging the progress bar.
    pub(super) fn say(&self, text: fmt::Arguments<'_>) {
        self.bar.suspend(|| eprintln!("{}", safe(&text.to_string(), false)));
    }

    /// Counts a decided line.
    pub(super) fn advance(&self, line: &Line) {
        self.bar.inc(line.bytes.len() as u64);
    }

    pub(super) fn accept(&mut self, enqueued: &Enqueued) {
        if enqueued.is_duplicate() {
            self.counts.duplicate += 1;
        } else {
            self.counts.accepted += 1;
        }
        if !self.output.is_json() {
            self.bar.set_message(format!("{} accepted", self.counts.accepted));
        }
    }

    pub(super) fn refuse(&mut self, line: &Line, why: fmt::Arguments<'_>) -> Result<()> {
        self.counts.refused += 1;
        self.counts.refused_lines.add(line.number);
        match self.counts.refused {
            1..=COMPLAINTS_MAX => self.say(format_args!("line {}: {why}", line.number)),
            refused if refused == COMPLAINTS_MAX + 1 => {
                self.say(format_args!("further refused lines are listed at the end, by number"));
            }
            _ => {}
        }
        self.keep(line)
    }

    pub(super) fn doubt(&mut self, line: &Line) {
        self.counts.in_doubt_lines.add(line.number);
    }

    /// Records the first line that is not sent; no later line is sent either.
    pub(super) fn leave(&mut self, line: &Line) -> Result<()> {
        self.counts.not_sent_from.get_or_insert(line.number);
        self.keep(line)
    }

    /// Writes a line that was not enqueued to the file of refused lines.
    fn keep(&mut self, line: &Line) -> Result<()> {
        let Some(file) = &mut self.refused else { return Ok(()) };
        // Each line is written at once and whole, so that the file is complete even if this process
        // is killed.
        let text = [line.bytes.trim_ascii_end(), b"\n"].concat();
        file.write_all(&text).context("cannot write the file of refused lines")
    }

    pub(super) fn keeps_refused(&self) -> bool {
        self.refused.is_some()
    }

    pub(super) fn finish(self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_join_to_ranges_in_whatever_order_they_come() {
        for (numbers, shown) in [
            (&[][..], ""),
            (&[3, 4, 5], "3-5"),
            (&[5, 4, 3], "3-5"),
            (&[1, 3, 2, 9, 7, 8, 20], "1-3, 7-9, 20"),
            (&[4, 4, 6], "4, 6"),
        ] {
            let mut all = Numbers::default();
            numbers.iter().for_each(|&number| all.add(number));
            assert_eq!(all.to_string(), shown, "{numbers:?}");
        }
    }
}
