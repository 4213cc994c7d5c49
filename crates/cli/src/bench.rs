//! `taskyard bench`: what a broker does per second, how long it takes, and what it costs.
//!
//! The broker runs in a process of its own, so that its processor time and memory are its own; the
//! load comes from this one, through the SDK, as any program's would.

mod broker;
mod load;

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use self::{
    broker::{Broker, Usage},
    load::Load,
};
use crate::{
    args::{BenchArgs, Common},
    output::{Output, Table, plain},
    remote, values,
};

/// A fixed rate, when none is given: this share of what the broker executes at its fastest.
const RATE_SHARE: f64 = 0.5;

pub(crate) fn run(args: &BenchArgs, common: &Common, output: Output) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(bench(args, common, output))
}

/// What one phase did.
#[derive(Serialize)]
struct Phase {
    name: &'static str,
    tasks: u64,
    seconds: f64,
    per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p999_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_ms: Option<f64>,
    /// Processor time of the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_cpu_us_per_task: Option<f64>,
    /// Processor time of this process.
    load_cpu_us_per_task: f64,
}

#[derive(Serialize)]
struct Figures {
    payload_bytes: u64,
    clients: usize,
    slots: u32,
    queues: u32,
    phases: Vec<Phase>,
    /// Memory that the broker grew by while it took the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes_per_waiting_task: Option<u64>,
    /// From kill -9 to the first answer with every task back, and how many there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_ms: Option<u64>,
}

async fn bench(args: &BenchArgs, common: &Common, output: Output) -> Result<()> {
    let mut broker = match args.remote {
        true => None,
        false => Some(Broker::start().await?),
    };
    let mut client = match &broker {
        Some(broker) => broker.connect().await?,
        None => remote::connect(common).await?,
    };
    let mut load = Arc::new(Load::new(client.clone(), args));
    let limit = Duration::from_secs(args.seconds);
    let mut phases = Vec::new();

    output.say("enqueueing, as fast as answers come");
    let meter = Meter::start(broker.as_ref());
    let (tasks, latency, took) = load::enqueue(&load, args.tasks, limit).await?;
    let (used, memory) = meter.stop(broker.as_ref(), tasks);
    phases.push(phase("enqueue", tasks, took, Some(&latency), used));

    let mut restart_ms = None;
    if args.restart
        && let Some(running) = broker.take()
    {
        output.say("killing the broker and starting it again");
        let (again, took) = running.restart(tasks).await?;
        restart_ms = Some(values::millis(took));
        client = again.connect().await?;
        load = Arc::new(Load::new(client.clone(), args));
        broker = Some(again);
    }

    output.say("executing what waits");
    let meter = Meter::start(broker.as_ref());
    let (executed, took) = load::execute(&load, tasks, limit).await?;
    let (used, _) = meter.stop(broker.as_ref(), executed);
    let fastest = rate(executed, took);
    phases.push(phase("execute", executed, took, None, used));

    let per_second = args.rate.unwrap_or((fastest * RATE_SHARE) as u64).max(1);
    output.say(format_args!("enqueueing {per_second} per second while workers execute them"));
    let meter = Meter::start(broker.as_ref());
    let steady = load::steady(&load, per_second, args.tasks, limit).await?;
    let (used, _) = meter.stop(broker.as_ref(), steady.executed);
    let acknowledged = Some(&steady.acknowledged);
    phases.push(phase("steady: to acknowledged", steady.executed, steady.took, acknowledged, used));
    phases.push(phase(
        "steady: to executed",
        steady.executed,
        steady.took,
        Some(&steady.end),
        used,
    ));

    if args.remote {
        load.purge().await?;
    }
    let figures = Figures {
        payload_bytes: args.payload,
        clients: args.clients,
        slots: args.slots,
        queues: args.queues,
        phases,
        memory_bytes_per_waiting_task: memory,
        restart_ms,
    };
    output.value(&figures, |figures| show(figures, output))?;
    if let Some(broker) = broker {
        broker.stop().await?;
    }
    Ok(())
}

/// Processor time and memory between two moments.
struct Meter {
    broker: Option<Usage>,
    load: Option<Usage>,
}

/// Processor time per task, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    broker: Option<f64>,
    load: f64,
}

impl Meter {
    fn start(broker: Option<&Broker>) -> Meter {
        Meter { broker: broker.and_then(Broker::usage), load: Usage::of("self") }
    }

    fn stop(self, broker: Option<&Broker>, tasks: u64) -> (Cost, Option<u64>) {
        let tasks = tasks.max(1);
        let each = |before: Option<Usage>, after: Option<Usage>| {
            let spent = after?.cpu.saturating_sub(before?.cpu);
            Some(spent.as_secs_f64() * 1e6 / tasks as f64)
        };
        let after = broker.and_then(Broker::usage);
        let memory = self
            .broker
            .zip(after)
            .map(|(before, after)| after.memory_bytes.saturating_sub(before.memory_bytes) / tasks);
        let cost = Cost {
            broker: each(self.broker, after),
            load: each(self.load, Usage::of("self")).unwrap_or_default(),
        };
        (cost, memory)
    }
}

fn rate(tasks: u64, took: Duration) -> f64 {
    tasks as f64 / took.as_secs_f64().max(1e-6)
}

fn phase(
    name: &'static str,
    tasks: u64,
    took: Duration,
    latency: Option<&Histogram<u64>>,
    cost: Cost,
) -> Phase {
    let ms = |quantile: f64| latency.map(|us| us.value_at_quantile(quantile) as f64 / 1_000.0);
    Phase {
        name,
        tasks,
        seconds: took.as_secs_f64(),
        per_second: rate(tasks, took),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
        max_ms: ms(1.0),
        broker_cpu_us_per_task: cost.broker,
        load_cpu_us_per_task: cost.load,
    }
}

fn show(figures: &Figures, output: Output) -> String {
    let columns = [
        "phase",
        ">tasks",
        ">per second",
        ">p50 ms",
        ">p99 ms",
        ">p99.9 ms",
        ">max ms",
        ">broker us/task",
        ">load us/task",
    ];
    let mut table = Table::new(&columns);
    let one = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.1}"));
    let two = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    for phase in &figures.phases {
        table.row(vec![
            plain(phase.name),
            plain(phase.tasks),
            plain(format!("{:.0}", phase.per_second)),
            plain(two(phase.p50_ms)),
            plain(two(phase.p99_ms)),
            plain(two(phase.p999_ms)),
            plain(two(phase.max_ms)),
            plain(one(phase.broker_cpu_us_per_task)),
            plain(one(Some(phase.load_cpu_us_per_task))),
        ]);
    }
    let mut text = table.render(output);
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
