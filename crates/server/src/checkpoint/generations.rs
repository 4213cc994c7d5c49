//! Generations: which of a shard's two states is current, and how the other one is removed.
//!
//! Invariant: a generation that is neither current nor being installed is garbage. Its records are
//! neither read nor extended. They are removed in bites, and the next start finds them again if a
//! crash comes first. A generation is used again only when it is empty.

use super::{
    Cut, Store, StoreError, View, decode_cut, encode_cut, in_words,
    install::Install,
    keys::{Generation, full_key, install_key, prefix, prefix_end, shards_in, slot_key},
};
use fjall::{Guard, Keyspace, PersistMode, Readable};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
};
use taskyard_machine::ShardId;

/// The version of the record that names a shard's current generation.
const SLOT_VERSION: u8 = 1;
/// The number of keys that are removed with one sync.
const SWEEP_KEYS: usize = 10_000;

/// The store's record about a shard.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub generation: Generation,
    pub cut: Cut,
    /// Whether the state came as a snapshot and has no later checkpoint, so that the log may not
    /// know of it.
    pub is_installed: bool,
}

impl Slot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![SLOT_VERSION, self.generation as u8, u8::from(self.is_installed)];
        bytes.extend(encode_cut(&self.cut));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Slot> {
        let ([version, generation, installed], cut) = bytes.split_first_chunk()?;
        if *version != SLOT_VERSION || *installed > 1 {
            return None;
        }
        let generation = Generation::from_byte(*generation)?;
        Some(Slot { generation, cut: decode_cut(cut)?, is_installed: *installed == 1 })
    }
}

/// The generations of all shards, as far as they must be in memory.
#[derive(Default)]
pub(super) struct Generations {
    current: RwLock<HashMap<ShardId, Generation>>,
    moves: Mutex<Moves>,
}

/// Installs and removals. The lock is held for one write at most.
#[derive(Default)]
pub(super) struct Moves {
    pub installing: HashMap<ShardId, Install>,
    /// The progress of each removal: a keyspace, and the last removed key there.
    garbage: BTreeMap<(ShardId, Generation), (usize, Vec<u8>)>,
}

impl Moves {
    pub(super) fn discard(&mut self, shard: ShardId, generation: Generation) {
        self.garbage.entry((shard, generation)).or_default();
    }

    /// Makes a generation usable again whose removal has not begun.
    pub(super) fn take_back(&mut self, shard: ShardId, generation: Generation) {
        self.garbage.remove(&(shard, generation));
    }
}

impl Store {
    pub(super) fn moves(&self) -> MutexGuard<'_, Moves> {
        self.generations.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation that has a shard's state, if there is one.
    pub(super) fn current(&self, shard: ShardId) -> Option<Generation> {
        let current = self.generations.current.read().unwrap_or_else(PoisonError::into_inner);
        current.get(&shard).copied()
    }

    pub(super) fn set_current(&self, shard: ShardId, generation: Option<Generation>) {
        let mut current = self.generations.current.write().unwrap_or_else(PoisonError::into_inner);
        match generation {
            Some(generation) => current.insert(shard, generation),
            None => current.remove(&shard),
        };
    }

