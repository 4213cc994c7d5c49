//! Check: every invariant between the parts of the state. Slow: for tests and the simulator.

use crate::life::Task;
use crate::limits::PRIORITY_MAX;
use crate::queue::{Lane, LaneId};
use crate::rings::Side;
use crate::slab::{NO_SLOT, Slot};
use crate::strands::Strand;
use crate::{HeldTasks, Machine, SessionId, TaskId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl Machine {
    /// Checks every invariant between the parts of the state; returns the first violation, in
    /// words. Slow: for tests and the simulator.
    pub fn check(&self) -> Result<(), String> {
        self.check_ids()?;
        self.check_lanes()?;
        self.check_deadlines()?;
        self.check_indexes()?;
        self.check_unique()?;
        self.check_keys()?;
        self.check_names()?;
        self.check_head()?;
        self.dedup.check()?;
        self.resent.check()?;
        self.batches.check()?;
        self.staged.check()?;
        self.outbox.check()?;
        self.links.check()?;
        self.windows.check()?;
        self.flows.check()?;
        self.nodes.check()?;
        self.staged_flows.check()?;
        self.check_flows()?;
        self.check_tallies()?;
        self.check_schedules()
    }

    fn check_ids(&self) -> Result<(), String> {
        ensure!(
            self.ids.len() == self.tasks.len(),
            "{} ids and {} tasks",
            self.ids.len(),
            self.tasks.len()
        );
        let mut orders = BTreeSet::new();
        let mut came_at: BTreeMap<TaskId, Timestamp> = BTreeMap::new();
        for (slot, task) in self.tasks.iter() {
            let id = task.id;
            came_at.insert(id, task.enqueued_at);
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
        // Lists that begin with the newest count on it.
        for ((id, at), (next, later)) in came_at.iter().zip(came_at.iter().skip(1)) {
            let same_run = (id.incarnation, id.origin) == (next.incarnation, next.origin);
            ensure!(!same_run || at <= later, "task {next} came before {id}, of the same origin");
        }
        Ok(())
    }

    /// Checks that lanes are well-formed ordered lists, and that each task is in the lane of its
    /// state.
    fn check_lanes(&self) -> Result<(), String> {
        let mut seen = 0;
        let queues = (self.queues.slab.len(), self.queues.by_name.len());
        ensure!(queues.0 == queues.1, "{} queues have {} names", queues.0, queues.1);
        for (number, queue) in self.queues.slab.iter() {
            let name = &queue.name;
            ensure!(self.queues.find(name.as_str()) == Some(number), "queue {name} is not found");
            ensure!(self.queues.has(number), "queue {name} has a number that is not in use");
            ensure!(
                !queue.deleted || !self.may_remove(number),
                "nothing needs the deleted queue {name}"
            );
            let held = HeldTasks::of(&queue.counts());
            ensure!(!queue.deleted || held.is_none(), "the deleted queue {name} has {held:?}");
            for id in LaneId::others() {
                let lane = queue.lane(id);
                self.check_lane(lane, &format!("lane {id:?} of queue {name}"), |task| {
                    task.queue == number && LaneId::of(task) == id
                })?;
                seen += lane.length as usize;
            }
            for priority in 0..=PRIORITY_MAX {
                let (id, strands) = (LaneId::ready_at(priority), queue.strands(priority));
                let lane = format!("lane {id:?} of queue {name}");
                strands.check(&self.tasks).map_err(|what| format!("{lane} {what}"))?;
                for Strand { task_type, tasks } in strands.iter() {
                    self.check_lane(&tasks, &lane, |task| {
                        let here = task.key().is_none() && task.task_type == task_type;
                        task.queue == number && LaneId::of(task) == id && here
                    })?;
                    seen += tasks.length as usize;
                }
            }
        }
        for (slot, key) in self.keys.slab.iter() {
            for line in &key.lines {
                let lane = LaneId::ready_at(line.priority);
                ensure!(line.tasks.length > 0, "key {} has an empty line", key.text);
                self.check_lane(
                    &line.tasks,
                    &format!("lane {lane:?} of key {}", key.text),
                    |task| {
                        let here = task.key() == Some(slot) && task.task_type == line.task_type;
                        here && LaneId::of(task) == lane
                    },
                )?;
                seen += line.tasks.length as usize;
            }
        }
        ensure!(seen == self.tasks.len(), "{seen} tasks in lanes of {}", self.tasks.len());
        Ok(())
    }

    /// Checks that a lane is a well-formed ordered list of tasks that belong there.
    fn check_lane(
        &self,
        lane: &Lane,
        name: &str,
        belongs: impl Fn(&Task) -> bool,
    ) -> Result<(), String> {
        let (mut previous, mut slot, mut length) = (NO_SLOT, lane.head, 0);
        let mut order = 0;
        while slot != NO_SLOT {
            let task = self.tasks.get(slot);
            let at = format!("task {} in {name}", task.id);
            ensure!(belongs(task), "{at} belongs elsewhere: it is {}", task.state.name());
            ensure!(task.previous == previous, "{at} has a broken link");
            ensure!(task.order > order, "{at} is out of order");
            (previous, slot, order) = (slot, task.next, task.order);
            length += 1;
        }
        ensure!(lane.tail == previous, "{name} has a wrong tail");
        ensure!(lane.length == length, "{name} is miscounted");
        Ok(())
    }

    /// Checks the fairness keys: the index finds each key by its id, something needs each key, the
    /// rings have the lines of each key, and counts of tasks and claims are right.
    fn check_keys(&self) -> Result<(), String> {
        let mut uses: BTreeMap<Slot, (u32, u32)> = BTreeMap::new();
        for (_, task) in self.tasks.iter() {
            if let Some(key) = task.key() {
                let (tasks, claimed) = uses.entry(key).or_default();
                *tasks += 1;
                *claimed += u32::from(task.claim().is_some());
                let queue = self.keys.get(key).id.queue;
                ensure!(queue == task.queue, "task {} has a key of another queue", task.id);
            }
        }
        ensure!(self.opened.is_empty(), "opened queues were not told");
        ensure!(self.shrunk.is_empty(), "deleted queues were not looked at");
        let mut lines: BTreeMap<(Slot, u8, bool), Side> = BTreeMap::new();
        let mut turns: BTreeMap<(Slot, u8, u64), Slot> = BTreeMap::new();
        let mut of_queue: BTreeMap<Slot, (u32, u64, u64)> = BTreeMap::new();
        let mut heap_bytes = 0;
        let mut due = BTreeMap::new();
        for (slot, key) in self.keys.slab.iter() {
            let name = format!("key {}", key.text);
            ensure!(self.keys.find(key.id.queue, &key.text) == Ok(slot), "{name} is not found");
            let used = uses.get(&slot).copied().unwrap_or_default();
            ensure!(used == (key.tasks, key.claimed), "{name} miscounts its tasks: {used:?}");
            ensure!(key.tasks > 0 || key.due_at().is_some(), "nothing needs {name}");
            ensure!(!key.closed || key.counted == 0, "{name} is closed and counted");
            ensure!(key.counted <= key.ready(), "{name} counts more than is ready");
            for line in &key.lines {
                let side = lines.entry((key.id.queue, line.priority, key.closed)).or_default();
                ensure!(side.insert(line, slot).is_none(), "{name} has two lines of one type");
                let turn = turns.insert((key.id.queue, line.priority, line.turn), slot);
                ensure!(turn.is_none_or(|other| other == slot), "{name} shares its turn");
                let first = key.line(line.priority).map(|first| (first.turn, first.served));
                ensure!(first == Some((line.turn, line.served)), "{name} has two turns at once");
            }
            let (keys, ready, available) = of_queue.entry(key.id.queue).or_default();
            *keys += 1;
            *ready += u64::from(key.ready());
            *available += u64::from(key.counted);
            heap_bytes += key.heap_bytes() as u64;
            due.extend(key.due_at().map(|at| ((at, key.id), slot)));
        }
        ensure!(self.keys.by_id.len() == self.keys.slab.len(), "ids of keys and keys disagree");
        ensure!(heap_bytes == self.keys.heap_bytes, "the memory of keys is miscounted");
        ensure!(due == self.deadlines.keys, "deadlines of keys disagree with them");
        for (number, queue) in self.queues.slab.iter() {
            let name = &queue.name;
            ensure!(queue.due_at == queue.next_due(), "queue {name} has a stale deadline");
            let known = of_queue.remove(&number);
            ensure!(known.is_some() == queue.rings.is_some(), "rings of queue {name} without keys");
            let (Some(rings), Some(known)) = (&queue.rings, known) else { continue };
            let found = (rings.keys, rings.ready, rings.available);
            ensure!(found == known, "queue {name} miscounts its keys: {found:?}, not {known:?}");
            for priority in 0..=PRIORITY_MAX {
                let ring = rings.ring(priority);
                for (closed, side) in [(false, &ring.open), (true, &ring.closed)] {
                    let expected = lines.remove(&(number, priority, closed)).unwrap_or_default();
                    ensure!(*side == expected, "ring {priority} of queue {name} is not its lines");
                }
            }
        }
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
        let queues = self.queues.slab.iter();
        let queues = queues.filter_map(|(number, queue)| Some((queue.due_at?, number)));
        let queues: BTreeSet<_> = queues.collect();
        ensure!(queues == self.deadlines.queues, "deadlines of queues disagree with them");
        Ok(())
    }

    fn check_indexes(&self) -> Result<(), String> {
        let mut dead = BTreeMap::new();
        let mut died = BTreeSet::new();
        let mut held: BTreeMap<SessionId, BTreeMap<u64, Slot>> = BTreeMap::new();
        let mut numbered = BTreeMap::new();
        let mut heap_bytes = 0;
        for (slot, task) in self.tasks.iter() {
            heap_bytes += task.heap_bytes() as u64;
            if LaneId::of(task) == LaneId::DEAD {
                dead.insert(task.id, slot);
                died.insert(task.died());
            }
            if let Some(session) = task.claim().and_then(|claim| claim.session) {
                held.entry(session).or_default().insert(task.order, slot);
            }
            if let Some(claim) = task.claim_key() {
                numbered.insert((claim, task.order), slot);
            }
        }
        ensure!(dead == self.dead, "the index of dead letters disagrees with the tasks");
        ensure!(died == self.died, "the index of deaths disagrees with the tasks");
        ensure!(held == self.session_claims, "the claims of sessions disagree with the tasks");
        ensure!(numbered == self.numbered_claims, "the numbered claims disagree with the tasks");
        ensure!(heap_bytes == self.task_heap_bytes, "the memory of tasks is miscounted");
        Ok(())
    }

    /// Checks that a unique key has one holder: a task, or the window of a task that ended.
    fn check_unique(&self) -> Result<(), String> {
        let mut held = BTreeMap::new();
        for (slot, task) in self.tasks.iter() {
            if let Some(key) = self.held_key(task) {
                let other = held.insert(key, slot);
                ensure!(other.is_none(), "task {} shares its unique key with another", task.id);
                let window = self.windows.get(key);
                ensure!(window.is_none(), "the unique key of task {} has a window too", task.id);
            }
        }
        ensure!(held == self.unique, "the index of unique keys disagrees with the tasks");
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
