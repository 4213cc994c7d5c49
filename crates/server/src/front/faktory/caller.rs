//! Caller: who is on a connection, and what jobs it holds.
//!
//! All connections of one worker on this node share what it holds, by job id. That is a short cut:
//! whoever is not found there is looked up, and what it says counts only for a claim of its own
//! session.

use super::{Shared, hello::Hello, job};
use crate::{
    Error,
    broker::Places,
    clock::real_now,
    sessions::{Asking, Profile, session_of_name},
    shard::{HandedTask, TaskTypes},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};
use taskyard_machine::{
    Ack, Body, ClaimToken, Fail, Rejection, SessionId, TaskError, TaskId, TaskView, limits,
};

/// Claims whose bodies are read together.
const CLAIMS_AT_ONCE: usize = 100;
/// Every so many jobs that a worker holds it is looked whether it still does.
const HOLDS_LOOKED_AT: usize = 256;
/// Who claims for clients that don't say that they are workers.
pub(super) const WORKER_WITHOUT_WID: &str = "faktory";

/// The workers with connections to this node, by the names that they gave themselves.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<HashMap<Box<str>, Weak<Holds>>>);

/// How a job ended, as its worker says.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimEnd<'a> {
    Ack,
    Fail(TaskError<'a>),
}

/// A claim, as it is ended.
pub(super) type Claimed = (TaskId, ClaimToken);

/// The jobs that a worker holds, by job id.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<Box<str>, HeldJob>>);

/// A job that a worker holds, as far as this node knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldJob {
    claim: Claimed,
    /// When its lease ends unless it is renewed, by elapsed time: the clock of this node may differ
    /// from the leader's.
    lease_until: Instant,
}

/// Who is on a connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) shared: Arc<Shared>,
    /// Its name as a worker; a producer has none.
    pub(super) wid: Option<Box<str>>,
    /// Its session; a producer has none, and its claims have their leases alone.
    pub(super) asking: Option<Asking>,
    pub(super) holds: Arc<Holds>,
    /// Where it fetched from last, as it said it and as it is meant.
    pub(super) places: Option<(Box<str>, Places)>,
}

impl Workers {
    fn holds(&self, wid: &str) -> Arc<Holds> {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = workers.get(wid).and_then(Weak::upgrade) {
            return known;
        }
        // Those that are gone go when others come.
        if workers.len() >= 2 * workers.values().filter(|known| known.strong_count() > 0).count() {
            workers.retain(|_, known| known.strong_count() > 0);
        }
        let holds = Arc::new(Holds::default());
        workers.insert(wid.into(), Arc::downgrade(&holds));
        holds
    }
}

impl Holds {
    fn jobs(&self) -> MutexGuard<'_, HashMap<Box<str>, HeldJob>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a job that was handed out `now`. Now and then, forgets those that were ended
    /// through another node, or lapsed.
    fn put(&self, jid: &str, claim: Claimed, lease_ms: u64, now: Instant) {
        let mut jobs = self.jobs();
        if jobs.len() >= HOLDS_LOOKED_AT && jobs.len().is_multiple_of(HOLDS_LOOKED_AT) {
            jobs.retain(|_, held| held.lease_until > now);
        }
        let lease_until = now + Duration::from_millis(lease_ms);
        jobs.insert(jid.into(), HeldJob { claim, lease_until });
    }
}

impl Caller {
    /// Opens a worker's session, or lets a producer in.
    pub(super) fn new(shared: &Arc<Shared>, hello: Hello) -> Result<Caller, Error> {
        let wid = hello.wid.filter(|wid| !wid.is_empty());
        let caller = |wid, asking, holds| Caller {
            shared: shared.clone(),
            wid,
            asking,
            holds,
            places: None,
        };
        let Some(wid) = wid else { return Ok(caller(None, None, Arc::default())) };
        if wid.len() > limits::WORKER_NAME_BYTES_MAX || wid.chars().any(char::is_control) {
            return Err(Error::Invalid("wid is too long or has control characters".into()));
        }
        let labels = hello.labels.unwrap_or_default().join(",");
        let profile = Profile {
            name: wid.clone(),
            host: shown(&hello.hostname.unwrap_or_default()),
            pid: hello.pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
            version: shown(format!("faktory {labels}").trim_end()),
            queues: Vec::new(),
            types: TaskTypes::ANY,
            slots: 0,
        };
        let asking = Asking::open(&shared.broker, session_of(&wid), profile)?;
        let holds = shared.workers.holds(&wid);
        Ok(caller(Some(wid.into()), Some(asking), holds))
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.asking.as_ref().map(Asking::id)
    }

    /// It said something.
    pub(super) fn heard(&self) {
        if let Some(asking) = &self.asking {
            asking.heard();
        }
    }

