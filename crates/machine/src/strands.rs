//! Strands: ready tasks of one lane, in one list per type.
//!
//! A claim that names types takes the oldest task among the heads of its types, and never walks
//! over tasks of other types. A claim of any type takes the oldest head of all. Most lanes hold one
//! type: such a lane is one list and nothing more.

use crate::life::Task;
use crate::names::{NameId, Names};
use crate::queue::Lane;
use crate::slab::{NO_SLOT, Slab, Slot};
use crate::transition::Place;
use std::collections::BTreeMap;

/// Types that a claim takes.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Any,
    /// Sorted. Types without a task on this shard are left out.
    These(Vec<NameId>),
}

impl Wanted {
    /// An empty list stands for any type.
    pub(crate) fn new(types: &[&str], names: &Names) -> Wanted {
        if types.is_empty() {
            return Wanted::Any;
        }
        let mut known: Vec<NameId> = types.iter().filter_map(|name| names.find(name)).collect();
        known.sort_unstable();
        known.dedup();
        Wanted::These(known)
    }

    pub(crate) fn has(&self, task_type: NameId) -> bool {
        match self {
            Wanted::Any => true,
            Wanted::These(types) => types.binary_search(&task_type).is_ok(),
        }
    }
}

/// Ready tasks of one type in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strand {
    pub(crate) task_type: NameId,
    pub(crate) tasks: Lane,
}

#[derive(Debug)]
pub(crate) enum Strands {
    One(Strand),
    /// There were several types at once since the lane was last empty.
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub(crate) struct Many {
    by_type: BTreeMap<NameId, Lane>,
    /// The type of each list, by the order of its first task.
    heads: BTreeMap<u64, NameId>,
    length: u32,
}

impl Strands {
    pub(crate) const EMPTY: Strands =
        Strands::One(Strand { task_type: NameId::FIRST, tasks: Lane::EMPTY });

    pub(crate) fn length(&self) -> u32 {
        match self {
            Strands::One(strand) => strand.tasks.length,
            Strands::Many(many) => many.length,
        }
    }

    /// How many tasks are of these types.
    pub(crate) fn length_of(&self, wanted: &Wanted) -> u32 {
        match (self, wanted) {
            (_, Wanted::Any) => self.length(),
            (Strands::One(strand), _) if wanted.has(strand.task_type) => strand.tasks.length,
            (Strands::One(_), _) => 0,
            (Strands::Many(many), Wanted::These(types)) => {
                types.iter().filter_map(|of| many.by_type.get(of)).map(|lane| lane.length).sum()
            }
        }
    }

    /// The oldest task.
    pub(crate) fn first(&self) -> Option<Slot> {
        match self {
            Strands::One(strand) => strand.tasks.first(),
            Strands::Many(many) => many.heads.values().next().map(|of| many.by_type[of].head),
        }
    }

    /// The oldest task of these types.
    pub(crate) fn first_of(&self, wanted: &Wanted, tasks: &Slab<Task>) -> Option<Slot> {
        match (self, wanted) {
            (_, Wanted::Any) => self.first(),
            (Strands::One(strand), _) if wanted.has(strand.task_type) => strand.tasks.first(),
            (Strands::One(_), _) => None,
            (Strands::Many(many), Wanted::These(types)) => {
                if types.len() > many.by_type.len() {
                    let first = many.heads.values().find(|of| wanted.has(**of));
                    return first.map(|of| many.by_type[of].head);
                }
                let heads = types.iter().filter_map(|of| Some(many.by_type.get(of)?.head));
                heads.min_by_key(|&head| tasks.get(head).order)
            }
        }
    }

    /// Tasks in one list per type.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Strand> {
        let (one, many) = match self {
            Strands::One(strand) => (Some(*strand), None),
            Strands::Many(many) => (None, Some(&many.by_type)),
        };
        let many = many.into_iter().flatten();
        let many = many.map(|(&task_type, &tasks)| Strand { task_type, tasks });
        one.into_iter().filter(|strand| strand.tasks.length > 0).chain(many)
    }

    pub(crate) fn push(&mut self, tasks: &mut Slab<Task>, slot: Slot, place: Place) {
        let task_type = tasks.get(slot).task_type;
        match self {
            Strands::One(strand) => {
                if strand.tasks.length == 0 {
                    strand.task_type = task_type;
                }
                if strand.task_type == task_type {
                    return strand.tasks.push(tasks, slot, place);
                }
                let Strand { task_type: other, tasks: lane } = *strand;
                let mut many = Many { length: lane.length, ..Many::default() };
                many.heads.insert(tasks.get(lane.head).order, other);
                many.by_type.insert(other, lane);
                many.push(tasks, slot, place);
                *self = Strands::Many(Box::new(many));
            }
            Strands::Many(many) => many.push(tasks, slot, place),
        }
    }

    pub(crate) fn unlink(&mut self, tasks: &mut Slab<Task>, slot: Slot) {
        match self {
            Strands::One(strand) => strand.tasks.unlink(tasks, slot),
            Strands::Many(many) => {
                many.unlink(tasks, slot);
                if many.length == 0 {
                    *self = Strands::EMPTY;
                }
            }
        }
    }

    /// Every invariant between the lists; the first violation, in words.
    pub(crate) fn check(&self, tasks: &Slab<Task>) -> Result<(), String> {
        let Strands::Many(many) = self else { return Ok(()) };
        let head = |(&of, lane): (&NameId, &Lane)| match lane.first() {
            Some(head) => Ok((tasks.get(head).order, of)),
            None => Err(format!("has an empty list of type {of:?}")),
        };
        let heads = many.by_type.iter().map(head).collect::<Result<BTreeMap<_, _>, _>>()?;
        let length: u32 = many.by_type.values().map(|lane| lane.length).sum();
        match (heads == many.heads, length == many.length) {
            (true, true) => Ok(()),
            (false, _) => Err("has wrong heads".into()),
            (_, false) => Err("is miscounted".into()),
        }
    }
}

impl Many {
    fn push(&mut self, tasks: &mut Slab<Task>, slot: Slot, place: Place) {
        let task_type = tasks.get(slot).task_type;
        let lane = self.by_type.entry(task_type).or_insert(Lane::EMPTY);
        let old = lane.head;
        lane.push(tasks, slot, place);
        if lane.head != old {
            if old != NO_SLOT {
                self.heads.remove(&tasks.get(old).order);
            }
            self.heads.insert(tasks.get(slot).order, task_type);
        }
        self.length += 1;
    }

    fn unlink(&mut self, tasks: &mut Slab<Task>, slot: Slot) {
        let (task_type, order) = (tasks.get(slot).task_type, tasks.get(slot).order);
        let lane =
            self.by_type.get_mut(&task_type).expect("a ready task is in the list of its type");
        let was_first = lane.head == slot;
        lane.unlink(tasks, slot);
        let first = lane.first();
        if was_first {
            self.heads.remove(&order);
            match first {
                Some(head) => drop(self.heads.insert(tasks.get(head).order, task_type)),
                None => drop(self.by_type.remove(&task_type)),
            }
        }
        self.length -= 1;
    }
}
