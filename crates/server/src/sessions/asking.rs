//! Asking: a worker without a stream (over Faktory's protocol). It uses any number of connections,
//! on any node, and learns what to do from the answers to its beats.
//!
//! The session id follows from the worker's name, so that all its connections are one session on
//! every node. A worker that beats is lost after a minute of silence, or some seconds after its
//! last connection closed. A worker that never beat may be alive as long as it holds a claim; its
//! claims have only their leases. A worker may beat on one node and claim on another, so nodes tell
//! each other once a second which beating workers they heard.

use super::{
    Activity, Held, Link, Profile, SILENCE_AFTER_CUT_MAX, Session, Sessions, State,
    attached::check_profile,
};
use crate::{
    Broker, Error,
    limits::{ASKING_SILENCE_MS_MAX, ASKING_UNHEARD_MS_MAX, FAKTORY_WORKER_QUEUES_MAX},
    shard::{HandedTask, HeardWorker},
};
use std::{
    collections::{HashSet, VecDeque},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use taskyard_machine::{ClaimToken, SessionId, TaskId};

/// The silence after which a worker that beats is lost; the leaders give it a few seconds more.
const SILENCE_MAX: Duration =
    Duration::from_millis(ASKING_SILENCE_MS_MAX).saturating_sub(SILENCE_AFTER_CUT_MAX);
/// Workers that beat do so at least this often.
const BEAT_WITHIN: Duration = Duration::from_millis(ASKING_SILENCE_MS_MAX);
/// The silence after which a worker that never beat is lost: no lease is longer.
const UNHEARD_MAX: Duration = Duration::from_millis(ASKING_UNHEARD_MS_MAX);

/// One connection of a worker without a stream; dropping it closes it.
#[derive(Debug)]
pub struct Asking {
    broker: Broker,
    session: Arc<Session>,
}

/// The queues that a worker claimed from, a bounded number of them.
#[derive(Debug, Default)]
pub(super) struct AskedQueues {
    known: HashSet<Arc<str>>,
    /// The same queues, in the order of their first claim.
    order: VecDeque<Arc<str>>,
}

impl AskedQueues {
    fn note(&mut self, queue: &str) {
        if self.known.contains(queue) {
            return;
        }
        if self.order.len() == FAKTORY_WORKER_QUEUES_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.known.remove(&first);
        }
        let queue: Arc<str> = queue.into();
        self.known.insert(Arc::clone(&queue));
        self.order.push_back(queue);
    }

    pub(super) fn has(&self, queue: &str) -> bool {
        self.known.contains(queue)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|queue| &**queue)
    }
}

impl Asking {
    /// Opens a connection of the worker whose session has that id.
    pub fn open(broker: &Broker, id: SessionId, profile: Profile) -> Result<Asking, Error> {
        check_profile(&profile)?;
        let now = broker.clock().monotonic();
        // A live worker has learned older orders from a beat, so this is another worker of the same
        // name.
        broker.sessions().0.remembered.forget_older(id, BEAT_WITHIN, now);
        let (session, first) = broker.sessions().open(id, |state, known| {
            let beats = match state.link {
                Link::Asking { beats } => beats,
                // Only workers that beat are ever cut.
                Link::Cut { .. } => known,
                Link::Lost { .. } | Link::Attached { .. } => false,
            };
            if !known {
                state.claims.clear();
            }
            state.link = Link::Asking { beats };
            (state.heard_at, state.heard_on_this_node_at) = (now, now);
            state.is_elsewhere = false;
            state.connections += 1;
            if state.connections == 1 {
                let before = &state.profile;
                let same = (&before.host, before.pid) == (&profile.host, profile.pid);
                let is_new = before.name.is_empty();
                if !(is_new || known && same) {
                    // Another process of that name: orders to the one before do not concern it.
                    (state.activity, state.ordered) = (Activity::Running, Activity::Running);
                    state.asked = AskedQueues::default();
                }
                state.profile = profile;
            }
            state.connections == 1
        })?;
        if first {
            // Without delay, because leaders may be about to end its claims.
            broker.shards().sessions_asking(vec![id]);
        }
        Ok(Asking { broker: broker.clone(), session })
    }

    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Notes a message of the worker, which is therefore alive.
    pub fn heard(&self) {
        let mut state = self.session.state();
        let now = self.broker.clock().monotonic();
        (state.heard_at, state.heard_on_this_node_at) = (now, now);
        let is_back = matches!(state.link, Link::Lost { .. });
        if is_back {
            // Other workers have its claims by now; it comes back for new ones.
            state.link = Link::Asking { beats: true };
        }
        drop(state);
        // A test's clock may jump past the next report.
        if is_back || self.broker.clock().is_manual() {
            self.broker.shards().sessions_asking(vec![self.session.id]);
        }
    }

    /// Takes a beat. Returns what an operator asks of the worker.
    pub fn beat(&self, activity: Option<Activity>, rss_bytes: Option<u64>) -> Activity {
        let now = self.broker.now();
        let mut state = self.session.state();
        state.beat_at = now;
        state.rss_bytes = rss_bytes.unwrap_or(state.rss_bytes);
        let ordered = state.ordered;
        if self.session.note_activity(&mut state, activity.unwrap_or_default()) {
            let heard = self.session.as_heard(&state, self.broker.clock().monotonic());
            drop(state);
            self.broker.shards().heard(vec![heard]);
        }
        ordered
    }

