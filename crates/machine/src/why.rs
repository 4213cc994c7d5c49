//! Why: explains what a task waits for. It only explains and decides nothing.

use crate::life::State;
use crate::limits::AHEAD_MAX;
use crate::names::NameId;
use crate::queue::{Lane, LaneId, Queue};
use crate::rings::RingLine;
use crate::slab::{NO_SLOT, Slot};
use crate::wire::{wire_enum, wire_struct};
use crate::{AttemptOutcome, Machine, QueueName, TaskId, TaskStateName, Timestamp};
use std::sync::Arc;

/// The reasons for which a task waits, as of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyView {
    /// The task's queue.
    pub queue: QueueName,
    /// The task's type.
    pub task_type: Arc<str>,
    /// The moment: what was asked for, or the shard's own time if that is later.
    pub now: Timestamp,
    /// The reasons, in the order in which they must be lifted.
    pub reasons: Vec<Reason>,
}

/// One reason for which a task waits, or why it does not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The task is a node of a flow with unsettled parents; the flow's shard knows which.
    Parents {
        /// The flow.
        flow: TaskId,
        /// The task's node.
        node: Box<str>,
    },
    /// The task's queue is paused.
    QueuePaused,
    /// The task is scheduled for later.
    Scheduled {
        /// When the task is due.
        until: Timestamp,
        /// Why the task is scheduled.
        reason: ScheduledFor,
    },
    /// The queue's limit of claimed tasks is reached.
    QueueConcurrency {
        /// The number of claimed tasks.
        claimed: u32,
        /// The queue's `concurrency`.
        limit: u32,
    },
    /// The queue's bucket is empty.
    QueueRate {
        /// When the bucket has a token again.
        opens_at: Timestamp,
    },
    /// The key's limit of claimed tasks is reached.
    KeyConcurrency {
        /// The key.
        key: String,
        /// The number of claimed tasks of the key.
        claimed: u32,
        /// The queue's `per_key.concurrency`.
        limit: u32,
    },
    /// The key's bucket is empty.
    KeyRate {
        /// The key.
        key: String,
        /// When the bucket has a token again.
        opens_at: Timestamp,
    },
    /// A handler has pushed back the task's key.
    KeyHeld {
        /// The key; `None` stands for all tasks of the queue without a key.
        key: Option<String>,
        /// When the push-back ends.
        until: Timestamp,
    },
    /// Other ready tasks of the queue come first.
    Ahead {
        /// The number of tasks ahead.
        tasks: u64,
        /// Whether there may be more: the count stopped at its bound, or ageing may change the
        /// order.
        at_least: bool,
    },
    /// The task does not wait: a worker runs it.
    Running {
        /// The worker's name.
        worker: Arc<str>,
        /// When the task was claimed.
        since: Timestamp,
    },
    /// The task does not wait: it has ended.
    Finished {
        /// The final state.
        state: TaskStateName,
    },
}

/// Why a task is scheduled for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledFor {
    /// It was enqueued for later.
    Delay,
    /// Its last attempt failed.
    Retry,
    /// Its last worker was lost.
    Loss,
    /// Its last worker snoozed it.
    Snooze,
}

wire_struct!(WhyView { queue, task_type, now, reasons });
wire_enum!(Reason {
    1 => Parents { flow, node },
    2 => QueuePaused,
    3 => Scheduled { until, reason },
    4 => QueueConcurrency { claimed, limit },
    5 => QueueRate { opens_at },
    6 => KeyConcurrency { key, claimed, limit },
    7 => KeyRate { key, opens_at },
    8 => KeyHeld { key, until },
    9 => Ahead { tasks, at_least },
    10 => Running { worker, since },
    11 => Finished { state },
});
wire_enum!(ScheduledFor { 1 => Delay, 2 => Retry, 3 => Loss, 4 => Snooze });

impl ScheduledFor {
    /// The name of the reason, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            ScheduledFor::Delay => "delay",
            ScheduledFor::Retry => "retry",
            ScheduledFor::Loss => "loss",
            ScheduledFor::Snooze => "snooze",
        }
    }
}

impl Machine {
    /// The reasons for which a task waits, with its queue, at `now` or the shard's own time if that
    /// is later.
    pub fn why_view(&self, task: TaskId, now: Timestamp) -> Option<WhyView> {
        let now = now.max(self.now());
        let found = self.tasks.get(self.ids.get(task)?);
        let queue = self.queues.get(found.queue).name.clone();
        let task_type = self.names.get(found.task_type).clone();
        Some(WhyView { queue, task_type, now, reasons: self.why(task, now)? })
    }

