//! Report: the results of a run: rates by kind, the work of loops, the fate of tasks, the length of
//! outages. They follow from the parameters alone; measurements of the real machine are kept apart.

use super::node::Work;
use super::outages::{Cause, Spread};
use super::params::{Params, SECOND, WARM_UP};
use super::traffic::{Count, Counts, KINDS, Kind, Traffic};
use super::world::{Tally, World};
use serde::Serialize;
use std::collections::BTreeMap;

/// One number per node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PerNode {
    pub(crate) mean: f64,
    pub(crate) max: f64,
}

impl PerNode {
    fn of(values: impl Iterator<Item = f64>) -> PerNode {
        let (mut sum, mut count, mut max) = (0.0, 0, 0.0f64);
        for value in values {
            (sum, count, max) = (sum + value, count + 1, max.max(value));
        }
        PerNode { mean: sum / f64::from(count.max(1)), max }
    }
}

/// Messages and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) messages: PerNode,
    pub(crate) bytes: PerNode,
}

/// The work of a node's loop, per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Loops {
    pub(crate) turns: PerNode,
    pub(crate) inputs: PerNode,
    pub(crate) syncs: PerNode,
    pub(crate) entries: PerNode,
    pub(crate) written_bytes: PerNode,
    /// The share of the time that it computes, by the parameters, in per cent.
    pub(crate) cpu_per_cent: PerNode,
    /// The share of the time that it computes or syncs.
    pub(crate) busy_per_cent: PerNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Tasks {
    pub(crate) enqueued_per_second: f64,
    pub(crate) acked_per_second: f64,
    /// Enqueues that were lost with their leader.
    pub(crate) unknown: u64,
    /// The time from the gateway's request to its answer, in ms.
    pub(crate) enqueue_ms: Option<Spread>,
    /// The number of parked claims at the end.
    pub(crate) parked: usize,
}

/// The times from the loss of a leader to the next one, and to its first committed write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Failover {
    pub(crate) to_leader_ms: Spread,
    pub(crate) to_write_ms: Spread,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) params: Params,
    pub(crate) replicas: usize,
    pub(crate) leads: PerNode,
    pub(crate) holds: PerNode,
    pub(crate) seconds: f64,
    /// Sent per node, or received if that is more.
    pub(crate) kinds: BTreeMap<Kind, Rates>,
    /// All messages between nodes, sent.
    pub(crate) sent: Rates,
    /// All messages between nodes, received.
    pub(crate) received: Rates,
    /// Raft messages only, sent.
    pub(crate) raft: Rates,
    /// From one node to another, over pairs of nodes that talk.
    pub(crate) links: Rates,
    pub(crate) loops: Loops,
    pub(crate) tasks: Tasks,
    pub(crate) outages: BTreeMap<Cause, Failover>,
    /// Groups without a leader at the end, or whose leader has not written yet.
    pub(crate) outages_open: usize,
    /// Entries in the memory of a replica at the end.
    pub(crate) cache_bytes_per_replica: u64,
    /// Bytes per replica, as the machines estimate them.
    pub(crate) state_bytes_per_replica: u64,
    pub(crate) events: u64,
}

/// The counters at the beginning of counting.
pub(crate) struct Start {
    traffic: Traffic,
    work: Vec<Work>,
    tally: Tally,
}

impl Start {
    pub(crate) fn of(world: &World) -> Start {
        let work = world.nodes.iter().map(|node| node.work).collect();
        Start { traffic: world.traffic.clone(), work, tally: world.tally }
    }
}

