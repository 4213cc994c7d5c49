//! `taskyard import faktory`: moves waiting jobs out of a running Faktory server.
//!
//! ```text
//! job.rs       what must be known of a job      mover.rs    fetch, push, acknowledge
//! refusal.rs   why a job is not taken           watch.rs    signals, and what the old server orders
//! tally.rs     what became of the jobs          report.rs   what is left, and what to do about it
//! ```
//! Invariant: a job is acknowledged at the old server only after Taskyard has acknowledged its
//! push. The target must be Taskyard, where a second push of the same job changes nothing.

mod job;
mod mover;
mod refusal;
mod report;
mod tally;
mod watch;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use taskyard_cli::faktory::{Connection, Info, Url, Who};
use tokio::task::JoinSet;

use self::{mover::Mover, report::Left, tally::Tally, watch::Watch};
use crate::{
    args::ImportFaktoryArgs,
    output::{self, Output},
    remote::usage,
    values::count,
};

/// How often to check whether scheduled jobs have become due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The import gives up after this many rounds without a job while queues still have jobs, or after
/// more rounds if one pass over all queues takes more.
const ROUNDS_IN_VAIN_MAX: usize = 3;
/// The most queues in one fetch.
const QUEUES_PER_FETCH: usize = 32;

pub(crate) fn faktory(args: &ImportFaktoryArgs, output: Output) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut import, info) = Import::open(args, output).await?;
        report::warn_of_unknown(&info, &args.queues, output);
        if args.dry_run {
            return report::plan(&Left::of(&info, &args.queues), output);
        }
        let ended = import.run().await;
        import.finish(ended).await
    })
}

/// The source and the target of the jobs.
struct Servers {
    from: Url,
    into: Url,
}

impl Servers {
    /// Errors never show a URL as it was typed, because it may have a password.
    fn read(args: &ImportFaktoryArgs) -> Result<Servers> {
        let url = |what: &str, text: &str| {
            text.parse().map_err(|problem| usage(format!("{what}: {problem}")))
        };
        let from = url("the old server's URL (or FAKTORY_URL)", &args.from)?;
        let into = url("--into (or TASKYARD_FAKTORY_URL)", &args.into)?;
        Ok(Servers { from, into })
    }
}

/// One run: the connection that reads the old server's state, and the parts that all movers share.
struct Import<'a> {
    args: &'a ImportFaktoryArgs,
    output: Output,
    servers: Servers,
    /// The connection to the old server.
    control: Connection,
    who: Who,
    watch: Watch,
    tally: Arc<Tally>,
    rounds: usize,
}

impl<'a> Import<'a> {
    /// Connects to both servers and checks them, before a job is moved.
    async fn open(args: &'a ImportFaktoryArgs, output: Output) -> Result<(Import<'a>, Info)> {
        let servers = Servers::read(args)?;
        let Servers { from, into } = &servers;
        let wid = format!("taskyard-import-{:016x}", rand_part());
        let who = Who { wid: Some(wid.clone()), labels: vec!["taskyard-import".to_owned()] };
        let mut control = Connection::open(from, &who).await.context("the old server")?;
        let info = control.info().await.context("the old server")?;
        let mut target = Connection::open(into, &Who::default()).await.context(INTO)?;
        let its_info = target.info().await.context(INTO)?;
        if !its_info.description.starts_with("Taskyard") {
            return Err(usage(format!(
                "{} is {:?} and not Taskyard; give --into the address of Taskyard's port for \
                 Faktory clients",
                into, its_info.description
            )));
        }
        let same_cluster = info.cluster.is_some() && info.cluster == its_info.cluster;
        if same_cluster || control.peer() == target.peer() {
            return Err(usage(format!(
                "{} and {} are the same server; give --into the address of Taskyard's port for \
                 Faktory clients",
                from, into
            )));
        }
        let bar = output::progress(output, Some(0), "jobs");
        let tally = Arc::new(Tally::new(output, bar, args.refused.as_deref())?);
        let beating = Connection::open(from, &who).await.context("the old server")?;
        let watch = Watch::begin(beating, wid, &tally)?;
        Ok((Import { args, output, servers, control, who, watch, tally, rounds: 0 }, info))
    }

