//! Kills or stops nodes under load, one after the other, many times, and measures how long writes
//! of SDK clients stand still.
//!
//! At the end, every confirmed enqueue must be one task that was executed; anything else is an
//! error.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use taskyard::{Client, ClusterDetails};

use super::{
    SHARDS,
    beside::clients,
    folder,
    load::{Load, Workers},
    outage::{self, Distribution},
    writers::{Desk, Writers},
};
use crate::{
    args::BenchArgs,
    book::Counts,
    nodes::{
        Nodes,
        view::{formed, is_even, is_up, lags},
    },
    output::{Colour, Output},
    values::{grouped, millis},
};

/// The default writes per second of all queues together: enough that every shard always has some in
/// flight, and few enough for three nodes on two cores.
const RATE: u64 = 600;
/// A new leader lets no lease lapse for 15 s, so that a task whose claim got no answer waits that
/// long.
const FINISH_FOR_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How a node goes away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strike {
    Kill,
    Stop,
}

impl Strike {
    fn words(self) -> &'static str {
        match self {
            Strike::Kill => "kill -9",
            Strike::Stop => "stop",
        }
    }
}

#[derive(Serialize)]
struct Figures {
    nodes: usize,
    kills: u32,
    stops: u32,
    payload_bytes: u64,
    slots: u32,
    queues: u32,
    rate: u64,
    outages: Vec<Distribution>,
    /// Enqueues that the brokers confirmed.
    confirmed: u64,
    /// Tasks, as counted by the brokers.
    made: u64,
    /// Tasks that ran, each counted once.
    executed: u64,
    /// Confirmed enqueues whose task was never executed.
    lost: u64,
    /// Enqueues that became more than one task.
    made_twice: u64,
    /// Tasks that ran more than once.
    executed_twice: u64,
    /// Tasks that had not ended when the benchmark gave up waiting.
    open: u64,
}

pub(super) async fn bench(args: &BenchArgs, output: Output) -> Result<()> {
    let folder = folder()?;
    let mut nodes = Nodes::start(folder.path(), args.nodes.into(), SHARDS)?;
    let count = usize::from(args.nodes);
    output.say(format_args!("starting {count} nodes"));
    nodes.until_formed().await?;
    let rate = args.rate.unwrap_or(RATE);
    let load = Load::new(clients(&nodes.urls(), count)?, args);
    let desk = Arc::new(Desk::new(load, rate));
    let watching = Arc::clone(&desk);
    let workers = Workers::start(&desk.load, &{
        Arc::new(move |context: &taskyard::TaskContext| watching.execute(context))
    })?;

    let mut seen = Vec::new();
    for (strike, times) in [(Strike::Kill, args.kills()), (Strike::Stop, args.stops())] {
        for time in 0..times {
            let place = time as usize % count;
            let outage = outage(&mut nodes, place, strike, &desk).await?;
            output.say(format_args!("{} {} of {times}: {outage}", strike.words(), time + 1));
            seen.push(outage);
        }
    }

    let client = Client::builder(nodes.urls()).build()?;
    let (made, open) = drain(&client).await?;
    workers.stop().await?;
    let Counts { confirmed, executed, missing, repeated, doubled } = desk.book().counts();
    let figures = Figures {
        nodes: count,
        kills: args.kills(),
        stops: args.stops(),
        payload_bytes: args.payload,
        slots: args.slots,
        queues: args.queues(),
        rate,
        outages: [Strike::Kill, Strike::Stop]
            .into_iter()
            .flat_map(|of| outages(of, &seen))
            .collect(),
        confirmed,
        made,
        executed,
        lost: missing,
        made_twice: doubled.max(made.saturating_sub(confirmed)),
        executed_twice: repeated,
        open,
    };
    output.value(&figures, |figures| show(figures, output))?;
    ensure!(open == 0, "{open} tasks have not ended in {FINISH_FOR_MAX:?}");
    ensure!(
        figures.lost == 0,
        "{} of {confirmed} confirmed tasks were never executed",
        figures.lost
    );
    ensure!(
        figures.made_twice == 0 && made == confirmed,
        "{confirmed} enqueues were confirmed, and became {made} tasks, {} of them twice",
        figures.made_twice
    );
    Ok(())
}

/// The cost of one node's failure and return.
struct Outage {
    strike: Strike,
    node: u64,
    /// How long each queue stood still that the node led.
    led: Vec<Duration>,
    /// How long each other queue stood still.
    others: Vec<Duration>,
    /// How long each queue stood still after the node's restart.
    back: Vec<Duration>,
    /// The time from the node's restart until it had caught up and led its share.
    settled: Duration,
}

impl Outage {
    /// The time until the last queue that the node led was back.
    fn longest(&self) -> Option<Duration> {
        self.led.iter().max().copied()
    }
}

impl std::fmt::Display for Outage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let longest = millis(self.longest().unwrap_or_default());
        write!(
            f,
            "node {} led {} of {} queues, the last was back after {longest} ms; the node after \
             {:.1} s",
            self.node,
            self.led.len(),
            self.led.len() + self.others.len(),
            self.settled.as_secs_f64()
        )
    }
}

