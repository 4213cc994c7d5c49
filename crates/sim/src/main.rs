//! The seeded simulator of a Taskyard cluster: real replicas and real machines on fake disks, a
//! fake network and fake clocks. The seed decides everything, and a failure prints the command that
//! repeats it.

mod checkpointing;
mod clock;
mod cluster;
mod control;
mod disk;
mod every;
mod groups;
mod host;
mod invariants;
mod model;
mod network;
mod node;
mod rng;
mod sabotage;
mod scale;
mod shard;
#[cfg(test)]
mod tests;
mod workload;

use clap::{Parser, Subcommand, ValueEnum};
use cluster::{Failure, Options, Report, replay_command};
use sabotage::Sabotage;
use std::process::ExitCode;

/// Runs a cluster under faults from a seed and checks what it promises.
#[derive(Debug, Parser)]
#[command(name = "taskyard-sim", args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    paper: Option<Paper>,
    /// The seed; a run is repeated exactly by its seed and the other options.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many consecutive seeds to run, from --seed on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Events until faults end and everything must heal.
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Nodes at first: one founds the cluster, the others join it.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Whether nodes come and go all the time, and the replication changes.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    churn: Switch,
    /// Shards.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// Whether nodes crash, messages are lost and clocks jump.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    faults: Switch,
    /// Instead of clusters: this many random histories against the models, from --seed on.
    #[arg(long)]
    histories: Option<u64>,
    /// Prints everything that happens.
    #[arg(long)]
    verbose: bool,
}

/// The parts that compute figures and check nothing.
#[derive(Debug, Subcommand)]
enum Paper {
    /// A large cluster in virtual time: message rates, memory, failover times.
    Scale(scale::Args),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Paper::Scale(args)) = &args.paper {
        return scale::main(args);
    }
    if let Some(count) = args.histories {
        return follow(args.seed, count);
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let options = Options {
            seed,
            steps: args.steps,
            nodes: usize::from(args.nodes),
            churn: args.churn == Switch::On,
            shards: args.shards,
            faults: args.faults == Switch::On,
            verbose: args.verbose,
            sabotage: Sabotage::None,
            blind: false,
        };
        let _guard = ReportPanic(&options);
        match climb(&options) {
            Ok(report) => println!("seed {seed} ok: {report:?}"),
            Err(failure) => {
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs only the first rung.
fn follow(first: u64, count: u64) -> ExitCode {
    for seed in first..first.saturating_add(count) {
        let _guard = model::ReportPanic(seed);
        if let Err(failure) = model::check(seed) {
            println!("{failure}");
            return ExitCode::FAILURE;
        }
    }
    println!("{count} histories from seed {first} ok");
    ExitCode::SUCCESS
}

/// Runs both rungs: first one machine against the models, then the cluster.
fn climb(options: &Options) -> Result<Report, Failure> {
    model::check(options.seed).map_err(|failure| Failure {
        options: options.clone(),
        step: 0,
        ms: 0,
        what: failure.to_string(),
    })?;
    cluster::run(options)
}

/// Reports a panic: a broken assertion in a replica or a machine stops a node, and is a finding.
struct ReportPanic<'a>(&'a Options);

impl Drop for ReportPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {} panicked\nreplay: {}", self.0.seed, replay_command(self.0));
        }
    }
}
