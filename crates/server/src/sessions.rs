//! Sessions: the workers of this node, and what each of them holds.
//!
//! A session is not a connection: it outlives a cut stream, and ends by a goodbye or by silence.
//! Its id is shown to anybody; its worker resumes it with a secret that nobody else has. The
//! shards' leaders end it on silence; this registry tells them once a second whom it has heard, and
//! keeps what is shown of workers.
//!
//! ```text
//! attached.rs    a session with its live stream    asking.rs      one that asks over connections of its own
//! orders.rs      what operators ask of workers     secret.rs      what a worker resumes its session with
//! view.rs        what is shown of workers          listeners.rs   claims without a session that wait
//! ```
//!
//! A worker may go on at another node. Then that one has the session, says so to all, and what is
//! left of it here is forgotten. Locks are taken in the order registry, session.

mod asking;
mod attached;
mod listeners;
mod orders;
mod secret;
mod view;

use asking::AskedQueues;
pub use asking::Asking;
pub use attached::{Attached, Beat, Hello, Orders};
pub(crate) use listeners::Heard;
pub(crate) use orders::Ordered;
pub use secret::SessionSecret;
pub(crate) use secret::{SECRET_BYTES, session_of_name};
pub use view::{Profile, WorkerState, WorkerView};

use crate::{
    Clock, Error,
    limits::{self, LOST_KEPT_MAX, SESSIONS_MAX},
    shard::{CancelledClaim, HandedTask, News, Shards, standstill::Standstill},
};
use listeners::Listeners;
use orders::Remembered;
use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_machine::{ClaimToken, SessionId, TaskId, Timestamp, wire::wire_enum};
use taskyard_replica::NodeId;
use tokio::sync::{Notify, mpsc};

/// A session that is not heard for this long is over.
pub const SILENCE_MAX: Duration = Duration::from_millis(limits::SILENCE_MS_MAX);
/// The same once its connection closed without a goodbye.
pub const SILENCE_AFTER_CUT_MAX: Duration = Duration::from_millis(limits::SILENCE_AFTER_CUT_MS_MAX);
/// How often a worker tells what it holds.
pub const BEAT_EVERY: Duration = Duration::from_millis(limits::BEAT_EVERY_MS);
/// Missing more than one beat: it is handed nothing more, and the leaders are told which of its
/// claims never started.
const SILENT_AFTER: Duration = Duration::from_secs(7);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Lost workers stay listed this long, so that somebody can look for them.
const LOST_KEPT_FOR: Duration = Duration::from_millis(limits::LOST_KEPT_FOR_MS);
/// Cancellations that are kept until the claim that they are about has arrived: it is milliseconds
/// behind.
const CANCELLED_EARLY_MAX: usize = 100;

/// What a worker says it does, or is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Claims and runs.
    #[default]
    Running,
    /// Finishes what it has and claims nothing more.
    Quiet,
    /// Shuts down.
    Stopping,
}

wire_enum!(Activity { 1 => Running, 2 => Quiet, 3 => Stopping });

/// All sessions of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    shards: Shards,
    clock: Clock,
    by_id: Mutex<BTreeMap<SessionId, Arc<Session>>>,
    remembered: Remembered,
    listeners: Listeners,
}

/// One session, whether or not a stream is attached to it.
#[derive(Debug)]
struct Session {
    id: SessionId,
    /// Since the leaders were last told.
    heard: AtomicBool,
    /// Told when it falls silent.
    silenced: Notify,
    /// Told when it may claim no more: those who wait for a task on its behalf stop.
    rests: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    profile: Profile,
    link: Link,
    /// What the worker says it does.
    activity: Activity,
    /// What an operator asked it to do.
    ordered: Activity,
    claims: HashMap<TaskId, Held>,
    connected_at: Timestamp,
    beat_at: Timestamp,
    heard_at: Instant,
    /// The same, but here and not by another node's word.
    heard_here_at: Instant,
    rss_bytes: u64,
    /// It misses more than one beat.
    is_silent: bool,
    /// The shards know which of its claims never started.
    not_started_told: bool,
    /// Another node has it, as far as is known: its stream here is a ghost.
    is_elsewhere: bool,
    /// Cancelled before this node had heard of the claims, the last few of them.
    cancelled_early: Vec<(TaskId, ClaimToken)>,
    /// Connections of one that asks, see `asking.rs`.
    connections: u32,
    /// The queues that it asked for.
    asked: AskedQueues,
}

/// How a session is reached.
#[derive(Debug)]
enum Link {
    /// A stream is attached. The number tells it from earlier ones of the same session.
    Attached { stream: u64, orders: mpsc::Sender<Order> },
    /// It has no stream, but asks; and whether it ever beat.
    Asking { beats: bool },
    /// Its stream closed without a goodbye, or the last of its connections.
    Cut { at: Instant },
    /// It was silent too long.
    Lost { at: Instant },
}

