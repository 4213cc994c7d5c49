//! Install: a snapshot of a shard arrives part by part beside the current state, and takes its place.
//!
//! Each part is one synced batch with the position after it, so that an install goes on where it was,
//! whatever was cut or killed. The switch is one synced batch too: a crash leaves the old state or the
//! new one. The log is reset after the switch; until it is, the store's word on that is the mark that
//! the switch leaves ([`View::is_installed`]).

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

/// Version of the record that says how far an install has come.
const INSTALL_VERSION: u8 = 1;

/// Which snapshot of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotId {
    /// The node that it is fetched from.
    pub source: NodeId,
    /// The last entry in it.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
}

wire_struct!(SnapshotId { source, index, term });

/// An install under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Install {
    pub id: SnapshotId,
    pub generation: Generation,
    pub arrived: Arrived,
    /// The shard loop is about to switch to it: nothing else may take its place.
    pub is_claimed: bool,
}

/// How far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// What comes next.
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
        let Install { id, generation, arrived, .. } = self.clone();
        encode_for_node(INSTALL_VERSION, &Stored { id, generation: generation as u8, arrived })
    }

    fn decode(bytes: &[u8]) -> Option<Install> {
        let Stored { id, generation, arrived } = decode_from_node(INSTALL_VERSION, bytes).ok()?;
        let generation = Generation::from_byte(generation)?;
        Some(Install { id, generation, arrived, is_claimed: false })
    }
}

/// Why an install does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// It was given up, or another one has its place.
    #[error("another snapshot or a checkpoint took its place")]
    GivenUp,
    /// It was damaged on its way, or does not belong here.
    #[error("a part of the snapshot can't be used: {0}")]
    Unfit(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// The install of a shard as it was left on disk.
    pub(super) fn stored_install(&self, shard: ShardId) -> Result<Option<Install>, StoreError> {
        let found =
            self.rest.get(install_key(shard)).map_err(|error| self.error("read", &error))?;
        let damaged = || self.damaged("the record of an install is damaged");
        found.map(|bytes| Install::decode(&bytes).ok_or_else(damaged)).transpose()
    }

    /// Begins an install, or goes on with it if it was begun: says how far it had come. What another one
    /// has left is removed first, which may take a while.
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

    /// Finds the install on disk, or a place for a new one. From here on nothing else gets that place; until
    /// it is empty the disk knows of no install there.
    fn reserve(&self, shard: ShardId, id: SnapshotId) -> Result<Install, InstallError> {
        let mut moves = self.moves();
        if moves.installing.get(&shard).is_some_and(|install| install.is_claimed) {
            return Err(InstallError::GivenUp);
        }
        let generation = self.current(shard).map_or(Generation::First, Generation::other);
        let stored = self.stored_install(shard)?;
        let known =
            stored.as_ref().filter(|stored| (stored.id, stored.generation) == (id, generation));
        let install = match known {
            Some(known) => {
                moves.take_back(shard, generation);
                known.clone()
            }
            None => Install { id, generation, arrived: Arrived::default(), is_claimed: false },
        };
        if known.is_none() && stored.is_some() {
            let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
            batch.remove(&self.rest, install_key(shard));
            batch.commit().map_err(|error| self.error("written", &error))?;
        }
        moves.installing.insert(shard, install.clone());
        Ok(install)
    }

    /// Puts the next part of an install, synced; how far it has come then.
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

    /// Keeps an install that is whole for the switch; `false` if it is not there any more.
    pub(crate) fn claim_install(&self, shard: ShardId, id: SnapshotId) -> bool {
        let mut moves = self.moves();
        let install = moves.installing.get_mut(&shard);
        let install =
            install.filter(|install| install.id == id && install.arrived.position.is_end());
        install.map(|install| install.is_claimed = true).is_some()
    }

    /// Makes what was installed the state of its shard, synced. What was there before is garbage.
    ///
    /// # Panics
    /// If it was not claimed.
    pub(crate) fn switch(&self, shard: ShardId, cut: &Cut) -> Result<(), StoreError> {
        let mut moves = self.moves();
        let install = moves.installing.get(&shard);
        let whole = install.filter(|install| {
            let is_cut = (install.id.index, install.id.term) == (cut.index, cut.term);
            install.is_claimed && is_cut
        });
        let Some(&Install { generation, .. }) = whole else {
            let index = cut.index;
            panic!(
                "shard {shard} switches to a snapshot at {index} that is not there: {install:?}"
            );
        };
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
        Ok(())
    }

    /// Gives up an install, if there is one. In memory alone: what it has left is removed as garbage.
    pub(crate) fn discard_install(&self, shard: ShardId) {
        let mut moves = self.moves();
        if let Some(install) = moves.installing.remove(&shard) {
            moves.discard(shard, install.generation);
        }
    }

    /// Gives up an install that a checkpoint of the shard's own has overtaken.
    pub(super) fn discard_overtaken(&self, shard: ShardId, index: u64) {
        let mut moves = self.moves();
        let install = moves.installing.get(&shard);
        let overtaken = install.filter(|install| install.id.index <= index && !install.is_claimed);
        if let Some(&Install { generation, .. }) = overtaken {
            moves.installing.remove(&shard);
            moves.discard(shard, generation);
        }
    }

    /// Begins an install anew: something in it was wrong.
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

    /// Records of all installs under way, about.
    pub(super) fn records_arrived(&self) -> u64 {
        let moves = self.moves();
        moves.installing.values().map(|install| install.arrived.position.records).sum()
    }
}

impl View {
    /// All records of an install that is whole, to build the state from.
    pub(crate) fn installed_records(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>> + '_ {
        let moves = self.store.moves();
        let generation = moves.installing.get(&shard).map(|install| install.generation);
        self.records_of(shard, Ok(generation))
    }
}
