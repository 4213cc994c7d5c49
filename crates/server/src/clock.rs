//! Clock: the only file that reads the time.
//!
//! A node has one clock. A test moves its clock by hand. Everything that waits for shard time (due
//! tasks, leases, the silence of sessions) follows the clock.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;

/// The time of a node. Cheap to clone; all clones agree.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The machine's clock, and its error.
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

/// How a test has moved a clock so far.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    /// Time that passed.
    moved: Duration,
    /// The part of it in which the process stood still.
    stood: Duration,
    /// How far the wall clock was set forward, or back if negative, besides the time that passed.
    jumped_ms: i64,
}

/// The times of a node's clock at one moment. The loop reads them once per turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Wall time in milliseconds. May jump.
    pub wall_ms: u64,
    /// Monotonic time.
    pub monotonic: Instant,
    /// How long a test has let the process stand still so far; `None` for the system's clock.
    pub stood: Option<Duration>,
}

/// Two clocks that are read within this time show the same moment.
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

    /// The machine's own clock with an error: ahead, or behind if negative.
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

    /// Wall time, in milliseconds since the Unix epoch. May jump forward and back.
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

    /// Wall time and monotonic time at one moment. A process that is stopped between two reads must
    /// not take the pause for a jump of the wall clock.
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

    /// Monotonic time, to measure durations and silence.
    pub fn monotonic(&self) -> Instant {
        match &self.0 {
            Source::System { .. } => Instant::now(),
            Source::Manual(manual) => manual.reading().monotonic,
        }
    }

    /// Whether tests move this clock. A thread that sleeps must then listen to [`Clock::changes`]
    /// too, because the clock may move at any moment.
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
        manual.notify_moved();
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
        manual.notify_moved();
    }

    /// Sets a manual clock's wall time forward, or back if negative, as an operator or a time
    /// server does: monotonic time does not notice.
    ///
    /// # Panics
    /// If this is the system's clock.
    pub fn jump(&self, by_ms: i64) {
        let Source::Manual(manual) = &self.0 else { panic!("the system's clock can't be set") };
        manual.moves().jumped_ms += by_ms;
        manual.notify_moved();
    }

    /// Calls `moved` after each move of a manual clock, for threads that can't await
    /// [`Clock::changes`]. Never called for the system's clock.
    pub(crate) fn on_move(&self, moved: impl Fn() + Send + 'static) {
        if let Source::Manual(manual) = &self.0 {
            manual.on_move.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(moved));
        }
    }

    /// Changes after each move of a manual clock; `None` for the system's clock.
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        match &self.0 {
            Source::System { .. } => None,
            Source::Manual(manual) => Some(manual.changed.subscribe()),
        }
    }
}

/// Real time, whichever clock the node has: for disks and polls, never for tasks.
pub(crate) fn real_now() -> Instant {
    Instant::now()
}

impl Manual {
    fn notify_moved(&self) {
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