    /// Ends a caller's claim of a job; whether there was one. Mostly it was fetched through this
    /// node. If not, or if that claim is over by now, it may have been fetched through another one
    /// since.
    pub(super) async fn end_claim(&self, jid: &str, end: ClaimEnd<'_>) -> Result<bool, Error> {
        let known = self.holds.jobs().get(jid).map(|held| held.claim);
        for is_known in [true, false] {
            let claim = if is_known { known } else { self.search(jid).await? };
            let Some((task, token)) = claim else { continue };
            let broker = &self.shared.broker;
            let ended = match end {
                ClaimEnd::Ack => {
                    let ack = Ack { task, token, result: None, follow_ups: Vec::new() };
                    broker.ack(ack).await.map(drop)
                }
                ClaimEnd::Fail(error) => {
                    let fail = Fail { task, token, error, retry_at: None, retryable: true };
                    broker.fail(fail).await.map(drop)
                }
            };
            let is_over = ended.as_ref().err().is_none_or(is_none_any_more);
            if is_over {
                self.is_done_with(jid, (task, token));
            }
            match ended {
                Ok(()) => return Ok(true),
                Err(_) if is_over => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The claim of a job that this caller may end: one of its session. Whoever has none may end
    /// what was fetched by others like it, for it may have been itself.
    async fn search(&self, jid: &str) -> Result<Option<Claimed>, Error> {
        if let Some(session) = self.session() {
            return self.search_own(session, jid).await;
        }
        let found = self.shared.find(jid).await?;
        let claim = found.and_then(|view| view.claim.map(|claim| (view.id, claim)));
        let claim = claim.filter(|(_, claim)| {
            claim.session.is_none() && claim.worker.as_ref() == WORKER_WITHOUT_WID
        });
        Ok(claim.map(|(task, claim)| (task, claim.token)))
    }

    /// Looks through a worker's claims, which are few.
    async fn search_own(&self, session: SessionId, jid: &str) -> Result<Option<Claimed>, Error> {
        let claims = self.shared.broker.claims_of(session).await?;
        for some in claims.chunks(CLAIMS_AT_ONCE) {
            let tasks = some.iter().map(|(task, _)| *task).collect();
            let bodies = self.shared.broker.bodies(tasks).await?;
            let found = some.iter().zip(bodies).find(|((task, _), body)| {
                let body = body.as_ref().and_then(|body| Body::decode(body).ok());
                body.is_some_and(|body| match job::jid_of(&body) {
                    Some(known) => known == jid,
                    None => task.to_string() == jid,
                })
            });
            if let Some((claim, _)) = found {
                return Ok(Some(*claim));
            }
        }
        Ok(None)
    }

    /// It was handed a job.
    pub(super) fn is_handed(&self, jid: &str, handed: &HandedTask) {
        let claim = (handed.task.id, handed.task.token);
        self.holds.put(jid, claim, handed.task.lease_ms, real_now());
        if let Some(asking) = &self.asking {
            asking.holds(handed);
        }
    }

    /// It holds a job no more by that claim.
    pub(super) fn is_done_with(&self, jid: &str, claim: Claimed) {
        let mut jobs = self.holds.jobs();
        if jobs.get(jid).is_some_and(|held| held.claim == claim) {
            jobs.remove(jid);
        }
        drop(jobs);
        if let Some(asking) = &self.asking {
            asking.is_done_with(claim);
        }
    }
}

/// Whether there is no such claim any more, by this or by something before it.
fn is_none_any_more(error: &Error) -> bool {
    matches!(
        error,
        Error::Rejected(
            Rejection::ClaimLost { .. }
                | Rejection::TaskNotFound { .. }
                | Rejection::AlreadyFinished { .. }
        )
    )
}

impl Shared {
    /// The task of a job, wherever it is in its life.
    pub(super) async fn find(&self, jid: &str) -> Result<Option<TaskView>, Error> {
        // Clients may make ids that look like those of tasks.
        if let Ok(task) = jid.parse::<TaskId>() {
            let found = self.kept(task).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        for task in self.broker.find_by_request(jid).await? {
            let found = self.kept(task).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn kept(&self, task: TaskId) -> Result<Option<TaskView>, Error> {
        match self.broker.task(task, false).await {
            Ok(found) => Ok(Some(found.task)),
            Err(Error::Rejected(Rejection::TaskNotFound { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a client says for people alone: what does not fit is left out.
fn shown(text: &str) -> String {
    let printed = text.chars().filter(|c| !c.is_control());
    let mut bytes = 0;
    let fits = printed.take_while(|c| {
        bytes += c.len_utf8();
        bytes <= limits::WORKER_NAME_BYTES_MAX
    });
    fits.collect()
}

/// The session of a worker, on whichever node it is.
fn session_of(wid: &str) -> SessionId {
    session_of_name("faktory", wid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::ShardId;

    /// No clock is asked: a node whose clock is ahead would take all of them for lapsed.
    #[test]
    fn a_job_is_forgotten_when_its_lease_has_passed_and_not_before() {
        const LEASE_MS: u64 = 30_000;
        let (holds, now) = (Holds::default(), real_now());
        let put = |number: usize, now| {
            let shard = ShardId(0);
            let task = TaskId { incarnation: 1, home: shard, origin: shard, sequence: 7 };
            holds.put(&number.to_string(), (task, ClaimToken(1)), LEASE_MS, now);
        };
        (0..=HOLDS_LOOKED_AT).for_each(|number| put(number, now));
        assert_eq!(holds.jobs().len(), HOLDS_LOOKED_AT + 1);
        let late = now + Duration::from_millis(LEASE_MS);
        (HOLDS_LOOKED_AT + 1..=2 * HOLDS_LOOKED_AT).for_each(|number| put(number, late));
        assert_eq!(holds.jobs().len(), HOLDS_LOOKED_AT, "those of before are gone");
    }
}
