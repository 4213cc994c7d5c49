//! Flows over several shards, against an account that is derived anew from the tasks themselves.
//!
//! While messages are on their way, the account checks only that a task is released once, after its
//! parents. When no message is on its way, the whole flow follows from the ends of its tasks: which
//! nodes are settled, which wait, how the flow ended and what it returned.

mod account;
mod steps;

use super::Difference;
use super::shards::Shards;
use crate::rng::Rng;
use account::{Flow, Seen};
use taskyard_machine::{ClaimToken, Event, EventKind, FlowState, TaskId};

/// Shards of a history.
const SHARDS: u16 = 3;
/// The number of steps of a history, before everything is worked off.
const STEPS: u64 = 70;
/// The rounds within which everything must have ended.
const ROUNDS_MAX: usize = 60;

/// A history in progress.
struct Run {
    rng: Rng,
    shards: Shards,
    flows: Vec<Flow>,
    /// The claims that are held, as far as is known.
    held: Vec<(TaskId, ClaimToken)>,
    step: u64,
    acks: u64,
}

/// One random history of flows; the first difference, in words.
pub(super) fn check(seed: u64) -> Result<(), Difference> {
    let mut run = Run {
        rng: Rng::new(seed ^ 0xf10e),
        shards: Shards::new(SHARDS),
        flows: Vec::new(),
        held: Vec::new(),
        step: 0,
        acks: 0,
    };
    for _ in 0..STEPS {
        run.random_step().map_err(|what| format!("flows, step {}: {what}", run.step))?;
    }
    run.finish().map_err(|what| format!("flows, at the end, step {}: {what}", run.step))
}

impl Run {
    /// Records the effect of a shard's entry.
    fn note(&mut self, shard: usize, events: &[Event]) -> Result<(), Difference> {
        self.step += 1;
        for event in events {
            if let EventKind::FlowEnded(id, _) = event.kind
                && let Some(flow) = self.flows.iter_mut().find(|flow| flow.id == id)
            {
                flow.ended_by_cancel = std::mem::take(&mut flow.cancel_requested);
                flow.ended_at = Some(self.shards.now);
            }
        }
        for flow in &mut self.flows {
            if self.shards.machine(flow.id.home.0.into()).flow(flow.id).is_none() {
                flow.forgotten_step.get_or_insert(self.step);
            }
            let mut let_go = Vec::new();
            for number in 0..flow.nodes.len() {
                let node = &flow.nodes[number];
                if usize::from(node.task.home.0) != shard {
                    continue;
                }
                let seen = Seen::of(self.shards.machine(shard), node.task);
                let was = flow.nodes[number].see(seen, self.step);
                if was == Seen::Blocked && seen == Seen::Live && flow.forgotten_step.is_none() {
                    let_go.push(number);
                }
            }
            flow.note_settled(self.step);
            let_go.into_iter().try_for_each(|number| flow.check_release(number))?;
        }
        if self.rng.chance(30) {
            self.shards.reload(shard)?;
        }
        Ok(())
    }

    /// Delivers all messages, and then compares each flow with its tasks.
    fn quiet(&mut self) -> Result<(), Difference> {
        while !self.shards.is_quiet() {
            self.carry()?;
        }
        for flow in &mut self.flows {
            let home = usize::from(flow.id.home.0);
            let Some(view) = self.shards.machine(home).flow(flow.id) else {
                flow.check_forgotten(&self.shards)?;
                continue;
            };
            flow.compare(&view)?;
        }
        Ok(())
    }

    fn carry(&mut self) -> Result<(), Difference> {
        let Some(carried) = self.shards.carry(&mut self.rng)? else { return Ok(()) };
        if carried.again && !carried.events.is_empty() {
            return Err(format!("a repeated message of {} did something", carried.from));
        }
        self.note(carried.to, &carried.events)
    }

    /// Works until all flows have ended, because no flow may be stuck.
    fn finish(&mut self) -> Result<(), Difference> {
        for _ in 0..ROUNDS_MAX {
            self.quiet()?;
            let open = self.flows.iter().any(|flow| {
                let view = self.shards.machine(flow.id.home.0.into()).flow(flow.id);
                view.is_some_and(|view| view.state == FlowState::Running)
            });
            if !open {
                return Ok(());
            }
            for (task, token) in std::mem::take(&mut self.held) {
                self.ack(task, token)?;
            }
            self.shards.now += 2_000;
            for shard in 0..self.shards.len() {
                self.expire(shard)?;
                self.claim(shard, 100)?;
            }
        }
        Err("a flow does not end".into())
    }
}
