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
    checked_at: Instant,
    written: u64,
}

impl DiskGuard {
    pub(crate) fn new(path: &Path, reserve_bytes: u64) -> DiskGuard {
        let mut guard = DiskGuard {
            path: path.to_path_buf(),
            reserve_bytes,
            free_bytes: u64::MAX,
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

    /// Whether more tasks may be taken.
    pub(crate) fn admit(&mut self) -> Result<(), Error> {
        if self.written >= CHECK_AFTER_BYTES || self.checked_at.elapsed() >= CHECK_AFTER {
            self.look();
        }
        let (free, reserve) = (self.free_bytes, self.reserve_bytes);
        if free >= reserve {
            return Ok(());
        }
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
}
