//! Asking: a worker without a stream. It asks over as many connections as it likes, on any node, and is told
//! what to do when it beats.
//!
//! Its id follows from the name that it gives itself, so that all its connections are one session wherever
//! they lead. One that beats is over after a minute without a word, or some seconds after its last
//! connection closed. One that never did may be alive as long as it holds something: its claims have
//! their leases alone.

use super::{
    Activity, Held, Link, Profile, SILENCE_AFTER_CUT_MAX, Session, State, attached::check_profile,
};
use crate::{
    Broker, Error,
    limits::{ASKING_SILENCE_MS_MAX, ASKING_UNHEARD_MS_MAX},
    shard::HandedTask,
};
use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use taskyard_machine::{SessionId, TaskId};

/// Without a word from one that beats; the leaders give it a few seconds more.
const SILENCE_MAX: Duration =
    Duration::from_millis(ASKING_SILENCE_MS_MAX).saturating_sub(SILENCE_AFTER_CUT_MAX);
/// Without a word from one that never did: no claim holds longer than this.
const UNHEARD_MAX: Duration = Duration::from_millis(ASKING_UNHEARD_MS_MAX);

/// One connection of such a worker; dropping it closes it.
#[derive(Debug)]
pub struct Asking {
    broker: Broker,
    session: Arc<Session>,
}

impl Asking {
    /// Opens a connection of the worker with that id.
    pub fn open(broker: &Broker, id: SessionId, profile: Profile) -> Result<Asking, Error> {
        check_profile(&profile)?;
        let now = broker.clock().monotonic();
        let (session, first) = broker.sessions().open(Some(id), |state, known| {
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
            state.heard_at = now;
            state.is_elsewhere = false;
            state.connections += 1;
            if state.connections == 1 {
                let queues = std::mem::take(&mut state.profile.queues);
                state.profile = Profile { queues, ..profile };
            }
            state.connections == 1
        })?;
        if first {
            // At once: leaders may be about to end what it held before.
            broker.shards().sessions_alive(vec![id]);
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
        state.heard_at = self.broker.clock().monotonic();
        if let Link::Lost { .. } = state.link {
            // Its claims were given to others; it is back for new ones.
            state.link = Link::Asking { beats: true };
            drop(state);
            self.broker.shards().sessions_alive(vec![self.session.id]);
        }
    }

    /// Takes a beat; what an operator asks of the worker.
    pub fn beat(&self, activity: Option<Activity>, rss_bytes: Option<u64>) -> Activity {
        let now = self.broker.now();
        let mut state = self.session.state();
        state.beat_at = now;
        state.link = Link::Asking { beats: true };
        // From running to quiet to stopping, and never back.
        if let Some(activity) = activity.filter(|said| *said as u8 > state.activity as u8) {
            state.activity = activity;
            self.session.rests.notify_waiters();
        }
        state.rss_bytes = rss_bytes.unwrap_or(state.rss_bytes);
        state.ordered
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
            if !state.profile.queues.iter().any(|known| known == queue) {
                state.profile.queues.push(queue.to_owned());
            }
        }
    }

    /// It was handed a task, and runs it.
    pub fn holds(&self, handed: &HandedTask) {
        let held = Held {
            token: handed.task.token,
            started: true,
            renewed_at: self.broker.clock().monotonic(),
        };
        let mut state = self.session.state();
        state.claims.insert(handed.task.id, held);
        let busy = state.claims.len() as u32;
        state.profile.slots = state.profile.slots.max(busy);
    }

    /// It holds a task no more.
    pub fn is_done_with(&self, task: TaskId) {
        self.session.state().claims.remove(&task);
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
        if beats {
            state.link = Link::Cut { at: self.broker.clock().monotonic() };
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

impl State {
    /// Whether a worker that asks is still there, as far as anybody can tell.
    pub(super) fn is_still_asking(&self, beats: bool, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.heard_at);
        match beats {
            true => silence <= SILENCE_MAX,
            false => self.connections > 0 || (!self.claims.is_empty() && silence <= UNHEARD_MAX),
        }
    }
}
