//! Check: every invariant between the parts of the state. Slow: for tests and the simulator.

use crate::queue::LaneId;
use crate::slab::{NO_SLOT, Slot};
use crate::{Machine, SessionId};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl Machine {
    /// Checks every invariant between the parts of the state; the first violation, in words. Slow: for tests and the simulator.
    pub fn check(&self) -> Result<(), String> {
        self.check_ids()?;
        self.check_lanes()?;
        self.check_deadlines()?;
        self.check_indexes()?;
        self.check_names()?;
        self.check_head()?;
        self.dedup.check()?;
        self.replays.check()?;
        self.batches.check()?;
        self.staged.check()?;
        self.outbox.check()?;
        self.links.check()
    }

    fn check_ids(&self) -> Result<(), String> {
        ensure!(
            self.ids.len() == self.tasks.len(),
            "{} ids and {} tasks",
            self.ids.len(),
            self.tasks.len()
        );
        let mut orders = BTreeSet::new();
        for (slot, task) in self.tasks.iter() {
            let id = task.id;
            ensure!(self.ids.get(id) == Some(slot), "task {id} is not found under its id");
            ensure!(orders.insert(task.order), "task {id} shares its order with another");
            let made_here =
                (id.incarnation, id.origin) == (self.identity.incarnation, self.identity.shard);
            ensure!(
                !made_here || id.sequence < self.counters.next_sequence,
                "task {id} is from the future"
            );
            let token = task.claim().map(|claim| claim.token);
            let tokens = task.attempts().map(|attempt| attempt.token).chain(token);
            for token in tokens {
                ensure!(token.0 < self.counters.next_token, "task {id} has an unknown token");
            }
        }
        Ok(())
    }

    /// Lanes are well-formed lists in order, and hold every task once, where its state says.
    fn check_lanes(&self) -> Result<(), String> {
        let mut seen = 0;
        for (number, queue) in self.queues.slab.iter() {
            let name = &queue.name;
            ensure!(self.queues.find(name.as_str()) == Some(number), "queue {name} is not found");
            for id in LaneId::all() {
                let lane = queue.lane(id);
                let (mut previous, mut slot, mut length) = (NO_SLOT, lane.head, 0);
                let mut order = 0;
                while slot != NO_SLOT {
                    let task = self.tasks.get(slot);
                    let at = format!("task {} in lane {id:?} of queue {name}", task.id);
                    ensure!(task.queue == number, "{at} belongs to another queue");
                    ensure!(LaneId::of(task) == id, "{at} is {}", task.state.name());
                    ensure!(task.previous == previous, "{at} has a broken link");
                    ensure!(task.order > order, "{at} is out of order");
                    (previous, slot, order) = (slot, task.next, task.order);
                    length += 1;
                }
                ensure!(lane.tail == previous, "lane {id:?} of queue {name} has a wrong tail");
                ensure!(lane.length == length, "lane {id:?} of queue {name} is miscounted");
                seen += length as usize;
            }
        }
        ensure!(seen == self.tasks.len(), "{seen} tasks in lanes of {}", self.tasks.len());
        Ok(())
    }

    fn check_deadlines(&self) -> Result<(), String> {
        let due: BTreeMap<_, Slot> = self
            .tasks
            .iter()
            .filter_map(|(slot, task)| task.due_at().map(|at| ((at, task.order), slot)))
            .collect();
        ensure!(due == self.deadlines.tasks, "deadlines of tasks disagree with their states");
        let mut lanes = BTreeSet::new();
        for (number, queue) in self.queues.slab.iter() {
            for (lane, known) in LaneId::RETAINED.into_iter().zip(queue.retention_due) {
                let due = self.retention_due(number, lane);
                ensure!(due == known, "queue {} has a stale deadline for {lane:?}", queue.name);
                lanes.extend(due.map(|at| (at, number, lane)));
            }
        }
        ensure!(lanes == self.deadlines.lanes, "deadlines of queues disagree with their lanes");
        Ok(())
    }

    fn check_indexes(&self) -> Result<(), String> {
        let mut dead = BTreeMap::new();
        let mut held: BTreeMap<SessionId, BTreeMap<u64, Slot>> = BTreeMap::new();
        let mut heap_bytes = 0;
        for (slot, task) in self.tasks.iter() {
            heap_bytes += task.heap_bytes() as u64;
            if LaneId::of(task) == LaneId::DEAD {
                dead.insert(task.id, slot);
            }
            if let Some(session) = task.claim().and_then(|claim| claim.session) {
                held.entry(session).or_default().insert(task.order, slot);
            }
        }
        ensure!(dead == self.dead, "the index of dead letters disagrees with the tasks");
        ensure!(held == self.session_claims, "the claims of sessions disagree with the tasks");
        ensure!(heap_bytes == self.task_heap_bytes, "the memory of tasks is miscounted");
        Ok(())
    }

    fn check_names(&self) -> Result<(), String> {
        let mut uses: BTreeMap<&str, u32> = BTreeMap::new();
        for (_, task) in self.tasks.iter() {
            *uses.entry(self.names.get(task.task_type)).or_default() += 1;
            if let Some(claim) = task.claim() {
                *uses.entry(self.names.get(claim.worker)).or_default() += 1;
            }
        }
        ensure!(uses == self.names.uses(), "uses of names are miscounted");
        Ok(())
    }
}
