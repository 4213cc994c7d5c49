//! Promises 1 to 3, 6 and 11 on a cluster of real processes: nodes are killed, stopped, paused and cut off in
//! an order that a seed decides, while producers, workers, flows and a schedule go on. In the end all
//! faults are over, everything must drain, and what clients were told must add up.

use crate::{
    check,
    ending::Ending,
    faults::{Planned, plan},
    history::{Answer, Call, What},
    load::Load,
    nodes::{Nodes, VERY_LONG, cluster_size},
};
use std::time::{Duration, Instant};

/// `CHAOS_SEED` and `CHAOS_SECONDS` ask for others.
const SEED: u64 = 1;
const SECONDS: u64 = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_were_told_adds_up_whatever_fails() {
    let seed = variable("CHAOS_SEED").unwrap_or(SEED);
    let seconds = variable("CHAOS_SECONDS").unwrap_or(SECONDS);
    println!(
        "again: CHAOS_SEED={seed} CHAOS_SECONDS={seconds} \
         cargo nextest run -p taskyard-cli --test cluster chaos --no-capture"
    );
    let mut nodes = Nodes::form(cluster_size());
    let plan = plan(seed, nodes.len(), Duration::from_secs(seconds));
    let mut load = Load::start(nodes.urls(), seed).await;
    break_things(&mut nodes, &plan).await;

    nodes.until_settled();
    load.stop_producing().await;
    let healed = Instant::now();
    loop {
        let open = load.open().await;
        if open == 0 {
            break;
        }
        assert!(healed.elapsed() < VERY_LONG, "{open} tasks have not ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let drained = healed.elapsed();
    load.stop_working().await;
    let ending = Ending::read(&load.client).await;
    let calls = load.history.calls();
    println!("{}; drained in {drained:.1?}", summary(&calls, &ending));
    let broken = check::broken(&calls, &ending);
    assert!(broken.is_empty(), "{} promises broken:\n{}", broken.len(), broken.join("\n"));
    assert!(ending.tasks.len() > 20 * plan.len(), "only {} tasks", ending.tasks.len());
}

/// Begins and ends every fault at its time.
async fn break_things(nodes: &mut Nodes, plan: &[Planned]) {
    let begins = plan.iter().map(|planned| (planned.begin, true, planned));
    let ends = plan.iter().map(|planned| (planned.end, false, planned));
    let mut steps: Vec<_> = begins.chain(ends).collect();
    // What ends at the moment when the next begins has ended before it.
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

/// How much there was to check.
fn summary(calls: &[Call], ending: &Ending) -> String {
    let mut unknown = 0;
    let mut refused = 0;
    let mut stale = 0;
    for call in calls {
        match &call.what {
            What::Enqueue { answer: Answer::Unknown, .. }
            | What::Claim { answer: Answer::Unknown, .. }
            | What::Submit { answer: Answer::Unknown, .. } => unknown += 1,
            What::Enqueue { answer: Answer::Refused(_), .. }
            | What::Claim { answer: Answer::Refused(_), .. }
            | What::Ack { answer: Answer::Refused(_), .. } => refused += 1,
            What::Ack { answer: Answer::Rejected(_), .. } => stale += 1,
            _ => {}
        }
    }
    let again = ending.tasks.iter().filter(|task| task.workers.len() > 1).count();
    format!(
        "{} calls, {unknown} without an answer, {refused} refused, {stale} stale acks; {} tasks, \
         {again} of them handed out more than once; {} flows, {} ticks",
        calls.len(),
        ending.tasks.len(),
        ending.flows.len(),
        ending.ticks.fired
    )
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}
