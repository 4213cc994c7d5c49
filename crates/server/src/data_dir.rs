//! DataDir: the layout of a data directory, its lock and its format.
//!
//! ```text
//! LOCK      held while a process uses the directory; names that process
//! FORMAT    version, cluster, incarnation, number of shards, number of the node, and a checksum of that
//! log/      the Raft log of all shards
//! state/    checkpoints and bodies
//! JOINING   before FORMAT: names a directory that asks for a place in a cluster
//! PEERS     where the nodes of that cluster were when it got one
//! STARTS    how often it was started, and where it lay then
//! SEEN      which start of each peer was let in last
//! OUTDATED  there if a newer copy was started: the words that say so
//! ```
//! Invariant: where `FORMAT` exists, log and checkpoints exist too, marked with what it says: it
//! gets its name last. So a log or a state that was emptied, exchanged or left behind is never
//! taken for a new one. A directory without it is new only if nothing in it could be somebody's
//! data.

mod format;
mod joining;
mod seen;
mod starts;

pub(crate) use format::{FORMAT_VERSION, Format};
pub(crate) use joining::{Joining, known_peers};
pub(crate) use seen::Seen;
pub(crate) use starts::Starts;

use crate::{checkpoint::Store, log::Log, node::StartError};
use format::FormatError;
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

const FORMAT_FILE: &str = "FORMAT";
/// Its name while a directory is made: what else is there was never used.
const FORMAT_FILE_NEW: &str = "FORMAT.new";
/// And at the end of a restore, whose work must not be begun anew.
const FORMAT_FILE_RESTORED: &str = "FORMAT.restored";
const LOCK_FILE: &str = "LOCK";
const JOINING_FILE: &str = "JOINING";
const PEERS_FILE: &str = "PEERS";
const STARTS_FILE: &str = "STARTS";
const SEEN_FILE: &str = "SEEN";
const OUTDATED_FILE: &str = "OUTDATED";
/// A directory for its owner alone.
const DIR_MODE: u32 = 0o700;
/// A file for its owner alone.
const FILE_MODE: u32 = 0o600;
const FOLDERS: [&str; 2] = ["log", "state"];
/// Shards of a new directory, if nobody says how many.
const SHARDS_DEFAULT: u16 = 32;

/// How a directory came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It was there.
    Found,
    /// It is being made; a crash before it is sealed leaves nothing that counts.
    New,
    /// It is being restored.
    Restored,
}

/// An open data directory. Its lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    format: Format,
    origin: Origin,
    _lock: File,
}

impl DataDir {
    /// Opens `path`; begins to make it, with `shards` shards or the default, if there is nothing
    /// yet. A directory that has another number of them than was asked for is refused.
    pub(crate) fn open(path: &Path, shards: Option<u16>) -> Result<DataDir, StartError> {
        let lock = claim(path)?;
        let (format, origin) = match read_format(path)? {
            Some(format) => {
                check_shards(path, format, shards)?;
                (format, Origin::Found)
            }
            None => {
                refuse_foreign(path)?;
                (Format::random(shards.unwrap_or(SHARDS_DEFAULT)), Origin::New)
            }
        };
        let dir = DataDir { path: path.to_path_buf(), format, origin, _lock: lock };
        match origin {
            Origin::Found => FOLDERS.iter().try_for_each(|folder| dir.check_folder(folder))?,
            Origin::New | Origin::Restored => {
                dir.begin().map_err(|error| unusable(path, &error))?
            }
        }
        Ok(dir)
    }

    /// Claims `path` for a restore: it must not hold anything yet. `FORMAT` comes with `seal`.
    pub(crate) fn begin_restore(path: &Path, format: Format) -> Result<DataDir, StartError> {
        let lock = claim(path)?;
        let mut entries = fs::read_dir(path).map_err(|error| unusable(path, &error))?;
        let other = entries.find_map(|entry| {
            let name = entry.ok()?.file_name();
            (name != LOCK_FILE).then_some(name)
        });
        if let Some(name) = other {
            return Err(StartError(format!(
                "{} is not empty, it holds {}; restore into a new directory",
                path.display(),
                name.display()
            )));
        }
        make_folders(path).map_err(|error| unusable(path, &error))?;
        let origin = Origin::Restored;
        Ok(DataDir { path: path.to_path_buf(), format, origin, _lock: lock })
    }

