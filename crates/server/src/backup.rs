//! Backup: a consistent copy of all shards as one file, and back.
//!
//! The file is a header and frames. Each frame has its length and a checksum, and the last frame
//! marks the end, so that a file that was cut off or changed anywhere is refused. The frames
//! contain the records of each shard's checkpoint and the bodies of its tasks. All shards were
//! frozen so that they fit together: in the same turn of their loop, or while no messages between
//! shards flowed (`cluster/copy.rs`).
//!
//! A shard may have copies on several nodes. When one copy is lost during the backup, the shard
//! starts again from another, and its frames so far are void.

mod restore;

pub use restore::{RestoreProgress, restore};

use crate::{
    Error,
    checkpoint::{Cut, Part, Position, RecordKind, View, encode_cut},
    data_dir::Format,
    shard::BackupPart,
};
use bytes::Bytes;
use std::{future::Future, sync::Arc};
use taskyard_machine::ShardId;
use taskyard_replica::NodeId;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 16] = b"taskyard backup\n";
const VERSION: u32 = 7;
/// Frames are filled to this: small enough to stream, large enough that their overhead is
/// negligible.
const FRAME_BYTES: usize = 256 << 10;
/// The bound of a frame, which must fit one record of the largest possible task.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// Bytes to read from a copy at once, approximately.
pub(crate) const PART_BYTES: usize = 2 << 20;
/// The most frames that wait for a slow reader.
const FRAMES_AHEAD: usize = 4;

const KIND_SHARD: u8 = 1;
const KIND_TASKS: u8 = 2;
const KIND_REST: u8 = 3;
const KIND_BODIES: u8 = 4;
const KIND_END: u8 = 5;
const KIND_AGAIN: u8 = 6;

/// The state of one shard on a node, as of a moment that fits the copies of all other shards.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShardCopy {
    pub node: NodeId,
    pub cut: Cut,
}

/// The source of the copies in a backup.
pub(crate) trait Copies: Send + Sync + 'static {
    /// The copies of a shard, the best first; none if the shard has no state yet.
    fn of(&self, shard: ShardId) -> impl Future<Output = Result<Vec<ShardCopy>, Error>> + Send;

    /// The records of a copy from a position on. An error means that the copy is lost.
    fn part(
        &self,
        shard: ShardId,
        copy: &ShardCopy,
        from: &Position,
    ) -> impl Future<Output = Result<Part, Error>> + Send;
}

/// The copies of a lone node: one of each shard.
pub(crate) struct Alone(pub Arc<View>);

impl Copies for Alone {
    async fn of(&self, shard: ShardId) -> Result<Vec<ShardCopy>, Error> {
        let cut = self.0.cut(shard).map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(cut.map(|cut| ShardCopy { node: 0, cut }).into_iter().collect())
    }

    async fn part(&self, shard: ShardId, _: &ShardCopy, from: &Position) -> Result<Part, Error> {
        read_part(Arc::clone(&self.0), shard, from.clone()).await
    }
}

/// Reads a part of a view on a thread that may wait for the disk.
pub(crate) async fn read_part(
    view: Arc<View>,
    shard: ShardId,
    from: Position,
) -> Result<Part, Error> {
    let read = tokio::task::spawn_blocking(move || view.part(shard, &from, PART_BYTES));
    match read.await {
        Ok(part) => part.map_err(|error| Error::Unavailable(error.to_string())),
        Err(_) => Err(Error::Unavailable("a checkpoint can't be read".into())),
    }
}

/// Streams a backup of all shards. A stream without its last part is no backup; its reader gets the
/// reason.
pub(crate) fn stream(
    format: Format,
    copies: impl Copies,
) -> mpsc::Receiver<Result<BackupPart, Error>> {
    let (parts, received) = mpsc::channel(FRAMES_AHEAD);
    tokio::spawn(write(parts, format, copies));
    received
}

/// Streams a backup of a lone node on a thread of its own. The thread ends and closes the view when
/// its reader goes away, even if the reader's own thread is busy. If no thread can be started, the
/// receiver is closed at once, which leaves a file without its last frame.
pub(crate) fn stream_alone(
    format: Format,
    view: View,
) -> mpsc::Receiver<Result<BackupPart, Error>> {
    let (parts, received) = mpsc::channel(FRAMES_AHEAD);
    let run = move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() {
            runtime.block_on(write(parts, format, Alone(Arc::new(view))));
        }
    };
    let _ = std::thread::Builder::new().name("backup".into()).spawn(run);
    received
}

