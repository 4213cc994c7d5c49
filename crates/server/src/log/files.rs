//! Files: the log's files, with the system's error messages.
//!
//! raft-engine replaces the system's error by the name of the call, and panics when a sync fails.
//! Here a failed sync unwinds to the writer with the system's error, and prints no panic message.
//! Invariant: after a failed sync nothing is synced again, because a second sync may report success
//! although data was lost.
//!
//! raft-engine moves entries into `*.rewrite` files with several writes and one sync. A power cut
//! may then keep a later write and lose an earlier one, which looks like damage. So each write to
//! these files is synced before the next one begins, as in the log itself.

use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{
    io::{self, Seek, SeekFrom, Write},
    panic::resume_unwind,
    path::Path,
    sync::Arc,
};

type Fd = <DefaultFileSystem as FileSystem>::Handle;

/// The payload of the panic after a failed sync.
pub(super) struct SyncFailed(pub io::Error);

/// The system's last error, if raft-engine has kept only the name of the call.
fn system_error(error: io::Error) -> io::Error {
    let last = io::Error::last_os_error();
    let is_told =
        error.raw_os_error().is_some() || last.raw_os_error().is_none_or(|code| code == 0);
    if is_told { error } else { last }
}

/// Opens the log's files.
#[derive(Clone, Default)]
pub(super) struct Files {
    /// Simulates a disk whose sync fails.
    #[cfg(test)]
    pub(super) faults: Arc<SyncFaults>,
}

#[cfg(test)]
pub(super) struct SyncFaults {
    syncs_left: AtomicU64,
    /// By file: the synced bytes, once `watch_syncs` was called.
    synced: std::sync::Mutex<Option<std::collections::BTreeMap<std::path::PathBuf, usize>>>,
}

#[cfg(test)]
impl Default for SyncFaults {
    fn default() -> SyncFaults {
        SyncFaults { syncs_left: AtomicU64::new(u64::MAX), synced: None.into() }
    }
}

#[cfg(test)]
impl SyncFaults {
    pub(super) fn fail_after(&self, syncs: u64) {
        self.syncs_left.store(syncs, Ordering::Relaxed);
    }

    /// Starts to record how much of each file is synced.
    pub(super) fn watch_syncs(&self) {
        self.synced.lock().unwrap().get_or_insert_default();
    }

    fn note_synced(&self, path: &Path) {
        if let Some(synced) = self.synced.lock().unwrap().as_mut() {
            synced.insert(path.to_path_buf(), written_bytes(path));
        }
    }

    /// The synced bytes of a file; all of its bytes if it was not synced since `watch_syncs`.
    pub(super) fn synced_bytes(&self, path: &Path) -> usize {
        let synced = self.synced.lock().unwrap();
        let known = synced.as_ref().and_then(|synced| synced.get(path).copied());
        known.unwrap_or_else(|| written_bytes(path))
    }

    fn fails(&self) -> bool {
        let spend = |left: u64| left.checked_sub(1);
        self.syncs_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err()
    }
}

/// The written bytes of a file. Zeros at the end were only allocated.
#[cfg(test)]
fn written_bytes(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

impl Files {
    fn watched(&self, path: &Path, fd: Fd) -> LogFile {
        LogFile {
            fd: Arc::new(fd),
            syncs_each_write: path.extension().is_some_and(|end| end == "rewrite"),
            #[cfg(test)]
            path: path.to_path_buf(),
            #[cfg(test)]
            faults: Arc::clone(&self.faults),
        }
    }
}

impl FileSystem for Files {
    type Handle = LogFile;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = LogWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<LogFile> {
        let path = path.as_ref();
        DefaultFileSystem.create(path).map(|fd| self.watched(path, fd)).map_err(system_error)
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<LogFile> {
        let path = path.as_ref();
        let opened = DefaultFileSystem.open(path, permission);
        opened.map(|fd| self.watched(path, fd)).map_err(system_error)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        DefaultFileSystem.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        DefaultFileSystem.rename(from, to)
    }

    fn new_reader(&self, file: Arc<LogFile>) -> io::Result<Self::Reader> {
        DefaultFileSystem.new_reader(Arc::clone(&file.fd))
    }

    fn new_writer(&self, file: Arc<LogFile>) -> io::Result<LogWriter> {
        let writer = DefaultFileSystem.new_writer(Arc::clone(&file.fd))?;
        Ok(LogWriter { writer, file })
    }
}

pub(super) struct LogFile {
    fd: Arc<Fd>,
    /// Whether each write is synced before the next one begins.
    syncs_each_write: bool,
    #[cfg(test)]
    path: std::path::PathBuf,
    #[cfg(test)]
    faults: Arc<SyncFaults>,
}

impl Handle for LogFile {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.fd.truncate(offset).map_err(system_error)
    }

    fn file_size(&self) -> io::Result<usize> {
        self.fd.file_size().map_err(system_error)
    }

    /// Unwinds with [`SyncFailed`] on failure.
    fn sync(&self) -> io::Result<()> {
        let synced = self.fd.sync().map_err(system_error);
        #[cfg(test)]
        let synced = if self.faults.fails() {
            const EIO: i32 = 5;
            Err(io::Error::from_raw_os_error(EIO))
        } else {
            synced
        };
        #[cfg(test)]
        if synced.is_ok() {
            self.faults.note_synced(&self.path);
        }
        synced.or_else(|error| resume_unwind(Box::new(SyncFailed(error))))
    }
}

pub(super) struct LogWriter {
    writer: <DefaultFileSystem as FileSystem>::Writer,
    file: Arc<LogFile>,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes).map_err(system_error)?;
        if self.file.syncs_each_write {
            self.file.sync()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Seek for LogWriter {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.writer.seek(position)
    }
}

impl WriteExt for LogWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.writer.truncate(offset).map_err(system_error)
    }

    fn allocate(&mut self, offset: usize, bytes: usize) -> io::Result<()> {
        self.writer.allocate(offset, bytes).map_err(system_error)
    }
}
