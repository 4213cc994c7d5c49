//! LocalShards: the shards that have a replica on this node, by number.

use super::local::LocalShard;
use std::ops::{Index, IndexMut};

/// One place per shard of the cluster; empty where this node has no replica.
pub(crate) struct LocalShards(Vec<Option<Box<LocalShard>>>);

impl LocalShards {
    pub(crate) fn new(count: u16, found: Vec<LocalShard>) -> LocalShards {
        let mut held = LocalShards((0..count).map(|_| None).collect());
        found.into_iter().for_each(|shard| held.insert(shard));
        held
    }

    /// How many shards the cluster has.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&LocalShard> {
        self.0.get(number)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut LocalShard> {
        self.0.get_mut(number)?.as_deref_mut()
    }

    pub(crate) fn insert(&mut self, shard: LocalShard) {
        let number = usize::from(shard.id.0);
        self.0[number] = Some(Box::new(shard));
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<Box<LocalShard>> {
        self.0.get_mut(number)?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LocalShard> {
        self.0.iter().filter_map(Option::as_deref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LocalShard> {
        self.0.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The numbers of the shards with a replica here.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.iter().map(|shard| usize::from(shard.id.0)).collect()
    }
}

/// For callers that know that the shard is here.
///
/// # Panics
/// If it is not.
impl Index<usize> for LocalShards {
    type Output = LocalShard;

    fn index(&self, number: usize) -> &LocalShard {
        self.get(number).unwrap_or_else(|| panic!("shard {number} has no replica here"))
    }
}

impl IndexMut<usize> for LocalShards {
    fn index_mut(&mut self, number: usize) -> &mut LocalShard {
        self.get_mut(number).unwrap_or_else(|| panic!("shard {number} has no replica here"))
    }
}
