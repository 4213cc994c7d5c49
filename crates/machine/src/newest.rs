//! Newest: lists of the newest tasks first, whose cost depends only on the tasks that they show.
//!
//! Ids of one origin are numbers that grow in the order in which its tasks came to this shard: so
//! each origin's tasks are in the order of their time already, and a list merges the origins from
//! their ends. A page goes on where the one before ended by a search in each origin, not by a walk.
//! Dead letters are listed by the time of their death, which has an index.

use crate::ids::Run;
use crate::limits::{LOOK_BYTES_MAX, PAGE_TASKS_MAX, SCAN_TASKS_MAX};
use crate::slab::Slot;
use crate::wire::wire_struct;
use crate::{Machine, TaskFilter, TaskId, TaskStateName, TaskView, Timestamp};
use std::collections::BinaryHeap;
use std::ops::Bound;

/// Where a task is in such a list: by its time, then by its id. The same on every shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewestAt {
    /// When it was enqueued; of a list of dead letters, when it died.
    pub at: Timestamp,
    /// The task.
    pub task: TaskId,
}

/// One page, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestPage {
    /// Each task with its time.
    pub tasks: Vec<(Timestamp, TaskView)>,
    /// Where to go on; `None` is the end. A page may be short, even empty, and still go on.
    pub next: Option<NewestAt>,
}

/// How much of a list is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestSpan {
    /// Only what is older than this.
    pub before: Option<NewestAt>,
    /// Only what is no older than this.
    pub since: Option<Timestamp>,
    /// Tasks at most.
    pub limit: u32,
    /// Tasks to look at, at most.
    pub scan: u32,
}

wire_struct!(NewestAt { at, task });
wire_struct!(NewestPage { tasks, next });
wire_struct!(NewestSpan { before, since, limit, scan });

impl Machine {
    /// Tasks that match, the newest first.
    pub fn newest(&self, filter: &TaskFilter<'_>, span: &NewestSpan) -> NewestPage {
        match filter.state {
            Some(TaskStateName::Dead) => self.newest_page(self.died(span.before), filter, span),
            _ => self.newest_page(self.came(span.before), filter, span),
        }
    }

    fn newest_page(
        &self,
        candidates: impl Iterator<Item = (NewestAt, Slot)>,
        filter: &TaskFilter<'_>,
        span: &NewestSpan,
    ) -> NewestPage {
        let limit = (span.limit as usize).clamp(1, PAGE_TASKS_MAX);
        let scan = (span.scan as usize).clamp(1, SCAN_TASKS_MAX);
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        let mut last = None;
        for (looked_at, (place, slot)) in candidates.enumerate() {
            if span.since.is_some_and(|since| place.at < since) {
                break;
            }
            if looked_at == scan || tasks.len() == limit || bytes >= LOOK_BYTES_MAX {
                return NewestPage { tasks, next: last };
            }
            if self.matches(self.tasks.get(slot), filter) {
                let view = self.task_view(slot);
                bytes += view.copied_bytes();
                tasks.push((place.at, view));
            }
            last = Some(place);
        }
        NewestPage { tasks, next: None }
    }

    /// Dead letters, the one that died last first.
    fn died(&self, before: Option<NewestAt>) -> impl Iterator<Item = (NewestAt, Slot)> {
        let end =
            before.map_or(Bound::Unbounded, |NewestAt { at, task }| Bound::Excluded((at, task)));
        let died = self.died.range((Bound::Unbounded, end)).rev();
        died.filter_map(|&(at, task)| Some((NewestAt { at, task }, self.ids.get(task)?)))
    }

    /// All tasks, the one that came last first.
    fn came(&self, before: Option<NewestAt>) -> impl Iterator<Item = (NewestAt, Slot)> {
        let back = |run| {
            let end = before.map_or(u64::MAX, |before| self.end_of(run, before));
            self.ids.back(run, end).map(|(id, slot)| (self.came_at(id, slot), slot))
        };
        let mut runs: Vec<_> = self.ids.runs().map(back).collect();
        let heads = runs.iter_mut().enumerate();
        let mut heads: BinaryHeap<_> = heads
            .filter_map(|(run, tasks)| tasks.next().map(|(place, slot)| (place, slot, run)))
            .collect();
        std::iter::from_fn(move || {
            let (place, slot, run) = heads.pop()?;
            heads.extend(runs[run].next().map(|(place, slot)| (place, slot, run)));
            Some((place, slot))
        })
    }

