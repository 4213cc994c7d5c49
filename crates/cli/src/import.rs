//! `taskyard import faktory`: moves waiting jobs out of a running Faktory server.
//!
//! ```text
//! job.rs       what must be known of a job      mover.rs    fetch, push, acknowledge
//! refusal.rs   why a job is not taken           tally.rs    what became of the jobs
//! report.rs    what is left, and what to do about it
//! ```
//! Invariant: a job is acknowledged at the old server only after Taskyard has said that it has it. So
//! that a second push of it changes nothing there, the target must be Taskyard, and not the source.

mod job;
mod mover;
mod refusal;
mod report;
mod tally;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use taskyard_cli::faktory::{BEAT_EVERY, Connection, Info, Orders, Url, Who};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use self::{mover::Mover, report::Left, tally::Tally};
use crate::{
    args::ImportFaktoryArgs,
    output::{self, Output},
    remote::usage,
    signals::Signals,
    values::count,
};

/// How often to look whether something that was scheduled has become due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Queues that hold jobs and give none so often in a row are not waited for.
const ROUNDS_IN_VAIN_MAX: u32 = 3;
/// Queues that one fetch names.
const QUEUES_PER_FETCH: usize = 32;

pub(crate) fn faktory(args: &ImportFaktoryArgs, output: Output) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut import, info) = Import::open(args, output).await?;
        if args.dry_run {
            return report::plan(&Left::of(&info, &args.queues), output);
        }
        import.tally.expect(Left::of(&info, &args.queues).waiting());
        let ended = import.run().await;
        import.finish(ended).await
    })
}

/// Between which servers jobs are moved.
struct Servers {
    from: Url,
    into: Url,
}

impl Servers {
    /// What was typed may hold a password, so it is never shown.
    fn read(args: &ImportFaktoryArgs) -> Result<Servers> {
        let url = |what: &str, text: &str| {
            text.parse().map_err(|problem| usage(format!("{what}: {problem}")))
        };
        let from = url("the old server's URL (or FAKTORY_URL)", &args.from)?;
        let into = url("--into (or TASKYARD_FAKTORY_URL)", &args.into)?;
        Ok(Servers { from, into })
    }
}

/// One run: the connection that looks and beats, and what the movers share.
struct Import<'a> {
    args: &'a ImportFaktoryArgs,
    output: Output,
    servers: Servers,
    /// To the old server.
    control: Connection,
    who: Who,
    beat: Interval,
    signals: Signals,
    tally: Arc<Tally>,
}

