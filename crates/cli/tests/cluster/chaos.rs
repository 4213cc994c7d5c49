//! Promises 1 to 3, 6 and 11 on a cluster of real processes, under random faults from a seed. Nodes
//! are killed, stopped, paused and cut off, and their disks fill up. Meanwhile producers, workers,
//! flows and a schedule go on, and the spread of queues changes. After the last fault all queues
//! must drain, and the answers to clients must keep the promises.

use crate::cluster::{
    faults::{Planned, Possible, plan},
    load::Load,
    nodes::{NODES, Nodes},
};
use std::time::Duration;

/// The plan of this seed has every kind of fault, as a test in `faults.rs` checks. `CHAOS_SEED` and
/// `CHAOS_SECONDS` override the seed and the length.
pub(crate) const SEED: u64 = 120;
pub(crate) const SECONDS: u64 = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_were_told_adds_up_whatever_fails() {
    run("cluster::chaos::", Nodes::form(NODES)).await;
}

/// Runs a plan of faults on these nodes under load, and checks the answers. `test` is the name of
/// the test.
pub(crate) async fn run(test: &str, mut nodes: Nodes) {
    let seed = variable("CHAOS_SEED").unwrap_or(SEED);
    let seconds = variable("CHAOS_SECONDS").unwrap_or(SECONDS);
    println!(
        "again: CHAOS_SEED={seed} CHAOS_SECONDS={seconds} \
         cargo nextest run -p taskyard-cli --test cli {test} --no-capture"
    );
    let possible =
        Possible { slow_links: nodes.network.can_slow_down(), full_disks: nodes.have_disks() };
    let plan = plan(seed, nodes.len(), possible, Duration::from_secs(seconds));
    let mut load = Load::start(nodes.urls(), seed).await;
    load.change_spreads(seed);
    break_things(&mut nodes, &plan).await;

    nodes.until_settled();
    load.finish_and_check().await;
}

/// Begins and ends every fault at its time.
async fn break_things(nodes: &mut Nodes, plan: &[Planned]) {
    let begins = plan.iter().map(|planned| (planned.begin, true, planned));
    let ends = plan.iter().map(|planned| (planned.end, false, planned));
    let mut steps: Vec<_> = begins.chain(ends).collect();
    // At one moment, ends come before begins.
    steps.sort_by_key(|(at, is_begin, _)| (*at, *is_begin));
    let start = tokio::time::Instant::now();
    for (at, is_begin, planned) in steps {
        tokio::time::sleep_until(start + at).await;
        if is_begin {
            println!("{planned}");
            planned.fault.begin(nodes);
        } else {
            planned.fault.end(nodes);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}