    /// Whether the worker may get tasks: neither it nor an operator has asked it to stop claiming.
    pub fn may_claim(&self) -> bool {
        let state = self.session.state();
        state.activity == Activity::Running && state.ordered == Activity::Running
    }

    /// Completes when the worker may claim no more.
    pub async fn claims_stopped(&self) {
        loop {
            let mut told = pin!(self.session.claims_stopped.notified());
            // From here on no notification is missed.
            told.as_mut().enable();
            if !self.may_claim() {
                return;
            }
            told.await;
        }
    }

    /// Notes queues that the worker claims from.
    pub fn note_queues<'a>(&self, queues: impl Iterator<Item = &'a str>) {
        let mut state = self.session.state();
        for queue in queues {
            state.asked.note(queue);
        }
    }

    /// Notes a task that the worker got and runs.
    pub fn note_claimed(&self, handed: &HandedTask) {
        let held = Held::new(handed, true, self.broker.clock());
        let mut state = self.session.state();
        state.claims.insert(handed.task.id, held);
        let busy = state.claims.len() as u32;
        state.profile.slots = state.profile.slots.max(busy);
    }

    /// Notes that a claim of the worker has ended.
    pub fn note_ended(&self, (task, token): (TaskId, ClaimToken)) {
        let mut state = self.session.state();
        if state.claims.get(&task).is_some_and(|held| held.token == token) {
            state.claims.remove(&task);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.connections = state.connections.saturating_sub(1);
        if state.connections > 0 {
            return;
        }
        let beats = match state.link {
            Link::Asking { beats } => beats,
            Link::Attached { .. } | Link::Cut { .. } | Link::Lost { .. } => return,
        };
        if self.broker.is_stopping() {
            // This node closed the connection: the worker goes on at another one.
            return;
        }
        if beats {
            // Nodes on which it never beat must learn that it does before they hear nothing more of
            // it.
            let now = self.broker.clock().monotonic();
            self.broker.shards().heard(vec![self.session.as_heard(&state, now)]);
            state.link = Link::Cut { at: now };
            return self.session.report_cut(&mut state, self.broker.shards());
        }
        let holds_nothing = state.claims.is_empty();
        drop(state);
        if holds_nothing {
            let is_gone = |state: &State| state.connections == 0 && state.claims.is_empty();
            self.broker.sessions().forget_asking(self.session.id, is_gone);
        }
    }
}

impl Sessions {
    /// Takes in what other nodes heard of workers that have connections here too.
    pub(super) fn note_heard_elsewhere(&self, workers: &[HeardWorker]) {
        let now = self.0.clock.monotonic();
        for worker in workers {
            let Some(session) = self.session(worker.session) else { continue };
            let mut state = session.state();
            let Link::Asking { .. } = state.link else { continue };
            let heard_at = now.checked_sub(Duration::from_millis(worker.silent_ms));
            state.heard_at = state.heard_at.max(heard_at.unwrap_or(state.heard_at));
            session.note_activity(&mut state, worker.activity);
            if state.connections == 0 {
                // Its last connection here closed before this node knew that it beats.
                state.link = Link::Cut { at: now };
                session.report_cut(&mut state, &self.0.shards);
            }
        }
    }
}

impl Session {
    /// Notes what a worker that beats says it does. Returns whether that is news for other nodes.
    /// Its activity goes from running to quiet to stopping, and never back.
    fn note_activity(&self, state: &mut State, activity: Activity) -> bool {
        let link = std::mem::replace(&mut state.link, Link::Asking { beats: true });
        if activity as u8 > state.activity as u8 {
            state.activity = activity;
            self.claims_stopped.notify_waiters();
            return true;
        }
        !matches!(link, Link::Asking { beats: true })
    }

    /// The worker as this node announces it to others.
    pub(super) fn as_heard(&self, state: &State, now: Instant) -> HeardWorker {
        // Only what this node itself has heard: otherwise nodes would keep a dead worker alive by
        // repeating each other.
        let silence = now.saturating_duration_since(state.heard_on_this_node_at);
        HeardWorker {
            session: self.id,
            activity: state.activity,
            silent_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl State {
    /// Forgets claims whose time is over. They ended through another node, or have lapsed.
    pub(super) fn forget_lapsed(&mut self, now: Instant) {
        self.claims.retain(|_, held| now.saturating_duration_since(held.renewed_at) <= held.lease);
    }

    /// Whether a worker without a stream is still there, as far as this node can tell.
    pub(super) fn is_still_asking(&self, beats: bool, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.heard_at);
        match beats {
            true => silence <= SILENCE_MAX,
            false => self.connections > 0 || (!self.claims.is_empty() && silence <= UNHEARD_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_claims_from_ever_new_queues_is_listed_with_its_latest() {
        let mut asked = AskedQueues::default();
        for number in 0..3 * FAKTORY_WORKER_QUEUES_MAX {
            asked.note(&format!("q{number}"));
            asked.note("q0");
        }
        assert_eq!(asked.names().count(), FAKTORY_WORKER_QUEUES_MAX);
        assert_eq!(asked.known.len(), FAKTORY_WORKER_QUEUES_MAX);
        assert!(asked.has(&format!("q{}", 3 * FAKTORY_WORKER_QUEUES_MAX - 1)));
        assert!(!asked.has("q1"));
    }
}
