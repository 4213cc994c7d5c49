//! Asking: a worker without a stream. It asks over as many connections as it likes, on any node,
//! and is told what to do when it beats.
//!
//! Its id follows from the name that it gives itself, so that all its connections are one session
//! wherever they lead. One that beats is over after a minute without a word, or some seconds after
//! its last connection closed. One that never did may be alive as long as it holds something: its
//! claims have their leases alone. It may beat on one node and claim on another, so nodes tell each
//! other once a second what they have heard of those that beat.

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

/// Without a word from one that beats; the leaders give it a few seconds more.
const SILENCE_MAX: Duration =
    Duration::from_millis(ASKING_SILENCE_MS_MAX).saturating_sub(SILENCE_AFTER_CUT_MAX);
/// How often those that beat do so, at least.
const BEAT_WITHIN: Duration = Duration::from_millis(ASKING_SILENCE_MS_MAX);
/// Without a word from one that never did: no claim holds longer than this.
const UNHEARD_MAX: Duration = Duration::from_millis(ASKING_UNHEARD_MS_MAX);

/// One connection of such a worker; dropping it closes it.
#[derive(Debug)]
pub struct Asking {
    broker: Broker,
    session: Arc<Session>,
}

/// The queues that a worker asked for, a bounded number of them.
#[derive(Debug, Default)]
pub(super) struct AskedQueues {
    known: HashSet<Arc<str>>,
    /// The same, those that it asked for first in front.
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
    /// Opens a connection of the worker with that id.
    pub fn open(broker: &Broker, id: SessionId, profile: Profile) -> Result<Asking, Error> {
        check_profile(&profile)?;
        let now = broker.clock().monotonic();
        // Whoever lives was told by a beat since then. So this is another one, by the same name.
        broker.sessions().0.remembered.forget_older(id, BEAT_WITHIN, now);
        let (session, first) = broker.sessions().open(id, |state, known| {
            let beats = match state.link {
                Link::Asking { beats } => beats,
                // Only those that beat are cut.
                Link::Cut { .. } => known,
                Link::Lost { .. } | Link::Attached { .. } => false,
            };
            if !known {
                state.claims.clear();
            }
            state.link = Link::Asking { beats };
            (state.heard_at, state.heard_here_at) = (now, now);
            state.is_elsewhere = false;
            state.connections += 1;
            if state.connections == 1 {
                let before = &state.profile;
                let same = (&before.host, before.pid) == (&profile.host, profile.pid);
                let is_new = before.name.is_empty();
                if !(is_new || known && same) {
                    // Another process by that name: what the one before was asked is none of its
                    // business.
                    (state.activity, state.ordered) = (Activity::Running, Activity::Running);
                    state.asked = AskedQueues::default();
                }
                state.profile = profile;
            }
            state.connections == 1
        })?;
        if first {
            // At once: leaders may be about to end what it held before.
            broker.shards().sessions_asking(vec![id]);
        }
        Ok(Asking { broker: broker.clone(), session })
    }

    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// The worker said something, so it lives.
    pub fn heard(&self) {
        let mut state = self.session.state();
        let now = self.broker.clock().monotonic();
        (state.heard_at, state.heard_here_at) = (now, now);
        let is_back = matches!(state.link, Link::Lost { .. });
        if is_back {
            // Its claims were given to others; it is back for new ones.
            state.link = Link::Asking { beats: true };
        }
        drop(state);
        // The next second of a clock that a test moves may be long after its next look.
        if is_back || self.broker.clock().is_manual() {
            self.broker.shards().sessions_asking(vec![self.session.id]);
        }
    }

    /// Takes a beat; what an operator asks of the worker.
    pub fn beat(&self, activity: Option<Activity>, rss_bytes: Option<u64>) -> Activity {
        let now = self.broker.now();
        let mut state = self.session.state();
        state.beat_at = now;
        state.rss_bytes = rss_bytes.unwrap_or(state.rss_bytes);
        let ordered = state.ordered;
        if self.session.notes(&mut state, activity.unwrap_or_default()) {
            let heard = self.session.as_heard(&state, self.broker.clock().monotonic());
            drop(state);
            self.broker.shards().heard(vec![heard]);
        }
        ordered
    }