    /// Finds the current generations, the unfinished installs, and the garbage.
    pub(super) fn find_generations(&self) -> Result<(), StoreError> {
        let failed = |error: fjall::Error| self.error("read", &error);
        let mut shards = BTreeSet::new();
        for keyspace in self.keyspaces() {
            match shards_in(keyspace) {
                Ok(found) => shards.extend(found),
                // A bad block under a body costs that body alone; garbage behind it stays.
                Err(error) if self.holds_bodies(keyspace) => {
                    tracing::error!(
                        "a part of the stored bodies can't be read: {}",
                        in_words(&error)
                    );
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let mut moves = self.moves();
        for shard in shards {
            let slot = self.rest.get(slot_key(shard)).map_err(failed)?;
            let slot = slot.map(|slot| self.read_slot(&slot)).transpose()?;
            let current = slot.map(|slot| slot.generation);
            self.set_current(shard, current);
            let install = self.stored_install(shard)?;
            let installing = install.as_ref().map(|install| install.generation);
            moves.installing.extend(install.map(|install| (shard, install)));
            for generation in Generation::BOTH {
                let is_used = [current, installing].contains(&Some(generation));
                if !is_used && !self.is_empty(shard, generation)? {
                    moves.discard(shard, generation);
                }
            }
        }
        Ok(())
    }

    fn read_slot(&self, bytes: &[u8]) -> Result<Slot, StoreError> {
        Slot::decode(bytes).ok_or_else(|| self.damaged("a cut is damaged"))
    }

    fn is_empty(&self, shard: ShardId, generation: Generation) -> Result<bool, StoreError> {
        for keyspace in self.keyspaces() {
            match keyspace.prefix(prefix(shard, generation)).next().map(Guard::key) {
                None => {}
                Some(Ok(_)) => return Ok(false),
                Some(Err(_)) if self.holds_bodies(keyspace) => {}
                Some(Err(error)) => return Err(self.error("read", &error)),
            }
        }
        Ok(true)
    }

    fn holds_bodies(&self, keyspace: &Keyspace) -> bool {
        std::ptr::eq(keyspace, &self.bodies)
    }

    /// A generation for the first checkpoint of a shard. It is the current one from here on, so
    /// that nothing else is put there.
    pub(super) fn first_generation(&self, shard: ShardId) -> Result<Generation, StoreError> {
        let generation = {
            let moves = self.moves();
            let installing = moves.installing.get(&shard).map(|install| install.generation);
            let generation = installing.map_or(Generation::First, Generation::other);
            self.set_current(shard, Some(generation));
            generation
        };
        self.empty(shard, generation)?;
        Ok(generation)
    }

    /// Removes all garbage of a generation. May take a while.
    pub(super) fn empty(&self, shard: ShardId, generation: Generation) -> Result<(), StoreError> {
        self.moves().discard(shard, generation);
        while self.sweep_of(shard, generation)? {}
        Ok(())
    }

    /// Forgets a shard, after this node's replica of it was removed and while no checkpoint of it
    /// is in progress. Its records are garbage from now on.
    pub(crate) fn remove(&self, shard: ShardId) -> Result<(), StoreError> {
        let mut moves = self.moves();
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.remove(&self.rest, slot_key(shard));
        batch.remove(&self.rest, install_key(shard));
        batch.commit().map_err(|error| self.error("written", &error))?;
        self.set_current(shard, None);
        moves.installing.remove(&shard);
        for generation in Generation::BOTH {
            moves.discard(shard, generation);
        }
        Ok(())
    }

    /// Removes a bite of garbage; returns whether there may be more. For a thread of its own.
    pub(crate) fn sweep(&self) -> Result<bool, StoreError> {
        let next = self.moves().garbage.keys().next().copied();
        let Some((shard, generation)) = next else { return Ok(false) };
        self.sweep_of(shard, generation)?;
        Ok(true)
    }

    /// Removes a bite of one generation; returns whether there may be more.
    fn sweep_of(&self, shard: ShardId, generation: Generation) -> Result<bool, StoreError> {
        let mut moves = self.moves();
        let Some((mut place, mut after)) = moves.garbage.get(&(shard, generation)).cloned() else {
            return Ok(false);
        };
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        // The first bite also removes the record of the install, because an install without all its
        // records must not go on.
        if !moves.installing.contains_key(&shard)
            && self.stored_install(shard)?.is_some_and(|install| install.generation == generation)
        {
            batch.remove(&self.rest, install_key(shard));
        }
        let keyspaces = self.keyspaces();
        while let Some(keyspace) = keyspaces.get(place)
            && batch.len() < SWEEP_KEYS
        {
            let from = Bound::Excluded(full_key(shard, generation, &after));
            let to = Bound::Excluded(prefix_end(shard, generation));
            let left = SWEEP_KEYS - batch.len();
            let mut found = 0;
            for item in keyspace.range((from, to)).take(left) {
                let key = item.key().map_err(|error| self.error("read", &error))?;
                after = key[prefix(shard, generation).len()..].to_vec();
                batch.remove(keyspace, key);
                found += 1;
            }
            if found < left {
                (place, after) = (place + 1, Vec::new());
            }
        }
        let is_done = place == keyspaces.len();
        batch.commit().map_err(|error| self.error("written", &error))?;
        if is_done {
            moves.garbage.remove(&(shard, generation));
        } else {
            moves.garbage.insert((shard, generation), (place, after));
        }
        Ok(!is_done)
    }
}

impl View {
    pub(super) fn slot(&self, shard: ShardId) -> Result<Option<Slot>, StoreError> {
        let slot = self.snapshot.get(&self.store.rest, slot_key(shard));
        let slot = slot.map_err(|error| self.store.error("read", &error))?;
        slot.map(|slot| self.store.read_slot(&slot)).transpose()
    }

    pub(super) fn generation(&self, shard: ShardId) -> Result<Option<Generation>, StoreError> {
        Ok(self.slot(shard)?.map(|slot| slot.generation))
    }

    /// Whether the last checkpoint of a shard came as a snapshot. A crash right after the switch
    /// leaves the log as it was before.
    pub(crate) fn is_installed(&self, shard: ShardId) -> Result<bool, StoreError> {
        Ok(self.slot(shard)?.is_some_and(|slot| slot.is_installed))
    }
}
