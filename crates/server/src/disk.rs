//! DiskGuard: how much space the disk has left, and what the node may still write.
//!
//! | free space | what happens |
//! |---|---|
//! | up to a tenth above the reserve | the disk is low: in a cluster, other nodes take over its leaders |
//! | below the reserve | the node refuses enqueues, and serves reads, claims and acks, because those free space |
//! | below the floor | the node takes nothing more into its log, and still votes |
//! | below a quarter of the floor | the node writes nothing, not even a vote |
//!
//! Each state ends once there is clearly more space. Without a reserve none of them begins.

use crate::{Error, clock, limits::DISK_FLOOR_BYTES_MAX};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use taskyard_replica::Room;

/// The guard asks for the free space at most this often, because other programs fill a disk fast.
const CHECK_AFTER: Duration = Duration::from_millis(1);
/// How often the guard looks at a disk that is short of space.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a start that waits for room logs it.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Watches the disk of one directory.
#[derive(Debug)]
pub(crate) struct DiskGuard {
    path: PathBuf,
    reserve_bytes: u64,
    free_bytes: u64,
    /// The free space was below the reserve, and has not been clearly above it since. Keeps the log
    /// to one line per change.
    is_short: bool,
    /// The free space was near the reserve, and has not been clearly more since. Keeps leaders from
    /// moving to and fro.
    is_low: bool,
    /// The free space was below the floor, and has not been clearly more since.
    is_filled: bool,
    /// The free space was below a quarter of the floor, and has not been clearly more since.
    stands_still: bool,
    checked_at: Instant,
    /// Replaces the answer of the file system in tests.
    #[cfg(test)]
    pretended: Option<u64>,
    /// Bytes that were taken in this turn and are not written yet.
    taken: u64,
}

/// The free space below which a node takes nothing into its log.
fn floor(reserve_bytes: u64) -> u64 {
    (reserve_bytes / 4).min(DISK_FLOOR_BYTES_MAX)
}

/// The free space below which a node stands still, because a vote may not fit.
fn least(reserve_bytes: u64) -> u64 {
    floor(reserve_bytes) / 4
}