    /// Whether it may be handed tasks: neither it nor an operator says otherwise.
    pub fn may_claim(&self) -> bool {
        let state = self.session.state();
        state.activity == Activity::Running && state.ordered == Activity::Running
    }

    /// Comes to an end when it may be handed no more tasks.
    pub async fn rests(&self) {
        loop {
            let mut told = pin!(self.session.rests.notified());
            // From here on nothing is missed.
            told.as_mut().enable();
            if !self.may_claim() {
                return;
            }
            told.await;
        }
    }

    /// It claims from these queues, among others.
    pub fn listens_to<'a>(&self, queues: impl Iterator<Item = &'a str>) {
        let mut state = self.session.state();
        for queue in queues {
            state.asked.note(queue);
        }
    }

    /// It was handed a task, and runs it.
    pub fn holds(&self, handed: &HandedTask) {
        let held = Held::new(handed, true, self.broker.clock());
        let mut state = self.session.state();
        state.claims.insert(handed.task.id, held);
        let busy = state.claims.len() as u32;
        state.profile.slots = state.profile.slots.max(busy);
    }

    /// It holds a task no more by that claim.
    pub fn is_done_with(&self, (task, token): (TaskId, ClaimToken)) {
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
            // It was this node that hung up: the worker goes on at another.
            return;
        }
        if beats {
            // Nodes that it never beat on must know that it did before they hear no more of it.
            let now = self.broker.clock().monotonic();
            self.broker.shards().heard(vec![self.session.as_heard(&state, now)]);
            state.link = Link::Cut { at: now };
            return self.session.tell_cut(&mut state, self.broker.shards());
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
    /// What other nodes heard of workers that have connections here too.
    pub(super) fn heard_elsewhere(&self, workers: &[HeardWorker]) {
        let now = self.0.clock.monotonic();
        for worker in workers {
            let Some(session) = self.session(worker.session) else { continue };
            let mut state = session.state();
            let Link::Asking { .. } = state.link else { continue };
            let heard_at = now.checked_sub(Duration::from_millis(worker.silent_ms));
            state.heard_at = state.heard_at.max(heard_at.unwrap_or(state.heard_at));
            session.notes(&mut state, worker.activity);
            if state.connections == 0 {
                // Its last one here closed before this node knew that it beats.
                state.link = Link::Cut { at: now };
                session.tell_cut(&mut state, &self.0.shards);
            }
        }
    }
}

impl Session {
    /// Takes what a worker that beats says it does; whether that is news. It goes from running to
    /// quiet to stopping, and never back.
    fn notes(&self, state: &mut State, activity: Activity) -> bool {
        let link = std::mem::replace(&mut state.link, Link::Asking { beats: true });
        if activity as u8 > state.activity as u8 {
            state.activity = activity;
            self.rests.notify_waiters();
            return true;
        }
        !matches!(link, Link::Asking { beats: true })
    }

    /// As other nodes are told of it.
    pub(super) fn as_heard(&self, state: &State, now: Instant) -> HeardWorker {
        // Its own ears alone, or nodes would keep a dead worker alive by telling each other of it.
        let silence = now.saturating_duration_since(state.heard_here_at);
        HeardWorker {
            session: self.id,
            activity: state.activity,
            silent_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl State {
    /// Forgets claims that nobody ended here before their time: they were ended through another
    /// node, or have lapsed.
    pub(super) fn forget_lapsed(&mut self, now: Instant) {
        self.claims.retain(|_, held| now.saturating_duration_since(held.renewed_at) <= held.lease);
    }

    /// Whether a worker that asks is still there, as far as anybody can tell.
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
    fn a_worker_that_asks_for_ever_new_queues_is_listed_with_its_latest() {
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
