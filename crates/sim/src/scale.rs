//! Scale: a cluster far larger than the machine that simulates it, in virtual time: messages and
//! bytes, the work of loops and disks, the memory of a replica, the time of a failover.
//!
//! Real: every replica (raft-rs through `Replica`), the machine of every shard, the control state,
//! the planner, the encodings of commands and Raft messages. Modelled: the network (a latency per
//! link, in order, without loss or bandwidth), disks (a time per sync), CPU (a time per input),
//! gateways and workers. `docs/scale.md` has the results and the omissions.
//!
//! ```text
//! params.rs    what a run is made of      layout.rs    where replicas are, by the real planner
//! world.rs     time, events, links        node.rs      a node's loop: one sync for all groups
//!   gateways.rs   calls, who lives          kills.rs   what fails and comes back
//! host.rs      one replica, as a leader   workers.rs   sessions on gateways
//! traffic.rs   counts by kind             outages.rs   failover times
//! report.rs    what a seed decides        measure.rs   what it does not: memory, time
//! ```

mod commands;
mod host;
mod layout;
mod measure;
mod node;
mod outages;
mod params;
mod print;
mod report;
mod state;
#[cfg(test)]
mod tests;
mod traffic;
mod workers;
mod world;

use clap::ValueEnum;
use layout::Layout;
use measure::Measured;
use params::{Named, Params, Victim};
use report::{Report, Start};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use world::World;

/// The options of a large cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The part to compute.
    #[arg(long, value_enum, default_value_t = Part::Run)]
    part: Part,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes; all are gateways too.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(3..=1_000))]
    nodes: u16,
    /// Data shards, of three replicas each.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=16_384))]
    shards: u16,
    /// Workers with one slot each, spread over shards and gateways.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    workers: u32,
    /// Zones that nodes are in, in turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=16))]
    zones: u16,
    /// Virtual seconds that are counted, after three to come up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Tasks enqueued per second over all shards; 0 is a cluster at rest.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Bytes of a task's payload.
    #[arg(long, default_value_t = 1_024)]
    payload: usize,
    /// How long a task runs, in ms.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    run_ms: u64,
    /// The latency inside of a zone, in us; each message takes up to a fifth more.
    #[arg(long, default_value_t = 250)]
    in_zone_us: u64,
    /// The latency between zones, in us.
    #[arg(long, default_value_t = 1_000)]
    across_us: u64,
    /// The time of one sync of a node's log, in us.
    #[arg(long, default_value_t = 500)]
    sync_us: u64,
    /// The computing time of a node's loop for one message or call, in ns.
    #[arg(long, default_value_t = 5_000)]
    cpu_ns: u64,
    /// The computing time for one tick of one replica, in ns.
    #[arg(long, default_value_t = 200)]
    tick_ns: u64,
    /// The sessions that gateways name to leaders.
    #[arg(long, value_enum, default_value_t = Named::All)]
    named: Named,
    /// How many kills, one after the other.
    #[arg(long, default_value_t = 0)]
    kills: u32,
    /// The victim of each kill.
    #[arg(long, value_enum, default_value_t = Victim::Node)]
    victim: Victim,
    /// How long a killed node is away, in ms.
    #[arg(long, default_value_t = 4_000)]
    down_ms: u64,
    /// Prints the whole report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The cluster in virtual time.
    Run,
    /// The costs of the control leader's planner.
    Plan,
    /// The costs of encoding messages.
    Coding,
}

impl Args {
    fn params(&self) -> Params {
        Params {
            seed: self.seed,
            nodes: self.nodes.into(),
            shards: self.shards,
            workers: self.workers as usize,
            zones: self.zones.into(),
            seconds: self.seconds,
            tasks_per_second: self.rate,
            payload_bytes: self.payload,
            run_ms: self.run_ms,
            in_zone_us: self.in_zone_us,
            across_us: self.across_us,
            sync_us: self.sync_us,
            cpu_ns_per_input: self.cpu_ns,
            cpu_ns_per_tick: self.tick_ns,
            named: self.named,
            kills: self.kills,
            victim: self.victim,
            down_ms: self.down_ms,
        }
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let params = args.params();
    if let Err(what) = params.check() {
        eprintln!("{what}");
        return ExitCode::FAILURE;
    }
    match args.part {
        Part::Run => {
            let (report, measured) = run(&params);
            print::run(&report, &measured, args.json);
        }
        Part::Plan => print::value(&measure::planning(&params), args.json),
        Part::Coding => print::value(&measure::coding(params.payload_bytes), args.json),
    }
    ExitCode::SUCCESS
}

/// The number of plans by which a new cluster evens out its leaders; more would not change a rate.
const PLANS_FIRST: u64 = 200;

/// Runs once: the report is decided by the seed, the measurements by this machine.
fn run(params: &Params) -> (Report, Measured) {
    let started = (Instant::now(), measure::on_cpu());
    let mut layout = Layout::new(params);
    layout.settle(PLANS_FIRST);
    let before = measure::resident_bytes();
    let mut world = World::new(params, &layout);
    world.warm_up();
    let built = measure::resident_bytes().saturating_sub(before);
    let start = Start::of(&world);
    world.run_until(params.end());
    let wall = started.0.elapsed();
    let cpu = measure::on_cpu().saturating_sub(started.1);
    let spent: Duration = world.nodes.iter().map(|node| node.measured).sum();
    let inputs: u64 = world.nodes.iter().map(|node| node.work.inputs).sum();
    let report = Report::new(&mut world, &start, &layout);
    let measured = Measured {
        cpu_seconds: cpu.as_secs_f64(),
        bytes_per_replica: built / report.replicas as u64,
        resident_mib_end: measure::resident_bytes() >> 20,
        // Other programs run on this machine too, so that only this program's share of the time
        // counts.
        ns_per_input: (spent.as_nanos() as f64 * cpu.div_duration_f64(wall).min(1.0)) as u64
            / inputs.max(1),
    };
    check_counts(&world);
    (report, measured)
}

/// Checks that every message between nodes was received, lost, or is on its way.
fn check_counts(world: &World) {
    let under_way = world.under_way();
    for (kind, [sent, received, lost]) in world.traffic.totals() {
        if kind.is_between_nodes() {
            let left = under_way.get(&kind).copied().unwrap_or(0);
            let arrived = received.messages + lost.messages + left;
            assert_eq!(sent.messages, arrived, "messages of kind {kind:?} are miscounted");
        }
    }
}
