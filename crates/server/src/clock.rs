//! Clock: the only file that reads the time.
//!
//! A node has one clock. Tests move theirs by hand; everything that waits for shard time (due
//! tasks, leases, silence of sessions) follows it.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;

/// Where a node's time comes from. Cheap to clone; clones agree.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The machine's, and how far that is from right.
    System {
        off_by_ms: i64,
    },
    Manual(Arc<Manual>),
}

struct Manual {
    wall_start_ms: u64,
    started: Instant,
    moves: Mutex<Moves>,
    changed: watch::Sender<u64>,
    on_move: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

/// What a test did to a clock so far.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    /// Time that passed.
    moved: Duration,
    /// As much of it as the process stood still.
    stood: Duration,
    /// How far the wall clock was set forward, or back if negative, apart from the time that
    /// passed.
    jumped_ms: i64,
}

/// What a node's clock showed at one moment. Read once per turn of the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Wall time in milliseconds. May jump.
    pub wall_ms: u64,
    /// Monotonic time.
    pub monotonic: Instant,
    /// For how long a test let the process stand still so far; `None` of the system's clock.
    pub stood: Option<Duration>,
}

/// Two clocks that are read within this show the same moment.
const READ_WITHIN: Duration = Duration::from_millis(100);

impl fmt::Debug for Manual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manual").field("moves", &*self.moves()).finish_non_exhaustive()
    }
}

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Clock {
        Clock::system_off_by(0)
    }

    /// The machine's own clock as if it were set wrong by so much: ahead, or behind if negative.
    pub fn system_off_by(off_by_ms: i64) -> Clock {
        Clock(Source::System { off_by_ms })
    }

    /// A clock that stands at `start_ms` (since the Unix epoch) until it is moved.
    pub fn manual(start_ms: u64) -> Clock {
        let manual = Manual {
            wall_start_ms: start_ms,
            started: Instant::now(),
            moves: Mutex::default(),
            changed: watch::Sender::new(0),
            on_move: Mutex::default(),
        };
        Clock(Source::Manual(Arc::new(manual)))
    }

    /// Wall time, in milliseconds since the Unix epoch. May jump, back too.
    pub fn wall_ms(&self) -> u64 {
        match &self.0 {
            Source::System { off_by_ms } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                since_ms.saturating_add_signed(*off_by_ms)
            }
            Source::Manual(manual) => manual.reading().wall_ms,
        }
    }

    /// Both times at one moment: a process that is stopped between two looks must not take the
    /// pause for a jump of the wall clock.
    pub(crate) fn reading(&self) -> Reading {
        match &self.0 {
            Source::System { .. } => loop {
                let (before, wall_ms, monotonic) = (Instant::now(), self.wall_ms(), Instant::now());
                if monotonic.duration_since(before) <= READ_WITHIN {
                    return Reading { wall_ms, monotonic, stood: None };
                }
            },
            Source::Manual(manual) => manual.reading(),
        }
    }

    /// Monotonic time: for measuring how long something took or is silent.
    pub fn monotonic(&self) -> Instant {
        match &self.0 {
            Source::System { .. } => Instant::now(),
            Source::Manual(manual) => manual.reading().monotonic,
        }
    }

    /// How long a thread may really sleep when nothing is due for `wait` of this clock: a manual
    /// clock can be moved at any moment, so its owner must listen to [`Clock::changes`] as well.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// Moves a manual clock forward.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn advance(&self, by: Duration) {
        let Source::Manual(manual) = &self.0 else { panic!("the system's clock can't be moved") };
        manual.moves().moved += by;
        manual.tell();
    }

    /// Moves a manual clock forward as if the whole process had stood still for that time: it was
    /// stopped, or its machine was paused.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn stand_still(&self, by: Duration) {
        let Source::Manual(manual) = &self.0 else { panic!("the system's clock can't be moved") };
        let mut moves = manual.moves();
        moves.moved += by;
        moves.stood += by;
        drop(moves);
        manual.tell();
    }

    /// Sets a manual clock's wall time forward, or back if negative, as an operator or a time
    /// server does: monotonic time does not notice.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn jump(&self, by_ms: i64) {
        let Source::Manual(manual) = &self.0 else { panic!("the system's clock can't be set") };
        manual.moves().jumped_ms += by_ms;
        manual.tell();
    }

    /// Calls `moved` whenever a manual clock was moved: for threads that can't await
    /// [`Clock::changes`]. Never called for the system's clock.
    pub(crate) fn on_move(&self, moved: impl Fn() + Send + 'static) {
        if let Source::Manual(manual) = &self.0 {
            manual.on_move.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(moved));
        }
    }

    /// Tells whenever a manual clock was moved; `None` for the system's clock.
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        match &self.0 {
            Source::System { .. } => None,
            Source::Manual(manual) => Some(manual.changed.subscribe()),
        }
    }
}

/// Real time, whatever clock the node has: for disks and polls, never for tasks.
pub(crate) fn real_now() -> Instant {
    Instant::now()
}

impl Manual {
    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
        for moved in self.on_move.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            moved();
        }
    }

    fn reading(&self) -> Reading {
        let Moves { moved, stood, jumped_ms } = *self.moves();
        let moved_ms = self.wall_start_ms + moved.as_millis() as u64;
        Reading {
            wall_ms: moved_ms.saturating_add_signed(jumped_ms),
            monotonic: self.started + moved,
            stood: Some(stood),
        }
    }

    fn moves(&self) -> MutexGuard<'_, Moves> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