/// A claim that a session holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    token: ClaimToken,
    /// Its handler began.
    started: bool,
    /// When its lease was last known to begin anew.
    renewed_at: Instant,
    /// From then on: the worker's, or the task's own; zero if it is not known.
    lease: Duration,
}

/// Something that a worker must be told at once.
#[derive(Clone, Copy, Debug)]
enum Order {
    Cancel(TaskId, ClaimToken),
    /// An operator asked for another activity.
    Activity,
}

impl Sessions {
    pub(crate) fn new(shards: Shards, clock: Clock) -> Sessions {
        let registry = Arc::new_cyclic(|registry: &Weak<Registry>| {
            let registry = registry.clone();
            shards.set_gateway(move |news| {
                if let Some(registry) = registry.upgrade() {
                    Sessions(registry).hear(news);
                }
            });
            Registry {
                shards,
                clock,
                by_id: Mutex::default(),
                remembered: Remembered::default(),
                listeners: Listeners::default(),
            }
        });
        Sessions(registry)
    }

    /// Up to `count` workers whose ids come after `after`, by id; and whether there are more. Those
    /// that another node has are its to show.
    pub(crate) fn workers(
        &self,
        after: Option<SessionId>,
        count: usize,
    ) -> (Vec<WorkerView>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions: Vec<_> =
            self.by_id().range((from, Bound::Unbounded)).map(|(_, found)| found.clone()).collect();
        let (node, now) = (self.0.shards.routes().me(), self.0.clock.monotonic());
        let mut views = sessions.iter().filter_map(|session| session.view(node, now));
        let workers = views.by_ref().take(count).collect();
        (workers, views.next().is_some())
    }

    /// Whether a worker or a waiting claim would take tasks of a queue and a type.
    pub(crate) fn heard(&self, queue: &str, task_type: &str) -> Heard {
        let heard = self.listeners().heard(queue, task_type);
        if heard == Heard::Yes {
            return heard;
        }
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let now = self.0.clock.monotonic();
        let by = sessions.iter().map(|session| session.state().heard(queue, task_type, now));
        by.max().map_or(heard, |by| by.max(heard))
    }

