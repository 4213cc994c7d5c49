//! Slab: values by slot number, in chunks, with marks for changes.
//!
//! Chunks never move and are freed when they are empty, so that a growing backlog is never copied
//! and a drained one costs nothing. Slot numbers are used again; nothing that replicas must agree
//! on may depend on them.
//!
//! Three bits per slot are for checkpoints. A *dirty* value has changed since the last cut. A
//! *frozen* value belongs to the last cut and is not yet encoded. A *stored* value is in some
//! earlier cut, so that a later cut must report its removal. A vacant slot has no bit.

use std::collections::BTreeSet;

/// The number of values in one chunk.
const CHUNK_SLOTS: usize = 1024;
const WORDS: usize = CHUNK_SLOTS / 64;

/// The number of a place in a slab.
pub(crate) type Slot = u32;

/// No slot: marks the end of a list.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

#[derive(Debug)]
enum Place<T> {
    /// Free; contains the next free place of the chunk.
    Vacant(u32),
    Taken(T),
}

#[derive(Debug)]
struct Chunk<T> {
    places: Vec<Place<T>>,
    /// The first free place before `places.len()`, or `NO_SLOT`.
    free: u32,
    taken: usize,
    dirty: [u64; WORDS],
    frozen: [u64; WORDS],
    stored: [u64; WORDS],
}

impl<T> Chunk<T> {
    fn new(capacity: usize) -> Chunk<T> {
        Chunk {
            places: Vec::with_capacity(capacity),
            free: NO_SLOT,
            taken: 0,
            dirty: [0; WORDS],
            frozen: [0; WORDS],
            stored: [0; WORDS],
        }
    }

    /// Takes a place out of the list of free ones, whose next one is `after`.
    fn unlink_free(&mut self, position: u32, after: u32) {
        if self.free == position {
            self.free = after;
            return;
        }
        let mut at = self.free;
        while let Place::Vacant(next) = &mut self.places[at as usize] {
            if *next == position {
                *next = after;
                return;
            }
            at = *next;
        }
        panic!("place {at} is in the list of free places and taken");
    }

    fn has_room(&self) -> bool {
        self.taken < CHUNK_SLOTS
    }
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
    /// Chunks with room. The lowest chunk is filled first, so that high chunks drain.
    with_room: BTreeSet<u32>,
    /// Numbers of freed chunks.
    absent: BTreeSet<u32>,
    len: usize,
    dirty: usize,
    frozen: usize,
    /// The chunk in which the search for the next frozen slot continues.
    frozen_cursor: usize,
}

impl<T> Slab<T> {
    /// Bytes that one value takes.
    pub(crate) const VALUE_BYTES: usize = size_of::<Place<T>>();

