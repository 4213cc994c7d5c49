//! Outages: the distribution of how long writes stood still.

use std::time::Duration;

use serde::Serialize;

use crate::{
    output::{Output, Table, plain},
    values::{grouped, millis},
};

/// Times of one kind, in milliseconds.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Distribution {
    /// The fault: `kill -9` or `stop`.
    pub(super) after: &'static str,
    /// The measured time, in words.
    pub(super) what: &'static str,
    count: usize,
    min_ms: u64,
    p50_ms: u64,
    p90_ms: u64,
    p99_ms: u64,
    max_ms: u64,
}

impl Distribution {
    /// `None` if there are no times.
    pub(super) fn of(
        after: &'static str,
        what: &'static str,
        times: &[Duration],
    ) -> Option<Distribution> {
        let mut sorted: Vec<u64> = times.iter().map(|time| millis(*time)).collect();
        sorted.sort_unstable();
        // The smallest time that this many percent do not exceed.
        let at = |percent: usize| {
            let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
            sorted.get(place).copied()
        };
        Some(Distribution {
            after,
            what,
            count: sorted.len(),
            min_ms: at(0)?,
            p50_ms: at(50)?,
            p90_ms: at(90)?,
            p99_ms: at(99)?,
            max_ms: at(100)?,
        })
    }
}

pub(super) fn table(distributions: &[Distribution], output: Output) -> String {
    let columns =
        ["after", "what", ">times", ">min ms", ">p50 ms", ">p90 ms", ">p99 ms", ">max ms"];
    let mut table = Table::new(&columns);
    for times in distributions {
        let ms = [times.min_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms];
        let cells = [plain(times.after), plain(times.what), plain(times.count)];
        table.row(cells.into_iter().chain(ms.map(|ms| plain(grouped(ms)))).collect());
    }
    table.render(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(times: impl Iterator<Item = u64>) -> Option<[u64; 5]> {
        let times: Vec<Duration> = times.map(Duration::from_millis).collect();
        let found = Distribution::of("stop", "all", &times)?;
        assert_eq!(found.count, times.len());
        Some([found.min_ms, found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms])
    }

    #[test]
    fn quantiles_are_times_that_were_seen() {
        assert_eq!(quantiles((1..=200).rev()), Some([1, 100, 180, 198, 200]));
        assert_eq!(quantiles([30, 10, 20].into_iter()), Some([10, 20, 30, 30, 30]));
        assert_eq!(quantiles([7].into_iter()), Some([7; 5]));
        assert_eq!(quantiles(std::iter::empty()), None);
    }
}
