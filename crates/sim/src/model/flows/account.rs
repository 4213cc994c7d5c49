//! The expected state of a flow, from the ends of its tasks.

use crate::model::shards::Shards;
use crate::model::{Difference, expect};
use taskyard_machine::{
    ClaimedTask, FlowState, FlowView, Machine, OnFailure, TaskId, TaskStateName,
};

/// The state of a task on its own shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Seen {
    /// The task is on its way.
    NotYet,
    Blocked,
    /// The task waits or runs.
    Live,
    Ended(TaskStateName),
    /// The task is no longer there.
    Gone,
}

impl Seen {
    pub(super) fn of(machine: &Machine, task: TaskId) -> Seen {
        match machine.task(task).map(|view| view.state) {
            None => Seen::Gone,
            Some(TaskStateName::Blocked) => Seen::Blocked,
            Some(state) if state.is_finished() => Seen::Ended(state),
            Some(_) => Seen::Live,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) task: TaskId,
    pub(super) parents: Vec<(usize, OnFailure)>,
    pub(super) added_by: Option<(usize, OnFailure)>,
    pub(super) seen: Seen,
    /// Whether the task was removed from its shard, before or after its end.
    pub(super) gone: bool,
    /// Whether the task was released since it last waited for its parents.
    released: bool,
    blocked_since: u64,
    /// The last step at which the node was settled, and the last at which it succeeded.
    settled_step: Option<u64>,
    well_step: Option<u64>,
    /// The last step at which the task waited to run, or ran.
    live_step: u64,
    /// The results of its acks.
    pub(super) results: Vec<Vec<u8>>,
}

impl Node {
    pub(super) fn new(
        name: &'static str,
        task: TaskId,
        parents: Vec<(usize, OnFailure)>,
        added_by: Option<(usize, OnFailure)>,
    ) -> Node {
        let released = parents.is_empty();
        Node {
            name,
            task,
            parents,
            added_by,
            seen: Seen::NotYet,
            gone: false,
            released,
            blocked_since: 0,
            settled_step: None,
            well_step: None,
            live_step: 0,
            results: Vec::new(),
        }
    }

    /// Records the present state of the task; returns the earlier one.
    pub(super) fn see(&mut self, seen: Seen, step: u64) -> Seen {
        let was = self.seen;
        self.gone = seen == Seen::Gone && was != Seen::NotYet;
        self.seen = match (was, seen) {
            (Seen::NotYet, Seen::Gone) => Seen::NotYet,
            // A discarded task keeps its end; a purged one counts as cancelled.
            (Seen::Ended(_), Seen::Gone) => was,
            (_, Seen::Gone) => Seen::Ended(TaskStateName::Cancelled),
            _ => seen,
        };
        if self.seen == Seen::Blocked && was != Seen::Blocked {
            self.released = self.parents.is_empty();
            // The flow may have decided this long before: at the earliest when the task last ran.
            self.blocked_since = self.live_step;
        }
        if self.seen == Seen::Live {
            (self.released, self.live_step) = (true, step);
        }
        was
    }

    fn has_ended(&self) -> bool {
        matches!(self.seen, Seen::Ended(_))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) id: TaskId,
    pub(super) nodes: Vec<Node>,
    pub(super) retention_ms: u64,
    pub(super) cancel_requested: bool,
    /// When the flow last ended, and whether it was being cancelled then.
    pub(super) ended_at: Option<u64>,
    pub(super) ended_by_cancel: bool,
    /// The step at which the flow was no longer kept.
    pub(super) forgotten_step: Option<u64>,
}

impl Flow {
    /// Whether a node is settled: its task has ended, and all tasks that it added.
    pub(super) fn is_settled(&self, number: usize) -> bool {
        let added = |node: &Node| node.added_by.is_some_and(|(adder, _)| adder == number);
        let mut all = self.nodes.iter().enumerate().filter(|(_, node)| added(node));
        let ended = self.nodes[number].has_ended() || self.is_doomed(number);
        ended && all.all(|(child, _)| self.is_settled(child))
    }