impl<'a> Import<'a> {
    /// Looks at both servers before anything is moved.
    async fn open(args: &'a ImportFaktoryArgs, output: Output) -> Result<(Import<'a>, Info)> {
        let servers = Servers::read(args)?;
        let Servers { from, into } = &servers;
        let wid = format!("taskyard-import-{:016x}", rand_part());
        let who = Who { wid: Some(wid), labels: vec!["taskyard-import".to_owned()] };
        let mut control = Connection::open(from, &who).await.context("the old server")?;
        let info = control.info().await.context("the old server")?;
        let mut target = Connection::open(into, &Who::default()).await.context(INTO)?;
        let its_info = target.info().await.context(INTO)?;
        if !its_info.description.starts_with("Taskyard") {
            return Err(usage(format!(
                "{} is {:?} and not Taskyard; say with --into where Taskyard listens for Faktory clients",
                into, its_info.description
            )));
        }
        let same_cluster = info.cluster.is_some() && info.cluster == its_info.cluster;
        if same_cluster || control.peer() == target.peer() {
            return Err(usage(format!(
                "{} and {} are the same server; say with --into where Taskyard listens for Faktory clients",
                from, into
            )));
        }
        let bar = output::progress(output, Some(0), "jobs");
        let tally = Arc::new(Tally::new(output, bar, args.refused.as_deref())?);
        let mut beat = interval(BEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let signals = Signals::listen()?;
        Ok((Import { args, output, servers, control, who, beat, signals, tally }, info))
    }

    /// Moves until nothing waits any more, in rounds: look what waits, move it.
    async fn run(&mut self) -> Result<()> {
        let mut in_vain = 0;
        while self.tally.goes_on() {
            let info = self.control.info().await?;
            let left = Left::of(&info, &self.args.queues);
            let waits = left.names();
            if waits.is_empty() {
                if !self.args.follow || left.to_come() == 0 {
                    return Ok(());
                }
                self.tally.wait_for(&left);
                self.attend(tokio::time::sleep(LOOK_EVERY)).await?;
                continue;
            }
            let before = self.tally.fetched();
            self.round(&waits, left.waiting()).await?;
            in_vain = if self.tally.fetched() > before { 0 } else { in_vain + 1 };
            if in_vain >= ROUNDS_IN_VAIN_MAX && self.tally.goes_on() {
                anyhow::bail!(
                    "the old server holds jobs in {} and hands out none; resume these queues if they are \
                     paused, stop workers that hold their limits, and import again",
                    waits.join(", ")
                );
            }
        }
        Ok(())
    }

    /// Moves what waits, until a fetch finds nothing.
    async fn round(&mut self, waits: &[String], jobs: u64) -> Result<()> {
        let mut movers = JoinSet::new();
        let some =
            usize::from(self.args.connections).min(usize::try_from(jobs).unwrap_or(usize::MAX));
        for number in 0..some {
            // Each begins elsewhere, so that no queue has to wait for the others to be empty.
            let from = number * waits.len() / some;
            let queues = waits[from..].iter().chain(&waits[..from]).take(QUEUES_PER_FETCH);
            let mover =
                Mover::open(&self.servers, &self.who, queues.cloned().collect(), &self.tally);
            movers.spawn(mover.await?.run());
        }
        let tally = Arc::clone(&self.tally);
        let moving = async {
            let mut ended = Ok(());
            while let Some(one) = movers.join_next().await {
                let one = one.map_err(anyhow::Error::from).and_then(|one| one);
                if one.is_err() && ended.is_ok() {
                    // The others finish what they have fetched.
                    tally.stop();
                    ended = one;
                }
            }
            ended
        };
        self.attend(moving).await?
    }

    /// Does `work` to its end, while the old server hears that somebody is alive and a signal is heeded.
    async fn attend<F: Future>(&mut self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut silent = None;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = self.signals.next() => {
                    if self.tally.is_interrupted() {
                        eprintln!("stopped at once");
                        std::process::exit(1);
                    }
                    self.output.say("finishing the jobs under way; once more stops at once");
                    self.tally.interrupt();
                }
                _ = self.beat.tick(), if silent.is_none() => {
                    let wid = self.who.wid.as_deref().unwrap_or_default();
                    match self.control.beat(wid).await {
                        Ok(Orders::GoOn) => {}
                        Ok(Orders::Quiet | Orders::Terminate) => self.tally.interrupt(),
                        Err(error) => {
                            self.tally.stop();
                            silent = Some(error);
                        }
                    }
                }
            }
        };
        silent.map_or(Ok(done), |error| Err(error.into()))
    }

    /// Says what became of the jobs, what is left, and ends with an error if not all was moved.
    async fn finish(mut self, ended: Result<()>) -> Result<()> {
        self.tally.clear_bar();
        let left = self.control.info().await.ok().map(|info| Left::of(&info, &self.args.queues));
        let moved = report::say(&self.tally, left.as_ref(), self.output)?;
        let again = "import again to move the rest; what was moved is not made twice";
        ended.with_context(|| format!("{} moved, then stopped; {again}", count(moved, "job")))?;
        if self.tally.gave_up() {
            anyhow::bail!(
                "Taskyard refused {} jobs in a row; stopped before more are reserved in vain; see above what \
                 it says, and import again when that is repaired",
                tally::REFUSED_IN_A_ROW_MAX
            );
        }
        if self.tally.is_interrupted() {
            anyhow::bail!("stopped before the end; {again}");
        }
        match self.tally.refused() {
            0 => Ok(()),
            some => anyhow::bail!(
                "{} refused, see above; the old server gives them out again when their reservation ends",
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

/// Tells this run from others.
fn rand_part() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
