//! The phases of a benchmark, measured: enqueue, execute, and both at a fixed rate.

use std::{sync::Arc, time::Duration};

use anyhow::Result;

use super::{
    figures::Measured,
    load::{self, Load},
    meter::Meter,
};
use crate::args::BenchArgs;

/// Enqueues as fast as answers come. `brokers` are the processes to be measured.
pub(super) async fn enqueue(
    load: &Arc<Load>,
    args: &BenchArgs,
    brokers: &[u32],
) -> Result<Measured> {
    let meter = Meter::start(brokers);
    let (tasks, latency, took) = load::enqueue(load, args.tasks, limit(args)).await?;
    let (name, latency, used) = ("enqueue", Some(latency), meter.stop());
    Ok(Measured { name, tasks, took, latency, used, routed: None })
}

/// Executes the waiting tasks.
pub(super) async fn execute(
    load: &Arc<Load>,
    tasks: u64,
    args: &BenchArgs,
    brokers: &[u32],
) -> Result<Measured> {
    let meter = Meter::start(brokers);
    let (tasks, took) = load::execute(load, tasks, limit(args)).await?;
    let (name, latency, used) = ("execute", None, meter.stop());
    Ok(Measured { name, tasks, took, latency, used, routed: None })
}

/// Enqueues at a fixed rate while workers execute, and measures the time until each task was
/// acknowledged, and until it was executed.
pub(super) async fn steady(
    load: &Arc<Load>,
    per_second: u64,
    args: &BenchArgs,
    brokers: &[u32],
) -> Result<[Measured; 2]> {
    let meter = Meter::start(brokers);
    let steady = load::steady(load, per_second, args.tasks, limit(args)).await?;
    let (tasks, took, used) = (steady.executed, steady.took, meter.stop());
    let measured = |name, latency| {
        let latency = Some(latency);
        Measured { name, tasks, took, latency, used, routed: None }
    };
    Ok([
        measured("steady: to acknowledged", steady.acknowledged),
        measured("steady: to executed", steady.end),
    ])
}

fn limit(args: &BenchArgs) -> Duration {
    Duration::from_secs(args.seconds)
}