    /// Whether the node's failure is decided, although its task may not know yet.
    fn is_doomed(&self, number: usize) -> bool {
        let waits = matches!(self.nodes[number].seen, Seen::NotYet | Seen::Blocked);
        waits && self.forbidding(number).is_some()
    }

    /// Whether a settled node counts as succeeded.
    pub(super) fn is_well(&self, number: usize) -> bool {
        let harmed = self.nodes.iter().enumerate().any(|(child, node)| {
            node.added_by == Some((number, OnFailure::Fail)) && !self.is_well(child)
        });
        self.nodes[number].seen == Seen::Ended(TaskStateName::Succeeded) && !harmed
    }

    /// What the node's failure means to each node that depends on it.
    fn opinions(&self, number: usize) -> Vec<OnFailure> {
        let parents = self.nodes.iter().flat_map(|node| &node.parents);
        let of = parents.filter(|(parent, _)| *parent == number).map(|(_, opinion)| *opinion);
        of.chain(self.nodes[number].added_by.map(|(_, opinion)| opinion)).collect()
    }

    /// Whether the failure of a node makes the flow fail.
    pub(super) fn is_culpable(&self, number: usize) -> bool {
        let opinions = self.opinions(number);
        let excused =
            !opinions.is_empty() && opinions.iter().all(|opinion| *opinion == OnFailure::Ignore);
        self.is_settled(number) && !self.is_well(number) && !excused
    }

    /// Whether tasks that were added while the flow ran depend on a node. The meaning of a failure
    /// is decided when it happens, and so depends on which of the two came first.
    pub(super) fn has_late_opinions(&self, number: usize) -> bool {
        let late = self.nodes.iter().filter(|node| node.added_by.is_some());
        late.flat_map(|node| &node.parents).any(|(parent, _)| *parent == number)
    }

    fn has_dependents(&self, number: usize) -> bool {
        self.nodes.iter().flat_map(|node| &node.parents).any(|(parent, _)| *parent == number)
    }

    /// A parent whose failure makes a node fail.
    fn forbidding(&self, number: usize) -> Option<usize> {
        let mut parents = self.nodes[number].parents.iter();
        let forbids = |(parent, on_failure): &&(usize, OnFailure)| {
            *on_failure == OnFailure::Fail && self.is_settled(*parent) && !self.is_well(*parent)
        };
        parents.find(forbids).map(|(parent, _)| *parent)
    }

    pub(super) fn note_settled(&mut self, step: u64) {
        for number in 0..self.nodes.len() {
            let (settled, well) = (self.is_settled(number), self.is_well(number));
            let node = &mut self.nodes[number];
            if settled {
                node.settled_step = Some(step);
            }
            if settled && well {
                node.well_step = Some(step);
            }
        }
    }

    /// Checks a release: each parent must have been settled since the node last waited, and must
    /// have succeeded if its failure would have failed the node.
    pub(super) fn check_release(&self, number: usize) -> Result<(), Difference> {
        let node = &self.nodes[number];
        for &(parent, on_failure) in &node.parents {
            let parent = &self.nodes[parent];
            let allowed_at =
                if on_failure == OnFailure::Fail { parent.well_step } else { parent.settled_step };
            if allowed_at.is_none_or(|step| step < node.blocked_since) {
                return Err(format!(
                    "{} was released before {} was settled",
                    node.name, parent.name
                ));
            }
        }
        Ok(())
    }

    /// Checks the parents in a claim.
    pub(super) fn check_claim(
        &self,
        number: usize,
        claimed: &ClaimedTask,
    ) -> Result<(), Difference> {
        let node = &self.nodes[number];
        let named: Vec<&str> = claimed.parents.iter().map(|parent| &*parent.name).collect();
        let names: Vec<&str> =
            node.parents.iter().map(|(parent, _)| self.nodes[*parent].name).collect();
        expect(&names, &named)?;
        for (shown, (parent, _)) in claimed.parents.iter().zip(&node.parents) {
            let parent = &self.nodes[*parent];
            expect(&parent.task, &shown.task)?;
            let result = shown.result.as_deref();
            let is_known = match shown.state {
                TaskStateName::Succeeded => {
                    result.is_some_and(|result| parent.results.iter().any(|known| known == result))
                }
                _ => result.is_none(),
            };
            if !is_known || shown.omitted {
                return Err(format!("{} was given {shown:?}", node.name));
            }
        }
        Ok(())
    }

