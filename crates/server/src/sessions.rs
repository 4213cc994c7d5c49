//! Sessions: the workers of this node, and the claims that each holds.
//!
//! A session is not a connection: it outlives a cut stream, and ends by a goodbye or by silence.
//! Anybody may see its id. Its worker resumes it with a secret that nobody else has. The leaders of
//! the shards end a session on silence; once a second this registry reports to them which sessions
//! it has heard. It also has what the list of workers shows.
//!
//! ```text
//! attached.rs    a session with its live stream    asking.rs      a worker without a stream (Faktory)
//! orders.rs      quiet and stop for workers        secret.rs      the secret that resumes a session
//! view.rs        workers as lists show them        listeners.rs   waiting claims without a session
//! ```
//!
//! A worker may continue its session on another node. That node announces the session to all, and
//! the nodes that had it forget it. Locks are taken in the order registry, session.

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

/// A session lapses after this long without a message from its worker.
pub const SILENCE_MAX: Duration = Duration::from_millis(limits::SILENCE_MS_MAX);
/// A session whose connection closed without a goodbye lapses after this long.
pub const SILENCE_AFTER_CUT_MAX: Duration = Duration::from_millis(limits::SILENCE_AFTER_CUT_MS_MAX);
/// How often a worker reports its claims.
pub const BEAT_EVERY: Duration = Duration::from_millis(limits::BEAT_EVERY_MS);
/// After this a worker has missed more than one beat: it gets no more tasks, and the leaders are
/// told which of its claims never started.
const SILENT_AFTER: Duration = Duration::from_secs(7);
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long the list of workers shows a lost worker, so that operators can look for it.
const LOST_KEPT_FOR: Duration = Duration::from_millis(limits::LOST_KEPT_FOR_MS);
/// Cancellations that are kept until their claim arrives, which takes milliseconds.
const CANCELLED_EARLY_MAX: usize = 100;

/// What a worker says that it does, or what an operator asks of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Claims and runs.
    #[default]
    Running,
    /// Finishes its tasks and claims no more.
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
    /// Whether the worker was heard since the last report to the leaders.
    heard: AtomicBool,
    /// Signalled when the worker falls silent.
    silenced: Notify,
    /// Signalled when the worker may claim no more, so that its waiting claims stop.
    claims_stopped: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    profile: Profile,
    link: Link,
    /// What the worker says that it does.
    activity: Activity,
    /// What an operator asks of it.
    ordered: Activity,
    claims: HashMap<TaskId, Held>,
    connected_at: Timestamp,
    beat_at: Timestamp,
    heard_at: Instant,
    /// When it was last heard, on this node.
    heard_on_this_node_at: Instant,
    rss_bytes: u64,
    /// Whether it misses more than one beat.
    is_silent: bool,
    /// Whether the shards know which of its claims never started.
    not_started_reported: bool,
    /// Whether another node has the session, as far as this node knows. A stream here is then
    /// stale.
    is_elsewhere: bool,
    /// Cancelled claims that this node did not know yet; the last few of them.
    cancelled_early: Vec<(TaskId, ClaimToken)>,
    /// The open connections of a worker without a stream, see `asking.rs`.
    connections: u32,
    /// The queues that a worker without a stream has claimed from.
    asked: AskedQueues,
}

/// How the node reaches a session.
#[derive(Debug)]
enum Link {
    /// A stream is attached. Its number tells it from earlier streams of the session.
    Attached { stream: u64, orders: mpsc::Sender<Order> },
    /// A worker without a stream, and whether it ever beat.
    Asking { beats: bool },
    /// Its stream, or the last of its connections, closed without a goodbye.
    Cut { at: Instant },
    /// It was silent for too long.
    Lost { at: Instant },
}

/// A claim that a session holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    token: ClaimToken,
    /// Whether its handler has begun.
    started: bool,
    /// When its lease was last known to start.
    renewed_at: Instant,
    /// The length of the lease: the worker's, or the task's own; zero if unknown.
    lease: Duration,
}

/// A message that a worker must get without delay.
#[derive(Clone, Copy, Debug)]
enum Order {
    Cancel(TaskId, ClaimToken),
    /// An operator has asked for another activity.
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

    /// Up to `count` workers whose ids follow `after`, by id, and whether there are more. Sessions
    /// that moved to another node are left out.
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

    /// Whether a worker or a waiting claim of this node would take tasks of a queue and a type.
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

