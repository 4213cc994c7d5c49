//! Restore: makes a data directory from a backup file, offline.
//!
//! The file is read twice: first to check that it is whole, then into the directory. A file that
//! cannot be restored therefore leaves no trace. The frames of a shard that starts again later are
//! skipped.

use super::{
    FRAME_BYTES_MAX, KIND_AGAIN, KIND_BODIES, KIND_END, KIND_REST, KIND_SHARD, KIND_TASKS, MAGIC,
    VERSION,
};
use crate::{
    checkpoint::{Change, Cut, StoreError, decode_cut},
    data_dir::{DataDir, Format},
    log::{Batch, group_of},
    node::StartError,
};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufReader, Read},
    path::Path,
};
use taskyard_machine::{RecordKey, ShardId, TaskId};
use taskyard_replica::eraftpb::{ConfState, HardState};
use xxhash_rust::xxh3::xxh3_64;

/// The progress of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreProgress {
    /// The bytes of the file that were read.
    pub bytes_read: u64,
    /// The length of the file.
    pub bytes_total: u64,
    /// The number of tasks restored so far.
    pub tasks: u64,
}

/// Makes a data directory from a backup file, offline. The directory must be new or empty. Tasks
/// keep their ids. New ids differ from them, because the directory gets an incarnation of its own.
pub fn restore(
    file: &Path,
    data: &Path,
    mut progress: impl FnMut(RestoreProgress),
) -> Result<RestoreProgress, StartError> {
    // A file that cannot be restored whole leaves no trace.
    let mut reader = Reader::open(file)?;
    let shards = reader.header()?.shards;
    let void = reader.check(shards)?;
    let existed = data.exists();
    let mut reader = Reader::open(file)?;
    let format = reader.header()?;
    let dir = DataDir::begin_restore(data, format)?;
    let restored = restore_into(&mut reader, &dir, &void, &mut progress).and_then(|()| dir.seal());
    if let Err(error) = restored {
        drop(dir);
        // The directory has only the files that this restore has made.
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
    void: &BTreeSet<usize>,
    progress: &mut impl FnMut(RestoreProgress),
) -> Result<(), StartError> {
    let failed = |error: StoreError| StartError(error.to_string());
    let (store, log) = dir.contents()?;
    let mut batch = Batch::default();
    let mut current: Option<(ShardId, Cut)> = None;
    let mut begun = 0;
    loop {
        let frame = reader.frame()?;
        match frame {
            Frame::End => break,
            Frame::Shard { shard, cut, .. } => {
                begun += 1;
                if void.contains(&begun) {
                    current = None;
                    continue;
                }
                // The restored replica is the only one of its shard, whatever the old group was.
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
                let Some((shard, cut)) = &current else { continue };
                let is_task =
                    |change: &&Change| matches!(change, Change::Record(RecordKey::Task(_), _));
                reader.progress.tasks += changes.iter().filter(is_task).count() as u64;
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
    /// The start of a shard; `again` if its earlier frames are void.
    Shard {
        shard: ShardId,
        cut: Cut,
        again: bool,
    },
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
        // The directory is a new cluster, so that running nodes of the old one do not take it for
        // theirs.
        Ok(Format::random(shards))
    }

    /// Reads the whole file once, to check that it is complete. Returns the numbers, from 1, of the
    /// void starts of shards.
    fn check(&mut self, shards: u16) -> Result<BTreeSet<usize>, StartError> {
        let mut void = BTreeSet::new();
        let mut begun = 0;
        let mut current = None;
        loop {
            match self.frame()? {
                Frame::End => return Ok(void),
                Frame::Shard { shard, again, .. } => {
                    // Shards come in order, each once, unless the last one starts again.
                    let follows =
                        if again { current == Some(shard) } else { current < Some(shard) };
                    if !follows || shard.0 >= shards {
                        return Err(self.damaged());
                    }
                    if again {
                        void.insert(begun);
                    }
                    begun += 1;
                    current = Some(shard);
                }
                Frame::Changes(_) if current.is_some() => {}
                Frame::Changes(_) => return Err(self.damaged()),
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
        decode_frame(&frame).ok_or_else(|| self.damaged())
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
        KIND_SHARD | KIND_AGAIN => {
            let shard = ShardId(u16::from_le_bytes(*rest.split_off(..2)?.first_chunk()?));
            Some(Frame::Shard { shard, cut: decode_cut(rest)?, again: *kind == KIND_AGAIN })
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
