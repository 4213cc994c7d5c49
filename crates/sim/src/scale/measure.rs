//! Measure: the costs of a simulation on this machine: memory of a replica, time per message, time
//! per plan. Only these numbers differ from run to run.

use super::layout::{Layout, Steps};
use super::params::Params;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use taskyard_replica::eraftpb::{Entry, Message, MessageType};
use taskyard_replica::{decode_message, encode_message};

/// Memory of this process in RAM; 0 if the system does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time of this process; zero if the system does not report it.
pub(crate) fn on_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// The costs of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) cpu_seconds: f64,
    /// All memory for building the cluster, divided by the number of its replicas.
    pub(crate) bytes_per_replica: u64,
    pub(crate) resident_mib_end: u64,
    /// Time in replicas and machines per message or call, with the ticks of all replicas. One
    /// thread; messages are passed on without being encoded.
    pub(crate) ns_per_input: u64,
}

/// The costs of planning, in CPU time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Planning {
    /// One plan of a cluster at rest, in ms.
    pub(crate) idle_plan_ms: f64,
    /// The number of plans until other nodes have the replicas of one lost node.
    pub(crate) replace_rounds: u64,
    pub(crate) replace_commands: u64,
    pub(crate) replace_changes: u64,
    pub(crate) replace_transfers: u64,
    /// The mean of those plans, in ms.
    pub(crate) replace_plan_ms: f64,
    /// The length of the encoded control state, which a new follower gets.
    pub(crate) control_bytes: usize,
}

const IDLE_PLANS: u32 = 50;

pub(crate) fn planning(params: &Params) -> Planning {
    let mut layout = Layout::new(params);
    layout.settle(100_000);
    let started = on_cpu();
    for _ in 0..IDLE_PLANS {
        assert!(!layout.round(), "a settled cluster has nothing to do");
    }
    let idle = on_cpu().saturating_sub(started);
    layout.steps = Steps::default();
    layout.lose(params.nodes as u64 / 2 + 1);
    let started = on_cpu();
    let replace_rounds = layout.settle(100_000);
    let replacing = on_cpu().saturating_sub(started);
    let Steps { commands, changes, transfers } = layout.steps;
    Planning {
        idle_plan_ms: ms(idle) / f64::from(IDLE_PLANS),
        replace_rounds,
        replace_commands: commands,
        replace_changes: changes,
        replace_transfers: transfers,
        replace_plan_ms: ms(replacing) / replace_rounds.max(1) as f64,
        control_bytes: layout.control.encode().len(),
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The time for encoding and decoding messages, in ns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Coding {
    pub(crate) heartbeat_ns: f64,
    pub(crate) append_ns: f64,
    pub(crate) append_bytes: usize,
}

const ROUNDS: u32 = 200_000;

pub(crate) fn coding(payload_bytes: usize) -> Coding {
    let mut heartbeat =
        Message { from: 1, to: 2, term: 7, commit: 1_000_000, ..Message::default() };
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    let mut append = Message { index: 1_000_000, log_term: 7, ..heartbeat.clone() };
    append.set_msg_type(MessageType::MsgAppend);
    let data = vec![b'x'; payload_bytes + 40].into();
    append.mut_entries().push(Entry { index: 1_000_001, term: 7, data, ..Entry::default() });
    Coding {
        heartbeat_ns: round_trip(&heartbeat),
        append_ns: round_trip(&append),
        append_bytes: encode_message(&append).len(),
    }
}

fn round_trip(message: &Message) -> f64 {
    let started = Instant::now();
    for _ in 0..ROUNDS {
        let bytes = encode_message(black_box(message));
        black_box(decode_message(&bytes).expect("it was encoded just now"));
    }
    started.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}
