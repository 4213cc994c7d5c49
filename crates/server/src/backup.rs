//! Backup: a consistent copy of all shards as one file, and back.
//!
//! The file is a header and frames, each with its length and checksum; the last one says that it is the
//! last. So a file that was cut off or changed anywhere is refused. What is in it are the records of each
//! shard's checkpoint and the bodies of its tasks. All shards were frozen in the same turn of their
//! loop: what one owes another is in one of the two.

use crate::{
    Error,
    checkpoint::{Change, Cut, StoreError, View, decode_cut, encode_cut},
    data_dir::{DataDir, Format},
    log::{Batch, group_of},
    node::StartError,
    shard::BackupPart,
};
use bytes::Bytes;
use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::Path,
};
use taskyard_machine::{RecordKey, ShardId, TaskId};
use taskyard_replica::eraftpb::{ConfState, HardState};
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 16] = b"taskyard backup\n";
const VERSION: u32 = 3;
/// Frames are filled to this: small enough to stream, large enough to cost nothing.
const FRAME_BYTES: usize = 256 << 10;
/// No frame is larger: one record, of the largest task there can be.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// Parts that wait for a slow reader.
const PARTS_AHEAD: usize = 4;

const KIND_SHARD: u8 = 1;
const KIND_TASKS: u8 = 2;
const KIND_REST: u8 = 3;
const KIND_BODIES: u8 = 4;
const KIND_END: u8 = 5;

/// Streams what the view shows, from a thread of its own.
pub(crate) fn stream(view: View, format: Format) -> mpsc::Receiver<Result<BackupPart, Error>> {
    let (parts, received) = mpsc::channel(PARTS_AHEAD);
    let mut writer = Writer { parts, frame: Vec::new(), shards_done: 0 };
    let write = move || match writer.write_all(&view, format) {
        Ok(()) | Err(Stopped::ReaderGone) => {}
        Err(Stopped::Store(error)) => {
            let error = Error::Unavailable(format!("the backup is incomplete: {error}"));
            let _ = writer.parts.blocking_send(Err(error));
        }
    };
    // Where no thread can be had, the receiver is closed at once: a file without its last frame.
    let _ = std::thread::Builder::new().name("backup".into()).spawn(write);
    received
}

enum Stopped {
    ReaderGone,
    Store(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Stopped {
        Stopped::Store(error)
    }
}

struct Writer {
    parts: mpsc::Sender<Result<BackupPart, Error>>,
    frame: Vec<u8>,
    shards_done: u16,
}

impl Writer {
    fn write_all(&mut self, view: &View, format: Format) -> Result<(), Stopped> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&format.cluster.to_le_bytes());
        header.extend_from_slice(&format.shards.to_le_bytes());
        let checksum = xxh3_64(&header);
        header.extend_from_slice(&checksum.to_le_bytes());
        self.send(header)?;
        for shard in (0..format.shards).map(ShardId) {
            if let Some(cut) = view.cut(shard)? {
                self.write_shard(view, shard, &cut)?;
            }
            self.shards_done += 1;
        }
        self.frame.push(KIND_END);
        self.flush()
    }

    fn write_shard(&mut self, view: &View, shard: ShardId, cut: &Cut) -> Result<(), Stopped> {
        self.frame.push(KIND_SHARD);
        self.frame.extend_from_slice(&shard.0.to_le_bytes());
        self.frame.extend_from_slice(&encode_cut(cut));
        self.flush()?;
        for record in view.records(shard) {
            match record? {
                (RecordKey::Task(task), value) => {
                    self.add(KIND_TASKS, &task.to_u128().to_le_bytes(), &value)?;
                }
                (RecordKey::Rest(key), value) => self.add(KIND_REST, &key, &value)?,
            }
        }
        for body in view.bodies(shard) {
            let (task, body) = body?;
            self.add(KIND_BODIES, &task.to_u128().to_le_bytes(), &body)?;
        }
        self.flush()
    }

    fn add(&mut self, kind: u8, key: &[u8], value: &[u8]) -> Result<(), Stopped> {
        if self.frame.len() >= FRAME_BYTES || self.frame.first().is_some_and(|held| *held != kind) {
            self.flush()?;
        }
        if self.frame.is_empty() {
            self.frame.push(kind);
        }
        for part in [key, value] {
            self.frame.extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.frame.extend_from_slice(part);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.frame);
        let mut bytes = Vec::with_capacity(12 + frame.len());
        bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&frame).to_le_bytes());
        bytes.extend_from_slice(&frame);
        self.send(bytes)
    }

    fn send(&mut self, bytes: Vec<u8>) -> Result<(), Stopped> {
        let part = BackupPart { data: Bytes::from(bytes), shards_done: self.shards_done };
        self.parts.blocking_send(Ok(part)).map_err(|_| Stopped::ReaderGone)
    }
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Bytes of the file that were read.
    pub bytes_read: u64,
    /// Its length.
    pub bytes_total: u64,
    /// Tasks restored so far.
    pub tasks: u64,
}

