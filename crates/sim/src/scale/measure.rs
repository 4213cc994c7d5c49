//! Measure: what the machine that runs a simulation says about the code it runs: memory of a replica,
//! time per message, time per plan. These differ from run to run; nothing else here does.

use super::layout::{Layout, Steps};
use super::params::Params;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use taskyard_replica::eraftpb::{Entry, Message, MessageType};
use taskyard_replica::{decode_message, encode_message};

/// Memory of this process that is in RAM; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// How long this process has computed; nothing where the system does not tell.
pub(crate) fn on_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// What a run took here.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) cpu_seconds: f64,
    /// All memory that building the cluster took, by the number of its replicas.
    pub(crate) bytes_per_replica: u64,
    pub(crate) resident_mib_end: u64,
    /// Time in replicas and machines per message or call that they took, ticks of all replicas
    /// included. One thread; messages are handed over without being encoded.
    pub(crate) ns_per_input: u64,
}

/// What planning takes, in time on the CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Planning {
    /// One plan of a cluster in which nothing is to be done, in ms.
    pub(crate) idle_plan_ms: f64,
    /// Plans until the replicas of one lost node are elsewhere.
    pub(crate) replace_rounds: u64,
    pub(crate) replace_commands: u64,
    pub(crate) replace_changes: u64,
    pub(crate) replace_transfers: u64,
    /// The mean of those plans, in ms.
    pub(crate) replace_plan_ms: f64,
    /// The control state as bytes: what a new follower is sent.
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

/// What putting messages on the wire and taking them off takes, in ns.
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
