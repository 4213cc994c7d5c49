//! `taskyard demo --nodes 3`: a cluster of real processes that loses a node under load.
//!
//! All figures are measured from outside, as a client sees them. The demo fails if a confirmed task
//! was never executed.

mod load;
mod screen;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use taskyard::{ClusterDetails, ShardDetails};

use self::{
    load::{Load, Pauses},
    screen::{Screen, Summary, milliseconds},
};
use crate::{
    args::DemoArgs,
    book::Counts,
    nodes::{
        Nodes,
        view::{formed, is_up, lags, leads},
    },
    output::{Colour, Output},
    signals::Signals,
    values,
};

const SHARDS: u16 = 8;
/// How often the view of the cluster is updated.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The load before the kill, the time that the node is away, and the load after it has caught up.
const BEFORE_FOR: Duration = Duration::from_secs(3);
const AWAY_FOR: Duration = Duration::from_secs(4);
const AFTER_FOR: Duration = Duration::from_millis(1_500);
/// How long the cluster may take to form, to elect new leaders, and to take the node back.
const PATIENCE: Duration = Duration::from_secs(30);
/// A new leader lets no lease lapse for 15 s, so that a task whose claim got no answer waits that
/// long.
const FINISH_FOR_MAX: Duration = Duration::from_secs(45);

pub(super) async fn demo(args: &DemoArgs, output: Output) -> Result<()> {
    let mut signals = Signals::listen()?;
    let folder = tempfile::Builder::new().prefix("taskyard-demo-").tempdir()?;
    let nodes = Nodes::start(folder.path(), args.nodes.into(), SHARDS)?;
    let view = ClusterDetails::default();
    let mut stage = Stage { nodes, load: None, view, killed: None, screen: Screen::new(output) };
    let summary = tokio::select! {
        summary = stage.story() => summary?,
        () = signals.next() => bail!("stopped before the end; its nodes were stopped too"),
    };
    let Stage { nodes, screen, .. } = stage;
    screen.finish(&summary, args.keep.then(|| nodes.urls()))?;
    if args.keep {
        signals.next().await;
    }
    ensure!(summary.lost == 0, "{} confirmed but never executed", tasks(summary.lost));
    ensure!(summary.made_twice == 0, "{} made twice of one enqueue", tasks(summary.made_twice));
    Ok(())
}

fn tasks(number: u64) -> String {
    values::count(number, "task")
}

struct Stage {
    nodes: Nodes,
    load: Option<Load>,
    /// The last view of the cluster.
    view: ClusterDetails,
    /// The node that is away.
    killed: Option<u64>,
    screen: Screen,
}

impl Stage {
    async fn story(&mut self) -> Result<Summary> {
        self.form().await?;
        // The worker is connected to the node that will be killed, if that node still leads the
        // most shards then.
        let (node, _) = self.busiest()?;
        self.load = Some(Load::start(&self.nodes.urls(), self.place_of(node)?)?);
        self.tell(
            "load",
            Colour::None,
            "producers and a worker, each with all nodes to choose from",
        )?;
        self.pass(BEFORE_FOR).await?;

        let (node, led) = self.busiest()?;
        let place = self.place_of(node)?;
        let before = self.take_pauses();
        let written = newest_entries(&self.view, node);
        let killed_at = Instant::now();
        self.nodes.kill(place)?;
        self.killed = Some(node);
        self.tell(
            "kill -9",
            Colour::Red,
            format!("node {node}, which led {led} of {SHARDS} shards"),
        )?;
        let led_again = self.until_led_without(node, killed_at).await?;
        self.pass(AWAY_FOR.saturating_sub(killed_at.elapsed())).await?;
        self.tell_pauses()?;

        let missed_entries = newest_entries(&self.view, node).saturating_sub(written);
        let caught_up = self.bring_back(node, place).await?;
        self.pass(AFTER_FOR).await?;
        let open = self.finish().await?;
        let seen = self.load().seen();
        let counts = seen.book.counts();
        Ok(Summary {
            duration_ms: milliseconds(self.screen.elapsed()),
            nodes: self.view.nodes.len(),
            shards: SHARDS,
            confirmed: counts.confirmed,
            executed: counts.executed,
            lost: counts.missing,
            made_twice: counts.doubled,
            executed_twice: counts.repeated,
            open,
            unconfirmed: seen.unconfirmed,
            killed_node: node,
            killed_led: led,
            led_again_ms: milliseconds(led_again),
            longest_pause_ms: milliseconds(seen.pauses.one),
            longest_pause_before_ms: milliseconds(before.one),
            longest_pause_all_ms: milliseconds(seen.pauses.all),
            missed_entries,
            caught_up_ms: milliseconds(caught_up),
        })
    }

    /// Waits until every shard has all its voters.
    async fn form(&mut self) -> Result<()> {
        let started = Instant::now();
        let count = self.nodes.urls().len();
        self.tell(
            "start",
            Colour::None,
            format!("{count} processes of taskyard serve, each with a folder"),
        )?;
        while formed(&self.view) < usize::from(SHARDS) || self.view.nodes.len() < count {
            self.look_until(started + PATIENCE, "the cluster did not form").await?;
        }
        let took = started.elapsed().as_secs_f64();
        let voters = self.view.replication;
        self.tell(
            "formed",
            Colour::Green,
            format!("{SHARDS} shards with {voters} voters each, in {took:.1} s"),
        )?;
        self.tell_leaders()
    }