    /// Compares the whole flow, while no message is on its way.
    pub(super) fn compare(&self, view: &FlowView) -> Result<(), Difference> {
        expect(&self.nodes.len(), &view.nodes.len())?;
        let at = |what: Difference| format!("flow {}: {what}", self.id);
        for (number, (node, seen)) in self.nodes.iter().zip(&view.nodes).enumerate() {
            let state = match node.seen {
                Seen::Ended(state) => state,
                Seen::Blocked => TaskStateName::Blocked,
                Seen::Live => TaskStateName::Ready,
                other => return Err(at(format!("{} is {other:?}", node.name))),
            };
            // The flow and an operator may have ended a blocked task at the same time, in two ways.
            // A retry of the flow may have found a removed task.
            let either = !node.released || node.gone;
            let crossed = either && seen.state.is_finished() && state.is_finished();
            if !crossed {
                expect(&(node.name, state), &(&seen.name, seen.state)).map_err(at)?;
            }
            let forbidding = self.forbidding(number).map(|parent| self.nodes[parent].name);
            let open = node.parents.iter().any(|(parent, _)| !self.is_settled(*parent));
            if state == TaskStateName::Blocked && (forbidding.is_some() || !open) {
                return Err(at(format!("{} waits; open: {open}, {forbidding:?}", node.name)));
            }
            let doomed = state == TaskStateName::Failed && !node.released;
            if doomed && !node.gone && forbidding.is_none() {
                return Err(at(format!("{} failed because of no parent", node.name)));
            }
        }
        self.compare_whole(view).map_err(at)
    }

    fn compare_whole(&self, view: &FlowView) -> Result<(), Difference> {
        let all = || 0..self.nodes.len();
        let done = all().filter(|node| self.is_settled(*node)).count();
        let failed = all().filter(|node| self.is_settled(*node) && !self.is_well(*node)).count();
        let state = if done < self.nodes.len() {
            FlowState::Running
        } else if failed > 0 && self.ended_by_cancel {
            FlowState::Cancelled
        } else if all().any(|node| self.is_culpable(node)) {
            FlowState::Failed
        } else {
            FlowState::Succeeded
        };
        let counted = (view.nodes_done as usize, view.nodes_failed as usize);
        let unclear = all().any(|node| !self.is_well(node) && self.has_late_opinions(node));
        let ends = [FlowState::Failed, FlowState::Succeeded];
        let either = unclear && ends.contains(&state) && ends.contains(&view.state);
        let expected = if either { view.state } else { state };
        expect(&(expected, done, failed), &(view.state, counted.0, counted.1))?;
        let sinks = all().filter(|node| state != FlowState::Running && !self.has_dependents(*node));
        let succeeded = |node: &&Node| node.seen == Seen::Ended(TaskStateName::Succeeded);
        let results: Vec<(String, Vec<u8>)> = sinks
            .map(|number| &self.nodes[number])
            .filter(succeeded)
            .filter_map(|node| Some((node.name.to_owned(), node.results.last()?.clone())))
            .collect();
        expect(&results, &view.results)
    }

    /// Checks that a flow is forgotten after its retention, together with its tasks, except dead
    /// letters.
    pub(super) fn check_forgotten(&self, shards: &Shards) -> Result<(), Difference> {
        let kept_until = self.ended_at.map(|at| at + self.retention_ms);
        if kept_until.is_none_or(|at| at > shards.now) {
            return Err(format!("flow {} was forgotten too early", self.id));
        }
        for node in &self.nodes {
            let seen = Seen::of(shards.machine(node.task.home.0.into()), node.task);
            let may_stay = matches!(seen, Seen::Live | Seen::Gone)
                || seen == Seen::Ended(TaskStateName::Dead)
                // A task that was retried by hand meanwhile goes on as a task of its queue.
                || self.forgotten_step.is_none_or(|step| node.live_step >= step);
            if !may_stay {
                return Err(format!("{} of a forgotten flow is {seen:?}", node.name));
            }
        }
        Ok(())
    }
}
