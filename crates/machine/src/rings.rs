//! Rings: the lines of a queue that has keys, one ring per priority.
//!
//! A ring is lines by turn: the line with the smallest turn is served next, and gets a new turn
//! behind all others when its share is used up. A line is in the ring once for each type of its
//! tasks, so that a claim that names types never looks at lines without them. The queue's tasks
//! without a key stand in its lane as ever, and take part with a turn of their own.

use crate::entry::DecodeError;
use crate::keys::Line;
use crate::limits::PRIORITY_MAX;
use crate::names::NameId;
use crate::slab::Slot;
use crate::strands::Wanted;
use crate::wire::{Reader, Wire};
use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};
use std::iter::Peekable;

const PRIORITIES: usize = PRIORITY_MAX as usize + 1;

/// The lines of one priority that are not empty. Each is in one of the two.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) open: Side,
    /// Lines of keys that may not run now.
    pub(crate) closed: Side,
}

impl Ring {
    pub(crate) fn side(&mut self, closed: bool) -> &mut Side {
        if closed { &mut self.closed } else { &mut self.open }
    }
}

/// Lines by type and turn.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Side {
    by_type: BTreeMap<NameId, TypeLines>,
    /// The first turn of each type, if there are several types.
    heads: BTreeSet<(u64, NameId)>,
}

/// Lines with tasks of one type.
#[derive(Debug, Default, PartialEq)]
struct TypeLines {
    /// By turn, the key.
    lines: BTreeMap<u64, Slot>,
    /// Tasks of the type in them.
    tasks: u64,
}

impl TypeLines {
    fn first_turn(&self) -> Option<u64> {
        self.lines.first_key_value().map(|(&turn, _)| turn)
    }
}

impl Side {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty()
    }

    /// Enters a line for one type of its tasks; the key that has its turn already.
    pub(crate) fn insert(&mut self, line: &Line, key: Slot) -> Option<Slot> {
        let of_type = self.by_type.entry(line.task_type).or_default();
        let before = of_type.first_turn();
        let other = of_type.lines.insert(line.turn, key);
        of_type.tasks += u64::from(line.tasks.length);
        let after = of_type.first_turn();
        self.refresh_heads(line.task_type, before, after);
        other
    }

    /// The reverse of `insert`.
    pub(crate) fn remove(&mut self, line: &Line) {
        let Some(of_type) = self.by_type.get_mut(&line.task_type) else { return };
        let before = of_type.first_turn();
        of_type.lines.remove(&line.turn);
        of_type.tasks -= u64::from(line.tasks.length);
        let after = of_type.first_turn();
        if after.is_none() {
            self.by_type.remove(&line.task_type);
        }
        self.refresh_heads(line.task_type, before, after);
    }

    /// Brings a line that had another turn to its place.
    pub(crate) fn move_line(&mut self, line: &Line, old: u64) {
        let Some(of_type) = self.by_type.get_mut(&line.task_type) else { return };
        let before = of_type.first_turn();
        let key = of_type.lines.remove(&old);
        key.map(|key| of_type.lines.insert(line.turn, key));
        let after = of_type.first_turn();
        self.refresh_heads(line.task_type, before, after);
    }

    /// Most sides have one type, and need no order among types.
    fn refresh_heads(&mut self, task_type: NameId, before: Option<u64>, after: Option<u64>) {
        if self.by_type.len() < 2 {
            self.heads.clear();
        } else if self.heads.is_empty() {
            let head = |(&of, lines): (&NameId, &TypeLines)| Some((lines.first_turn()?, of));
            self.heads = self.by_type.iter().filter_map(head).collect();
        } else if before != after {
            before.map(|turn| self.heads.remove(&(turn, task_type)));
            after.map(|turn| self.heads.insert((turn, task_type)));
        }
    }

    /// One more task stands in a line of this type.
    pub(crate) fn joined(&mut self, task_type: NameId) {
        if let Some(of_type) = self.by_type.get_mut(&task_type) {
            of_type.tasks += 1;
        }
    }

    /// One task has left a line of this type.
    pub(crate) fn left(&mut self, task_type: NameId) {
        if let Some(of_type) = self.by_type.get_mut(&task_type) {
            of_type.tasks -= 1;
        }
    }

    /// The line to serve next among those with tasks of these types: its turn and key.
    pub(crate) fn first(&self, wanted: &Wanted) -> Option<(u64, Slot)> {
        let head =
            |of_type: &TypeLines| of_type.lines.first_key_value().map(|(&turn, &key)| (turn, key));
        match wanted {
            Wanted::Any => match self.heads.first() {
                Some((_, of)) => head(self.by_type.get(of)?),
                None => head(self.by_type.values().next()?),
            },
            Wanted::These(types) if !self.heads.is_empty() && types.len() > self.heads.len() => {
                let (_, of) = self.heads.iter().find(|(_, of)| wanted.has(*of))?;
                head(self.by_type.get(of)?)
            }
            Wanted::These(types) => types.iter().filter_map(|of| head(self.by_type.get(of)?)).min(),
        }
    }

    /// Tasks of these types.
    pub(crate) fn tasks(&self, wanted: &Wanted) -> u64 {
        match wanted {
            Wanted::Any => self.by_type.values().map(|of_type| of_type.tasks).sum(),
            Wanted::These(types) => {
                types.iter().filter_map(|of| self.by_type.get(of)).map(|found| found.tasks).sum()
            }
        }
    }

    /// Lines by turn, each once for each type of its tasks. A reader that stops early has cost what
    /// it read, however many lines and types there are.
    pub(crate) fn lines(&self) -> Lines<'_> {
        let only = self.by_type.iter().next().filter(|_| self.heads.is_empty());
        let only = only.and_then(|(&of, lines)| Some((lines.first_turn()?, of)));
        Lines { side: self, only, heads: self.heads.iter().peekable(), begun: BTreeMap::new() }
    }
}

