//! FETCH: one job from the first queue that has one, or none after two seconds.

use super::{
    caller::{Caller, WORKER_WITHOUT_WID},
    frame::Reply,
    job::{AsJob, Failure, RESERVE_FOR_DEFAULT},
};
use crate::{
    Error,
    broker::{ClaimAsked, Places},
    clock::real_now,
    limits,
    moment::InWords,
    shard::HandedTask,
};
use std::time::Duration;
use taskyard_machine::{AttemptOutcome, Body, TaskView};
use tokio::time::sleep;

const WAIT: Duration = Duration::from_millis(limits::FAKTORY_FETCH_MS_MAX);
/// The delay of an error reply, because clients ask again at once.
const ERROR_AFTER: Duration = Duration::from_secs(1);

/// A job for the worker that fetched it.
pub(super) struct Fetched {
    pub(super) jid: Box<str>,
    pub(super) json: Vec<u8>,
    pub(super) handed: HandedTask,
}

/// Tasks that were claimed for a fetch and have not reached the worker; released when dropped.
struct Undelivered<'a> {
    caller: &'a Caller,
    tasks: Vec<HandedTask>,
}

impl Drop for Undelivered<'_> {
    fn drop(&mut self) {
        self.caller.shared.broker.shards().release_later(&self.tasks);
    }
}

impl Caller {
    /// Claims a job. `Err` is the reply instead of a job.
    pub(super) async fn fetch(&mut self, queues: &str) -> Result<Option<Fetched>, Reply> {
        let places = self.places(queues)?;
        if self.asking.as_ref().is_some_and(|asking| !asking.may_claim()) {
            tokio::select! {
                () = sleep(WAIT) => {}
                () = self.shared.broker.stopping() => {}
            }
            return Ok(None);
        }
        let begun = real_now();
        let claimed = tokio::select! {
            claimed = self.claim(&places) => claimed,
            () = self.claims_stopped() => Ok(None),
        };
        match claimed {
            Ok(fetched) => Ok(fetched),
            Err(error) => {
                sleep(ERROR_AFTER.saturating_sub(begun.elapsed())).await;
                Err(Reply::error(error.to_string()))
            }
        }
    }

    /// Completes when the worker may claim no more. Any of its connections may have brought that
    /// news.
    async fn claims_stopped(&self) {
        match &self.asking {
            Some(asking) => asking.claims_stopped().await,
            None => std::future::pending().await,
        }
    }

    async fn claim(&self, places: &Places) -> Result<Option<Fetched>, Error> {
        let broker = &self.shared.broker;
        let asked = ClaimAsked {
            tasks_max: 1,
            lease_ms: RESERVE_FOR_DEFAULT * 1_000,
            session: self.session(),
            begun: true,
            worker: self.wid.as_deref().unwrap_or(WORKER_WITHOUT_WID).to_owned(),
        };
        let tasks = broker.claim(places, &asked, WAIT).await?;
        let mut undelivered = Undelivered { caller: self, tasks };
        let Some(handed) = undelivered.tasks.first() else { return Ok(None) };
        let task = &handed.task;
        // A worker gets the failure of the last attempt with its job.
        let failure = match task.attempt {
            1 => None,
            _ => failure_of(&broker.task(task.id, false).await?.task),
        };
        let body = Body::decode(&handed.body).expect("a kept body is one that was encoded");
        let job = AsJob {
            id: task.id,
            queue: task.queue.as_str(),
            jobtype: &task.task_type,
            enqueued_at: task.enqueued_at,
            body: &body,
            failure: failure.as_ref(),
        };
        let (jid, json) = (Box::<str>::from(&*job.jid()), job.json());
        self.note_claimed(&jid, handed);
        let handed = undelivered.tasks.pop();
        Ok(handed.map(|handed| Fetched { jid, json, handed }))
    }

    /// Releases a job that could not be sent.
    pub(super) fn give_back(&self, jid: &str, handed: HandedTask) {
        self.note_ended(jid, (handed.task.id, handed.task.token));
        self.shared.broker.shards().release_later(&[handed]);
    }

    /// The queues of a fetch. Most workers ask for the same each time.
    fn places(&mut self, queues: &str) -> Result<Places, Reply> {
        if let Some((_, known)) = self.places.as_ref().filter(|(said, _)| **said == *queues) {
            return Ok(known.clone());
        }
        let mut names: Vec<(String, u32)> = Vec::new();
        for name in queues.split_ascii_whitespace() {
            if !names.iter().any(|(known, _)| known == name) {
                names.push((name.to_owned(), 0));
            }
        }
        if names.is_empty() {
            return Err(Reply::error("must call fetch with at least one queue"));
        }
        let places = self.shared.broker.places(&names);
        let places = places.map_err(|error| Reply::error(error.to_string()))?;
        if let Some(asking) = &self.asking {
            asking.note_queues(places.queues());
        }
        self.places = Some((queues.into(), places.clone()));
        Ok(places)
    }
}

/// A task's last failure, in Faktory's terms.
pub(super) fn failure_of(view: &TaskView) -> Option<Failure> {
    let failed = |outcome| matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::TimedOut);
    let last = view.attempts.iter().rev().find(|attempt| failed(attempt.outcome))?;
    let [errtype, message, backtrace] = last.error.clone().unwrap_or_default();
    // Losses spend no retry, and Faktory does not count them as failures.
    let failures = last.attempt.saturating_sub(view.losses).max(1);
    Some(Failure {
        retry_count: failures - 1,
        remaining: view.max_attempts.saturating_sub(last.attempt),
        failed_at: InWords(last.ended_at).to_string(),
        next_at: Some(InWords(view.run_at.unwrap_or(last.ended_at)).to_string()),
        message,
        errtype,
        backtrace: backtrace.lines().map(str::to_owned).collect(),
    })
}
