//! Install: a snapshot of a shard arrives part by part beside the current state, and then replaces
//! it.
//!
//! Each part is one synced batch, together with the position after it. An install can therefore go
//! on after any cut or kill. The switch is one synced batch too, so that a crash leaves the old
//! state or the new one. The log is reset after the switch. Until then, the switch's mark in the
//! store ([`View::is_installed`]) shows that the log is outdated.

use super::{
    Cut, Store, StoreError, View,
    generations::Slot,
    keys::{Generation, full_key, install_key, slot_key},
    parts::{Part, Position},
};
use fjall::PersistMode;
use taskyard_machine::{
    RecordKey, ShardId,
    wire::{decode_from_node, encode_for_node, wire_struct},
};
use taskyard_replica::NodeId;

/// The version of the record with an install's progress.
const INSTALL_VERSION: u8 = 2;

/// The identity of a snapshot, and the replica that it is for. The replica id keeps late messages
/// of a removed replica from reaching its successor on this node, even if both get the same
/// snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotId {
    /// The node from which it is fetched.
    pub source: NodeId,
    /// The index of its last entry.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The replica that it is for; its id is never used again.
    pub replica: u64,
}

wire_struct!(SnapshotId { source, index, term, replica });

/// An install in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Install {
    pub id: SnapshotId,
    pub generation: Generation,
    pub arrived: Arrived,
}

/// The progress of an install.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The position of the next part.
    pub position: Position,
    /// Bytes of all parts so far.
    pub bytes: u64,
}

wire_struct!(Arrived { position, bytes });

/// The record of an install on disk.
struct Stored {
    id: SnapshotId,
    generation: u8,
    arrived: Arrived,
}

wire_struct!(Stored { id, generation, arrived });

impl Install {
    fn is_new(&self) -> bool {
        self.arrived == Arrived::default()
    }

    fn encode(&self) -> Vec<u8> {
        let Install { id, generation, arrived } = self.clone();
        encode_for_node(INSTALL_VERSION, &Stored { id, generation: generation as u8, arrived })
    }

    fn decode(bytes: &[u8]) -> Option<Install> {
        let Stored { id, generation, arrived } = decode_from_node(INSTALL_VERSION, bytes).ok()?;
        let generation = Generation::from_byte(generation)?;
        Some(Install { id, generation, arrived })
    }
}

