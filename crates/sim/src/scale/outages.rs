//! Outages: how long shards had no leader, and when they accepted writes again.

use super::params::{Micros, SECOND};
use serde::Serialize;
use std::collections::BTreeMap;

/// Why a shard had no leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// The node of its leader was killed.
    Kill,
    /// The control group's leader was killed.
    ControlKill,
    /// Leadership was handed over, as by a graceful stop or the planner.
    Handover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) cause: Cause,
    pub(crate) began_at: Micros,
    /// When the next leader leads, after it has applied all earlier entries.
    pub(crate) leader_at: Option<Micros>,
    /// When the first write of the next leader is committed.
    pub(crate) write_at: Option<Micros>,
}

#[derive(Debug, Default)]
pub(crate) struct Outages {
    open: BTreeMap<u64, Outage>,
    pub(crate) over: Vec<Outage>,
}

impl Outages {
    pub(crate) fn begin(&mut self, group: u64, cause: Cause, now: Micros) {
        let outage = Outage { cause, began_at: now, leader_at: None, write_at: None };
        // A shard whose node died during a hand-over has been out since the hand-over began.
        self.open.entry(group).or_insert(outage);
    }

    pub(crate) fn leads(&mut self, group: u64, now: Micros) {
        if let Some(outage) = self.open.get_mut(&group) {
            outage.leader_at.get_or_insert(now);
        }
    }

    pub(crate) fn writes(&mut self, group: u64, now: Micros) {
        let led = self.open.get(&group).is_some_and(|outage| outage.leader_at.is_some());
        if let Some(mut outage) = self.open.remove(&group).filter(|_| led) {
            outage.write_at = Some(now);
            self.over.push(outage);
        }
    }

    /// Groups without a leader, or whose leader has not written yet.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Both durations of all outages with one cause, in ms.
    pub(crate) fn spans(&self, cause: Cause) -> Option<[Spread; 2]> {
        let of = |end: fn(&Outage) -> Option<Micros>| {
            let outages = self.over.iter().filter(|outage| outage.cause == cause);
            let spans = outages.filter_map(|outage| Some(end(outage)? - outage.began_at));
            Spread::of(spans.collect())
        };
        Some([of(|outage| outage.leader_at)?, of(|outage| outage.write_at)?])
    }
}

/// The distribution of durations, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    pub(crate) over_1_s: usize,
    pub(crate) over_2_s: usize,
}

impl Spread {
    pub(crate) fn of(mut spans: Vec<Micros>) -> Option<Spread> {
        spans.sort_unstable();
        let last = spans.len().checked_sub(1)?;
        let over = |seconds| spans.iter().filter(|span| **span > seconds * SECOND).count();
        let at = |per_cent: usize| spans[last * per_cent / 100] as f64 / 1_000.0;
        Some(Spread {
            count: spans.len(),
            min: at(0),
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
            over_1_s: over(1),
            over_2_s: over(2),
        })
    }
}