    /// The number in a run from which on its tasks are not older than a place, found by halving:
    /// the times of a run never fall, as `Machine::check` verifies.
    fn end_of(&self, run: Run, before: NewestAt) -> u64 {
        let is_older = |(id, slot)| self.came_at(id, slot) < before;
        let Some((last, slot)) = self.ids.back(run, u64::MAX).next() else { return 0 };
        if is_older((last, slot)) {
            return u64::MAX;
        }
        // Below `low` all are older; from `high` on none is.
        let (mut low, mut high) = (0, last.sequence);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.ids.first_from(run, middle) {
                Some((id, slot)) if is_older((id, slot)) => low = id.sequence + 1,
                _ => high = middle,
            }
        }
        low
    }

    fn came_at(&self, task: TaskId, slot: Slot) -> NewestAt {
        NewestAt { at: self.tasks.get(slot).enqueued_at, task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use crate::outbox::Message;
    use crate::testing::{SHARD, Yard, new_task};
    use crate::{Command, Deliver, Enqueue, Kill, QueueSettings, ShardId};

    const ALL: NewestSpan = NewestSpan { before: None, since: None, limit: 1_000, scan: u32::MAX };

    fn listed(page: &NewestPage) -> Vec<TaskId> {
        page.tasks.iter().map(|(_, task)| task.id).collect()
    }

    /// All pages of a list, put together.
    fn paged(yard: &Yard, filter: &TaskFilter<'_>, limit: u32, scan: u32) -> Vec<TaskId> {
        let mut all = Vec::new();
        let mut span = NewestSpan { limit, scan, ..ALL };
        loop {
            let page = yard.machine.newest(filter, &span);
            assert!(page.tasks.len() <= limit as usize);
            all.extend(listed(&page));
            match page.next {
                Some(next) => span.before = Some(next),
                None => return all,
            }
        }
    }

    /// A yard with tasks of this shard's own and of others', that came at all kinds of times.
    fn mixed(seed: u64, tasks: u64) -> Yard {
        let mut draw = Draw::new(seed);
        let mut yard = Yard::new();
        let mut sent = [(0, 0); 4];
        for _ in 0..tasks {
            match draw.up_to(5) {
                0 => yard.pass_ms(draw.up_to(3)),
                1 | 2 => {
                    let from = if draw.up_to(1) == 0 { ShardId(2) } else { ShardId(3) };
                    let (messages, made) = &mut sent[usize::from(from.0)];
                    *messages += 1;
                    *made += 1 + draw.up_to(200);
                    let (home, origin, sequence) = (SHARD, from, *made);
                    let id = TaskId { incarnation: 7, home, origin, sequence };
                    let enqueue = Enqueue { queue: "mail", task: new_task() };
                    let message = Message::Enqueue { id, enqueue, watch: None }.encode();
                    let (sequence, command) = (*messages, &*message);
                    yard.send(Command::Deliver(Deliver { from, sequence, waited_ms: 0, command }))
                        .unwrap();
                }
                _ => drop(yard.enqueue("mail")),
            }
        }
        yard
    }

    #[test]
    fn the_newest_of_all_origins_come_first() {
        for seed in 0..8 {
            let yard = mixed(seed, 300);
            let mut expected: Vec<NewestAt> = yard
                .machine
                .tasks
                .iter()
                .map(|(slot, task)| yard.machine.came_at(task.id, slot))
                .collect();
            expected.sort_unstable_by(|a, b| b.cmp(a));
            let expected: Vec<TaskId> = expected.iter().map(|place| place.task).collect();
            assert!(expected.len() > 150 && yard.machine.ids.runs().count() == 3);
            for (limit, scan) in [(1_000, u32::MAX), (7, u32::MAX), (1, 1), (50, 3)] {
                let filter = TaskFilter::default();
                assert_eq!(paged(&yard, &filter, limit, scan), expected, "{seed} {limit} {scan}");
            }
            yard.machine.check().unwrap();
        }
    }

    /// What goes or comes between two pages makes none of the others missing or doubled.
    #[test]
    fn a_list_continues_after_its_last_task_is_removed() {
        let mut yard = Yard::new();
        // A task that ends goes at once.
        yard.set("mail", QueueSettings { retention_count: Some(0), ..QueueSettings::default() });
        let ids: Vec<TaskId> = (0..300).map(|_| yard.enqueue("mail")).collect();
        let filter = TaskFilter::default();
        let first = yard.machine.newest(&filter, &NewestSpan { limit: 10, ..ALL });
        assert_eq!(listed(&first), ids[290..].iter().rev().copied().collect::<Vec<_>>());
        for id in &ids[285..292] {
            yard.cancel(*id).unwrap();
        }
        yard.expire();
        assert!(ids[285..292].iter().all(|id| yard.machine.ids.get(*id).is_none()));
        yard.enqueue("mail");
        let second = NewestSpan { before: first.next, limit: 10, ..ALL };
        let second = yard.machine.newest(&filter, &second);
        assert_eq!(listed(&second), ids[275..285].iter().rev().copied().collect::<Vec<_>>());
    }

    #[test]
    fn since_ends_a_list_and_dead_letters_are_listed_by_their_death() {
        let mut yard = Yard::new();
        let [first, second, third] = [0; 3].map(|_| yard.enqueue("mail"));
        yard.pass_ms(1_000);
        let since = Some(yard.now());
        let fourth = yard.enqueue("mail");
        let all = TaskFilter::default();
        let recent = yard.machine.newest(&all, &NewestSpan { since, ..ALL });
        assert_eq!((listed(&recent), recent.next), (vec![fourth], None));

        // They die in another order than they came.
        for id in [second, first] {
            yard.pass_ms(10);
            yard.send(Command::Kill(Kill { task: id })).unwrap();
        }
        let dead = TaskFilter { state: Some(TaskStateName::Dead), ..TaskFilter::default() };
        assert_eq!(paged(&yard, &dead, 1, 1), [first, second]);
        let since = Some(yard.now());
        let recent = yard.machine.newest(&dead, &NewestSpan { since, ..ALL });
        assert_eq!(listed(&recent), [first]);
        let ready = TaskFilter { state: Some(TaskStateName::Ready), ..TaskFilter::default() };
        assert_eq!(paged(&yard, &ready, 10, 10), [fourth, third]);
        yard.machine.check().unwrap();
    }

    #[test]
    fn a_place_in_a_run_is_found_by_halving() {
        let mut yard = Yard::new();
        for n in 0..5_000 {
            yard.pass_ms(n % 2);
            yard.enqueue_unchecked("mail", new_task());
        }
        let ids = &yard.machine.ids;
        let run = ids.runs().next().unwrap();
        for (id, slot) in ids.back(run, u64::MAX).step_by(97) {
            let place = yard.machine.came_at(id, slot);
            assert_eq!(yard.machine.end_of(run, place), id.sequence);
        }
    }
}