/// Why an install cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// The install was given up or replaced.
    #[error("another snapshot or a checkpoint took its place")]
    GivenUp,
    /// The part was damaged on its way, or belongs elsewhere.
    #[error("a part of the snapshot can't be used: {0}")]
    Unfit(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// The record of a shard's install on disk.
    pub(super) fn stored_install(&self, shard: ShardId) -> Result<Option<Install>, StoreError> {
        let found =
            self.rest.get(install_key(shard)).map_err(|error| self.error("read", &error))?;
        let damaged = || self.damaged("the record of an install is damaged");
        found.map(|bytes| Install::decode(&bytes).ok_or_else(damaged)).transpose()
    }

    /// Begins an install, or continues one, and returns its progress. The remains of another
    /// install are removed first, which may take a while.
    pub(crate) fn begin_install(
        &self,
        shard: ShardId,
        id: SnapshotId,
    ) -> Result<Arrived, InstallError> {
        let install = self.reserve(shard, id)?;
        if !install.is_new() {
            return Ok(install.arrived);
        }
        self.empty(shard, install.generation)?;
        let moves = self.moves();
        if moves.installing.get(&shard) != Some(&install) {
            return Err(InstallError::GivenUp);
        }
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&self.rest, install_key(shard), install.encode());
        batch.commit().map_err(|error| self.error("written", &error))?;
        Ok(install.arrived)
    }

    /// Finds the install on disk, or reserves a generation for a new one. Nothing else uses the
    /// generation from now on; until the generation is empty, the disk has no record of the
    /// install.
    fn reserve(&self, shard: ShardId, id: SnapshotId) -> Result<Install, InstallError> {
        let mut moves = self.moves();
        let generation = self.current(shard).map_or(Generation::First, Generation::other);
        let stored = self.stored_install(shard)?;
        let known =
            stored.as_ref().filter(|stored| (stored.id, stored.generation) == (id, generation));
        let install = match known {
            Some(known) => {
                moves.take_back(shard, generation);
                known.clone()
            }
            None => Install { id, generation, arrived: Arrived::default() },
        };
        if known.is_none() && stored.is_some() {
            let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
            batch.remove(&self.rest, install_key(shard));
            batch.commit().map_err(|error| self.error("written", &error))?;
        }
        moves.installing.insert(shard, install.clone());
        Ok(install)
    }

    /// Writes the next part of an install, synced; returns the new progress.
    pub(crate) fn put_part(
        &self,
        shard: ShardId,
        id: SnapshotId,
        part: &Part,
    ) -> Result<Arrived, InstallError> {
        let mut moves = self.moves();
        let install = moves.installing.get_mut(&shard).filter(|install| install.id == id);
        let install = install.ok_or(InstallError::GivenUp)?;
        let records = part.records_at(&install.arrived.position).map_err(InstallError::Unfit)?;
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for record in records {
            let key = full_key(shard, install.generation, record.key);
            batch.insert(self.keyspace_at(record.place), key, record.value);
        }
        let bytes = install.arrived.bytes + part.records.len() as u64;
        let arrived = Arrived { position: part.next.clone(), bytes };
        let arrived = Install { arrived, ..install.clone() };
        batch.insert(&self.rest, install_key(shard), arrived.encode());
        batch.commit().map_err(|error| self.error("written", &error))?;
        *install = arrived;
        Ok(install.arrived.clone())
    }

    /// Makes the installed state the current state of its shard, synced; the previous state becomes
    /// garbage. `false` if the install is gone or incomplete, because another snapshot or a
    /// checkpoint replaced it.
    pub(crate) fn switch(
        &self,
        shard: ShardId,
        id: SnapshotId,
        cut: &Cut,
    ) -> Result<bool, StoreError> {
        #[cfg(test)]
        self.gate.pass();
        let mut moves = self.moves();
        let install = moves.installing.get(&shard);
        let is_whole = |install: &&Install| install.id == id && install.arrived.position.is_end();
        let Some(&Install { generation, .. }) = install.filter(is_whole) else { return Ok(false) };
        let slot = Slot { generation, cut: cut.clone(), is_installed: true };
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&self.rest, slot_key(shard), slot.encode());
        batch.remove(&self.rest, install_key(shard));
        batch.commit().map_err(|error| self.error("written", &error))?;
        moves.installing.remove(&shard);
        if let Some(old) = self.current(shard) {
            moves.discard(shard, old);
        }
        self.set_current(shard, Some(generation));
        Ok(true)
    }

    /// Gives up an install, if it exists. This changes memory alone; its records are removed as
    /// garbage.
    pub(crate) fn discard_install(&self, shard: ShardId, id: SnapshotId) {
        let mut moves = self.moves();
        let install = moves.installing.get(&shard).filter(|install| install.id == id);
        if let Some(&Install { generation, .. }) = install {
            moves.installing.remove(&shard);
            moves.discard(shard, generation);
        }
    }

    /// Gives up an install that a checkpoint of the shard itself has overtaken.
    pub(super) fn discard_overtaken(&self, shard: ShardId, index: u64) {
        let mut moves = self.moves();
        let install = moves.installing.get(&shard);
        let overtaken = install.filter(|install| install.id.index <= index);
        if let Some(&Install { generation, .. }) = overtaken {
            moves.installing.remove(&shard);
            moves.discard(shard, generation);
        }
    }

    /// Begins an install anew, because a part of it was wrong.
    pub(crate) fn restart_install(
        &self,
        shard: ShardId,
        id: SnapshotId,
    ) -> Result<Arrived, InstallError> {
        let generation = {
            let mut moves = self.moves();
            let install = moves.installing.remove(&shard).filter(|install| install.id == id);
            let generation = install.ok_or(InstallError::GivenUp)?.generation;
            moves.discard(shard, generation);
            generation
        };
        self.empty(shard, generation)?;
        self.begin_install(shard, id)
    }

    /// Shards whose installs are complete, and not yet switched to.
    #[cfg(test)]
    pub(crate) fn whole_installs(&self) -> Vec<ShardId> {
        let moves = self.moves();
        let whole =
            moves.installing.iter().filter(|(_, install)| install.arrived.position.is_end());
        whole.map(|(shard, _)| *shard).collect()
    }

    /// The approximate number of records of all installs in progress.
    pub(super) fn records_arrived(&self) -> u64 {
        let moves = self.moves();
        moves.installing.values().map(|install| install.arrived.position.records).sum()
    }
}

/// Delays the switch to a snapshot, as a stuck disk would.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Gate {
    /// Whether the gate is shut, and how many threads wait at it.
    state: std::sync::Mutex<(bool, usize)>,
    opened: std::sync::Condvar,
}

#[cfg(test)]
impl Gate {
    pub(crate) fn shut(&self) {
        self.state.lock().unwrap().0 = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.opened.notify_all();
    }

    pub(crate) fn is_waited_at(&self) -> bool {
        self.state.lock().unwrap().1 > 0
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        state = self.opened.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }
}

impl View {
    /// All records of a complete install, for rebuilding the state.
    pub(crate) fn installed_records(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>> + '_ {
        let moves = self.store.moves();
        let generation = moves.installing.get(&shard).map(|install| install.generation);
        self.records_of(shard, Ok(generation))
    }
}