/// The lines of a side by turn. Made by [`Side::lines`].
pub(crate) struct Lines<'a> {
    side: &'a Side,
    /// The head of the only type.
    only: Option<(u64, NameId)>,
    /// The heads of the types that no line was taken of yet.
    heads: Peekable<btree_set::Iter<'a, (u64, NameId)>>,
    /// The next line of each other type: its key, and the lines after it.
    begun: BTreeMap<(u64, NameId), (Slot, btree_map::Iter<'a, u64, Slot>)>,
}

impl Iterator for Lines<'_> {
    type Item = RingLine;

    fn next(&mut self) -> Option<RingLine> {
        let begun = self.begun.first_key_value().map(|(&place, _)| place);
        let head = self.only.or_else(|| self.heads.peek().copied().copied());
        let first = begun.into_iter().chain(head).min()?;
        let (key, mut rest) = match begun == Some(first) {
            true => self.begun.remove(&first)?,
            false => {
                if self.only.take().is_none() {
                    self.heads.next();
                }
                let mut lines = self.side.by_type.get(&first.1)?.lines.iter();
                (*lines.next()?.1, lines)
            }
        };
        let (turn, task_type) = first;
        if let Some((&turn, &key)) = rest.next() {
            self.begun.insert((turn, task_type), (key, rest));
        }
        Some(RingLine { turn, task_type, key })
    }
}

/// Tasks of one type in the line of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLine {
    /// Unique among the lines of a ring.
    pub(crate) turn: u64,
    pub(crate) task_type: NameId,
    pub(crate) key: Slot,
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

    /// Tasks of these types in lines of keys that may run.
    pub(crate) fn open_tasks(&self, wanted: &Wanted) -> u64 {
        self.rings.iter().map(|ring| ring.open.tasks(wanted)).sum()
    }

    /// Lines with their priority, the highest first, open ones before closed ones.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (u8, RingLine)> {
        (0..=PRIORITY_MAX).rev().flat_map(|priority| {
            let ring = self.ring(priority);
            let lines = ring.open.lines().chain(ring.closed.lines());
            lines.map(move |line| (priority, line))
        })
    }

    /// The part of a queue's image that is about its rings; the lines are in the images of the
    /// keys.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Names;
    use crate::queue::Lane;

    fn line(turn: u64, task_type: NameId) -> Line {
        Line { turn, tasks: Lane::EMPTY, task_type, served: 0, priority: 0 }
    }

    #[test]
    fn lines_come_by_turn_whatever_types_they_have() {
        let mut names = Names::default();
        for types in 0..5_u64 {
            let mut side = Side::default();
            let mut expected = Vec::new();
            for turn in 1..40 {
                // Each key has tasks of the types that divide its turn.
                for of in (1..=types).filter(|of| turn % of == 0) {
                    let key = 100 + turn as Slot;
                    let task_type = names.intern(&of.to_string());
                    side.insert(&line(turn, task_type), key);
                    expected.push(RingLine { turn, task_type, key });
                }
            }
            assert_eq!(side.lines().collect::<Vec<_>>(), expected, "{types} types");
            assert!(side.lines().take(3).eq(expected.into_iter().take(3)));
        }
    }
}