    /// Claims without a session that wait here.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.0.listeners
    }

    fn hear(&self, news: News<'_>) {
        match news {
            News::Cancelled(claims) => claims.iter().for_each(|claim| self.cancel(claim)),
            News::Elsewhere(sessions) => self.gone_elsewhere(sessions),
            News::Heard(workers) => self.heard_elsewhere(workers),
        }
    }

    /// Tells a session that a task it holds was cancelled. Its claim may still be on its way here:
    /// then the worker is told again after it got the task.
    fn cancel(&self, claim: &CancelledClaim) {
        let CancelledClaim { session, task, token } = *claim;
        let Some(session) = self.session(session) else { return };
        let mut state = session.state();
        if let Link::Attached { orders, .. } = &state.link {
            // When it is full, the answer to the next renewal says it again.
            let _ = orders.try_send(Order::Cancel(task, token));
        }
        if state.claims.get(&task).is_none_or(|held| held.token != token) {
            if state.cancelled_early.len() >= CANCELLED_EARLY_MAX {
                state.cancelled_early.remove(0);
            }
            state.cancelled_early.push((task, token));
        }
    }

    /// Another node has these: what is left of them here is forgotten, but for a stream that has
    /// not noticed yet that its worker is gone.
    fn gone_elsewhere(&self, sessions: &[SessionId]) {
        let mut by_id = self.by_id();
        for id in sessions {
            let Some(session) = by_id.get(id) else { continue };
            let mut state = session.state();
            if state.connections > 0 {
                // It asks here and there.
                continue;
            }
            state.is_elsewhere = true;
            // What was heard before it left is no news any more.
            session.heard.store(false, Ordering::Relaxed);
            let is_attached = matches!(state.link, Link::Attached { .. });
            drop(state);
            if !is_attached {
                by_id.remove(id);
            }
        }
    }

    /// Tells the leaders once a second which sessions were heard. Runs until it is dropped.
    pub(crate) async fn keep_telling(self) {
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut standstill = Standstill::new(self.0.clock.reading());
        loop {
            tick.tick().await;
            let lost = standstill.look(self.0.clock.reading(), TELL_EVERY);
            self.make_up(lost.stood);
            self.tell();
        }
    }

    /// This node stood still: what workers have said meanwhile waits to be read. That is no
    /// silence.
    fn make_up(&self, stood: Duration) {
        if stood.is_zero() {
            return;
        }
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let now = self.0.clock.monotonic();
        let later = |at: Instant| (at + stood).min(now);
        for session in sessions {
            let mut state = session.state();
            state.heard_at = later(state.heard_at);
            state.heard_here_at = later(state.heard_here_at);
            if let Link::Cut { at } = &mut state.link {
                *at = later(*at);
            }
        }
    }

    fn tell(&self) {
        let registry = &self.0;
        let now = registry.clock.monotonic();
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let (mut alive, mut asking, mut heard_here) = (Vec::new(), Vec::new(), Vec::new());
        let mut lost = Vec::new();
        for session in sessions {
            let mut state = session.state();
            if let Link::Asking { beats } = state.link {
                state.forget_lapsed(now);
                let is_there = registry.clock.is_manual() && state.connections > 0;
                if is_there || state.is_still_asking(beats, now) {
                    heard_here.extend(beats.then(|| session.as_heard(&state, now)));
                    drop(state);
                    asking.push(session);
                    continue;
                }
                state.link = Link::Lost { at: now };
                state.claims.clear();
                session.tell_cut(&mut state, &registry.shards);
            }
            // Nobody beats by a clock that a test moves.
            let attached = matches!(state.link, Link::Attached { .. }) && !state.is_elsewhere;
            let heard = session.heard.swap(false, Ordering::Relaxed);
            if heard || (attached && registry.clock.is_manual()) {
                drop(state);
                alive.push(session);
                continue;
            }
            if now.saturating_duration_since(state.heard_at) > SILENT_AFTER {
                state.is_silent = true;
                session.silenced.notify_waiters();
                session.tell_not_started(&mut state, &registry.shards);
            }
            if let Some(at) = state.lost_at(now) {
                lost.push((at, session.id));
            }
        }
        registry.shards.heard(heard_here);
        registry.shards.sessions_alive(alive.iter().map(|session| session.id).collect());
        registry.shards.sessions_asking(asking.iter().map(|session| session.id).collect());
        for session in alive.into_iter().chain(asking) {
            let mut state = session.state();
            // Cut while it was being named alive: the last word must be that it is not.
            if let Link::Cut { .. } = state.link {
                session.tell_cut(&mut state, &registry.shards);
            }
        }
        self.forget(lost, now);
        registry.remembered.forget(now);
    }

    /// Forgets those lost too long ago, and the longest lost of too many.
    fn forget(&self, mut lost: Vec<(Instant, SessionId)>, now: Instant) {
        lost.sort();
        let too_many = lost.len().saturating_sub(LOST_KEPT_MAX);
        for (index, (at, id)) in lost.into_iter().enumerate() {
            if index < too_many || now.saturating_duration_since(at) > LOST_KEPT_FOR {
                // It may have come back since it was looked at.
                self.remove_if(id, |link| matches!(link, Link::Lost { .. }));
            }
        }
    }

    /// Attaches a stream to the session of that id, made if it is not known here. `attach` is told
    /// whether it was known. Under the lock of the registry: a session that is attached stays
    /// known, and a new one has its profile from the first moment that it is listed.
    fn open<T>(
        &self,
        id: SessionId,
        attach: impl FnOnce(&mut State, bool) -> T,
    ) -> Result<(Arc<Session>, T), Error> {
        let ordered = self.0.remembered.of(id);
        let mut by_id = self.by_id();
        if let Some(session) = by_id.get(&id) {
            let mut state = session.state();
            state.ordered = ordered.unwrap_or(state.ordered);
            let known = !matches!(state.link, Link::Lost { .. }) && !state.is_elsewhere;
            let attached = attach(&mut state, known);
            drop(state);
            return Ok((session.clone(), attached));
        }
        if by_id.len() >= SESSIONS_MAX {
            let text = format!("this node has its limit of {SESSIONS_MAX} workers; use another");
            return Err(Error::LimitExceeded(text));
        }
        let now = self.0.clock.monotonic();
        let wall = Timestamp(self.0.clock.wall_ms());
        let mut state = State {
            profile: Profile::default(),
            link: Link::Cut { at: now },
            activity: Activity::Running,
            ordered: ordered.unwrap_or_default(),
            claims: HashMap::new(),
            connected_at: wall,
            beat_at: wall,
            heard_at: now,
            heard_here_at: now,
            rss_bytes: 0,
            is_silent: false,
            not_started_told: false,
            is_elsewhere: false,
            cancelled_early: Vec::new(),
            connections: 0,
            asked: AskedQueues::default(),
        };
        let attached = attach(&mut state, false);
        let session = Arc::new(Session {
            id,
            heard: AtomicBool::new(true),
            silenced: Notify::new(),
            rests: Notify::new(),
            state: Mutex::new(state),
        });
        by_id.insert(id, session.clone());
        Ok((session, attached))
    }

    /// Forgets a session if it is reached as `is_so` says; whether it was.
    fn remove_if(&self, id: SessionId, is_so: impl FnOnce(&Link) -> bool) -> bool {
        let mut by_id = self.by_id();
        let removes = by_id.get(&id).is_some_and(|session| is_so(&session.state().link));
        if removes {
            by_id.remove(&id);
        }
        removes
    }

    /// Forgets a session that asked, if it is as `is_gone` says.
    fn forget_asking(&self, id: SessionId, is_gone: impl FnOnce(&State) -> bool) {
        let mut by_id = self.by_id();
        if by_id.get(&id).is_some_and(|session| is_gone(&session.state())) {
            by_id.remove(&id);
        }
    }

    fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.by_id().get(&id).cloned()
    }

    fn by_id(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Session>>> {
        self.0.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is shown, unless another node has it.
    fn view(&self, node: NodeId, now: Instant) -> Option<WorkerView> {
        let state = self.state();
        let silence = now.saturating_duration_since(state.heard_at);
        (!state.is_elsewhere).then(|| WorkerView {
            id: self.id,
            node,
            profile: state.shown_profile(),
            busy: state.claims.len() as u32,
            state: state.shown(now),
            connected_at: state.connected_at,
            beat_at: state.beat_at,
            silent_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
            rss_bytes: state.rss_bytes,
        })
    }

    /// Says that its stream was cut, and no longer that it was heard before.
    fn tell_cut(&self, state: &mut State, shards: &Shards) {
        self.heard.store(false, Ordering::Relaxed);
        state.not_started_told = false;
        self.tell_not_started(state, shards);
        shards.session_cut(self.id);
    }

    /// Completes when it is silent: nobody may be there to take more tasks.
    async fn silence(&self) {
        loop {
            let silenced = self.silenced.notified();
            if self.state().is_silent {
                return;
            }
            silenced.await;
        }
    }

    /// Says, once per silence and set of claims, which of them may be released rather than lost.
    fn tell_not_started(&self, state: &mut State, shards: &Shards) {
        if !std::mem::replace(&mut state.not_started_told, true) {
            let untouched = state.claims.iter().filter(|(_, held)| !held.started);
            let untouched: Vec<TaskId> = untouched.map(|(task, _)| *task).collect();
            if !untouched.is_empty() {
                shards.session_not_started(self.id, untouched);
            }
        }
    }
}

impl Held {
    fn new(handed: &HandedTask, started: bool, clock: &Clock) -> Held {
        Held {
            token: handed.task.token,
            started,
            renewed_at: clock.monotonic(),
            lease: Duration::from_millis(handed.task.lease_ms),
        }
    }
}

impl State {
    /// Since when it is lost, if it is; notices when it becomes so. One whose stream is still
    /// attached may only be stopped for a while, so it stays.
    fn lost_at(&mut self, now: Instant) -> Option<Instant> {
        match self.link {
            Link::Lost { at } => Some(at),
            Link::Cut { at } if now.saturating_duration_since(at) > SILENCE_AFTER_CUT_MAX => {
                self.link = Link::Lost { at: now };
                self.claims.clear();
                Some(now)
            }
            Link::Cut { .. } | Link::Attached { .. } | Link::Asking { .. } => None,
        }
    }

    fn shown(&self, now: Instant) -> WorkerState {
        let asks = matches!(self.link, Link::Asking { .. });
        if !asks && now.saturating_duration_since(self.heard_at) > SILENCE_MAX {
            return WorkerState::Lost;
        }
        let activity = if self.ordered == Activity::Running { self.activity } else { self.ordered };
        match (&self.link, activity) {
            (Link::Lost { .. }, _) => WorkerState::Lost,
            (_, Activity::Running) => WorkerState::Running,
            (_, Activity::Quiet) => WorkerState::Quiet,
            (_, Activity::Stopping) => WorkerState::Stopping,
        }
    }

    /// Its profile, with the queues that it asked for so far.
    fn shown_profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        profile.queues.extend(self.asked.names().map(str::to_owned));
        profile
    }

    /// Whether it would take tasks of a queue and a type.
    fn heard(&self, queue: &str, task_type: &str, now: Instant) -> Heard {
        let takes = !self.is_elsewhere && self.shown(now) == WorkerState::Running;
        let is_named = || self.profile.queues.iter().any(|name| name == queue);
        match takes && (self.asked.has(queue) || is_named()) {
            true => Heard::by(&self.profile.types, task_type),
            false => Heard::Nobody,
        }
    }
}

#[cfg(test)]
mod tests;
