//! Sessions: the workers of this node, and what each of them holds.
//!
//! A session is not a connection: it is known by its random id, outlives a cut stream, and ends by
//! a goodbye or by silence. Who ends it on silence are the shards' leaders; this registry tells
//! them once a second whom it has heard, and keeps what is shown of workers.

mod attached;

pub use attached::{Attached, Beat, Hello, Orders};

use crate::{
    Clock, Error,
    limits::{self, LOST_KEPT_MAX, SESSIONS_MAX},
    random::random_u128,
    shard::Shards,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_machine::{ClaimToken, SessionId, TaskId, Timestamp};
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

/// Who a worker says it is.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// For people.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its SDK's version.
    pub version: String,
    /// The queues it claims from.
    pub queues: Vec<String>,
    /// How many tasks it runs at once.
    pub slots: u32,
}

/// A worker as it is shown.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its session.
    pub id: SessionId,
    /// Who it says it is.
    pub profile: Profile,
    /// Claims it holds.
    pub busy: u32,
    /// `running`, `quiet`, `stopping` or `lost`.
    pub state: &'static str,
    /// When its session was opened here.
    pub connected_at: Timestamp,
    /// When it was last heard.
    pub beat_at: Timestamp,
    /// Its memory.
    pub rss_bytes: u64,
}

/// All sessions of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    shards: Shards,
    clock: Clock,
    by_id: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// One session, whether or not a stream is attached to it.
#[derive(Debug)]
struct Session {
    id: SessionId,
    /// Since the leaders were last told.
    heard: AtomicBool,
    /// Told when it falls silent.
    silenced: Notify,
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
    rss_bytes: u64,
    /// It misses more than one beat.
    is_silent: bool,
    /// The shards know which of its claims never started.
    not_started_told: bool,
}