    /// Begins a new directory, or begins one anew whose making was interrupted.
    fn begin(&self) -> io::Result<()> {
        let path = &self.path;
        if path.join(FORMAT_FILE_NEW).try_exists()? {
            for folder in FOLDERS {
                match fs::remove_dir_all(path.join(folder)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        // First, and for good: it says that the rest may be thrown away.
        write_synced(&path.join(FORMAT_FILE_NEW), &self.format.to_text())?;
        sync_dir(path)?;
        make_folders(path)
    }

    fn check_folder(&self, name: &str) -> Result<(), StartError> {
        let folder = self.path.join(name);
        let wrong = match fs::read_dir(&folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Ok(()),
            Ok(false) => "is empty",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing",
            Err(error) => return Err(unusable(&folder, &error)),
        };
        let path = self.path.display();
        Err(StartError(format!(
            "{path} is damaged: its folder {name} {wrong}; put it back, mount it if it is a volume, or restore a backup into a new directory"
        )))
    }

    /// Opens the checkpoints and the log, or makes them.
    pub(crate) fn contents(&self) -> Result<(Arc<Store>, Arc<Log>), StartError> {
        let log = Log::open(&self.log())?;
        let store = Store::open(&self.state())?;
        match self.origin {
            Origin::Found => {
                log.check_mark(&self.log(), self.format)?;
                store.check_mark(self.format)?;
            }
            Origin::New | Origin::Restored => {
                log.mark(self.format).map_err(|error| StartError(error.to_string()))?;
                store.mark(self.format).map_err(|error| StartError(error.to_string()))?;
            }
        }
        Ok((store, Arc::new(log)))
    }

    /// From here on it is a data directory. Its contents are synced by now.
    pub(crate) fn seal(&self) -> Result<(), StartError> {
        let name = match self.origin {
            Origin::Found => return Ok(()),
            Origin::New => FORMAT_FILE_NEW,
            Origin::Restored => FORMAT_FILE_RESTORED,
        };
        let path = &self.path;
        let write = || {
            write_synced(&path.join(name), &self.format.to_text())?;
            fs::rename(path.join(name), path.join(FORMAT_FILE))?;
            sync_dir(path)?;
            // The directory's own name must survive a power cut too.
            sync_dir(parent(path))
        };
        write().map_err(|error: io::Error| unusable(path, &error))
    }

    /// Counts a start. It is a data directory by now.
    pub(crate) fn begin_start(&self) -> Result<Starts, StartError> {
        Starts::begin(&self.path)
    }

    /// The starts of peers that it knows.
    pub(crate) fn seen(&self) -> Result<Seen, StartError> {
        Seen::open(&self.path)
    }

    /// What it was made as.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the Raft log is.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where checkpoints are.
    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }
}

fn unusable(path: &Path, error: &io::Error) -> StartError {
    let path = path.display();
    StartError(match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!(
                "{path} can't be written: {error}; give this user the right to, or choose another directory"
            )
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("{path} is not a directory; choose another path")
        }
        _ => format!("{path} can't be used: {error}"),
    })
}

/// Makes the directory if need be and takes its lock.
fn claim(path: &Path) -> Result<File, StartError> {
    make_dir(path).map_err(|error| unusable(path, &error))?;
    let mut lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(FILE_MODE)
        .open(path.join(LOCK_FILE))
        .map_err(|error| unusable(path, &error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = lock.read_to_string(&mut owner);
            let owner = owner.trim();
            let owner = if owner.is_empty() { String::new() } else { format!(" (pid {owner})") };
            return Err(StartError(format!(
                "{} is in use by another taskyard process{owner}; stop it or choose another directory",
                path.display()
            )));
        }
        Err(TryLockError::Error(error)) => return Err(unusable(path, &error)),
    }
    let pid = std::process::id();
    let named = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{pid}"));
    named.map_err(|error| unusable(path, &error))?;
    Ok(lock)
}

