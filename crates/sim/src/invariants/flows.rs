//! The invariants of flows: a node is handed out only after its parents have ended, a flow ends
//! once all its tasks have, and no flow is left over.

use super::Violation;
use std::collections::{BTreeMap, BTreeSet};
use taskyard_machine::{Command, Event, EventKind, FlowNode, Outcome, Rejection, TaskId};

/// The account of the flows of one run.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Tasks of each flow, by node.
    names: BTreeMap<(TaskId, String), TaskId>,
    /// The flow of each task.
    flow_of: BTreeMap<TaskId, TaskId>,
    /// The parents of each task.
    parents: BTreeMap<TaskId, Vec<TaskId>>,
    /// Tasks that were ever released.
    ready: BTreeSet<TaskId>,
    /// Tasks that have ended at least once.
    ended: BTreeSet<TaskId>,
    /// Flows with a task that ended without success.
    hurt: BTreeSet<TaskId>,
    /// Flows that have not ended.
    open: BTreeSet<TaskId>,
}

impl Flows {
    /// Records submitted and added nodes, and returns the promised tasks.
    pub(super) fn learn(
        &mut self,
        commands: &[Command<'_>],
        outcomes: &[Result<Outcome, Rejection>],
    ) -> Vec<TaskId> {
        let mut promised = Vec::new();
        for (command, outcome) in commands.iter().zip(outcomes) {
            match (command, outcome) {
                (
                    Command::SubmitFlow(submit),
                    Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: false }),
                ) => {
                    self.add(*flow, &submit.nodes, tasks);
                    promised.extend(tasks);
                }
                (Command::AddFlowTasks(add), Ok(Outcome::FlowTasksAdded(made))) => {
                    let tasks: Vec<TaskId> = made.iter().map(|made| made.id).collect();
                    self.add(add.flow, &add.nodes, &tasks);
                    promised.extend(tasks);
                }
                _ => {}
            }
        }
        promised
    }

    fn add(&mut self, flow: TaskId, nodes: &[FlowNode<'_>], tasks: &[TaskId]) {
        for (node, task) in nodes.iter().zip(tasks) {
            self.names.insert((flow, node.name.to_owned()), *task);
            self.flow_of.insert(*task, flow);
        }
        for (node, task) in nodes.iter().zip(tasks) {
            let parent = |name: &str| self.names.get(&(flow, name.to_owned())).copied();
            let parents = node.depends_on.iter().filter_map(|edge| parent(edge.name)).collect();
            // A repeated request answers with the tasks of the first one, whatever its own nodes
            // are.
            self.parents.entry(*task).or_insert(parents);
        }
    }

    /// Follows the effect of an entry of any shard.
    pub(super) fn judge(&mut self, events: &[Event]) -> Result<(), Violation> {
        for event in events {
            match &event.kind {
                EventKind::TaskReady(task) => {
                    self.ready.insert(task.id);
                }
                EventKind::TaskSucceeded(task, _) => {
                    self.ended.insert(task.id);
                }
                EventKind::TaskFailed(task)
                | EventKind::TaskDied(task, _)
                | EventKind::TaskCancelled(task)
                | EventKind::TaskExpired(task)
                | EventKind::TaskRemoved(task) => {
                    self.ended.insert(task.id);
                    self.hurt.extend(self.flow_of.get(&task.id));
                }
                EventKind::TaskClaimed(task, _) => {
                    let mut parents = self.parents.get(&task.id).into_iter().flatten();
                    if let Some(parent) = parents.find(|parent| !self.is_decided(**parent)) {
                        return Err(format!("{} was handed out before {parent} ended", task.id));
                    }
                }
                EventKind::FlowSubmitted(flow) => {
                    self.open.insert(*flow);
                }
                EventKind::FlowEnded(flow, _) => {
                    self.open.remove(flow);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the end of a task is decided. A task that never ran may have failed with a parent;
    /// its flow knows that before the task's own shard.
    fn is_decided(&self, task: TaskId) -> bool {
        let is_hurt = || self.flow_of.get(&task).is_some_and(|flow| self.hurt.contains(flow));
        self.ended.contains(&task) || !self.ready.contains(&task) && is_hurt()
    }

    /// Checks after the healing that every flow has ended.
    pub(super) fn check_end(&self) -> Result<(), Violation> {
        match self.open.first() {
            Some(flow) => Err(format!("flow {flow} never ended")),
            None => Ok(()),
        }
    }
}
