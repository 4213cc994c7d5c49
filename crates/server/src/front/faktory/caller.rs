//! Caller: the client of a connection, and the jobs that it holds.
//!
//! All connections of a worker on this node share a map of its jobs, by job id. The map is only a
//! short cut: a job that is not in it is searched, and only claims of the worker's own session
//! count.

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

/// The number of claims whose bodies are read together.
const CLAIMS_AT_ONCE: usize = 100;
/// Each time that a worker's map has grown by this many jobs, lapsed ones are removed.
const HOLDS_LOOKED_AT: usize = 256;
/// The worker name of claims by clients without a worker id.
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

/// A claim that is to end.
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

/// The client of a connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) shared: Arc<Shared>,
    /// The worker's name; a producer has none.
    pub(super) wid: Option<Box<str>>,
    /// The worker's session. A producer has none, and its claims have only their leases.
    pub(super) asking: Option<Asking>,
    pub(super) holds: Arc<Holds>,
    /// The queues of the last fetch, as sent and as parsed.
    pub(super) places: Option<(Box<str>, Places)>,
}

impl Workers {
    fn holds(&self, wid: &str) -> Arc<Holds> {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = workers.get(wid).and_then(Weak::upgrade) {
            return known;
        }
        // Forgets workers without connections whenever half of the map is such workers.
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
    /// Opens a worker's session, or accepts a producer.
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

    /// Notes that the worker sent a command.
    pub(super) fn heard(&self) {
        if let Some(asking) = &self.asking {
            asking.heard();
        }
    }

    /// Ends the caller's claim of a job. Returns whether it had one. Most jobs were fetched through
    /// this node. If not, or if the known claim is over, the job may have been fetched through
    /// another node since.
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
            let is_over = ended.as_ref().err().is_none_or(claim_is_over);
            if is_over {
                self.note_ended(jid, (task, token));
            }
            match ended {
                Ok(()) => return Ok(true),
                Err(_) if is_over => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The claim of a job that this caller may end. A worker may end claims of its session. A
    /// client without a session may end any claim without a session, because it may be its own.
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

    /// Searches a worker's claims, which are few.
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

    /// Notes that the worker got a job.
    pub(super) fn note_claimed(&self, jid: &str, handed: &HandedTask) {
        let claim = (handed.task.id, handed.task.token);
        self.holds.put(jid, claim, handed.task.lease_ms, real_now());
        if let Some(asking) = &self.asking {
            asking.note_claimed(handed);
        }
    }

    /// Notes that the worker's claim of a job is over.
    pub(super) fn note_ended(&self, jid: &str, claim: Claimed) {
        let mut jobs = self.holds.jobs();
        if jobs.get(jid).is_some_and(|held| held.claim == claim) {
            jobs.remove(jid);
        }
        drop(jobs);
        if let Some(asking) = &self.asking {
            asking.note_ended(claim);
        }
    }
}

/// Whether the error says that the claim is over already.
fn claim_is_over(error: &Error) -> bool {
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
    /// The task of a job, in whatever state.
    pub(super) async fn find(&self, jid: &str) -> Result<Option<TaskView>, Error> {
        // A client may make ids that look like task ids.
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

/// Cuts a text that only people read to its limit.
fn shown(text: &str) -> String {
    let printed = text.chars().filter(|c| !c.is_control());
    let mut bytes = 0;
    let fits = printed.take_while(|c| {
        bytes += c.len_utf8();
        bytes <= limits::WORKER_NAME_BYTES_MAX
    });
    fits.collect()
}

/// The session of a worker, on every node.
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