/// What the directory was made as, if it was.
pub(crate) fn read_format(path: &Path) -> Result<Option<Format>, StartError> {
    let file = path.join(FORMAT_FILE);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&file, &error)),
    };
    let not_text = |_| FormatError::Damaged("it is not text".into());
    let text = str::from_utf8(&bytes).map_err(not_text);
    text.and_then(Format::parse).map(Some).map_err(|error| {
        StartError(match error {
            FormatError::Newer(version) => format!(
                "{} has format {version}, this taskyard reads up to {FORMAT_VERSION}; start the newer version that wrote it",
                path.display()
            ),
            FormatError::Older(version) => format!(
                "{} has format {version}, from before the first release, and this taskyard reads {FORMAT_VERSION} alone; start with a new directory",
                path.display()
            ),
            FormatError::Damaged(what) => format!(
                "{} is damaged: {what}; restore a backup into a new directory",
                file.display()
            ),
        })
    })
}

/// A number that has no effect must not pass for one that has.
fn check_shards(path: &Path, format: Format, asked: Option<u16>) -> Result<(), StartError> {
    match asked {
        Some(asked) if asked != format.shards => Err(StartError(format!(
            "{} has {} shards, not {asked}: the number is fixed when a data directory is made; leave it out, or choose a new directory",
            path.display(),
            format.shards
        ))),
        _ => Ok(()),
    }
}