/// How a session is reached.
#[derive(Debug)]
enum Link {
    /// A stream is attached. The number tells it from earlier ones of the same session.
    Attached { stream: u64, orders: mpsc::Sender<Order> },
    /// Its stream closed without a goodbye.
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
        Sessions(Arc::new(Registry { shards, clock, by_id: Mutex::default() }))
    }

    /// All workers, those connected longest first.
    pub fn workers(&self) -> Vec<WorkerView> {
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let now = self.0.clock.monotonic();
        let mut workers: Vec<_> = sessions.iter().map(|session| session.view(now)).collect();
        workers.sort_by_key(|worker| (worker.connected_at, worker.id));
        workers
    }

    /// Asks a worker to be quiet or to stop; it is told at once and with every beat.
    pub fn order(&self, id: &str, activity: Activity) -> Result<(), Error> {
        let unknown = || Error::NotFound(format!("worker {id:?} is not connected here"));
        let parsed = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32);
        let session = parsed.and_then(|id| self.by_id().get(&SessionId(id)).cloned());
        let session = session.ok_or_else(unknown)?;
        let mut state = session.state();
        match &state.link {
            Link::Lost { .. } => return Err(unknown()),
            Link::Cut { .. } => {}
            // A full channel already holds orders, and the next beat is answered with this one.
            Link::Attached { orders, .. } => drop(orders.try_send(Order::Activity)),
        }
        state.ordered = activity;
        Ok(())
    }

    /// Tells a session that a task it holds was cancelled.
    pub(crate) fn cancel(&self, session: SessionId, task: TaskId, token: ClaimToken) {
        let Some(session) = self.by_id().get(&session).cloned() else { return };
        if let Link::Attached { orders, .. } = &session.state().link {
            // When it is full, the answer to the next renewal says it again.
            let _ = orders.try_send(Order::Cancel(task, token));
        }
    }

    /// Tells the leaders once a second which sessions were heard. Runs until it is dropped.
    pub(crate) async fn keep_telling(self) {
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.tell();
        }
    }

    fn tell(&self) {
        let registry = &self.0;
        let now = registry.clock.monotonic();
        let sessions: Vec<_> = self.by_id().values().cloned().collect();
        let mut alive = Vec::new();
        let mut lost = Vec::new();
        for session in sessions {
            let mut state = session.state();
            // Nobody beats by a clock that a test moves.
            let attached = matches!(state.link, Link::Attached { .. });
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
        registry.shards.sessions_alive(alive.iter().map(|session| session.id).collect());
        for session in alive {
            let mut state = session.state();
            // Cut while it was being named alive: the last word must be that it is not.
            if let Link::Cut { .. } = state.link {
                session.tell_cut(&mut state, &registry.shards);
            }
        }
        self.forget(lost, now);
    }

    /// Forgets those lost too long ago, and the longest lost of too many.
    fn forget(&self, mut lost: Vec<(Instant, SessionId)>, now: Instant) {
        lost.sort();
        let too_many = lost.len().saturating_sub(LOST_KEPT_MAX);
        let mut by_id = self.by_id();
        for (index, (at, id)) in lost.into_iter().enumerate() {
            if index < too_many || now.saturating_duration_since(at) > LOST_KEPT_FOR {
                by_id.remove(&id);
            }
        }
    }

    /// The session of that id, made if it is not known here, or a new one; and whether it was known.
    /// A new one has its profile from the first moment that it is listed.
    fn open(
        &self,
        resumed: Option<SessionId>,
        profile: &Profile,
    ) -> Result<(Arc<Session>, bool), Error> {
        let id = resumed.unwrap_or_else(|| SessionId(random_u128()));
        let mut by_id = self.by_id();
        if let Some(session) = by_id.get(&id) {
            return Ok((session.clone(), true));
        }
        if by_id.len() >= SESSIONS_MAX {
            let text = format!("this node has its limit of {SESSIONS_MAX} workers; use another");
            return Err(Error::LimitExceeded(text));
        }
        let now = self.0.clock.monotonic();
        let wall = Timestamp(self.0.clock.wall_ms());
        let state = State {
            profile: profile.clone(),
            link: Link::Cut { at: now },
            activity: Activity::Running,
            ordered: Activity::Running,
            claims: HashMap::new(),
            connected_at: wall,
            beat_at: wall,
            heard_at: now,
            rss_bytes: 0,
            is_silent: false,
            not_started_told: false,
        };
        let session = Arc::new(Session {
            id,
            heard: AtomicBool::new(true),
            silenced: Notify::new(),
            state: Mutex::new(state),
        });
        by_id.insert(id, session.clone());
        Ok((session, false))
    }

    fn remove(&self, id: SessionId) {
        self.by_id().remove(&id);
    }

    fn by_id(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.0.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self, now: Instant) -> WorkerView {
        let state = self.state();
        WorkerView {
            id: self.id,
            profile: state.profile.clone(),
            busy: state.claims.len() as u32,
            state: state.word(now),
            connected_at: state.connected_at,
            beat_at: state.beat_at,
            rss_bytes: state.rss_bytes,
        }
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
            Link::Cut { .. } | Link::Attached { .. } => None,
        }
    }

    fn word(&self, now: Instant) -> &'static str {
        if now.saturating_duration_since(self.heard_at) > SILENCE_MAX {
            return "lost";
        }
        let activity = if self.ordered == Activity::Running { self.activity } else { self.ordered };
        match (&self.link, activity) {
            (Link::Lost { .. }, _) => "lost",
            (_, Activity::Running) => "running",
            (_, Activity::Quiet) => "quiet",
            (_, Activity::Stopping) => "stopping",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Broker, Config, shard::Engine};
    use taskyard_machine::{Enqueue, NewTask};

    /// Lets more than one beat pass unheard.
    fn fall_silent(attached: &Attached, sessions: &Sessions) {
        let session = attached.session();
        let mut state = session.state();
        let long_ago = state.heard_at.checked_sub(SILENT_AFTER + TELL_EVERY);
        state.heard_at = long_ago.expect("this machine is up for seconds");
        session.heard.store(false, Ordering::Relaxed);
        drop(state);
        sessions.tell();
    }

    #[tokio::test]
    async fn a_silent_worker_is_handed_nothing_until_it_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        (config.listen, config.shards, config.disk_reserve_bytes) = (None, Some(2), 0);
        let engine = Engine::start(&config).unwrap();
        let broker = Broker::new(engine.shards(), &config);
        let enqueue = async || {
            let task = NewTask { task_type: "test", ..NewTask::default() };
            broker.enqueue(Enqueue { queue: "mail", task }).await.unwrap();
        };
        let profile = Profile { slots: 5, ..Profile::default() };
        let queues = vec![("mail".to_owned(), 1)];
        let hello = Hello { profile, queues, lease_ms: 30_000, ..Hello::default() };
        let (attached, _) = Attached::open(&broker, hello).await.unwrap();

        let parked = tokio::spawn(attached.claim(1));
        fall_silent(&attached, broker.sessions());
        assert!(parked.await.unwrap().unwrap().is_empty());
        assert!(!attached.wants_tasks());
        enqueue().await;
        assert!(attached.claim(1).await.unwrap().is_empty());

        attached.heard();
        assert!(attached.wants_tasks());
        assert_eq!(attached.claim(1).await.unwrap().len(), 1);
        fall_silent(&attached, broker.sessions());
        assert!(attached.session().state().not_started_told);
        // Handed over while it fell silent: the leaders are told again.
        attached.session().state().is_silent = false;
        enqueue().await;
        assert_eq!(attached.claim(1).await.unwrap().len(), 1);
        assert!(!attached.session().state().not_started_told);
        engine.stop();
    }
}