    /// Waits until other nodes lead all shards, and returns how long that took.
    async fn until_led_without(&mut self, node: u64, killed_at: Instant) -> Result<Duration> {
        let is_led = |shard: &ShardDetails| shard.leader.is_some_and(|leader| leader != node);
        loop {
            self.look_until(killed_at + PATIENCE, "some shards have no new leader").await?;
            if self.view.shards.iter().all(is_led) {
                break;
            }
        }
        let took = killed_at.elapsed();
        let text = format!("others lead all shards, seen after {} ms", milliseconds(took));
        self.tell("led again", Colour::Green, text)?;
        self.tell_leaders()?;
        Ok(took)
    }

    /// Starts the node again, and returns how long it took to catch up.
    async fn bring_back(&mut self, node: u64, place: usize) -> Result<Duration> {
        let started = Instant::now();
        self.nodes.start_one(place)?;
        self.killed = None;
        self.tell("restart", Colour::None, format!("node {node}, with the data that it had"))?;
        // Under load some entries are always in flight, so that a shard counts from the moment at
        // which it was seen level.
        let mut level = BTreeSet::new();
        let held = lags(&self.view, node).count();
        while level.len() < held {
            self.look_until(started + PATIENCE, "the node did not catch up").await?;
            if !is_up(&self.view, node) {
                continue;
            }
            let is_level = |&(_, lag): &(u32, Option<u64>)| lag == Some(0);
            level.extend(lags(&self.view, node).filter(is_level).map(|(shard, _)| shard));
        }
        let took = started.elapsed();
        let text = format!("node {node} has caught up, after {} ms", milliseconds(took));
        self.tell("caught up", Colour::Green, text)?;
        Ok(took)
    }

    /// Ends the producers and waits for the last tasks. Returns how many have not ended.
    async fn finish(&mut self) -> Result<u64> {
        self.load().stop_producing();
        self.tell(
            "load",
            Colour::None,
            "producers stop; the worker goes on until all tasks have ended",
        )?;
        let started = Instant::now();
        loop {
            self.look().await?;
            let open = self.load().open().await?;
            let is_done = open == 0 && self.load().is_produced();
            if is_done || started.elapsed() >= FINISH_FOR_MAX {
                return Ok(open);
            }
        }
    }

    /// The node that leads the most shards, and how many.
    fn busiest(&self) -> Result<(u64, usize)> {
        let led = self.view.nodes.iter().map(|node| (node.id, leads(&self.view, node.id)));
        let most = led.max_by_key(|&(_, led)| led).filter(|&(_, led)| led > 0);
        most.context("no node leads anything")
    }

    fn place_of(&self, node: u64) -> Result<usize> {
        let found = self.view.nodes.iter().find(|found| found.id == node);
        found
            .and_then(|found| self.nodes.place_of(&found.address))
            .with_context(|| format!("node {node} is not a node of the demo"))
    }

    fn load(&self) -> &Load {
        self.load.as_ref().expect("the story asks for the load only after it has started it")
    }

    fn take_pauses(&self) -> Pauses {
        self.load().seen().take_pauses()
    }

    fn tell_pauses(&mut self) -> Result<()> {
        let Pauses { one, all, .. } = self.load().seen().pauses;
        let (one, all) = (milliseconds(one), milliseconds(all));
        let text =
            format!("a queue waited {one} ms at most for its next enqueue, all together {all} ms");
        self.tell("pause", Colour::Yellow, text)
    }

    fn tell_leaders(&mut self) -> Result<()> {
        let leads = |node: u64| format!("node {node} leads {}", leads(&self.view, node));
        let leads: Vec<String> = self.view.nodes.iter().map(|node| leads(node.id)).collect();
        self.tell("leaders", Colour::None, leads.join(", "))
    }

    fn tell(&mut self, kind: &str, colour: Colour, what: impl AsRef<str>) -> Result<()> {
        Ok(self.screen.tell(kind, colour, what.as_ref())?)
    }

    async fn pass(&mut self, time: Duration) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < time {
            self.look().await?;
        }
        Ok(())
    }

    async fn look_until(&mut self, deadline: Instant, otherwise: &str) -> Result<()> {
        if Instant::now() >= deadline {
            bail!("{otherwise} in {PATIENCE:?}; the logs end with\n{}", self.nodes.log_ends());
        }
        self.look().await
    }

    /// Waits until the next update, reads the cluster's state, and draws it.
    async fn look(&mut self) -> Result<()> {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Some(view) = self.nodes.view().await? {
            self.view = view;
        }
        let status = match &self.load {
            None => format!("{} of {SHARDS} shards have all voters", formed(&self.view)),
            Some(load) => {
                let Counts { confirmed, executed, repeated, .. } = load.seen().book.counts();
                format!("confirmed {confirmed}, executed {executed}, executed twice {repeated}")
            }
        };
        self.screen.draw(&self.view, self.killed, &status)?;
        Ok(())
    }
}

/// The newest entries of the shards that a node has a replica of, added up.
fn newest_entries(view: &ClusterDetails, node: u64) -> u64 {
    let held = |shard: &&ShardDetails| shard.replicas.iter().any(|replica| replica.node == node);
    let newest = |shard: &ShardDetails| shard.replicas.iter().map(|replica| replica.matched).max();
    view.shards.iter().filter(held).filter_map(newest).sum()
}