    pub(crate) fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            with_room: BTreeSet::new(),
            absent: BTreeSet::new(),
            len: 0,
            dirty: 0,
            frozen: 0,
            frozen_cursor: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a value that the next checkpoint must contain.
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        let slot = self.place(value);
        self.mark_dirty(slot);
        slot
    }

    /// Adds a value that comes from a checkpoint.
    pub(crate) fn insert_stored(&mut self, value: T) -> Slot {
        let slot = self.place(value);
        self.mark_stored(slot);
        slot
    }

    /// The same at a slot of the caller's choice, which must be vacant.
    pub(crate) fn insert_stored_at(&mut self, slot: Slot, value: T) {
        self.place_at(slot, value);
        self.mark_stored(slot);
    }

    /// Adds a value that the next checkpoint must contain, at a slot of the caller's choice, which
    /// must be vacant.
    pub(crate) fn insert_at(&mut self, slot: Slot, value: T) {
        self.place_at(slot, value);
        self.mark_dirty(slot);
    }

    fn mark_stored(&mut self, slot: Slot) {
        let (word, bit) = self.word(slot, |chunk| &mut chunk.stored);
        *word |= bit;
    }

    fn place(&mut self, value: T) -> Slot {
        let number = match self.with_room.first() {
            Some(&number) => number,
            None => self.add_chunk(),
        };
        let chunk = self.chunks[number as usize].as_mut().expect("a chunk with room is present");
        let position = match chunk.free {
            NO_SLOT => {
                chunk.places.push(Place::Taken(value));
                chunk.places.len() - 1
            }
            free => {
                let position = free as usize;
                let Place::Vacant(next) = chunk.places[position] else {
                    panic!("free place {position} of chunk {number} is taken");
                };
                chunk.free = next;
                chunk.places[position] = Place::Taken(value);
                position
            }
        };
        chunk.taken += 1;
        if !chunk.has_room() {
            self.with_room.remove(&number);
        }
        self.len += 1;
        number * CHUNK_SLOTS as u32 + position as u32
    }

    /// Takes steps in proportion to a chunk: for values that are rarely added.
    fn place_at(&mut self, slot: Slot, value: T) {
        let (number, position) = split(slot);
        while self.chunks.len() <= number {
            self.absent.insert(self.chunks.len() as u32);
            self.chunks.push(None);
        }
        if self.absent.remove(&(number as u32)) {
            let capacity = if number == 0 { 0 } else { CHUNK_SLOTS };
            self.chunks[number] = Some(Box::new(Chunk::new(capacity)));
            self.with_room.insert(number as u32);
        }
        let chunk = self.chunks[number].as_mut().expect("an absent chunk was made");
        while chunk.places.len() <= position {
            chunk.free = {
                chunk.places.push(Place::Vacant(chunk.free));
                chunk.places.len() as u32 - 1
            };
        }
        let place = std::mem::replace(&mut chunk.places[position], Place::Taken(value));
        let Place::Vacant(after) = place else { panic!("slot {slot} is taken") };
        chunk.unlink_free(position as u32, after);
        chunk.taken += 1;
        if !chunk.has_room() {
            self.with_room.remove(&(number as u32));
        }
        self.len += 1;
    }

    /// Removes a value that is not frozen; returns whether an earlier cut has it.
    pub(crate) fn remove(&mut self, slot: Slot) -> (T, bool) {
        assert!(!self.is_frozen(slot), "slot {slot} is removed before its frozen image was taken");
        self.clear_dirty(slot);
        let (word, bit) = self.word(slot, |chunk| &mut chunk.stored);
        let stored = *word & bit != 0;
        *word &= !bit;
        let (number, position) = split(slot);
        let chunk = self.chunks[number].as_mut().expect("a taken slot has its chunk");
        let place = std::mem::replace(&mut chunk.places[position], Place::Vacant(chunk.free));
        let Place::Taken(value) = place else { panic!("slot {slot} is vacant") };
        if !chunk.has_room() {
            self.with_room.insert(number as u32);
        }
        chunk.free = position as u32;
        chunk.taken -= 1;
        self.len -= 1;
        if chunk.taken == 0 && self.with_room.len() > 1 {
            self.chunks[number] = None;
            self.with_room.remove(&(number as u32));
            self.absent.insert(number as u32);
        }
        (value, stored)
    }

    pub(crate) fn get(&self, slot: Slot) -> &T {
        let (number, position) = split(slot);
        match self.chunks[number].as_deref().map(|chunk| &chunk.places[position]) {
            Some(Place::Taken(value)) => value,
            _ => panic!("slot {slot} is vacant"),
        }
    }

    /// For links, which are no part of a value's image. Any other change must mark the value dirty
    /// first.
    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut T {
        let (number, position) = split(slot);
        match self.chunks[number].as_deref_mut().map(|chunk| &mut chunk.places[position]) {
            Some(Place::Taken(value)) => value,
            _ => panic!("slot {slot} is vacant"),
        }
    }

    /// All values, ordered by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            let places = chunk.as_ref().map_or(&[][..], |chunk| &chunk.places[..]);
            places.iter().enumerate().filter_map(move |(position, place)| match place {
                Place::Taken(value) => Some(((number * CHUNK_SLOTS + position) as Slot, value)),
                Place::Vacant(_) => None,
            })
        })
    }

    fn add_chunk(&mut self) -> u32 {
        // The first chunk grows as needed, because most shards stay small; the others are allocated
        // whole.
        let capacity = if self.chunks.is_empty() { 0 } else { CHUNK_SLOTS };
        let chunk = Box::new(Chunk::new(capacity));
        let number = match self.absent.pop_first() {
            Some(number) => {
                self.chunks[number as usize] = Some(chunk);
                number
            }
            None => {
                self.chunks.push(Some(chunk));
                self.chunks.len() as u32 - 1
            }
        };
        self.with_room.insert(number);
        number
    }

    /// The number of values that have changed since the last cut.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty
    }

    pub(crate) fn mark_dirty(&mut self, slot: Slot) {
        let (word, bit) = self.word(slot, |chunk| &mut chunk.dirty);
        if *word & bit == 0 {
            *word |= bit;
            self.dirty += 1;
        }
    }

    fn clear_dirty(&mut self, slot: Slot) {
        let (word, bit) = self.word(slot, |chunk| &mut chunk.dirty);
        if *word & bit != 0 {
            *word &= !bit;
            self.dirty -= 1;
        }
    }

    pub(crate) fn is_frozen(&self, slot: Slot) -> bool {
        let (number, position) = split(slot);
        let chunk = self.chunks[number].as_ref().expect("a taken slot has its chunk");
        chunk.frozen[position / 64] & 1 << (position % 64) != 0
    }

    /// Marks a frozen value as encoded, and so as stored.
    pub(crate) fn thaw(&mut self, slot: Slot) {
        let (word, bit) = self.word(slot, |chunk| &mut chunk.frozen);
        assert!(*word & bit != 0, "slot {slot} is not frozen");
        *word &= !bit;
        let (word, bit) = self.word(slot, |chunk| &mut chunk.stored);
        *word |= bit;
        self.frozen -= 1;
    }

    /// Makes all dirty values frozen.
    pub(crate) fn freeze(&mut self) {
        assert_eq!(self.frozen, 0, "the previous cut was not handed out whole");
        for chunk in self.chunks.iter_mut().flatten() {
            chunk.frozen = std::mem::replace(&mut chunk.dirty, [0; WORDS]);
        }
        self.frozen = std::mem::take(&mut self.dirty);
        self.frozen_cursor = 0;
    }

    /// The next frozen slot, which stays frozen until it is thawed.
    pub(crate) fn next_frozen(&mut self) -> Option<Slot> {
        if self.frozen == 0 {
            return None;
        }
        loop {
            let number = self.frozen_cursor;
            let words = self.chunks[number].as_ref().map_or(&[][..], |chunk| &chunk.frozen[..]);
            if let Some(at) = words.iter().position(|&word| word != 0) {
                let position = at * 64 + words[at].trailing_zeros() as usize;
                return Some((number * CHUNK_SLOTS + position) as Slot);
            }
            self.frozen_cursor += 1;
        }
    }

    fn word(
        &mut self,
        slot: Slot,
        bits: impl Fn(&mut Chunk<T>) -> &mut [u64; WORDS],
    ) -> (&mut u64, u64) {
        let (number, position) = split(slot);
        let chunk = self.chunks[number].as_mut().expect("a taken slot has its chunk");
        (&mut bits(chunk)[position / 64], 1 << (position % 64))
    }
}

