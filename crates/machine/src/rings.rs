//! Rings: the lines of a queue that has keys, one ring per priority.
//!
//! A ring maps turns to lines. The line with the smallest turn is served next. When its share is
//! used up, the line gets a new turn behind all others. The queue's tasks without a key stay in
//! their lane, and take part with a turn of their own.

use crate::entry::DecodeError;
use crate::limits::PRIORITY_MAX;
use crate::slab::Slot;
use crate::wire::{Reader, Wire};
use std::collections::BTreeMap;

const PRIORITIES: usize = PRIORITY_MAX as usize + 1;

/// The lines of one priority that are not empty, as keys by turn. A line is either open or closed.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) open: BTreeMap<u64, Slot>,
    /// Lines of keys that may not run now.
    pub(crate) closed: BTreeMap<u64, Slot>,
}

impl Ring {
    pub(crate) fn side(&mut self, closed: bool) -> &mut BTreeMap<u64, Slot> {
        if closed { &mut self.closed } else { &mut self.open }
    }
}

/// The turn of the tasks without a key at one priority. The turn counts from the last service that
/// these tasks had while a key waited. Before that, their place is the order of their first task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnTurn {
    pub(crate) turn: u64,
    pub(crate) served: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Rings {
    rings: [Ring; PRIORITIES],
    pub(crate) unkeyed: [OwnTurn; PRIORITIES],
    /// The number of the queue's keys.
    pub(crate) keys: u32,
    /// The number of ready tasks with a key.
    pub(crate) ready: u64,
    /// The number of these tasks that may be claimed: the sum of `counted` of all keys.
    pub(crate) available: u64,
}

impl Rings {
    pub(crate) fn ring(&self, priority: u8) -> &Ring {
        &self.rings[usize::from(priority)]
    }

    pub(crate) fn ring_mut(&mut self, priority: u8) -> &mut Ring {
        &mut self.rings[usize::from(priority)]
    }

    /// Lines as (priority, turn, key), the highest priority first, open ones before closed ones.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (u8, u64, Slot)> {
        (0..=PRIORITY_MAX).rev().flat_map(|priority| {
            let ring = self.ring(priority);
            let lines = ring.open.iter().chain(&ring.closed);
            lines.map(move |(&turn, &key)| (priority, turn, key))
        })
    }

    /// Writes the part of a queue's image that its rings need; the images of the keys contain the
    /// lines.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for OwnTurn { turn, served } in self.unkeyed {
            turn.write(out);
            served.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Rings, DecodeError> {
        let mut rings = Rings::default();
        for own in &mut rings.unkeyed {
            *own = OwnTurn { turn: reader.read()?, served: reader.read()? };
        }
        Ok(rings)
    }
}
