//! Figures: the measurements of a phase, which are added up, written as JSON and shown in a table.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{meter::Used, metrics::Routed};
use crate::output::{Output, Table, plain};

/// The measurements of one phase, over one or several runs.
pub(super) struct Measured {
    pub(super) name: &'static str,
    pub(super) tasks: u64,
    pub(super) took: Duration,
    /// Latencies in microseconds.
    pub(super) latency: Option<Histogram<u64>>,
    pub(super) used: Used,
    pub(super) routed: Option<Routed>,
}

/// The figures of one phase.
#[derive(Clone, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// The number of nodes, if clusters are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<usize>,
    pub(super) tasks: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p999_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_ms: Option<f64>,
    /// CPU time of all nodes of the broker together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broker_cpu_us_per_task: Option<f64>,
    /// CPU time of this process.
    pub(super) load_cpu_us_per_task: f64,
    /// The share of commands and claims that were forwarded to another node, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) forwarded_share: Option<f64>,
}

impl Measured {
    /// Adds another run of the same phase.
    pub(super) fn add(&mut self, other: Measured) -> Result<()> {
        self.tasks += other.tasks;
        self.took += other.took;
        if let (Some(latency), Some(other)) = (&mut self.latency, other.latency) {
            latency.add(other)?;
        }
        self.used = self.used.and(other.used);
        self.routed = self.routed.zip(other.routed).map(|(one, other)| one.and(other));
        Ok(())
    }

    pub(super) fn per_second(&self) -> f64 {
        self.tasks as f64 / self.took.as_secs_f64().max(1e-6)
    }

    /// How much the broker's memory grew per task.
    pub(super) fn memory_bytes_per_task(&self) -> Option<u64> {
        Some(self.used.memory_bytes? / self.tasks.max(1))
    }

    pub(super) fn phase(&self) -> Phase {
        let latency = self.latency.as_ref();
        let ms = |quantile: f64| latency.map(|us| us.value_at_quantile(quantile) as f64 / 1_000.0);
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / self.tasks.max(1) as f64;
        Phase {
            name: self.name,
            nodes: None,
            tasks: self.tasks,
            seconds: self.took.as_secs_f64(),
            per_second: self.per_second(),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            max_ms: ms(1.0),
            broker_cpu_us_per_task: self.used.brokers.map(each),
            load_cpu_us_per_task: each(self.used.load),
            forwarded_share: self.routed.map(Routed::forwarded_share),
        }
    }
}

/// The columns of a phase, after its name.
pub(super) const COLUMNS: [&str; 8] = [
    ">tasks",
    ">per second",
    ">p50 ms",
    ">p99 ms",
    ">p99.9 ms",
    ">max ms",
    ">broker us/task",
    ">load us/task",
];

impl Phase {
    pub(super) fn cells(&self) -> Vec<String> {
        let (one, two) = (decimals(1), decimals(2));
        vec![
            self.tasks.to_string(),
            format!("{:.0}", self.per_second),
            two(self.p50_ms),
            two(self.p99_ms),
            two(self.p999_ms),
            two(self.max_ms),
            one(self.broker_cpu_us_per_task),
            one(Some(self.load_cpu_us_per_task)),
        ]
    }
}

/// Shows a number with this many decimals, if there is one.
pub(super) fn decimals(count: usize) -> impl Fn(Option<f64>) -> String {
    move |value| value.map_or_else(String::new, |value| format!("{value:.count$}"))
}

/// The phases of one broker.
pub(super) fn table(phases: &[Phase], output: Output) -> String {
    let columns: Vec<&'static str> = ["phase"].into_iter().chain(COLUMNS).collect();
    let mut table = Table::new(&columns);
    for phase in phases {
        let name = plain(phase.name);
        table.row([name].into_iter().chain(phase.cells().into_iter().map(plain)).collect());
    }
    table.render(output)
}