fn split(slot: Slot) -> (usize, usize) {
    (slot as usize / CHUNK_SLOTS, slot as usize % CHUNK_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_empty_chunks_are_given_back() {
        let mut slab = Slab::new();
        let count = 3 * CHUNK_SLOTS as u32;
        let slots: Vec<Slot> = (0..count).map(|value| slab.insert(value)).collect();
        assert_eq!(slots, (0..count).collect::<Vec<_>>());
        for &slot in &slots[CHUNK_SLOTS..] {
            assert_eq!(slab.remove(slot), (slot, false));
        }
        assert_eq!(slab.chunks.iter().flatten().count(), 2, "one empty chunk is kept as a spare");
        assert_eq!(slab.len(), CHUNK_SLOTS);
        slab.remove(7);
        assert_eq!(slab.insert(70), 7, "the lowest chunk with room comes first");
        assert_eq!(slab.iter().count(), CHUNK_SLOTS);
        assert_eq!(slab.dirty(), CHUNK_SLOTS, "removed values leave no mark");
    }

    #[test]
    fn a_value_is_put_where_the_caller_says() {
        let mut slab = Slab::new();
        let far = 3 * CHUNK_SLOTS as u32 + 5;
        slab.insert_stored_at(far, far);
        slab.insert_at(2, 2);
        assert_eq!((slab.len(), slab.dirty()), (2, 1));
        assert_eq!((*slab.get(far), *slab.get(2)), (far, 2));
        slab.remove(2);
        slab.insert_at(0, 0);
        let mut others: Vec<Slot> =
            (0..4 * CHUNK_SLOTS as u32 - 2).map(|_| slab.insert(9)).collect();
        others.extend([0, far]);
        others.sort_unstable();
        assert_eq!(others, (0..4 * CHUNK_SLOTS as u32).collect::<Vec<_>>(), "every slot once");
        assert_eq!(slab.insert(9), 4 * CHUNK_SLOTS as u32);
    }

    fn thaw_all<T>(slab: &mut Slab<T>) -> Vec<Slot> {
        let mut frozen = Vec::new();
        while let Some(slot) = slab.next_frozen() {
            slab.thaw(slot);
            frozen.push(slot);
        }
        frozen
    }

    #[test]
    fn a_cut_takes_the_dirty_slots_and_no_later_ones() {
        let mut slab = Slab::new();
        for value in 0..2_000 {
            slab.insert_stored(value);
        }
        assert_eq!(slab.dirty(), 0);
        for slot in [3, 3, 1_999] {
            slab.mark_dirty(slot);
        }
        let new = slab.insert(2_000);
        assert_eq!(slab.dirty(), 3);
        slab.freeze();
        slab.mark_dirty(5);
        assert_eq!(thaw_all(&mut slab), [3, 1_999, new]);
        assert_eq!((slab.dirty(), slab.frozen), (1, 0));
        assert_eq!(slab.remove(new), (2_000, true), "the cut holds it now");
        let newer = slab.insert(9);
        assert_eq!(slab.remove(newer), (9, false), "no cut ever held it");
    }
}
