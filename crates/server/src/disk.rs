//! DiskGuard: keeps a reserve of free disk space.
//!
//! Below the reserve enqueues are refused; reads, claims and acks go on, and they are what frees space.
//! It recovers by itself.

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

    /// When to look again without being asked: while it is short of space, so that its recovery is
    /// told even if nobody enqueues.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.is_short.then(|| self.checked_at + CHECK_AFTER)
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
            assert_eq!(guard.next_look().is_some(), is_short);
        }
    }
}
