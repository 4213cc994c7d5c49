//! `taskyard bench`: measures the throughput, latency, CPU time and memory of a broker.
//!
//! The broker runs in its own process, so that its CPU time and memory can be measured. The load
//! comes from this process, through the SDK. With `--nodes`, the benchmark compares a cluster with
//! one node (`beside`), or kills and stops nodes under load (`failover`). With `--faktory`, the
//! load comes over Faktory's wire (`faktory`).

mod beside;
mod broker;
mod failover;
mod faktory;
mod figures;
mod load;
mod meter;
mod metrics;
mod outage;
mod phases;
mod writers;

use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use tempfile::TempDir;

use self::{broker::Broker, figures::Phase, load::Load};
use crate::{
    args::{BenchArgs, Common},
    output::Output,
    remote,
    signals::Signals,
    values,
};

/// The default fixed rate, as a share of the fastest rate of execution.
const RATE_SHARE: f64 = 0.5;
/// Shards of a measured cluster: the default of a new data directory.
const SHARDS: u16 = 32;

pub(crate) fn run(args: &BenchArgs, common: &Common, output: Output) -> Result<()> {
    args.check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        tokio::select! {
            done = bench(args, common, output) => done,
            () = signals.next() => bail!("stopped before the end; its broker was stopped too"),
        }
    })
}

async fn bench(args: &BenchArgs, common: &Common, output: Output) -> Result<()> {
    match args.nodes {
        1 if args.faktory => faktory::bench(args, output).await,
        1 => one(args, common, output).await,
        _ if args.kills() + args.stops() > 0 => failover::bench(args, output).await,
        _ => beside::bench(args, output).await,
    }
}

/// The data directory of a measured broker is in the working directory, because /tmp is memory on
/// many machines.
fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix(".taskyard-bench-").tempdir_in(".")?)
}

#[derive(Serialize)]
struct Figures {
    payload_bytes: u64,
    clients: usize,
    slots: u32,
    queues: u32,
    phases: Vec<Phase>,
    /// How much the broker's memory grew while it accepted the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes_per_waiting_task: Option<u64>,
    /// The time from kill -9 to the first answer with all tasks, and their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_ms: Option<u64>,
}

async fn one(args: &BenchArgs, common: &Common, output: Output) -> Result<()> {
    let mut broker = match args.remote {
        true => None,
        false => Some(Broker::start().await?),
    };
    let client = match &broker {
        Some(broker) => broker.connect().await?,
        None => remote::connect(common).await?,
    };
    let mut load = Arc::new(Load::new(vec![client], args));
    let pids = |broker: &Option<Broker>| broker.iter().map(Broker::pid).collect::<Vec<u32>>();

    output.say("enqueueing, as fast as answers come");
    let enqueue = phases::enqueue(&load, args, &pids(&broker)).await?;

    let mut restart_ms = None;
    if args.restart
        && let Some(running) = broker.take()
    {
        output.say("killing the broker and starting it again");
        let (again, took) = running.restart(enqueue.tasks).await?;
        restart_ms = Some(values::millis(took));
        load = Arc::new(Load::new(vec![again.connect().await?], args));
        broker = Some(again);
    }

    output.say("executing what waits");
    let execute = phases::execute(&load, enqueue.tasks, args, &pids(&broker)).await?;

    let per_second = args.rate.unwrap_or(steady_rate(execute.per_second()));
    output.say(format_args!("enqueueing {per_second} per second while workers execute them"));
    let [acknowledged, executed] = phases::steady(&load, per_second, args, &pids(&broker)).await?;

    if args.remote {
        load.purge().await?;
    }
    let figures = Figures {
        payload_bytes: args.payload,
        clients: args.clients,
        slots: args.slots,
        queues: args.queues(),
        memory_bytes_per_waiting_task: enqueue.memory_bytes_per_task(),
        phases: [enqueue, execute, acknowledged, executed].map(|phase| phase.phase()).into(),
        restart_ms,
    };
    output.value(&figures, |figures| show(figures, output))?;
    if let Some(broker) = broker {
        broker.stop().await?;
    }
    Ok(())
}

/// The fixed rate for a broker with this fastest rate of execution.
fn steady_rate(fastest: f64) -> u64 {
    ((fastest * RATE_SHARE) as u64).max(1)
}

fn show(figures: &Figures, output: Output) -> String {
    let mut text = figures::table(&figures.phases, output);
    text += &format!(
        "\n{} bytes of payload, {} enqueues in flight, {} slots, {} queues\n",
        figures.payload_bytes, figures.clients, figures.slots, figures.queues
    );
    if let Some(bytes) = figures.memory_bytes_per_waiting_task {
        text += &format!("{bytes} bytes of memory per waiting task, payload included\n");
    }
    if let Some(ms) = figures.restart_ms {
        text += &format!("back {ms} ms after kill -9, with every acknowledged task\n");
    }
    text
}