impl Report {
    pub(crate) fn new(world: &mut World, start: &Start, layout: &super::layout::Layout) -> Report {
        let params = world.params.clone();
        let seconds = (world.now - WARM_UP) as f64 / SECOND as f64;
        let sent = since(&world.traffic.sent, &start.traffic.sent);
        let received = since(&world.traffic.received, &start.traffic.received);
        let kinds = KINDS.map(|kind| {
            let of = |side: &[Counts]| rates(side, seconds, |other| other == kind);
            let (sent, received) = (of(&sent), of(&received));
            (kind, if received.messages.max > sent.messages.max { received } else { sent })
        });
        let hosts = || world.nodes.iter().flat_map(|node| &node.hosts);
        let replicas = hosts().count();
        let cached: usize = hosts().map(|host| host.replica.cache_bytes()).sum();
        let machines = hosts().filter_map(|host| host.replica.machine().machine());
        let state: u64 = machines.map(|machine| machine.memory_bytes()).sum();
        let living = world.nodes.iter().filter(|node| node.up).flat_map(|node| &node.hosts);
        let parked = living.filter(|host| host.leads).map(|host| host.parked()).sum();
        let counted = |count: fn(&Tally) -> u64| count(&world.tally) - count(&start.tally);
        let tasks = Tasks {
            enqueued_per_second: counted(|tally| tally.enqueued) as f64 / seconds,
            acked_per_second: counted(|tally| tally.acked) as f64 / seconds,
            unknown: counted(|tally| tally.unknown),
            enqueue_ms: Spread::of(std::mem::take(&mut world.enqueue_spans)),
            parked,
        };
        let outages = [Cause::Kill, Cause::ControlKill, Cause::Handover].into_iter();
        let outages = outages.filter_map(|cause| {
            let [to_leader_ms, to_write_ms] = world.outages.spans(cause)?;
            Some((cause, Failover { to_leader_ms, to_write_ms }))
        });
        let per_node = |counts: Vec<usize>| PerNode::of(counts.into_iter().map(|n| n as f64));
        Report {
            replicas,
            leads: per_node(layout.leads(params.nodes)),
            holds: per_node(layout.holds(params.nodes)),
            seconds,
            kinds: kinds.into_iter().filter(|(_, rates)| rates.messages.max > 0.0).collect(),
            sent: rates(&sent, seconds, Kind::is_between_nodes),
            received: rates(&received, seconds, Kind::is_between_nodes),
            raft: rates(&sent, seconds, Kind::is_raft),
            links: links(&world.traffic, &start.traffic, seconds),
            loops: loops(world, &start.work, seconds),
            tasks,
            outages: outages.collect(),
            outages_open: world.outages.open(),
            cache_bytes_per_replica: (cached / replicas) as u64,
            state_bytes_per_replica: state / replicas as u64,
            events: world.tally.events,
            params,
        }
    }
}

fn since(now: &[Counts], start: &[Counts]) -> Vec<Counts> {
    let less = |now: &Count, start: &Count| Count {
        messages: now.messages - start.messages,
        bytes: now.bytes - start.bytes,
    };
    let node = |(now, start): (&Counts, &Counts)| {
        std::array::from_fn(|kind| less(&now[kind], &start[kind]))
    };
    now.iter().zip(start).map(node).collect()
}

fn rates(side: &[Counts], seconds: f64, is_meant: impl Fn(Kind) -> bool) -> Rates {
    let sums: Vec<Count> = side
        .iter()
        .map(|counts| {
            let meant = KINDS.into_iter().filter(|kind| is_meant(*kind));
            meant.fold(Count::default(), |sum, kind| sum.plus(counts[kind as usize]))
        })
        .collect();
    rates_of(&sums, seconds)
}

fn rates_of(counts: &[Count], seconds: f64) -> Rates {
    Rates {
        messages: PerNode::of(counts.iter().map(|count| count.messages as f64 / seconds)),
        bytes: PerNode::of(counts.iter().map(|count| count.bytes as f64 / seconds)),
    }
}

fn links(now: &Traffic, start: &Traffic, seconds: f64) -> Rates {
    let pairs = now.links.iter().zip(&start.links);
    let counts = pairs.map(|(now, start)| Count {
        messages: now.messages - start.messages,
        bytes: now.bytes - start.bytes,
    });
    let used: Vec<Count> = counts.filter(|count| count.messages > 0).collect();
    rates_of(&used, seconds)
}

fn loops(world: &World, start: &[Work], seconds: f64) -> Loops {
    let of = |figure: fn(&Work) -> u64| {
        let pairs = world.nodes.iter().zip(start);
        PerNode::of(
            pairs.map(|(node, start)| (figure(&node.work) - figure(start)) as f64 / seconds),
        )
    };
    let per_cent = |figure: PerNode, whole: f64| PerNode {
        mean: figure.mean * 100.0 / whole,
        max: figure.max * 100.0 / whole,
    };
    Loops {
        turns: of(|work| work.turns),
        inputs: of(|work| work.inputs),
        syncs: of(|work| work.syncs),
        entries: of(|work| work.entries),
        written_bytes: of(|work| work.written_bytes),
        cpu_per_cent: per_cent(of(|work| work.cpu_ns), 1e9),
        busy_per_cent: per_cent(of(|work| work.busy), 1e6),
    }
}