/// A directory without `FORMAT` may hold what an interrupted making left, and nothing else.
fn refuse_foreign(path: &Path) -> Result<(), StartError> {
    let is_begun = path.join(FORMAT_FILE_NEW).exists();
    let entries = fs::read_dir(path).map_err(|error| unusable(path, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| unusable(path, &error))?;
        let name = entry.file_name();
        let ours = match name.to_str() {
            Some(LOCK_FILE | FORMAT_FILE_NEW | JOINING_FILE | PEERS_FILE) => true,
            Some(folder) if FOLDERS.contains(&folder) => {
                is_begun || fs::read_dir(entry.path()).is_ok_and(|mut held| held.next().is_none())
            }
            _ => false,
        };
        if !ours {
            return Err(StartError(format!(
                "{} holds {} but no file {FORMAT_FILE}: it is no data directory, or a restore into it was interrupted; choose an empty one",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

/// Makes directories that only their owner may enter: payloads are nobody else's to read. What is
/// in `log` and `state` is made by libraries, and is as private as these folders.
fn private_dirs() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(DIR_MODE);
    builder
}

fn make_folders(path: &Path) -> io::Result<()> {
    FOLDERS.iter().try_for_each(|folder| private_dirs().create(path.join(folder)))
}

fn write_synced(file: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    let mut file = options.open(file)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Makes a directory and those above it that are missing, so that their names survive a power cut.
fn make_dir(path: &Path) -> io::Result<()> {
    let made: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    private_dirs().create(path)?;
    made.into_iter()
        .filter(|made| !made.as_os_str().is_empty())
        .try_for_each(|made| sync_dir(parent(made)))
}

/// The directory that holds the name of `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// Makes names created in or removed from a directory durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_error(path: &Path) -> String {
        let opened = DataDir::open(path, None).and_then(|dir| dir.contents().map(drop));
        opened.expect_err("it must not open").0
    }

    /// Makes a data directory, or opens one.
    fn open(path: &Path, shards: u16) -> DataDir {
        let dir = DataDir::open(path, Some(shards)).unwrap();
        dir.contents().unwrap();
        dir.seal().unwrap();
        dir
    }

    #[test]
    fn a_new_directory_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("above/data");
        let dir = DataDir::open(&path, None).unwrap();
        dir.seal().unwrap();
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        for name in ["", "log", "state"] {
            assert_eq!(mode(name), DIR_MODE, "{name}");
        }
        for name in [FORMAT_FILE, LOCK_FILE] {
            assert_eq!(mode(name), FILE_MODE, "{name}");
        }
    }

    #[test]
    fn a_new_directory_keeps_what_it_was_made_as() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let made = open(&path, 4).format();
        let refused = DataDir::open(&path, Some(9)).expect_err("it has 4 shards").0;
        assert!(refused.contains("has 4 shards, not 9: the number is fixed"), "{refused}");
        let opened = DataDir::open(&path, None).unwrap();
        assert_eq!(opened.format(), made);
        assert_eq!(made.shards, 4);
        assert_ne!(made.cluster, Format::random(4).cluster);
    }

    #[test]
    fn a_second_process_is_refused_with_the_first_ones_pid() {
        let dir = tempfile::tempdir().unwrap();
        let held = open(dir.path(), 4);
        let message = open_error(dir.path());
        let pid = std::process::id();
        assert!(
            message.contains(&format!("is in use by another taskyard process (pid {pid})")),
            "{message}"
        );
        drop(held);
        open(dir.path(), 4);
    }

    #[test]
    fn what_is_no_data_directory_is_refused_in_plain_words() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(open_error(&file).contains("is not a directory"), "{}", open_error(&file));

        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("thesis.txt"), "x").unwrap();
        assert!(open_error(&foreign).contains("holds thesis.txt but no file FORMAT"));

        let interrupted = dir.path().join("interrupted");
        fs::create_dir_all(interrupted.join("state/1")).unwrap();
        assert!(open_error(&interrupted).contains("a restore into it was interrupted"));
    }

    /// A crash may come at any step: before the folders are there, amid their files, before the
    /// seal.
    #[test]
    fn an_interrupted_making_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::create_dir(path.join("log")).unwrap();
        drop(DataDir::open(path, Some(4)).unwrap());
        fs::write(path.join(FORMAT_FILE_NEW), "form").unwrap();
        fs::create_dir_all(path.join("state/keyspaces/1")).unwrap();
        fs::write(path.join("state/lock"), "").unwrap();
        let begun = DataDir::open(path, Some(4)).unwrap();
        begun.contents().unwrap();
        drop(begun);
        let again = open(path, 5).format();
        assert_eq!(again.shards, 5);
        assert_eq!(open(path, 5).format(), again);
    }

    #[test]
    fn a_format_from_the_future_or_in_pieces_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), 4));
        let file = dir.path().join(FORMAT_FILE);
        let good = fs::read_to_string(&file).unwrap();
        for (from, to, expected) in [
            ("format = 8", "format = 9", "has format 9, this taskyard reads up to 8"),
            ("format = 8", "format = 1", "has format 1, from before the first release"),
            ("format = 8", "format = ?", "is damaged: format is \"?\""),
            ("shards = 4", "shards = 0", "is damaged: its checksum does not fit"),
            ("shards = 4", "shards = 2", "is damaged: its checksum does not fit"),
            ("checksum", "checksun", "it has no line \"checksum = ...\""),
        ] {
            fs::write(&file, good.replace(from, to)).unwrap();
            let message = open_error(dir.path());
            assert!(message.contains(expected), "{message}");
        }
        for (bytes, expected) in [(&b""[..], "it has no line"), (b"\xff\xfe", "it is not text")] {
            fs::write(&file, bytes).unwrap();
            let message = open_error(dir.path());
            assert!(
                message.contains(expected) && message.contains("restore a backup"),
                "{message}"
            );
        }
        fs::write(&file, &good).unwrap();
        open(dir.path(), 4);
    }

    #[test]
    fn a_number_of_shards_that_log_and_checkpoints_do_not_have_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let format = open(dir.path(), 4).format();
        for shards in [2, 8] {
            let text = Format { shards, ..format }.to_text();
            fs::write(dir.path().join(FORMAT_FILE), text).unwrap();
            let message = open_error(dir.path());
            let expected = format!("was made with 4 shards, and FORMAT says {shards}");
            assert!(message.contains(&expected), "{message}");
        }
    }

    #[test]
    fn a_restore_wants_an_empty_directory_and_counts_only_when_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let format = Format { cluster: 1, incarnation: 2, shards: 3, node: 4 };
        let path = dir.path().join("new");
        let restored = DataDir::begin_restore(&path, format).unwrap();
        fs::write(path.join("state/x"), "x").unwrap();
        drop(restored);
        assert!(open_error(&path).contains("a restore into it was interrupted"));
        fs::write(path.join(FORMAT_FILE_RESTORED), "form").unwrap();
        assert!(open_error(&path).contains("a restore into it was interrupted"));
        let again = DataDir::begin_restore(&path, format).expect_err("not empty");
        assert!(again.0.contains("is not empty"), "{again}");
    }
}