/// The free space of the disk that `path` is on; `None` if the file system does not say.
fn free_bytes(path: &Path) -> Option<u64> {
    let found = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Waits until the disk of `path` has room for a start. A start without room would fail half-way,
/// again and again under a supervisor.
pub(crate) async fn until_room(path: &Path, reserve_bytes: u64) {
    let mut logged_at: Option<Instant> = None;
    while let Some(free) = free_bytes(path).filter(|free| *free < least(reserve_bytes)) {
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            logged_at = Some(clock::real_now());
            tracing::warn!(
                "the disk of {} has {free} bytes left: this node starts as soon as there are {}; free \
                 some space",
                path.display(),
                least(reserve_bytes)
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl DiskGuard {
    pub(crate) fn new(path: &Path, reserve_bytes: u64) -> DiskGuard {
        let mut guard = DiskGuard {
            path: path.to_path_buf(),
            reserve_bytes,
            free_bytes: u64::MAX,
            is_short: false,
            is_low: false,
            is_filled: false,
            stands_still: false,
            checked_at: clock::real_now(),
            taken: 0,
            #[cfg(test)]
            pretended: None,
        };
        guard.look();
        guard
    }

    /// The bytes that were taken are in the log now.
    pub(crate) fn note_written(&mut self, bytes: u64) {
        self.taken = 0;
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
    }

    /// Takes bytes for the log, if they fit above the floor.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Error> {
        let left = self.free_bytes.saturating_sub(self.taken).saturating_sub(bytes);
        if !self.is_filled && left < floor(self.reserve_bytes) {
            self.is_filled = true;
            self.log_filled();
        }
        if !self.is_filled {
            self.taken += bytes;
            return Ok(());
        }
        Err(Error::DiskFull(format!(
            "the disk of {} has {} bytes left, too few for anything new; free some space and send it again",
            self.path.display(),
            self.free_bytes
        )))
    }

    /// How much room a replica on this disk has.
    pub(crate) fn room(&self) -> Room {
        match (self.is_filled, self.is_low) {
            (true, _) => Room::Full,
            (false, true) => Room::Low,
            (false, false) => Room::Enough,
        }
    }

    /// Free space above the floor, for checkpoints.
    pub(crate) fn room_bytes(&self) -> u64 {
        match self.is_filled {
            true => 0,
            false => self.free_bytes.saturating_sub(floor(self.reserve_bytes)),
        }
    }

    /// Whether the node may write anything, even a vote.
    pub(crate) fn can_write(&self) -> bool {
        !self.stands_still
    }

    /// Free space at the last look.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Whether new tasks are refused, by the last look.
    pub(crate) fn is_full(&self) -> bool {
        self.free_bytes < self.reserve_bytes
    }

    /// Whether the disk is full or nearly so: from a tenth above the reserve down, until a fifth
    /// above it.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low
    }

    /// When to look again while the disk is short of space, so that its recovery is logged even if
    /// no client enqueues.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (self.is_short || self.is_low || self.is_filled).then(|| self.checked_at + LOOK_EVERY)
    }

    /// Begins a turn: looks at the free space, unless the last look was a moment ago. Bytes that
    /// were taken in the last turn are written by now, or never will be.
    pub(crate) fn begin_turn(&mut self) {
        self.taken = 0;
        if self.checked_at.elapsed() >= CHECK_AFTER {
            self.look();
        }
    }

    /// Refuses new tasks while the disk is below its reserve.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if !self.is_full() {
            return Ok(());
        }
        let (free, reserve) = (self.free_bytes, self.reserve_bytes);
        Err(Error::DiskFull(format!(
            "the disk of {} has {free} bytes left, its reserve is {reserve}; free some space and enqueue again",
            self.path.display()
        )))
    }

    fn look(&mut self) {
        // If the file system does not say, nothing is refused.
        let found = free_bytes(&self.path);
        #[cfg(test)]
        let found = self.pretended.or(found);
        if let Some(free) = found {
            self.free_bytes = free;
        }
        self.checked_at = clock::real_now();
        self.log_changes();
    }

    fn log_changes(&mut self) {
        let above = |share: u64| self.reserve_bytes.saturating_add(self.reserve_bytes / share);
        self.is_low = self.free_bytes < if self.is_low { above(5) } else { above(10) };
        let (free, reserve, path) = (self.free_bytes, self.reserve_bytes, self.path.display());
        if !self.is_short && self.is_full() {
            self.is_short = true;
            tracing::warn!(
                "the disk of {path} has {free} bytes left, its reserve is {reserve}: \
                 enqueues are refused where this node leads, until there is more"
            );
        } else if self.is_short && free >= reserve.saturating_add(reserve / 20) {
            self.is_short = false;
            tracing::info!("the disk of {path} has {free} bytes left: enqueues are taken again");
        }
        let (floor, least) = (floor(reserve), least(reserve));
        // Half as much again, so that the next entry fits too.
        let half_more = |bytes: u64| bytes + bytes / 2;
        let was_filled = self.is_filled;
        self.is_filled = free < if was_filled { half_more(floor) } else { floor };
        if self.is_filled && !was_filled {
            self.log_filled();
        } else if was_filled && !self.is_filled {
            tracing::info!("the disk of {path} has {free} bytes left: entries are taken again");
        }
        let stood_still = self.stands_still;
        self.stands_still = free < if stood_still { half_more(least) } else { least };
        if self.stands_still && !stood_still {
            tracing::error!(
                "the disk of {path} has {free} bytes left: this node stands still until there are {}; \
                 free some space",
                half_more(least)
            );
        } else if stood_still && !self.stands_still {
            tracing::info!("the disk of {path} has {free} bytes left: this node goes on");
        }
    }

    /// Pretends that the disk has so much space left.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, free_bytes: u64) {
        self.pretended = Some(free_bytes);
        self.look();
    }

    #[cfg(test)]
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    fn log_filled(&self) {
        let floor = floor(self.reserve_bytes);
        tracing::error!(
            "the disk of {} has {} bytes left: this node takes nothing more into its log until there are \
             {}, and goes on to vote; free some space",
            self.path.display(),
            self.free_bytes,
            floor + floor / 2
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_its_reserve_refuses_enqueues_and_says_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let mut without = DiskGuard::new(dir.path(), 0);
        assert!(without.admit().is_ok() && without.take(1 << 40).is_ok() && without.can_write());
        let error = DiskGuard::new(dir.path(), u64::MAX).admit().unwrap_err();
        assert_eq!(error.code(), "disk_full");
        assert!(error.to_string().contains("its reserve is 18446744073709551615"), "{error}");
    }

    #[test]
    fn a_disk_is_low_before_it_is_full_and_until_there_is_clearly_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        assert!(!guard.is_low(), "without a reserve it never is");
        guard.reserve_bytes = 1_000;
        for (free_bytes, is_full, is_low) in [
            (1_100, false, false),
            (1_099, false, true),
            (999, true, true),
            (1_199, false, true),
            (1_200, false, false),
            (1_100, false, false),
        ] {
            guard.free_bytes = free_bytes;
            guard.log_changes();
            assert_eq!((guard.is_full(), guard.is_low()), (is_full, is_low), "{free_bytes}");
            assert_eq!(guard.next_look().is_some(), is_low);
        }
    }

    #[test]
    fn a_shortage_of_space_is_logged_once_and_so_is_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        guard.reserve_bytes = 1_000;
        for (free_bytes, is_full, is_short) in [
            (1_000, false, false),
            (999, true, true),
            // A little more space: enqueues are taken, and nothing is logged yet.
            (1_001, false, true),
            (999, true, true),
            (1_050, false, false),
        ] {
            guard.free_bytes = free_bytes;
            guard.log_changes();
            assert_eq!((guard.is_full(), guard.is_short), (is_full, is_short), "{free_bytes}");
        }
    }

    #[test]
    fn below_its_floor_a_disk_takes_nothing_and_below_a_quarter_of_it_stands_still() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        guard.reserve_bytes = 64 << 20;
        const MIB: u64 = 1 << 20;
        for (free, room, can_write, room_bytes) in [
            (80, Room::Enough, true, 64),
            (70, Room::Low, true, 54),
            (16, Room::Low, true, 0),
            (15, Room::Full, true, 0),
            (4, Room::Full, true, 0),
            (3, Room::Full, false, 0),
            (5, Room::Full, false, 0),
            (6, Room::Full, true, 0),
            (23, Room::Full, true, 0),
            (24, Room::Low, true, 8),
        ] {
            guard.free_bytes = free * MIB;
            guard.log_changes();
            let found = (guard.room(), guard.can_write(), guard.room_bytes());
            assert_eq!(found, (room, can_write, room_bytes * MIB), "with {free} MiB");
            assert_eq!(guard.take(1).is_ok(), room != Room::Full && free > 16, "with {free} MiB");
            guard.is_filled = room == Room::Full;
        }
    }

    /// Many megabytes come in between two looks.
    #[test]
    fn bytes_that_are_taken_and_not_written_yet_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        (guard.reserve_bytes, guard.free_bytes) = (4_000, 1_500);
        assert!(guard.take(300).is_ok() && guard.take(200).is_ok());
        let refused = guard.take(1).unwrap_err();
        assert!(refused.to_string().contains("has 1500 bytes left, too few"), "{refused}");
        assert_eq!(guard.room(), Room::Full);
    }

    /// Such as an entry that its leader sends twice.
    #[test]
    fn what_was_taken_and_never_written_is_forgotten_with_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        guard.reserve_bytes = 4_000;
        guard.pretend(1_500);
        for _ in 0..10 {
            guard.begin_turn();
            guard.take(400).unwrap();
        }
        guard.note_written(400);
        assert!(guard.take(101).is_err(), "1,000 bytes are the floor");
    }
}