    /// The reasons for which a task waits at `now`, in the order in which they must be lifted;
    /// `None` if the task is unknown here.
    pub fn why(&self, task: TaskId, now: Timestamp) -> Option<Vec<Reason>> {
        let slot = self.ids.get(task)?;
        let task = self.tasks.get(slot);
        let queue = self.queues.get(task.queue);
        let mut reasons = Vec::new();
        match &task.state {
            State::Claimed(claim) => {
                let worker = self.names.get(claim.worker).clone();
                return Some(vec![Reason::Running { worker, since: claim.claimed_at }]);
            }
            State::Finished { .. } => {
                return Some(vec![Reason::Finished { state: task.state.name() }]);
            }
            State::Scheduled { run_at } => {
                let reason = self.scheduled_for(slot);
                reasons.push(Reason::Scheduled { until: *run_at, reason });
            }
            State::Blocked => reasons.extend(task.flow_member().map(|member| {
                let (flow, node) = (member.flow, member.node);
                Reason::Parents { flow, node }
            })),
            State::Ready { .. } => {}
        }
        if queue.paused {
            reasons.push(Reason::QueuePaused);
        }
        if let State::Ready { .. } = task.state {
            self.limits_of(queue, now, &mut reasons);
            self.limits_of_key(slot, now, &mut reasons);
            reasons.push(self.ahead_of(slot));
        }
        Some(reasons)
    }

    fn scheduled_for(&self, slot: Slot) -> ScheduledFor {
        let last = self.tasks.get(slot).attempts().next();
        match last.map(|attempt| attempt.outcome) {
            None | Some(AttemptOutcome::Succeeded | AttemptOutcome::Released) => {
                ScheduledFor::Delay
            }
            Some(AttemptOutcome::Lost) => ScheduledFor::Loss,
            Some(AttemptOutcome::Snoozed) => ScheduledFor::Snooze,
            Some(AttemptOutcome::Failed | AttemptOutcome::TimedOut | AttemptOutcome::Cancelled) => {
                ScheduledFor::Retry
            }
        }
    }

    fn limits_of(&self, queue: &Queue, now: Timestamp, reasons: &mut Vec<Reason>) {
        if let Some(limit) = queue.settings.concurrency.filter(|_| queue.slots() == 0) {
            let claimed = queue.lane(LaneId::CLAIMED).length;
            reasons.push(Reason::QueueConcurrency { claimed, limit });
        }
        if let Some(rate) = queue.settings.rate.filter(|_| queue.tokens(now) == 0) {
            reasons.push(Reason::QueueRate { opens_at: queue.bucket.opens_at(rate) });
        }
    }

    fn limits_of_key(&self, slot: Slot, now: Timestamp, reasons: &mut Vec<Reason>) {
        let task = self.tasks.get(slot);
        let queue = self.queues.get(task.queue);
        let Some(key) = task.key().map(|key| self.keys.get(key)) else {
            let held = queue.pushed_back_until.map(|until| Reason::KeyHeld { key: None, until });
            reasons.extend(held);
            return;
        };
        let text = || key.text.to_string();
        let limits = queue.settings.per_key.unwrap_or_default();
        if let Some(until) = key.pushed_back_until().filter(|&at| at > now) {
            reasons.push(Reason::KeyHeld { key: Some(text()), until });
        }
        if let Some(limit) = limits.concurrency.filter(|&limit| key.claimed >= limit) {
            reasons.push(Reason::KeyConcurrency { key: text(), claimed: key.claimed, limit });
        }
        if let Some(rate) = limits.rate.filter(|&rate| key.bucket().tokens(rate, now) == 0) {
            let opens_at = key.bucket().opens_at(rate);
            reasons.push(Reason::KeyRate { key: text(), opens_at });
        }
    }

