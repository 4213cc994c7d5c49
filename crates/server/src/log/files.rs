//! Files: the log's files, whose failures keep the words of the system.
//!
//! raft-engine replaces the system's error by the name of the call, and panics where a sync fails. Here a
//! failed sync unwinds to the writer with its error and without a panic's message. Invariant: after a
//! failed sync nothing is synced again, since a second try may report success for what is lost.

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

/// What a failed sync unwinds with.
pub(super) struct SyncFailed(pub io::Error);

/// What the last call said, where raft-engine kept its name alone.
fn system_error(error: io::Error) -> io::Error {
    let last = io::Error::last_os_error();
    let is_told =
        error.raw_os_error().is_some() || last.raw_os_error().is_none_or(|code| code == 0);
    if is_told { error } else { last }
}

/// Opens the log's files.
#[derive(Clone, Default)]
pub(super) struct Files {
    /// Stands in for a disk whose sync fails.
    #[cfg(test)]
    pub(super) faults: Arc<SyncFaults>,
}

/// Syncs that succeed before one fails.
#[cfg(test)]
pub(super) struct SyncFaults {
    syncs_left: AtomicU64,
}

#[cfg(test)]
impl Default for SyncFaults {
    fn default() -> SyncFaults {
        SyncFaults { syncs_left: AtomicU64::new(u64::MAX) }
    }
}

#[cfg(test)]
impl SyncFaults {
    pub(super) fn fail_after(&self, syncs: u64) {
        self.syncs_left.store(syncs, Ordering::Relaxed);
    }

    fn fails(&self) -> bool {
        let spend = |left: u64| left.checked_sub(1);
        self.syncs_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err()
    }
}

impl Files {
    fn watched(&self, fd: Fd) -> LogFile {
        LogFile {
            fd: Arc::new(fd),
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
        DefaultFileSystem.create(path).map(|fd| self.watched(fd)).map_err(system_error)
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<LogFile> {
        DefaultFileSystem.open(path, permission).map(|fd| self.watched(fd)).map_err(system_error)
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
        DefaultFileSystem.new_writer(Arc::clone(&file.fd)).map(LogWriter)
    }
}

/// One open file of the log.
pub(super) struct LogFile {
    fd: Arc<Fd>,
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

    /// Unwinds with [`SyncFailed`] if it fails.
    fn sync(&self) -> io::Result<()> {
        let synced = self.fd.sync().map_err(system_error);
        #[cfg(test)]
        let synced = if self.faults.fails() {
            const EIO: i32 = 5;
            Err(io::Error::from_raw_os_error(EIO))
        } else {
            synced
        };
        synced.or_else(|error| resume_unwind(Box::new(SyncFailed(error))))
    }
}

/// Writes one file of the log.
pub(super) struct LogWriter(<DefaultFileSystem as FileSystem>::Writer);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(system_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Seek for LogWriter {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.0.seek(position)
    }
}

impl WriteExt for LogWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.0.truncate(offset).map_err(system_error)
    }

    fn allocate(&mut self, offset: usize, bytes: usize) -> io::Result<()> {
        self.0.allocate(offset, bytes).map_err(system_error)
    }
}
