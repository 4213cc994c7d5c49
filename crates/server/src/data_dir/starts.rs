//! Starts: how often a data directory was started, counted in it, so that its peers tell an older copy of
//! it from the newest one.
//!
//! Invariant: a count is on the disk before anybody hears of it. So whoever knows of a count knows that
//! every copy with a lower one is older.

use super::{STARTS_FILE, sync_dir, unusable, write_synced};
use crate::{node::StartError, random::random_u128};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};
use taskyard_replica::Start;

/// The starts of a data directory that this process has locked.
#[derive(Debug)]
pub(crate) struct Starts {
    path: PathBuf,
    boot: u128,
    count: AtomicU64,
}

impl Starts {
    /// Counts the start of this process.
    pub(super) fn begin(path: &Path) -> Result<Starts, StartError> {
        let file = path.join(STARTS_FILE);
        let count = match fs::read_to_string(&file) {
            Ok(text) => parse(&text).ok_or_else(|| {
                StartError(format!(
                    "{} is damaged; restore a backup into a new directory, or rebuild this node from the \
                     others of its cluster: remove it there with --force, then start it with a new data \
                     directory and --join",
                    file.display()
                ))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(unusable(&file, &error)),
        };
        let count = AtomicU64::new(count);
        let starts = Starts { path: path.to_path_buf(), boot: random_u128(), count };
        starts.raise().map_err(|error| unusable(path, &error))?;
        Ok(starts)
    }

    /// Raises the count: copies that were made before are older from here on.
    pub(crate) fn raise(&self) -> io::Result<()> {
        let next = self.count.load(Ordering::Acquire) + 1;
        let (file, new) = (self.path.join(STARTS_FILE), self.path.join(STARTS_FILE_NEW));
        write_synced(
            &new,
            &format!("# Counts the starts of this data directory. Don't edit.\nstarts = {next}\n"),
        )?;
        fs::rename(new, file)?;
        sync_dir(&self.path)?;
        self.count.store(next, Ordering::Release);
        Ok(())
    }

    /// This process, as others may know it.
    pub(crate) fn start(&self) -> Start {
        Start { count: self.count.load(Ordering::Acquire), boot: self.boot }
    }
}

/// Its name until it is whole.
const STARTS_FILE_NEW: &str = "STARTS.new";

fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("starts = "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_counts_and_a_copy_goes_on_from_where_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Starts::begin(dir.path()).unwrap();
        let first = begin();
        assert_eq!(first.start().count, 1);
        first.raise().unwrap();
        assert_eq!(first.start().count, 2);
        let copy = fs::read(dir.path().join(STARTS_FILE)).unwrap();
        let second = begin().start();
        assert_eq!(second.count, 3);
        assert!(second.may_follow(first.start()) && !first.start().may_follow(second));
        fs::write(dir.path().join(STARTS_FILE), copy).unwrap();
        let of_copy = begin().start();
        assert_eq!(of_copy.count, 3);
        assert!(!of_copy.may_follow(second), "as many starts, of another process");
        fs::write(dir.path().join(STARTS_FILE), "starts = many").unwrap();
        let refused = Starts::begin(dir.path()).unwrap_err().0;
        assert!(refused.contains("STARTS is damaged; restore a backup"), "{refused}");
    }
}