    /// The waiting claims without a session.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.0.listeners
    }

    fn hear(&self, news: News<'_>) {
        match news {
            News::Cancelled(claims) => claims.iter().for_each(|claim| self.cancel(claim)),
            News::Elsewhere(sessions) => self.forget_moved(sessions),
            News::Heard(workers) => self.note_heard_elsewhere(workers),
        }
    }

    /// Tells a worker that its task was cancelled. Its claim may still be on its way to this node;
    /// the worker is then told again after the task.
    fn cancel(&self, claim: &CancelledClaim) {
        let CancelledClaim { session, task, token } = *claim;
        let Some(session) = self.session(session) else { return };
        let mut state = session.state();
        if let Link::Attached { orders, .. } = &state.link {
            // If the channel is full, the answer to the next renewal says it again.
            let _ = orders.try_send(Order::Cancel(task, token));
        }
        if state.claims.get(&task).is_none_or(|held| held.token != token) {
            if state.cancelled_early.len() >= CANCELLED_EARLY_MAX {
                state.cancelled_early.remove(0);
            }
            state.cancelled_early.push((task, token));
        }
    }

    /// Forgets sessions that another node has now. A session with a stream stays until the stream
    /// notices that its worker is gone.
    fn forget_moved(&self, sessions: &[SessionId]) {
        let mut by_id = self.by_id();
        for id in sessions {
            let Some(session) = by_id.get(id) else { continue };
            let mut state = session.state();
            if state.connections > 0 {
                // The worker has connections on both nodes.
                continue;
            }
            state.is_elsewhere = true;
            // A message from before the move is no news for the leaders.
            session.heard.store(false, Ordering::Relaxed);
            let is_attached = matches!(state.link, Link::Attached { .. });
            drop(state);
            if !is_attached {
                by_id.remove(id);
            }
        }
    }

    /// Reports once a second to the leaders which sessions were heard. Runs until it is dropped.
    pub(crate) async fn keep_reporting(self) {
        let mut tick = tokio::time::interval(REPORT_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut standstill = Standstill::new(self.0.clock.reading());
        loop {
            tick.tick().await;
            let lost = standstill.look(self.0.clock.reading(), REPORT_EVERY);
            self.discount_standstill(lost.stood);
            self.report();
        }
    }

    /// Does not count time in which this node stood still as silence: messages of that time are
    /// still unread.
    fn discount_standstill(&self, stood: Duration) {
        if stood.is_zero() {
            return;
        }
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let now = self.0.clock.monotonic();
        let later = |at: Instant| (at + stood).min(now);
        for session in sessions {
            let mut state = session.state();
            state.heard_at = later(state.heard_at);
            state.heard_on_this_node_at = later(state.heard_on_this_node_at);
            if let Link::Cut { at } = &mut state.link {
                *at = later(*at);
            }
        }
    }

    fn report(&self) {
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
                session.report_cut(&mut state, &registry.shards);
            }
            // Workers do not beat by a clock that a test moves.
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
                session.report_not_started(&mut state, &registry.shards);
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
            // The session was cut while the report called it alive: the last report must say that
            // it is cut.
            if let Link::Cut { .. } = state.link {
                session.report_cut(&mut state, &registry.shards);
            }
        }
        self.forget(lost, now);
        registry.remembered.forget(now);
    }

    /// Forgets sessions that were lost too long ago, and the ones lost first if there are too many.
    fn forget(&self, mut lost: Vec<(Instant, SessionId)>, now: Instant) {
        lost.sort();
        let too_many = lost.len().saturating_sub(LOST_KEPT_MAX);
        for (index, (at, id)) in lost.into_iter().enumerate() {
            if index < too_many || now.saturating_duration_since(at) > LOST_KEPT_FOR {
                // The session may have come back since the report looked at it.
                self.remove_if(id, |link| matches!(link, Link::Lost { .. }));
            }
        }
    }

    /// Attaches a stream to a session, and makes the session if this node does not know it.
    /// `attach` gets the state, and whether it was known. Runs under the lock of the registry: an
    /// attached session stays known, and a new one is never listed without its profile.
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
            heard_on_this_node_at: now,
            rss_bytes: 0,
            is_silent: false,
            not_started_reported: false,
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
            claims_stopped: Notify::new(),
            state: Mutex::new(state),
        });
        by_id.insert(id, session.clone());
        Ok((session, attached))
    }

    /// Removes a session if `condition` agrees with its link. Returns whether it did.
    fn remove_if(&self, id: SessionId, condition: impl FnOnce(&Link) -> bool) -> bool {
        let mut by_id = self.by_id();
        let removes = by_id.get(&id).is_some_and(|session| condition(&session.state().link));
        if removes {
            by_id.remove(&id);
        }
        removes
    }

    /// Removes the session of a worker without a stream, if `is_gone` agrees.
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

    /// The session as lists show it, unless another node has it.
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

    /// Reports that the stream was cut; the session is no longer reported as heard.
    fn report_cut(&self, state: &mut State, shards: &Shards) {
        self.heard.store(false, Ordering::Relaxed);
        state.not_started_reported = false;
        self.report_not_started(state, shards);
        shards.session_cut(self.id);
    }

    /// Completes when the worker is silent, because it may not be there to take more tasks.
    async fn silence(&self) {
        loop {
            let silenced = self.silenced.notified();
            if self.state().is_silent {
                return;
            }
            silenced.await;
        }
    }

    /// Reports, once per silence and set of claims, which claims never started, so that they are
    /// released and not lost.
    fn report_not_started(&self, state: &mut State, shards: &Shards) {
        if !std::mem::replace(&mut state.not_started_reported, true) {
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
    /// When the session was lost, if it is; marks it lost when its time is over. A session with an
    /// attached stream stays, because its worker may only be stopped for a while.
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

    /// The profile with the queues that the worker has claimed from so far.
    fn shown_profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        profile.queues.extend(self.asked.names().map(str::to_owned));
        profile
    }

    /// Whether the worker would take tasks of a queue and a type.
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
