//! DataDir: the layout of a data directory, its lock and its format.
//!
//! ```text
//! LOCK      held while a process uses the directory; names that process
//! FORMAT    version, cluster, incarnation, number of shards; written last when one is made
//! log/      the Raft log of all shards
//! state/    checkpoints and bodies
//! ```
//! Invariant: where `FORMAT` exists, both folders exist too. A directory without it is taken for new
//! only if nothing in it could be somebody's data.

use crate::{
    node::StartError,
    random::{random_u64, random_u128},
};
use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// The layout and encodings that this build writes. Raised when an older build could not read it.
const FORMAT_VERSION: u32 = 2;
const FORMAT_FILE: &str = "FORMAT";
const FORMAT_FILE_NEW: &str = "FORMAT.new";
const LOCK_FILE: &str = "LOCK";

/// What a data directory was made as. Fixed from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The cluster it belongs to: random.
    pub cluster: u128,
    /// Part of every task id: random, renewed by a restore.
    pub incarnation: u32,
    /// How many shards there are.
    pub shards: u16,
}

impl Format {
    /// A new cluster.
    pub(crate) fn random(shards: u16) -> Format {
        Format { cluster: random_u128(), incarnation: random_u64() as u32, shards }
    }

    fn to_text(self) -> String {
        let mut text = String::new();
        let Format { cluster, incarnation, shards } = self;
        let _ = writeln!(text, "# Taskyard's data directory. Don't edit.");
        let _ = writeln!(text, "format = {FORMAT_VERSION}");
        let _ = writeln!(text, "cluster = {cluster:032x}");
        let _ = writeln!(text, "incarnation = {incarnation}");
        let _ = writeln!(text, "shards = {shards}");
        text
    }

    fn parse(text: &str) -> Result<Format, FormatError> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.ok_or_else(|| FormatError::Damaged(format!("it has no line \"{key} = ...\"")))
        };
        let bad = |key: &str, found: &str| FormatError::Damaged(format!("{key} is {found:?}"));
        let version = value("format")?;
        match version.parse::<u32>() {
            Ok(FORMAT_VERSION) => {}
            Ok(newer) if newer > FORMAT_VERSION => return Err(FormatError::Newer(newer)),
            Ok(older @ 1..) => return Err(FormatError::Older(older)),
            _ => return Err(bad("format", version)),
        }
        let (cluster, incarnation, shards) =
            (value("cluster")?, value("incarnation")?, value("shards")?);
        Ok(Format {
            cluster: u128::from_str_radix(cluster, 16).map_err(|_| bad("cluster", cluster))?,
            incarnation: incarnation.parse().map_err(|_| bad("incarnation", incarnation))?,
            shards: match shards.parse() {
                Ok(0) | Err(_) => return Err(bad("shards", shards)),
                Ok(count) => count,
            },
        })
    }
}

enum FormatError {
    Newer(u32),
    Older(u32),
    Damaged(String),
}

/// An open data directory. Its lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    format: Format,
    _lock: File,
}

impl DataDir {
    /// Opens `path`; makes it with `shards` shards if there is nothing yet.
    pub(crate) fn open(path: &Path, shards: u16) -> Result<DataDir, StartError> {
        let lock = claim(path)?;
        let format = match read_format(path)? {
            Some(format) => format,
            None => {
                refuse_foreign(path)?;
                let format = Format::random(shards);
                make_folders(path)?;
                write_format(path, format)?;
                format
            }
        };
        for folder in ["log", "state"] {
            if !path.join(folder).is_dir() {
                return Err(StartError(format!(
                    "{} is damaged: its folder {folder} is missing; restore a backup into a new directory",
                    path.display()
                )));
            }
        }
        Ok(DataDir { path: path.to_path_buf(), format, _lock: lock })
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
        make_folders(path)?;
        Ok(DataDir { path: path.to_path_buf(), format, _lock: lock })
    }

