//! A cluster beside one node: the same phases against both, in turns, in one run.
//!
//! Machines are noisy, so only the ratios within one run count. Each turn starts its own nodes
//! while no others run. Each round reverses the order of the round before, so that a machine that
//! gets slower affects both. The load is the same for both: one client for each node of the
//! cluster.

use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;
use taskyard::Client;

use super::{
    SHARDS,
    figures::{COLUMNS, Measured, Phase, decimals},
    folder,
    load::Load,
    metrics::Routed,
    phases, steady_rate,
};
use crate::{
    args::BenchArgs,
    nodes::Nodes,
    output::{Colour, Output, Table, plain},
};

#[derive(Serialize)]
struct Figures {
    /// The number of nodes of the cluster.
    nodes: usize,
    rounds: u32,
    payload_bytes: u64,
    clients: usize,
    slots: u32,
    queues: u32,
    /// Tasks per second of the last phase.
    rate: u64,
    phases: Vec<Phase>,
    /// The cluster's figures divided by those of one node, for each phase.
    ratios: Vec<Ratios>,
    memory: Vec<Memory>,
}

#[derive(Serialize)]
struct Ratios {
    name: &'static str,
    per_second: f64,
    /// The ratios of each round alone, which show how much the machine disturbs them.
    per_second_by_round: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p999: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_cpu: Option<f64>,
    load_cpu: f64,
}

#[derive(Serialize)]
struct Memory {
    nodes: usize,
    /// How much the memory of all nodes together grew while they accepted the tasks.
    bytes_per_waiting_task: Option<u64>,
}

pub(super) async fn bench(args: &BenchArgs, output: Output) -> Result<()> {
    let nodes = usize::from(args.nodes);
    let (mut one, mut many) = (Side::new(1), Side::new(nodes));
    let mut rate = args.rate;
    for round in 1..=args.rounds() {
        let mut order = [&mut many, &mut one];
        if round % 2 == 0 {
            order.reverse();
        }
        for side in order {
            let count = side.nodes;
            output.say(format_args!("round {round} of {}: {}", args.rounds(), words(count)));
            side.add(turn(count, args, &mut rate, output).await?)?;
        }
    }
    let figures = Figures {
        nodes,
        rounds: args.rounds(),
        payload_bytes: args.payload,
        clients: args.clients,
        slots: args.slots,
        queues: args.queues(),
        rate: rate.unwrap_or_default(),
        phases: one.phases().into_iter().zip(many.phases()).flat_map(<[Phase; 2]>::from).collect(),
        ratios: ratios(&one, &many),
        memory: [&one, &many].map(Side::memory).into(),
    };
    output.value(&figures, |figures| show(figures, output))?;
    Ok(())
}

fn words(nodes: usize) -> String {
    match nodes {
        1 => "one node".to_owned(),
        some => format!("{some} nodes"),
    }
}

/// The measurements of a number of nodes.
struct Side {
    nodes: usize,
    /// The figures by phase, over all rounds.
    all: Vec<Measured>,
    /// Tasks per second, by round and phase.
    rates: Vec<Vec<f64>>,
}

impl Side {
    fn new(nodes: usize) -> Side {
        Side { nodes, all: Vec::new(), rates: Vec::new() }
    }

    fn add(&mut self, turn: Vec<Measured>) -> Result<()> {
        self.rates.push(turn.iter().map(Measured::per_second).collect());
        if self.all.is_empty() {
            self.all = turn;
            return Ok(());
        }
        self.all.iter_mut().zip(turn).try_for_each(|(all, phase)| all.add(phase))
    }

    fn phases(&self) -> Vec<Phase> {
        let phase = |phase: &Measured| Phase { nodes: Some(self.nodes), ..phase.phase() };
        self.all.iter().map(phase).collect()
    }

    fn memory(&self) -> Memory {
        let enqueue = self.all.first();
        let bytes_per_waiting_task = enqueue.and_then(Measured::memory_bytes_per_task);
        Memory { nodes: self.nodes, bytes_per_waiting_task }
    }
}

