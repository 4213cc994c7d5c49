//! Keys: the keys of a shard's records in the store.
//!
//! ```text
//! shard (2)  generation (1)  task id (16)     in `tasks` and `bodies`
//! shard (2)  generation (1)  key              in `rest`
//! shard (2)  0                                in `rest`: the current generation, and its cut
//! shard (2)  0  1                             in `rest`: the progress of a snapshot's install
//! ```
//! A shard has two generations, so that a new state can arrive beside the current one.

use fjall::Keyspace;
use taskyard_machine::{ShardId, TaskId};

/// Shorter than any key, so that no record is ever stored under it.
pub(super) const NO_KEY: &[u8] = &[0];
/// The key of the data directory's mark, after the keys of all shards.
pub(super) const MARK_KEY: &[u8] = &[0xff];
/// The third byte of the records about a shard; the generations come after it.
const ABOUT: u8 = 0;

/// One of the two states that the store may have of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generation {
    First = 1,
    Second = 2,
}

impl Generation {
    pub(super) const BOTH: [Generation; 2] = [Generation::First, Generation::Second];

    pub(super) fn other(self) -> Generation {
        match self {
            Generation::First => Generation::Second,
            Generation::Second => Generation::First,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Generation> {
        Generation::BOTH.into_iter().find(|generation| *generation as u8 == byte)
    }
}

/// The prefix of all keys of a generation.
pub(super) fn prefix(shard: ShardId, generation: Generation) -> [u8; 3] {
    let [high, low] = shard.0.to_be_bytes();
    [high, low, generation as u8]
}

/// The end of the range of a generation's keys.
pub(super) fn prefix_end(shard: ShardId, generation: Generation) -> Vec<u8> {
    let [high, low, byte] = prefix(shard, generation);
    vec![high, low, byte + 1]
}

pub(super) fn task_key(shard: ShardId, generation: Generation, task: TaskId) -> [u8; 19] {
    let mut key = [0; 19];
    key[..3].copy_from_slice(&prefix(shard, generation));
    key[3..].copy_from_slice(&task.to_u128().to_be_bytes());
    key
}

/// The full key of a record, from the part after the prefix.
pub(super) fn full_key(shard: ShardId, generation: Generation, key: &[u8]) -> Vec<u8> {
    [&prefix(shard, generation), key].concat()
}

pub(super) fn slot_key(shard: ShardId) -> [u8; 3] {
    let [high, low] = shard.0.to_be_bytes();
    [high, low, ABOUT]
}

pub(super) fn install_key(shard: ShardId) -> [u8; 4] {
    let [high, low] = shard.0.to_be_bytes();
    [high, low, ABOUT, 1]
}

/// The shards that have records in a keyspace. Looks up one key per shard.
pub(super) fn shards_in(keyspace: &Keyspace) -> fjall::Result<Vec<ShardId>> {
    let mut shards = Vec::new();
    let mut next = Some(0_u16);
    while let Some(from) = next {
        let Some(found) = keyspace.range(from.to_be_bytes().to_vec()..MARK_KEY.to_vec()).next()
        else {
            break;
        };
        let key = found.key()?;
        let shard = key.first_chunk().map_or(u16::MAX, |id| u16::from_be_bytes(*id));
        shards.push(ShardId(shard));
        next = shard.checked_add(1);
    }
    Ok(shards)
}