async fn write(
    parts: mpsc::Sender<Result<BackupPart, Error>>,
    format: Format,
    copies: impl Copies,
) {
    let mut writer = Writer { parts, frame: Vec::new(), shards_done: 0 };
    match writer.write_all(format, &copies).await {
        Ok(()) | Err(Stopped::ReaderGone) => {}
        Err(Stopped::Lost(error)) => {
            let error = Error::Unavailable(format!("the backup is incomplete: {error}"));
            let _ = writer.parts.send(Err(error)).await;
        }
    }
}

enum Stopped {
    ReaderGone,
    Lost(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Lost(error)
    }
}

struct Writer {
    parts: mpsc::Sender<Result<BackupPart, Error>>,
    frame: Vec<u8>,
    shards_done: u16,
}

impl Writer {
    async fn write_all(&mut self, format: Format, copies: &impl Copies) -> Result<(), Stopped> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&format.cluster.to_le_bytes());
        header.extend_from_slice(&format.shards.to_le_bytes());
        let checksum = xxh3_64(&header);
        header.extend_from_slice(&checksum.to_le_bytes());
        self.send(header).await?;
        for shard in (0..format.shards).map(ShardId) {
            self.write_shard(copies, shard).await?;
            self.shards_done += 1;
        }
        self.frame.push(KIND_END);
        self.flush().await
    }

    /// Writes a shard from the first of its copies that is not lost.
    async fn write_shard(&mut self, copies: &impl Copies, shard: ShardId) -> Result<(), Stopped> {
        let mut lost = None;
        for copy in copies.of(shard).await? {
            let kind = if lost.is_none() { KIND_SHARD } else { KIND_AGAIN };
            match self.write_copy(kind, copies, shard, &copy).await {
                Err(Stopped::Lost(error)) => {
                    tracing::warn!(
                        "the copy of shard {shard} on node {} is lost: {error}",
                        copy.node
                    );
                    self.frame.clear();
                    lost = Some(error);
                }
                written => return written,
            }
        }
        lost.map_or(Ok(()), |error| Err(Stopped::Lost(error)))
    }

    async fn write_copy(
        &mut self,
        kind: u8,
        copies: &impl Copies,
        shard: ShardId,
        copy: &ShardCopy,
    ) -> Result<(), Stopped> {
        self.frame.push(kind);
        self.frame.extend_from_slice(&shard.0.to_le_bytes());
        self.frame.extend_from_slice(&encode_cut(&copy.cut));
        self.flush().await?;
        let mut position = Position::default();
        while !position.is_end() {
            let part = copies.part(shard, copy, &position).await?;
            let records = part.records_at(&position).map_err(Error::Unavailable)?;
            for record in records {
                match record.kind() {
                    RecordKind::Rest => self.add(KIND_REST, record.key, record.value).await?,
                    RecordKind::Task => self.add_task(KIND_TASKS, record.key, record.value).await?,
                    RecordKind::Body => {
                        self.add_task(KIND_BODIES, record.key, record.value).await?;
                    }
                }
            }
            position = part.next;
        }
        self.flush().await
    }

    /// Adds the record or body of a task. The bytes of its id have the opposite order in the store.
    async fn add_task(&mut self, kind: u8, id: &[u8], value: &[u8]) -> Result<(), Stopped> {
        let id: Vec<u8> = id.iter().rev().copied().collect();
        self.add(kind, &id, value).await
    }

    async fn add(&mut self, kind: u8, key: &[u8], value: &[u8]) -> Result<(), Stopped> {
        if self.frame.len() >= FRAME_BYTES || self.frame.first().is_some_and(|held| *held != kind) {
            self.flush().await?;
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

    async fn flush(&mut self) -> Result<(), Stopped> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.frame);
        let mut bytes = Vec::with_capacity(12 + frame.len());
        bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&frame).to_le_bytes());
        bytes.extend_from_slice(&frame);
        self.send(bytes).await
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), Stopped> {
        let part = BackupPart { data: Bytes::from(bytes), shards_done: self.shards_done };
        self.parts.send(Ok(part)).await.map_err(|_| Stopped::ReaderGone)
    }
}

#[cfg(test)]
mod tests;