/// Makes a data directory of a backup file, offline. The directory must be new or empty. Tasks keep
/// their ids; new ones can't meet them, since the directory gets an incarnation of its own.
pub fn restore(
    file: &Path,
    data: &Path,
    mut progress: impl FnMut(RestoreProgress),
) -> Result<RestoreProgress, StartError> {
    // A file that can't be restored whole leaves no trace.
    let mut reader = Reader::open(file)?;
    let shards = reader.header()?.shards;
    reader.check(shards)?;
    let existed = data.exists();
    let mut reader = Reader::open(file)?;
    let format = reader.header()?;
    let dir = DataDir::begin_restore(data, format)?;
    let restored = restore_into(&mut reader, &dir, &mut progress).and_then(|()| dir.seal());
    if let Err(error) = restored {
        drop(dir);
        // Nothing but what this has made is there.
        for made in ["log", "state"] {
            let _ = fs::remove_dir_all(data.join(made));
        }
        let _ = fs::remove_file(data.join("LOCK"));
        if !existed {
            let _ = fs::remove_dir(data);
        }
        return Err(error);
    }
    Ok(reader.progress)
}

fn restore_into(
    reader: &mut Reader,
    dir: &DataDir,
    progress: &mut impl FnMut(RestoreProgress),
) -> Result<(), StartError> {
    let failed = |error: StoreError| StartError(error.to_string());
    let (store, log) = dir.contents()?;
    let mut batch = Batch::default();
    let mut current: Option<(ShardId, Cut)> = None;
    loop {
        let frame = reader.frame()?;
        match frame {
            Frame::End => break,
            Frame::Shard(shard, cut) => {
                // It is the only replica of its shard, whatever there was.
                let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
                let hard_state =
                    HardState { term: cut.term, commit: cut.index, ..HardState::default() };
                batch.hard_state(group_of(shard), &hard_state);
                batch.cut(group_of(shard), cut.index);
                let cut = Cut { conf_state, ..cut };
                store.write(shard, &cut, Vec::new()).map_err(failed)?;
                current = Some((shard, cut));
            }
            Frame::Changes(changes) => {
                let (shard, cut) =
                    current.as_ref().expect("the file was checked: a shard is first");
                store.write(*shard, cut, changes).map_err(failed)?;
            }
        }
        progress(reader.progress);
    }
    if !batch.is_empty() {
        log.write(&mut batch).map_err(|error| StartError(error.to_string()))?;
    }
    Ok(())
}

enum Frame {
    Shard(ShardId, Cut),
    Changes(Vec<Change>),
    End,
}

struct Reader {
    path: String,
    file: BufReader<File>,
    progress: RestoreProgress,
}