/// Runs all phases against newly started nodes. Without a rate, the first turn decides the rate of
/// all.
async fn turn(
    count: usize,
    args: &BenchArgs,
    rate: &mut Option<u64>,
    output: Output,
) -> Result<Vec<Measured>> {
    let folder = folder()?;
    let mut nodes = Nodes::start(folder.path(), count, SHARDS)?;
    nodes.until_formed().await?;
    let load = Arc::new(Load::new(clients(&nodes.urls(), args.nodes.into())?, args));
    let (pids, addresses) = (nodes.pids(), nodes.addresses());
    let start = Routed::of(&addresses).await?;

    output.say("  enqueueing, as fast as answers come");
    let mut enqueue = phases::enqueue(&load, args, &pids).await?;
    let enqueued = Routed::of(&addresses).await?;
    enqueue.routed = Some(enqueued.since(start));

    output.say("  executing what waits");
    let mut execute = phases::execute(&load, enqueue.tasks, args, &pids).await?;
    let executed = Routed::of(&addresses).await?;
    execute.routed = Some(executed.since(enqueued));

    let per_second = *rate.get_or_insert(steady_rate(execute.per_second()));
    output.say(format_args!("  enqueueing {per_second} per second while workers execute them"));
    let mut steady = phases::steady(&load, per_second, args, &pids).await?;
    let routed = Routed::of(&addresses).await?.since(executed);
    steady.iter_mut().for_each(|phase| phase.routed = Some(routed));

    Ok([enqueue, execute].into_iter().chain(steady).collect())
}

/// Clients that know all nodes, each of which begins with another node.
pub(super) fn clients(urls: &[String], count: usize) -> Result<Vec<Client>> {
    let begin_with = |place: usize| {
        let (before, from) = urls.split_at(place % urls.len());
        Ok(Client::builder(from.iter().chain(before)).build()?)
    };
    (0..count).map(begin_with).collect()
}

fn ratios(one: &Side, many: &Side) -> Vec<Ratios> {
    let phases = one.phases().into_iter().zip(many.phases());
    let ratios = phases.enumerate().map(|(place, (one_phase, many_phase))| {
        let by = |figure: fn(&Phase) -> Option<f64>| {
            let (one, many) = (figure(&one_phase)?, figure(&many_phase)?);
            (one > 0.0).then(|| many / one)
        };
        let rounds = one.rates.iter().zip(&many.rates);
        Ratios {
            name: one_phase.name,
            per_second: by(|phase| Some(phase.per_second)).unwrap_or_default(),
            per_second_by_round: rounds.map(|(one, many)| many[place] / one[place]).collect(),
            p50: by(|phase| phase.p50_ms),
            p99: by(|phase| phase.p99_ms),
            p999: by(|phase| phase.p999_ms),
            max: by(|phase| phase.max_ms),
            broker_cpu: by(|phase| phase.broker_cpu_us_per_task),
            load_cpu: by(|phase| Some(phase.load_cpu_us_per_task)).unwrap_or_default(),
        }
    });
    ratios.collect()
}

fn show(figures: &Figures, output: Output) -> String {
    let columns = ["phase", ">nodes"].into_iter().chain(COLUMNS).chain([">forwarded"]);
    let mut table = Table::new(&columns.collect::<Vec<&'static str>>());
    for (phases, ratios) in figures.phases.chunks(2).zip(&figures.ratios) {
        for phase in phases {
            let share = phase.forwarded_share.unwrap_or_default();
            let nodes = phase.nodes.unwrap_or_default().to_string();
            let cells = [phase.name.to_owned(), nodes].into_iter().chain(phase.cells());
            table.row(cells.chain([format!("{:.0} %", share * 100.0)]).map(plain).collect());
        }
        let two = decimals(2);
        let cells = [
            String::new(),
            format!("{} : 1", figures.nodes),
            String::new(),
            two(Some(ratios.per_second)),
            two(ratios.p50),
            two(ratios.p99),
            two(ratios.p999),
            two(ratios.max),
            two(ratios.broker_cpu),
            two(Some(ratios.load_cpu)),
            String::new(),
        ];
        table.row(cells.map(|cell| (Colour::Bold, cell)).into());
    }
    let mut text = table.render(output);
    text += &format!(
        "\n{} bytes of payload, {} enqueues in flight, {} slots, {} queues on {SHARDS} shards; {} clients, each \
         with all nodes\nto choose from and another one to begin with; broker us/task is that of all nodes \
         together\n",
        figures.payload_bytes, figures.clients, figures.slots, figures.queues, figures.nodes
    );
    for memory in &figures.memory {
        if let Some(bytes) = memory.bytes_per_waiting_task {
            let nodes = words(memory.nodes);
            text +=
                &format!("{nodes}: {bytes} bytes of memory per waiting task, payload included\n");
        }
    }
    text += &format!("{} : 1 per second, by round:", figures.nodes);
    for ratios in figures.ratios.iter().take(2) {
        let rounds: Vec<String> =
            ratios.per_second_by_round.iter().map(|ratio| format!("{ratio:.2}")).collect();
        text += &format!(" {} {}", ratios.name, rounds.join(", "));
        text += if ratios.name == "enqueue" { ";" } else { "\n" };
    }
    text
}
