//! Caller: who is on a connection, and what jobs it holds.
//!
//! All connections of one worker on this node share what it holds, by job id. That is a short cut: whoever is
//! not found there is looked up, and what it says counts only for a claim of its own session.

use super::{Shared, hello::Hello, job};
use crate::{
    Error,
    broker::Places,
    sessions::{Asking, Profile},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use taskyard_machine::{Body, ClaimToken, Rejection, SessionId, TaskId, limits};
use xxhash_rust::xxh3::xxh3_128;

/// Claims whose bodies are read together.
const CLAIMS_AT_ONCE: usize = 100;

/// The workers with connections to this node, by the names that they gave themselves.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<HashMap<Box<str>, Weak<Holds>>>);

/// The jobs that a worker holds, by job id.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<Box<str>, (TaskId, ClaimToken)>>);

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
    pub(super) fn jobs(&self) -> MutexGuard<'_, HashMap<Box<str>, (TaskId, ClaimToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            host: hello.hostname.unwrap_or_default(),
            pid: hello.pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
            version: format!("faktory {labels}").trim_end().to_owned(),
            queues: Vec::new(),
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

    /// The claim of a job that this caller may end: its own. Mostly it was fetched through this node, else
    /// its id says which task it is, unless that was too long ago: then the worker's few claims are
    /// looked through.
    pub(super) async fn claim_of(&self, jid: &str) -> Result<Option<(TaskId, ClaimToken)>, Error> {
        let held = self.holds.jobs().get(jid).copied();
        if held.is_some() {
            return Ok(held);
        }
        let mine = self.session();
        let found = self.shared.find(jid).await?;
        let claim = found.and_then(|view| view.claim.map(|claim| (view.id, claim)));
        match claim.filter(|(_, claim)| claim.session == mine) {
            Some((task, claim)) => Ok(Some((task, claim.token))),
            None => self.search_own(jid).await,
        }
    }

    async fn search_own(&self, jid: &str) -> Result<Option<(TaskId, ClaimToken)>, Error> {
        let Some(session) = self.session() else { return Ok(None) };
        let claims = self.shared.broker.claims_of(session).await?;
        for some in claims.chunks(CLAIMS_AT_ONCE) {
            let tasks = some.iter().map(|(task, _)| *task).collect();
            let bodies = self.shared.broker.bodies(tasks).await?;
            let found = some.iter().zip(bodies).find(|(_, body)| {
                let body = body.as_ref().and_then(|body| Body::decode(body).ok());
                body.is_some_and(|body| job::jid_of(&body) == Some(jid))
            });
            if let Some((claim, _)) = found {
                return Ok(Some(*claim));
            }
        }
        Ok(None)
    }

    /// It holds a job no more.
    pub(super) fn is_done_with(&self, jid: &str, task: TaskId) {
        self.holds.jobs().remove(jid);
        if let Some(asking) = &self.asking {
            asking.is_done_with(task);
        }
    }
}

impl Shared {
    /// The task of a job, wherever it is in its life.
    pub(super) async fn find(
        &self,
        jid: &str,
    ) -> Result<Option<taskyard_machine::TaskView>, Error> {
        let candidates = match jid.parse::<TaskId>() {
            Ok(task) => vec![task],
            Err(_) => self.broker.find_by_request(jid).await?,
        };
        for task in candidates {
            match self.broker.task(task, false).await {
                Ok(found) => return Ok(Some(found.task)),
                Err(Error::Rejected(Rejection::TaskNotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// The session of a worker, on whichever node it is.
fn session_of(wid: &str) -> SessionId {
    SessionId(xxh3_128(format!("faktory worker {wid}").as_bytes()))
}
