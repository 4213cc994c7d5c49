//! Starts: how often a data directory was started, and which directory it was, so that an older
//! copy can be told from the newest one.
//!
//! Invariants: a count is on disk before another node hears of it, so that every copy with a lower
//! count is known to be older. A directory that was found to be older is never started again,
//! because its count would rise above the known one.

use super::{LOCK_FILE, OUTDATED_FILE, STARTS_FILE, sync_dir, unusable, write_synced};
use crate::{node::StartError, random::random_u128};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};
use taskyard_replica::Start;

/// The starts of a data directory that this process has locked.
#[derive(Debug)]
pub(crate) struct Starts {
    path: PathBuf,
    boot: u128,
    /// The directory's identity now.
    place: Option<Place>,
    written: Mutex<Written>,
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    count: u64,
    /// The directory's identity when its node last took part in its cluster from it.
    place: Option<Place>,
}

/// The identity of a directory for the file system; a copy has another one. Taken from the lock,
/// the one file that is made once and never replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    inode: u64,
    born_ns: u128,
}

impl Place {
    /// `None` if the file system does not store when a file was made, because inodes alone are used
    /// again.
    fn of(path: &Path) -> Option<Place> {
        let lock = fs::metadata(path.join(LOCK_FILE)).ok()?;
        let born = lock.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Place { inode: lock.ino(), born_ns: born.as_nanos() })
    }
}

impl Starts {
    pub(super) fn begin(path: &Path) -> Result<Starts, StartError> {
        match fs::read_to_string(path.join(OUTDATED_FILE)) {
            Ok(words) => return Err(StartError(words.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(&path.join(OUTDATED_FILE), &error)),
        }
        let file = path.join(STARTS_FILE);
        let place = Place::of(path);
        let written = match fs::read_to_string(&file) {
            Ok(text) => parse(&text).ok_or_else(|| {
                StartError(format!(
                    "{} is damaged; restore a backup into a new directory, or rebuild this node from the \
                     others of its cluster: remove it there with --force, then start it with a new data \
                     directory and --join",
                    file.display()
                ))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Written { count: 0, place },
            Err(error) => return Err(unusable(&file, &error)),
        };
        let written = Mutex::new(written);
        let starts = Starts { path: path.to_path_buf(), boot: random_u128(), place, written };
        starts.raise().map_err(|error| unusable(path, &error))?;
        Ok(starts)
    }

    /// Raises the count, so that copies made before are older.
    pub(crate) fn raise(&self) -> io::Result<()> {
        let mut written = self.written();
        let next = Written { count: written.count + 1, place: written.place };
        self.write(next)?;
        *written = next;
        Ok(())
    }

    /// This process's start, as other nodes know it.
    pub(crate) fn start(&self) -> Start {
        Start { count: self.written().count, boot: self.boot }
    }

    /// Whether the directory was copied since its node last took part in its cluster from it.
    pub(crate) fn is_copy(&self) -> bool {
        self.written().place != self.place
    }

    /// Accepts this copy as the newest: it counts as the directory itself from now on.
    pub(crate) fn accept_copy(&self) -> io::Result<()> {
        let mut written = self.written();
        let next = Written { place: self.place, ..*written };
        self.write(next)?;
        *written = next;
        Ok(())
    }

    /// Marks the directory as outdated, because a newer copy was started: it never starts again.
    pub(crate) fn outdate(&self, words: &str) -> io::Result<()> {
        write_synced(&self.path.join(OUTDATED_FILE), &format!("{words}\n"))?;
        sync_dir(&self.path)
    }

    fn write(&self, Written { count, place }: Written) -> io::Result<()> {
        let (file, new) = (self.path.join(STARTS_FILE), self.path.join(STARTS_FILE_NEW));
        let place = place.map_or_else(String::new, |Place { inode, born_ns }| {
            format!("inode = {inode}\nborn_ns = {born_ns}\n")
        });
        write_synced(
            &new,
            &format!(
                "# Counts the starts of this data directory. Don't edit.\nstarts = {count}\n{place}"
            ),
        )?;
        fs::rename(new, file)?;
        sync_dir(&self.path)
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of the file until it is complete.
const STARTS_FILE_NEW: &str = "STARTS.new";

fn parse(text: &str) -> Option<Written> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let place = match (line("inode = "), line("born_ns = ")) {
        (None, None) => None,
        (inode, born_ns) => {
            Some(Place { inode: inode?.parse().ok()?, born_ns: born_ns?.parse().ok()? })
        }
    };
    Some(Written { count: line("starts = ")?.parse().ok()?, place })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a lock, as `DataDir` makes it.
    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK_FILE), "1").unwrap();
        dir
    }

    #[test]
    fn every_start_counts_and_a_copy_goes_on_from_where_it_was_made() {
        let dir = dir();
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

    #[test]
    fn a_copied_directory_is_a_copy_until_it_is_accepted() {
        let (from, to) = (dir(), dir());
        let begun = Starts::begin(from.path()).unwrap();
        assert!(!begun.is_copy(), "a new one");
        assert!(!Starts::begin(from.path()).unwrap().is_copy(), "started again");
        if Place::of(from.path()).is_none() {
            return eprintln!("skipped: this file system does not say when a file was made");
        }
        fs::copy(from.path().join(STARTS_FILE), to.path().join(STARTS_FILE)).unwrap();
        assert!(Starts::begin(to.path()).unwrap().is_copy());
        let again = Starts::begin(to.path()).unwrap();
        assert!(again.is_copy(), "a start alone settles nothing");
        again.accept_copy().unwrap();
        assert!(!again.is_copy());
        again.raise().unwrap();
        assert!(!Starts::begin(to.path()).unwrap().is_copy());
        assert!(!Starts::begin(from.path()).unwrap().is_copy());
        // In place of the original, as after a restore of the disk.
        fs::copy(from.path().join(STARTS_FILE), to.path().join(STARTS_FILE)).unwrap();
        assert!(Starts::begin(to.path()).unwrap().is_copy());
    }

    #[test]
    fn a_directory_that_is_outdated_is_never_started_again() {
        let dir = dir();
        let starts = Starts::begin(dir.path()).unwrap();
        starts.outdate("a newer one was started").unwrap();
        for _ in 0..3 {
            let refused = Starts::begin(dir.path()).unwrap_err().0;
            assert_eq!(refused, "a newer one was started");
        }
    }
}