    /// Counts the ready tasks that are served before this one, if no task comes or goes and no key
    /// is opened or closed. Exact up to a bound.
    fn ahead_of(&self, slot: Slot) -> Reason {
        let task = self.tasks.get(slot);
        let queue = self.queues.get(task.queue);
        let own = self.line_of(slot);
        let mut count = Count { tasks: 0, at_least: queue.settings.ageing_ms.is_some() };
        for priority in task.priority + 1..=crate::limits::PRIORITY_MAX {
            self.each_line(queue, priority, &mut count, |line, count| {
                count.tasks += u64::from(line.length);
            });
        }
        // The place in the task's own line, and the number of turns that the line needs before it.
        let mut before = 0u64;
        let mut previous = task.previous;
        while previous != NO_SLOT && !count.at_least_reached(before) {
            before += 1;
            previous = self.tasks.get(previous).previous;
        }
        for head in self.heads_of_other_types(slot) {
            let mut next = head;
            while next != NO_SLOT
                && self.tasks.get(next).order < task.order
                && !count.at_least_reached(before)
            {
                before += 1;
                next = self.tasks.get(next).next;
            }
        }
        let turns = (u64::from(own.served) + before) / u64::from(own.weight);
        count.tasks += before;
        self.each_line(queue, task.priority, &mut count, |line, count| {
            if line.turn != own.turn {
                let extra = u64::from(line.turn < own.turn);
                let served = if extra == 1 { u64::from(line.served) } else { 0 };
                let share = ((turns + extra) * u64::from(line.weight)).saturating_sub(served);
                count.tasks += share.min(line.length.into());
            }
        });
        let Count { tasks, at_least } = count;
        Reason::Ahead { tasks, at_least }
    }

    /// The first task of each other type in the line of a ready task.
    fn heads_of_other_types(&self, slot: Slot) -> Vec<Slot> {
        let task = self.tasks.get(slot);
        let line: Vec<(NameId, Lane)> = match task.key() {
            Some(key) => {
                let lines = self.keys.get(key).types(task.priority);
                lines.map(|line| (line.task_type, line.tasks)).collect()
            }
            None => {
                let strands = self.queues.get(task.queue).strands(task.priority).iter();
                strands.map(|strand| (strand.task_type, strand.tasks)).collect()
            }
        };
        let others = line.into_iter().filter(|(of, _)| *of != task.task_type);
        others.map(|(_, tasks)| tasks.head).collect()
    }

    /// Looks at the lines of a priority that are served now, the queue's tasks without a key among
    /// them.
    fn each_line(
        &self,
        queue: &Queue,
        priority: u8,
        count: &mut Count,
        mut look: impl FnMut(OtherLine, &mut Count),
    ) {
        let head = queue.strands(priority).first().filter(|_| queue.pushed_back_until.is_none());
        head.into_iter().for_each(|head| look(self.line_of(head), count));
        let Some(rings) = &queue.rings else { return };
        let mut last = None;
        for (looked_at, RingLine { turn, key, .. }) in rings.ring(priority).open.lines().enumerate()
        {
            if looked_at == AHEAD_MAX {
                count.at_least = true;
                return;
            }
            // A line with several types comes once for each of them.
            if last.replace(turn) == Some(turn) {
                continue;
            }
            if let Some(line) = self.keys.get(key).line(priority) {
                look(self.line_of(line.tasks.head), count);
            }
        }
    }

    /// The line of a ready task.
    fn line_of(&self, slot: Slot) -> OtherLine {
        let task = self.tasks.get(slot);
        let queue = self.queues.get(task.queue);
        if let Some(key) = task.key().map(|key| self.keys.get(key))
            && let Some(line) = key.line(task.priority)
        {
            let (turn, served, length) = (line.turn, line.served, key.length(task.priority));
            return OtherLine { turn, served, length, weight: queue.weight(&key.text) };
        }
        let lane = queue.strands(task.priority);
        let (turn, served) = queue.rings.as_ref().map_or((0, 0), |rings| {
            let own = rings.unkeyed[usize::from(task.priority)];
            let head = lane.first().expect("a ready task stands in its lane");
            (self.unkeyed_turn(rings, task.priority, head), own.served)
        });
        OtherLine { turn, served, length: lane.length(), weight: queue.weight("") }
    }
}

/// Ready tasks that share a turn.
struct OtherLine {
    turn: u64,
    served: u16,
    length: u32,
    weight: u32,
}

struct Count {
    tasks: u64,
    at_least: bool,
}

impl Count {
    /// Whether a walk of this length reaches the bound.
    fn at_least_reached(&mut self, walked: u64) -> bool {
        let reached = walked as usize >= AHEAD_MAX;
        self.at_least |= reached;
        reached
    }
}
