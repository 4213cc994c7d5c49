//! Print: reports for people, as tables, or for programs, as JSON.

use super::measure::Measured;
use super::outages::Spread;
use super::report::{PerNode, Rates, Report};
use serde::Serialize;

pub(crate) fn run(report: &Report, measured: &Measured, json: bool) {
    if json {
        return value(&serde_json::json!({ "report": report, "measured": measured }), true);
    }
    let Report { params, loops, tasks, .. } = report;
    println!(
        "{} nodes, {} shards, {} workers, {} tasks/s, seed {}: {} replicas, {:.0} virtual seconds",
        params.nodes,
        params.shards,
        params.workers,
        params.tasks_per_second,
        params.seed,
        report.replicas,
        report.seconds
    );
    println!(
        "\n{:<18}{:>14}{:>14}{:>14}{:>14}",
        "per node, per s", "messages", "max", "KiB", "max"
    );
    for (kind, rates) in &report.kinds {
        let name = serde_json::to_value(kind).unwrap_or_default();
        line(name.as_str().unwrap_or_default(), rates);
    }
    for (name, rates) in [
        ("all sent", &report.sent),
        ("all received", &report.received),
        ("raft sent", &report.raft),
        ("per link", &report.links),
    ] {
        line(name, rates);
    }
    println!("\n{:<18}{:>14}{:>14}", "per node", "mean", "max");
    for (name, figure) in [
        ("leads", report.leads),
        ("holds", report.holds),
        ("turns/s", loops.turns),
        ("inputs/s", loops.inputs),
        ("syncs/s", loops.syncs),
        ("entries/s", loops.entries),
        ("written KiB/s", kib(loops.written_bytes)),
        ("cpu %", loops.cpu_per_cent),
        ("busy %", loops.busy_per_cent),
    ] {
        println!("{name:<18}{:>14.1}{:>14.1}", figure.mean, figure.max);
    }
    println!(
        "\ntasks: {:.0} enqueued/s, {:.0} acked/s, {} unknown, {} claims parked",
        tasks.enqueued_per_second, tasks.acked_per_second, tasks.unknown, tasks.parked
    );
    if let Some(spans) = tasks.enqueue_ms {
        spread("enqueue ms", spans);
    }
    for (cause, failover) in &report.outages {
        spread(&format!("{cause:?} to leader ms"), failover.to_leader_ms);
        spread(&format!("{cause:?} to write ms"), failover.to_write_ms);
    }
    println!(
        "{} without a leader at the end; per replica {} bytes of cached log, {} of state; {} events",
        report.outages_open,
        report.cache_bytes_per_replica,
        report.state_bytes_per_replica,
        report.events
    );
    println!(
        "measured: {:.1} s of CPU, {} bytes per replica when built, {} MiB at the end, {} ns per input",
        measured.cpu_seconds,
        measured.bytes_per_replica,
        measured.resident_mib_end,
        measured.ns_per_input
    );
}

/// Prints any other value: its fields, one per line.
pub(crate) fn value(value: &impl Serialize, json: bool) {
    let value = serde_json::to_value(value).unwrap_or_default();
    match value.as_object().filter(|_| !json) {
        Some(fields) => fields.iter().for_each(|(name, field)| println!("{name}: {field}")),
        None => println!("{value:#}"),
    }
}

fn line(name: &str, rates: &Rates) {
    let (messages, bytes) = (rates.messages, kib(rates.bytes));
    println!(
        "{name:<18}{:>14.1}{:>14.1}{:>14.1}{:>14.1}",
        messages.mean, messages.max, bytes.mean, bytes.max
    );
}

fn kib(bytes: PerNode) -> PerNode {
    PerNode { mean: bytes.mean / 1024.0, max: bytes.max / 1024.0 }
}

fn spread(name: &str, spans: Spread) {
    let Spread { count, min, p50, p90, p99, max, over_1_s, over_2_s } = spans;
    println!(
        "{name}: {count} times, min {min:.1} p50 {p50:.1} p90 {p90:.1} p99 {p99:.1} max {max:.1}, \
         {over_1_s} over 1 s, {over_2_s} over 2 s"
    );
}