    /// Moves jobs in rounds, until none waits: reads which queues have jobs, then moves those jobs.
    async fn run(&mut self) -> Result<()> {
        let mut in_vain = 0;
        while self.tally.goes_on() {
            let info = self.watch.attend(self.control.info()).await??;
            if !self.tally.goes_on() {
                break;
            }
            let left = Left::of(&info, &self.args.queues);
            let waits = left.names();
            if waits.is_empty() {
                if !self.args.follow || left.to_come() == 0 {
                    return Ok(());
                }
                self.tally.wait_for(&left);
                self.watch.attend(tokio::time::sleep(LOOK_EVERY)).await?;
                continue;
            }
            let before = self.tally.fetched();
            self.tally.expect(left.waiting());
            let movers = self.movers(left.waiting());
            self.round(&waits, movers).await?;
            in_vain = if self.tally.fetched() > before { 0 } else { in_vain + 1 };
            // By then each queue was part of a fetch.
            let rounds = waits.len().div_ceil(movers * QUEUES_PER_FETCH).max(ROUNDS_IN_VAIN_MAX);
            if in_vain >= rounds && self.tally.goes_on() {
                anyhow::bail!(
                    "the old server has jobs in {} and hands out none; resume these queues if they are \
                     paused, stop workers that use up their limits, and import again",
                    waits.join(", ")
                );
            }
        }
        Ok(())
    }

    /// How many jobs to move at once if this many wait.
    fn movers(&self, jobs: u64) -> usize {
        usize::from(self.args.connections).min(usize::try_from(jobs).unwrap_or(usize::MAX))
    }

    /// Moves waiting jobs until a fetch finds none.
    async fn round(&mut self, waits: &[String], movers: usize) -> Result<()> {
        // All connections are opened before a job is fetched, so that a failed connection does not
        // leave fetched jobs half-way.
        let mut opened = Vec::new();
        for number in 0..movers {
            let queues = queues_of(waits, number, movers, self.rounds);
            let mover = Mover::open(&self.servers, &self.who, queues, &self.tally);
            opened.push(self.watch.attend(mover).await??);
            if !self.tally.goes_on() {
                return Ok(());
            }
        }
        self.rounds += 1;
        let mut running = JoinSet::new();
        for mover in opened {
            running.spawn(mover.run());
        }
        let tally = Arc::clone(&self.tally);
        let moving = async {
            let mut ended = Ok(());
            while let Some(one) = running.join_next().await {
                let one = one.map_err(anyhow::Error::from).and_then(|one| one);
                if one.is_err() && ended.is_ok() {
                    // The others finish what they have fetched.
                    tally.stop();
                    ended = one;
                }
            }
            ended
        };
        self.watch.attend(moving).await?
    }

    /// Reports how many jobs were moved and how many are left; fails if not all were moved.
    async fn finish(mut self, ended: Result<()>) -> Result<()> {
        self.tally.clear_bar();
        let interrupted = self.tally.is_interrupted();
        // Without an answer the remaining jobs are unknown.
        let left = self.watch.attend(self.control.info()).await.ok().and_then(Result::ok);
        let left = left.map(|info| Left::of(&info, &self.args.queues));
        let moved = report::say(&self.tally, left.as_ref(), self.output)?;
        let again = "import again to move the rest; moved jobs are not duplicated";
        ended.with_context(|| format!("{} moved, then stopped; {again}", count(moved, "job")))?;
        if self.tally.gave_up() {
            anyhow::bail!(
                "Taskyard refused {} jobs in a row, and the import stopped; see the reasons above, repair \
                 their cause, and import again",
                tally::REFUSED_IN_A_ROW_MAX
            );
        }
        if interrupted {
            anyhow::bail!("stopped before the end; {again}");
        }
        if self.tally.is_ordered_to_stop() {
            anyhow::bail!("stopped before the end by the old server; {again}");
        }
        match self.tally.refused() {
            0 => Ok(()),
            some => anyhow::bail!(
                "{} refused, see above; the old server hands them out again when their reservation \
                 ends",
                match some {
                    1 => "1 job was".to_owned(),
                    _ => format!("{some} jobs were"),
                }
            ),
        }
    }
}

const INTO: &str =
    "the target, Taskyard's port for Faktory clients (see --into and serve --faktory)";

/// The queues of a mover's fetches in one round. Each mover begins at another queue, so that no
/// queue waits until the others are empty. Each round begins further on, because a fetch names only
/// some queues, and those may be paused.
fn queues_of(waits: &[String], number: usize, movers: usize, round: usize) -> Vec<String> {
    let from = (number * waits.len() / movers + round * QUEUES_PER_FETCH) % waits.len();
    waits[from..].iter().chain(&waits[..from]).take(QUEUES_PER_FETCH).cloned().collect()
}

/// A random number for the worker id of this run.
fn rand_part() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_is_asked_for_within_some_rounds() {
        for (queues, movers) in [(1_usize, 8), (7, 3), (40, 1), (65, 2), (200, 1), (1_000, 8)] {
            let waits: Vec<String> = (0..queues).map(|number| format!("q{number:04}")).collect();
            let rounds = queues.div_ceil(movers * QUEUES_PER_FETCH);
            let mut asked: Vec<String> = (0..rounds)
                .flat_map(|round| (0..movers).map(move |number| (round, number)))
                .flat_map(|(round, number)| queues_of(&waits, number, movers, round))
                .collect();
            asked.sort();
            asked.dedup();
            assert_eq!(asked, waits, "{queues} queues, {movers} movers");
        }
    }
}