impl Reader {
    fn open(path: &Path) -> Result<Reader, StartError> {
        let shown = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes_total, file) =
            opened.map_err(|error| StartError(format!("{shown} can't be read: {error}")))?;
        let progress = RestoreProgress { bytes_read: 0, bytes_total, tasks: 0 };
        Ok(Reader { path: shown, file: BufReader::new(file), progress })
    }

    fn header(&mut self) -> Result<Format, StartError> {
        let magic: [u8; 16] = self.array()?;
        if magic != *MAGIC {
            return Err(StartError(format!(
                "{} is not a backup of taskyard; name the file that `taskyard backup` has written",
                self.path
            )));
        }
        let version: [u8; 4] = self.array()?;
        if u32::from_le_bytes(version) != VERSION {
            let found = u32::from_le_bytes(version);
            return Err(StartError(format!(
                "{} has backup version {found}, this taskyard reads {VERSION}; restore it with the version that wrote it",
                self.path
            )));
        }
        let cluster: [u8; 16] = self.array()?;
        let shards: [u8; 2] = self.array()?;
        let checksum: [u8; 8] = self.array()?;
        let header = [&magic[..], &version, &cluster, &shards].concat();
        let shards = u16::from_le_bytes(shards);
        if xxh3_64(&header) != u64::from_le_bytes(checksum) || shards == 0 {
            return Err(self.damaged());
        }
        // A cluster of its own: nodes of the old one that still run must not take it for theirs.
        Ok(Format::random(shards))
    }

    /// Reads all of it once: whether it is whole.
    fn check(&mut self, shards: u16) -> Result<(), StartError> {
        let mut in_shard = false;
        loop {
            match self.frame()? {
                Frame::End => return Ok(()),
                Frame::Shard(shard, _) if shard.0 < shards => in_shard = true,
                Frame::Changes(_) if in_shard => {}
                Frame::Shard(..) | Frame::Changes(_) => return Err(self.damaged()),
            }
        }
    }

    fn frame(&mut self) -> Result<Frame, StartError> {
        let length: [u8; 4] = self.array()?;
        let checksum: [u8; 8] = self.array()?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(self.damaged());
        }
        let mut frame = vec![0; length];
        self.fill(&mut frame)?;
        if xxh3_64(&frame) != u64::from_le_bytes(checksum) {
            return Err(self.damaged());
        }
        let decoded = decode_frame(&frame).ok_or_else(|| self.damaged())?;
        if let Frame::Changes(changes) = &decoded {
            let tasks = changes
                .iter()
                .filter(|change| matches!(change, Change::Record(RecordKey::Task(_), _)));
            self.progress.tasks += tasks.count() as u64;
        }
        Ok(decoded)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StartError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StartError> {
        let at = self.progress.bytes_read;
        self.file.read_exact(bytes).map_err(|error| {
            StartError(match error.kind() {
                std::io::ErrorKind::UnexpectedEof => format!(
                    "{} is cut off after {} bytes; take another backup",
                    self.path, self.progress.bytes_total
                ),
                _ => format!("{} can't be read at byte {at}: {error}", self.path),
            })
        })?;
        self.progress.bytes_read += bytes.len() as u64;
        Ok(())
    }

    fn damaged(&self) -> StartError {
        StartError(format!(
            "{} is damaged before byte {}; take another backup",
            self.path, self.progress.bytes_read
        ))
    }
}

fn decode_frame(frame: &[u8]) -> Option<Frame> {
    let (kind, mut rest) = frame.split_first()?;
    match *kind {
        KIND_END => rest.is_empty().then_some(Frame::End),
        KIND_SHARD => {
            let shard = u16::from_le_bytes(*rest.split_off(..2)?.first_chunk()?);
            Some(Frame::Shard(ShardId(shard), decode_cut(rest)?))
        }
        KIND_TASKS | KIND_REST | KIND_BODIES => {
            let mut changes = Vec::new();
            while !rest.is_empty() {
                let (key, value) = (take_part(&mut rest)?, take_part(&mut rest)?);
                changes.push(match *kind {
                    KIND_REST => Change::Record(RecordKey::Rest(key.into()), Some(value.into())),
                    KIND_TASKS => {
                        Change::Record(RecordKey::Task(task_id(key)?), Some(value.into()))
                    }
                    _ => Change::Body(task_id(key)?, Bytes::copy_from_slice(value)),
                });
            }
            Some(Frame::Changes(changes))
        }
        _ => None,
    }
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
    rest.split_off(..length as usize)
}

fn task_id(key: &[u8]) -> Option<TaskId> {
    Some(TaskId::from_u128(u128::from_le_bytes(key.try_into().ok()?)))
}
