//! DiskGuard: keeps a reserve of free disk space.
//!
//! Below the reserve enqueues are refused; reads, claims and acks go on, and they are what frees space.
//! A little above it the disk is low: in a cluster others are to lead before anything is refused. Both end
//! by themselves.

use crate::{Error, clock};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Free space is asked for after this long, or after this many bytes were written.
const CHECK_AFTER: Duration = Duration::from_secs(1);
const CHECK_AFTER_BYTES: u64 = 16 << 20;

/// Watches the disk of one directory.
#[derive(Debug)]
pub(crate) struct DiskGuard {
    path: PathBuf,
    reserve_bytes: u64,
    free_bytes: u64,
    /// It was below its reserve and has not had clearly more since: told once each way.
    is_short: bool,
    /// It was near its reserve and has not had clearly more since: leaders should not come and go.
    is_low: bool,
    checked_at: Instant,
    written: u64,
}

impl DiskGuard {
    pub(crate) fn new(path: &Path, reserve_bytes: u64) -> DiskGuard {
        let mut guard = DiskGuard {
            path: path.to_path_buf(),
            reserve_bytes,
            free_bytes: u64::MAX,
            is_short: false,
            is_low: false,
            checked_at: clock::real_now(),
            written: 0,
        };
        guard.look();
        guard
    }

    /// This much was written to the log; about as much follows in checkpoints.
    pub(crate) fn note_written(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Free space, as last seen.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Whether new tasks are refused, as last seen.
    pub(crate) fn is_full(&self) -> bool {
        self.free_bytes < self.reserve_bytes
    }

    /// Whether it is full or nearly so: from a tenth above its reserve on, until there is a fifth more than
    /// it.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low
    }

    /// When to look again without being asked: while it is short of space, so that its recovery is
    /// told even if nobody enqueues.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (self.is_short || self.is_low).then(|| self.checked_at + CHECK_AFTER)
    }

    /// Asks for the free space if that was long ago.
    pub(crate) fn check(&mut self) {
        if self.written >= CHECK_AFTER_BYTES || self.checked_at.elapsed() >= CHECK_AFTER {
            self.look();
        }
    }

    /// Whether more tasks may be taken.
    pub(crate) fn admit(&mut self) -> Result<(), Error> {
        self.check();
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
        // Where the file system tells nothing, nothing is refused.
        if let Ok(found) = rustix::fs::statvfs(&self.path) {
            self.free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        }
        self.checked_at = clock::real_now();
        self.written = 0;
        self.tell();
    }

    fn tell(&mut self) {
        let above = |share: u64| self.reserve_bytes.saturating_add(self.reserve_bytes / share);
        self.is_low = self.free_bytes < if self.is_low { above(5) } else { above(10) };
        let (free, reserve, path) = (self.free_bytes, self.reserve_bytes, self.path.display());
        if !self.is_short && self.is_full() {
            self.is_short = true;
            tracing::warn!(
                "the disk of {path} has {free} bytes left, its reserve is {reserve}: \
                 enqueues are refused until there is more"
            );
        } else if self.is_short && free >= reserve.saturating_add(reserve / 20) {
            self.is_short = false;
            tracing::info!("the disk of {path} has {free} bytes left: enqueues are taken again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_its_reserve_is_full_in_plain_words() {
        let dir = tempfile::tempdir().unwrap();
        assert!(DiskGuard::new(dir.path(), 0).admit().is_ok());
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
            guard.tell();
            assert_eq!((guard.is_full(), guard.is_low()), (is_full, is_low), "{free_bytes}");
            assert_eq!(guard.next_look().is_some(), is_low);
        }
    }

    #[test]
    fn want_of_space_is_told_once_and_so_is_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = DiskGuard::new(dir.path(), 0);
        guard.reserve_bytes = 1_000;
        for (free_bytes, is_full, is_short) in [
            (1_000, false, false),
            (999, true, true),
            // A little more: enqueues are taken, and nothing is told yet.
            (1_001, false, true),
            (999, true, true),
            (1_050, false, false),
        ] {
            guard.free_bytes = free_bytes;
            guard.tell();
            assert_eq!((guard.is_full(), guard.is_short), (is_full, is_short), "{free_bytes}");
        }
    }
}
