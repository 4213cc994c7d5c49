//! Ids: finds the slot of a task by its id, in id order and without hashing.
//!
//! Ids of one origin are dense numbers. A group of 64 neighbouring ids is a bitmap of the present
//! ids and their packed slots. A full group takes under five bytes per task, a single survivor
//! under a hundred.

use crate::slab::Slot;
use crate::{ShardId, TaskId};
use std::collections::BTreeMap;
use std::ops::Bound;

const GROUP_IDS: u64 = 64;

/// The ids of one incarnation and origin: numbers that grow.
pub(crate) type Run = (u32, ShardId);

/// Everything of an id but its place in its group. The home shard is always this one.
type GroupKey = (u32, ShardId, u64);

#[derive(Debug, Default)]
struct Group {
    present: u64,
    slots: Vec<Slot>,
}

impl Group {
    /// The position of the slot of `bit`, present or not.
    fn rank(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }
}

#[derive(Debug)]
pub(crate) struct Ids {
    home: ShardId,
    groups: BTreeMap<GroupKey, Group>,
    len: usize,
}

impl Ids {
    pub(crate) fn new(home: ShardId) -> Ids {
        Ids { home, groups: BTreeMap::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<Slot> {
        let (key, bit) = split(id);
        let group = self.groups.get(&key).filter(|_| id.home == self.home)?;
        (group.present & bit != 0).then(|| group.slots[group.rank(bit)])
    }

    pub(crate) fn insert(&mut self, id: TaskId, slot: Slot) {
        assert_eq!(id.home, self.home, "task {id} lives on another shard");
        let (key, bit) = split(id);
        let group = self.groups.entry(key).or_default();
        assert!(group.present & bit == 0, "task {id} is here already");
        group.slots.insert(group.rank(bit), slot);
        group.present |= bit;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, id: TaskId) {
        let (key, bit) = split(id);
        let group = self.groups.get_mut(&key).expect("a kept task has its group");
        assert!(group.present & bit != 0, "task {id} is not here");
        group.slots.remove(group.rank(bit));
        group.present &= !bit;
        if group.present == 0 {
            self.groups.remove(&key);
        }
        self.len -= 1;
    }

    /// Ids and slots in id order, after `after`.
    pub(crate) fn iter_after(&self, after: Option<TaskId>) -> impl Iterator<Item = (TaskId, Slot)> {
        // The map has only this shard's ids, so that a cursor of another shard sorts before or
        // after all.
        let start = match after {
            Some(id) if id.home == self.home => Bound::Included(split(id).0),
            _ => Bound::Unbounded,
        };
        self.groups
            .range((start, Bound::Unbounded))
            .flat_map(|(&key, group)| self.members(key, group))
            .filter(move |&(id, _)| after.is_none_or(|after| id > after))
    }

    /// The runs that have ids.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> {
        let mut next = self.groups.keys().next().copied();
        std::iter::from_fn(move || {
            let (incarnation, origin, _) = next?;
            let end = Bound::Excluded((incarnation, origin, u64::MAX));
            next = self.groups.range((end, Bound::Unbounded)).next().map(|(key, _)| *key);
            Some((incarnation, origin))
        })
    }

    /// Ids of a run below a number, the highest first.
    pub(crate) fn back(
        &self,
        (incarnation, origin): Run,
        below: u64,
    ) -> impl Iterator<Item = (TaskId, Slot)> {
        let groups = (incarnation, origin, 0)..=(incarnation, origin, below / GROUP_IDS);
        let highest_first = |(&key, group)| {
            let mut members: Vec<_> = self.members(key, group).collect();
            members.reverse();
            members
        };
        let ids = self.groups.range(groups).rev().flat_map(highest_first);
        ids.skip_while(move |(id, _)| id.sequence >= below)
    }

    /// The first id of a run from a number on.
    pub(crate) fn first_from(
        &self,
        (incarnation, origin): Run,
        sequence: u64,
    ) -> Option<(TaskId, Slot)> {
        let start = (incarnation, origin, sequence / GROUP_IDS);
        let groups = self.groups.range(start..=(incarnation, origin, u64::MAX));
        let mut ids = groups.flat_map(|(&key, group)| self.members(key, group));
        ids.find(|(id, _)| id.sequence >= sequence)
    }

    fn members<'a>(
        &self,
        (incarnation, origin, number): GroupKey,
        group: &'a Group,
    ) -> impl Iterator<Item = (TaskId, Slot)> + use<'a> {
        let home = self.home;
        let present = (0..GROUP_IDS).filter(|bit| group.present & 1 << bit != 0);
        present.zip(&group.slots).map(move |(bit, &slot)| {
            (TaskId { incarnation, home, origin, sequence: number * GROUP_IDS + bit }, slot)
        })
    }
}

fn split(id: TaskId) -> (GroupKey, u64) {
    let key = (id.incarnation, id.origin, id.sequence / GROUP_IDS);
    (key, 1 << (id.sequence % GROUP_IDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(origin: u16, sequence: u64) -> TaskId {
        TaskId { incarnation: 1, home: ShardId(4), origin: ShardId(origin), sequence }
    }

    #[test]
    fn ids_are_found_listed_in_order_and_forgotten() {
        let mut ids = Ids::new(ShardId(4));
        let mut all: Vec<TaskId> = (0..200).rev().map(|sequence| id(4, sequence * 3)).collect();
        all.push(id(9, u64::MAX));
        for (slot, &id) in all.iter().enumerate() {
            ids.insert(id, slot as Slot);
        }
        for (slot, &id) in all.iter().enumerate() {
            assert_eq!(ids.get(id), Some(slot as Slot));
        }
        assert_eq!(ids.get(id(4, 1)), None);
        assert_eq!(ids.get(TaskId { home: ShardId(5), ..id(4, 0) }), None);

        all.sort();
        let listed: Vec<TaskId> = ids.iter_after(None).map(|(id, _)| id).collect();
        assert_eq!(listed, all);
        for (position, &after) in all.iter().enumerate() {
            let next = ids.iter_after(Some(after)).next().map(|(id, _)| id);
            assert_eq!(next, all.get(position + 1).copied());
        }
        let runs: Vec<Run> = ids.runs().collect();
        assert_eq!(runs, [(1, ShardId(4)), (1, ShardId(9))]);
        for below in [0, 1, 64, 299, 300, 10_000] {
            let back: Vec<u64> = ids.back(runs[0], below).map(|(id, _)| id.sequence).collect();
            let mut expected: Vec<u64> =
                (0..200).map(|n| n * 3).filter(|sequence| *sequence < below).collect();
            let from = ids.first_from(runs[0], below).map(|(id, _)| id.sequence);
            assert_eq!(from, Some(below.next_multiple_of(3)).filter(|next| *next < 600));
            expected.reverse();
            assert_eq!(back, expected, "{below}");
        }
        for &id in &all {
            ids.remove(id);
        }
        assert!(ids.groups.is_empty() && ids.len() == 0);
    }
}
