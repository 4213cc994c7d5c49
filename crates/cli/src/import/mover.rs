//! One job at a time, over a connection to each side: fetch, push, acknowledge.
//!
//! A push whose answer is lost is made again, over a new connection: the job's id makes it the same push.
//! So is one that was refused for a reason that may pass, as while nodes elect a leader.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use taskyard_cli::faktory::{Connection, Error, Url, Who};
use tokio::time::sleep;

use super::{Servers, job::Job, tally::Tally};

/// Taskyard may be away for so long, as while it restarts. The job stays reserved meanwhile.
const PATIENCE: Duration = Duration::from_secs(50);
/// Between two tries to reach it.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Waits before a refused job is pushed again. No refusal says whether it will pass.
const REFUSED_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

pub(super) struct Mover {
    from: Connection,
    queues: Vec<String>,
    into: Connection,
    into_url: Url,
    tally: Arc<Tally>,
}

impl Mover {
    pub(super) async fn open(
        servers: &Servers,
        who: &Who,
        queues: Vec<String>,
        tally: &Arc<Tally>,
    ) -> Result<Mover> {
        let from = Connection::open(&servers.from, who).await.context("the old server")?;
        let into = Connection::open(&servers.into, &Who::default()).await.context("the target")?;
        Ok(Mover { from, queues, into, into_url: servers.into.clone(), tally: Arc::clone(tally) })
    }

    /// Moves jobs until there are none, or until nothing more is to be begun.
    pub(super) async fn run(mut self) -> Result<()> {
        while self.tally.goes_on() {
            let Some(json) = self.from.fetch(&self.queues).await? else { return Ok(()) };
            self.tally.fetch();
            match Job::read(&json) {
                Ok(job) => self.carry(&job, &json).await?,
                Err(problem) => self.tally.refuse_unreadable(&json, &problem)?,
            }
        }
        Ok(())
    }

    async fn carry(&mut self, job: &Job, json: &[u8]) -> Result<()> {
        let jid = job.jid();
        match self.push(job, json).await {
            Ok(()) => {}
            Err(Error::Refused { word, message }) => {
                return self.tally.refuse(job, json, &word, &message);
            }
            Err(error) => {
                let words =
                    "and may or may not be in Taskyard; it stays reserved in the old server";
                return Err(error).with_context(|| format!("job {jid} was fetched {words}"));
            }
        }
        let words =
            "is in Taskyard and not acknowledged in the old server, which will hand it out again";
        self.from.ack(jid).await.with_context(|| format!("job {jid} {words}"))?;
        self.tally.moved(job);
        Ok(())
    }

    async fn push(&mut self, job: &Job, json: &[u8]) -> Result<(), Error> {
        let begun = Instant::now();
        let mut again = REFUSED_AGAIN_AFTER.iter();
        loop {
            let error = match self.into.push(json).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match &error {
                Error::Refused { word, .. } => match again.next() {
                    Some(wait) if word == "ERR" && job.batch().is_none() => sleep(*wait).await,
                    _ => return Err(error),
                },
                Error::Lost { .. } if begun.elapsed() < PATIENCE => self.reconnect(begun).await?,
                Error::Lost { .. } | Error::Strange { .. } => return Err(error),
            }
        }
    }

    /// A new connection to Taskyard, within what is left of the patience.
    async fn reconnect(&mut self, begun: Instant) -> Result<(), Error> {
        loop {
            match Connection::open(&self.into_url, &Who::default()).await {
                Ok(connection) => {
                    self.into = connection;
                    return Ok(());
                }
                Err(Error::Lost { .. }) if begun.elapsed() < PATIENCE => sleep(AGAIN_AFTER).await,
                Err(error) => return Err(error),
            }
        }
    }
}