/// Kills or stops one node under load, and starts it again.
async fn outage(
    nodes: &mut Nodes,
    place: usize,
    strike: Strike,
    desk: &Arc<Desk>,
) -> Result<Outage> {
    // New clients each time, spread evenly over the nodes, because a client that has lost its node
    // stays with the next one. One client per queue, because a client gathers its enqueues, so that
    // all its queues wait together.
    let clients = clients(&nodes.urls(), desk.load.queues().len())?;
    let mut writers = Writers::start(desk, clients).await?;
    let before = nodes.until("somebody answers", |_| true).await?;
    let node = node_at(&before, nodes, place)?;
    let struck_at = Instant::now();
    match strike {
        Strike::Kill => nodes.kill(place)?,
        Strike::Stop => nodes.stop(place).await?,
    }
    writers.until_all_write_after(Instant::now()).await?;

    let started_at = Instant::now();
    nodes.start_one(place)?;
    until_settled(nodes, node).await?;
    let settled_at = Instant::now();
    let pauses = writers.stop().await?;

    let away = pauses.between(struck_at, started_at);
    let queues = desk.load.queues().iter().map(|queue| is_led_by(&before, queue, node));
    let (led, others): (Vec<_>, Vec<_>) = queues.zip(away).partition(|(is_led, _)| *is_led);
    let times = |found: Vec<(bool, Duration)>| found.into_iter().map(|(_, time)| time).collect();
    Ok(Outage {
        strike,
        node,
        led: times(led),
        others: times(others),
        back: pauses.between(started_at, settled_at),
        settled: settled_at - started_at,
    })
}

/// Waits until a node has caught up, all shards are complete, and each node leads its share.
async fn until_settled(nodes: &mut Nodes, node: u64) -> Result<()> {
    // Under load some entries are always in flight, so that a shard counts from the moment at which
    // it was seen level.
    let mut level = BTreeSet::new();
    nodes
        .until("the node is back and settled", |view| {
            if !is_up(view, node) {
                return false;
            }
            level.extend(lags(view, node).filter(|(_, lag)| *lag == Some(0)).map(|(id, _)| id));
            level.len() == view.shards.len()
                && formed(view) == view.shards.len()
                && view.nodes.iter().all(|other| is_up(view, other.id))
                && is_even(view)
        })
        .await?;
    Ok(())
}

fn node_at(view: &ClusterDetails, nodes: &Nodes, place: usize) -> Result<u64> {
    let found = view.nodes.iter().find(|node| nodes.place_of(&node.address) == Some(place));
    Ok(found.context("a node is none of its cluster")?.id)
}

fn is_led_by(view: &ClusterDetails, queue: &str, node: u64) -> bool {
    let home = u32::from(taskyard_server::home_shard(queue, SHARDS).0);
    view.shards.iter().any(|shard| shard.id == home && shard.leader == Some(node))
}

/// Waits for the last tasks. Returns the number of all tasks, and of those that have not ended.
async fn drain(client: &Client) -> Result<(u64, u64)> {
    let since = Instant::now();
    loop {
        let queues = client.queues().await?;
        let open = queues.iter().map(|q| q.ready + q.claimed + q.scheduled + q.blocked).sum();
        if open == 0 || since.elapsed() >= FINISH_FOR_MAX {
            return Ok((queues.iter().map(|queue| queue.enqueued_total).sum(), open));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn outages(strike: Strike, seen: &[Outage]) -> Vec<Distribution> {
    let seen: Vec<&Outage> = seen.iter().filter(|outage| outage.strike == strike).collect();
    let all = |times: fn(&Outage) -> &Vec<Duration>| -> Vec<Duration> {
        seen.iter().flat_map(|outage| times(outage)).copied().collect()
    };
    let last: Vec<Duration> = seen.iter().filter_map(|outage| outage.longest()).collect();
    let settled: Vec<Duration> = seen.iter().map(|outage| outage.settled).collect();
    let of = |what, times: &[Duration]| Distribution::of(strike.words(), what, times);
    [
        of("a queue that the node led stands still", &all(|outage| &outage.led)),
        of("until the last of them is back", &last),
        of("any other queue stands still", &all(|outage| &outage.others)),
        of("a queue stands still when the node returns", &all(|outage| &outage.back)),
        of("from its start until the node is settled", &settled),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn show(figures: &Figures, output: Output) -> String {
    let good = |number: u64, words: &str| {
        let colour = if number == 0 { Colour::Green } else { Colour::Red };
        output.paint(colour, format!("{} {words}", grouped(number)))
    };
    let mut text = outage::table(&figures.outages, output);
    text += &format!(
        "\n{} queues on {SHARDS} shards, {} writes per second of {} bytes, one at a time in each queue; executed at \
         once\n{} enqueues confirmed, {} tasks made, {} executed: {}, {}, {} executed twice\n",
        figures.queues,
        figures.rate,
        figures.payload_bytes,
        grouped(figures.confirmed),
        grouped(figures.made),
        grouped(figures.executed),
        good(figures.lost, "lost"),
        good(figures.made_twice, "made twice"),
        grouped(figures.executed_twice),
    );
    text
}
