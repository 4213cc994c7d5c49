//! Rings: the lines of a queue that has keys, one ring per priority.
//!
//! A ring is a map by turn: the line with the smallest turn is served next, and gets a new turn behind
//! all others when its share is used up. The queue's tasks without a key stand in its lane as ever,
//! and take part with a turn of their own.

use crate::entry::DecodeError;
use crate::limits::PRIORITY_MAX;
use crate::slab::Slot;
use crate::wire::{Reader, Wire};
use std::collections::BTreeMap;

const PRIORITIES: usize = PRIORITY_MAX as usize + 1;

/// The lines of one priority that are not empty: by turn, the key. Each is in one of the two.
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

/// The turn of the tasks without a key at one priority. It counts from when they last had one while
/// a key waited; before that they stand where their first task stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnTurn {
    pub(crate) turn: u64,
    pub(crate) served: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Rings {
    rings: [Ring; PRIORITIES],
    pub(crate) unkeyed: [OwnTurn; PRIORITIES],
    /// Keys of the queue.
    pub(crate) keys: u32,
    /// Ready tasks with a key.
    pub(crate) ready: u64,
    /// Of them those that may be claimed: what all keys have counted.
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

    /// The part of a queue's image that is about its rings; the lines are in the images of the keys.
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
