//! Load over Faktory's wire: connections with one command in flight each, as Faktory's clients
//! have.
//!
//! Three phases: push as fast as answers come; fetch and acknowledge the waiting jobs; then push,
//! fetch and acknowledge in turns. In the last phase each connection pushes before it fetches, so
//! that none waits for a job, even if another connection takes its job. All connections are one
//! worker, and the first one beats.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use taskyard_cli::faktory::{BEAT_EVERY, Connection, Url, Who};
use tokio::task::JoinSet;

use super::{
    broker::Broker,
    figures::{self, Measured, Phase},
    load::{histogram, micros},
    meter::Meter,
};
use crate::{args::BenchArgs, output::Output};

const WID: &str = "taskyard-bench";

#[derive(Serialize)]
struct Figures {
    payload_bytes: u64,
    connections: u16,
    queues: u32,
    phases: Vec<Phase>,
}

pub(super) async fn bench(args: &BenchArgs, output: Output) -> Result<()> {
    let (broker, url) = Broker::start_with_faktory().await?;
    let pids = [broker.pid()];
    let mut lanes = Lanes::open(&url, args).await?;

    output.say("pushing, as fast as answers come");
    let push = lanes.run("push", Act::Push, args.tasks, &pids).await?;
    output.say("fetching and acknowledging waiting jobs");
    let drain = lanes.run("fetch and ack", Act::FetchAndAck, push.tasks, &pids).await?;
    output.say("pushing, fetching and acknowledging in turns");
    let cycle = lanes.run("push, fetch, ack", Act::Cycle, args.tasks, &pids).await?;

    let figures = Figures {
        payload_bytes: args.payload,
        connections: args.connections(),
        queues: args.queues(),
        phases: [push, drain, cycle].map(|phase| phase.phase()).into(),
    };
    output.value(&figures, |figures| show(figures, output))?;
    drop(lanes);
    broker.stop().await
}

fn show(figures: &Figures, output: Output) -> String {
    let mut text = figures::table(&figures.phases, output);
    text += &format!(
        "\n{} bytes of arguments, {} connections with one command in flight each, {} queues; latency is that of \
         all\ncommands of a phase together\n",
        figures.payload_bytes, figures.connections, figures.queues
    );
    text
}

/// The commands that a connection repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Push,
    FetchAndAck,
    Cycle,
}

/// All connections.
struct Lanes {
    lanes: Vec<Lane>,
    limit: Duration,
}

impl Lanes {
    async fn open(url: &Url, args: &BenchArgs) -> Result<Lanes> {
        let queues: Vec<String> =
            (0..args.queues()).map(|number| format!("bench-{number}")).collect();
        let filling = "x".repeat(usize::try_from(args.payload).unwrap_or(0));
        let who = Who { wid: Some(WID.to_owned()), labels: Vec::new() };
        let mut lanes = Vec::new();
        for number in 0..usize::from(args.connections()) {
            let connection = Connection::open(url, &who).await?;
            let (before, from) = queues.split_at(number % queues.len());
            lanes.push(Lane {
                connection,
                number,
                queues: [from, before].concat(),
                filling: filling.clone(),
                beaten: Instant::now(),
            });
        }
        Ok(Lanes { lanes, limit: Duration::from_secs(args.seconds) })
    }

    /// Repeats the commands up to `tasks` times within the limit.
    async fn run(
        &mut self,
        name: &'static str,
        act: Act,
        times: u64,
        pids: &[u32],
    ) -> Result<Measured> {
        let (next, limit) = (Arc::new(AtomicU64::new(0)), self.limit);
        let meter = Meter::start(pids);
        let started = Instant::now();
        let mut running = JoinSet::new();
        for mut lane in self.lanes.drain(..) {
            let next = Arc::clone(&next);
            running.spawn(async move {
                let mut latency = histogram();
                while started.elapsed() < limit {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= times {
                        break;
                    }
                    lane.beat_in_time().await?;
                    let begun = Instant::now();
                    if lane.act(act, number, started + limit).await? {
                        latency.saturating_record(micros(begun.elapsed()));
                    }
                }
                Ok::<_, anyhow::Error>((lane, latency))
            });
        }
        let mut latency: Histogram<u64> = histogram();
        while let Some(ended) = running.join_next().await {
            let (lane, its) = ended?.with_context(|| format!("the phase {name}"))?;
            latency.add(its)?;
            self.lanes.push(lane);
        }
        let (tasks, took, used) = (latency.len(), started.elapsed(), meter.stop());
        Ok(Measured { name, tasks, took, latency: Some(latency), used, routed: None })
    }
}

/// One connection.
struct Lane {
    connection: Connection,
    number: usize,
    /// The queues of its fetches, its own first.
    queues: Vec<String>,
    filling: String,
    beaten: Instant,
}

impl Lane {
    /// Whether a job was handled: near the end there may be none left to fetch.
    async fn act(&mut self, act: Act, number: u64, until: Instant) -> Result<bool> {
        if act != Act::FetchAndAck {
            let kind = if act == Act::Push { "push" } else { "cycle" };
            self.push(kind, number).await?;
        }
        if act == Act::Push {
            return Ok(true);
        }
        self.fetch_and_ack(until).await
    }

    async fn push(&mut self, kind: &str, number: u64) -> Result<()> {
        let (queue, filling) = (&self.queues[0], &self.filling);
        let job = format!(
            r#"{{"jid":"{kind}-{number:010}","jobtype":"bench","queue":"{queue}","args":["{filling}"]}}"#
        );
        Ok(self.connection.push(job.as_bytes()).await?)
    }

    async fn fetch_and_ack(&mut self, until: Instant) -> Result<bool> {
        #[derive(Deserialize)]
        struct Job {
            jid: String,
        }
        while Instant::now() < until {
            if let Some(job) = self.connection.fetch(&self.queues).await? {
                let Job { jid } = serde_json::from_slice(&job)?;
                self.connection.ack(&jid).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn beat_in_time(&mut self) -> Result<()> {
        if self.number == 0 && self.beaten.elapsed() >= BEAT_EVERY {
            self.connection.beat(WID).await?;
            self.beaten = Instant::now();
        }
        Ok(())
    }
}