    /// Ends a restore: from here on it is a data directory.
    pub(crate) fn seal(&self) -> Result<(), StartError> {
        write_format(&self.path, self.format)
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

fn read_format(path: &Path) -> Result<Option<Format>, StartError> {
    let file = path.join(FORMAT_FILE);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&file, &error)),
    };
    Format::parse(&text).map(Some).map_err(|error| {
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

/// A directory without `FORMAT` may hold what an interrupted creation left, and nothing else.
fn refuse_foreign(path: &Path) -> Result<(), StartError> {
    let entries = fs::read_dir(path).map_err(|error| unusable(path, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| unusable(path, &error))?;
        let name = entry.file_name();
        let ours = match name.to_str() {
            Some(LOCK_FILE | FORMAT_FILE_NEW) => true,
            Some("log" | "state") => {
                fs::read_dir(entry.path()).is_ok_and(|mut entries| entries.next().is_none())
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

fn make_folders(path: &Path) -> Result<(), StartError> {
    for folder in ["log", "state"] {
        fs::create_dir_all(path.join(folder)).map_err(|error| unusable(path, &error))?;
    }
    Ok(())
}

/// Writes `FORMAT` so that a crash leaves either all of it or none.
fn write_format(path: &Path, format: Format) -> Result<(), StartError> {
    let new = path.join(FORMAT_FILE_NEW);
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(format.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path.join(FORMAT_FILE))?;
        sync_dir(path)?;
        // The directory's own name must survive a power cut too.
        sync_dir(parent(path))
    };
    write().map_err(|error: io::Error| unusable(path, &error))
}

/// Makes a directory and those above it that are missing, so that their names survive a power cut.
fn make_dir(path: &Path) -> io::Result<()> {
    let made: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(path)?;
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
        DataDir::open(path, 4).expect_err("it must not open").0
    }

    #[test]
    fn a_new_directory_keeps_what_it_was_made_as() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let made = DataDir::open(&path, 4).unwrap().format();
        let opened = DataDir::open(&path, 9).unwrap();
        assert_eq!(opened.format(), made, "the stored number of shards wins");
        assert_eq!(made.shards, 4);
        assert_ne!(made.cluster, Format::random(4).cluster);
    }

    #[test]
    fn a_second_process_is_refused_with_the_first_ones_pid() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::open(dir.path(), 4).unwrap();
        let message = open_error(dir.path());
        let pid = std::process::id();
        assert!(
            message.contains(&format!("is in use by another taskyard process (pid {pid})")),
            "{message}"
        );
        drop(held);
        DataDir::open(dir.path(), 4).unwrap();
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

    #[test]
    fn an_interrupted_creation_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        fs::write(dir.path().join(FORMAT_FILE_NEW), "form").unwrap();
        DataDir::open(dir.path(), 4).unwrap();
    }

    #[test]
    fn a_format_from_the_future_or_in_pieces_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), 4).unwrap());
        let file = dir.path().join(FORMAT_FILE);
        let good = fs::read_to_string(&file).unwrap();
        for (from, to, expected) in [
            ("format = 2", "format = 7", "has format 7, this taskyard reads up to 2"),
            ("format = 2", "format = 1", "has format 1, from before the first release"),
            ("format = 2", "format = ?", "is damaged: format is \"?\""),
            ("shards = 4", "shards = 0", "is damaged: shards is \"0\""),
            ("incarnation", "incarnatiom", "it has no line \"incarnation = ...\""),
        ] {
            fs::write(&file, good.replace(from, to)).unwrap();
            let message = open_error(dir.path());
            assert!(message.contains(expected), "{message}");
        }
        fs::write(&file, &good).unwrap();
        fs::remove_dir(dir.path().join("log")).unwrap();
        assert!(open_error(dir.path()).contains("its folder log is missing"));
    }

    #[test]
    fn a_restore_wants_an_empty_directory_and_counts_only_when_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let format = Format { cluster: 1, incarnation: 2, shards: 3 };
        let path = dir.path().join("new");
        let restored = DataDir::begin_restore(&path, format).unwrap();
        fs::write(path.join("state/x"), "x").unwrap();
        drop(restored);
        assert!(open_error(&path).contains("a restore into it was interrupted"));
        let again = DataDir::begin_restore(&path, format).expect_err("not empty");
        assert!(again.0.contains("is not empty"), "{again}");
    }
}
