//! Mover: moves one job at a time, over a connection to each side: fetch, push, acknowledge.
//!
//! A push without an answer is repeated over a new connection, because the job's id makes it the
//! same push. A push that was refused for a temporary reason, such as an election, is repeated too.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use taskyard_cli::faktory::{Connection, Error, Url, Who};
use tokio::time::sleep;

use super::{
    Servers,
    job::Job,
    refusal::{JOB_BYTES_MAX, Refusal},
    tally::Tally,
};

/// How long Taskyard may be unreachable, as during a restart. The job stays reserved meanwhile.
const PATIENCE: Duration = Duration::from_secs(50);
/// The time between two tries to reach Taskyard.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// The waits before a refused job is pushed again, because a refusal does not say whether it is
/// temporary.
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
        let into_url = servers.into.clone();
        let into = connect(&into_url, Instant::now(), || tally.goes_on()).await;
        let into = into.context("the target")?;
        Ok(Mover { from, queues, into, into_url, tally: Arc::clone(tally) })
    }

    /// Moves jobs until there are none, or until the import is stopped.
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
            Ok(None) => {}
            Ok(Some(refusal)) => return self.tally.refuse(job, json, &refusal),
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

    /// Pushes the job; returns why it is refused, if it is.
    async fn push(&mut self, job: &Job, json: &[u8]) -> Result<Option<Refusal>, Error> {
        if json.len() > JOB_BYTES_MAX {
            // A line of this length would end the connection without an answer.
            return Ok(Some(Refusal::TooLong { bytes: json.len() }));
        }
        let begun = Instant::now();
        let mut again = REFUSED_AGAIN_AFTER.iter();
        loop {
            match self.into.push(json).await {
                Ok(()) => return Ok(None),
                Err(Error::Refused { word, message }) => {
                    let refusal = Refusal::of(job, &word, message);
                    match again.next() {
                        Some(wait) if refusal.is_of_the_server() => sleep(*wait).await,
                        _ => return Ok(Some(refusal)),
                    }
                }
                Err(Error::Lost { .. }) if begun.elapsed() < PATIENCE => {
                    self.into = connect(&self.into_url, begun, || true).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A connection to Taskyard, within the rest of the patience and while `goes_on`. A refused
/// connection counts as a lost one, because the job may be in Taskyard.
async fn connect(
    url: &Url,
    begun: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<Connection, Error> {
    loop {
        let error = match Connection::open(url, &Who::default()).await {
            Err(Error::Refused { message, .. }) => {
                Error::Lost { server: url.to_string(), problem: message }
            }
            Err(error @ Error::Lost { .. }) => error,
            opened => return opened,
        };
        if begun.elapsed() >= PATIENCE || !goes_on() {
            return Err(error);
        }
        sleep(AGAIN_AFTER).await;
    }
}
