//! Spares: bodies that this node's disk can't read any more, fetched from other replicas.
//!
//! One bad block is no reason to stop a node. A body from another replica is checked against the
//! length and checksum in the state. It then stays in memory, because the disk has no good copy. If
//! no replica has the body, the caller decides what to do.

use super::ShardLoop;
use crate::{
    checkpoint::{BodiesRequest, StoredBody},
    shard::inbox::{Answer, Input},
};
use bytes::Bytes;
use std::sync::Arc;
use taskyard_machine::{Payloads, TaskId};
use taskyard_replica::NodeId;

/// The result of a read from disk, with at least one body that can't be read.
pub(crate) struct Unread {
    tasks: Vec<TaskId>,
    read: Vec<StoredBody>,
    then: Box<dyn FnOnce(Vec<StoredBody>) + Send>,
}

impl ShardLoop {
    /// Reads bodies that are not in memory from the disk, or else from other replicas. `then` is
    /// called on another thread or on this one, with one answer per task.
    pub(super) fn read_bodies(
        &self,
        tasks: Vec<TaskId>,
        then: impl FnOnce(Vec<StoredBody>) + Send + 'static,
    ) {
        let (inbox, asked) = (Arc::clone(&self.inbox), tasks.clone());
        let answer = move |read: Vec<StoredBody>| {
            if read.iter().all(Result::is_ok) {
                return then(read);
            }
            // A node that stops drops the answer.
            let _ = inbox.push(Input::Unread(Unread { tasks: asked, read, then: Box::new(then) }));
        };
        self.checkpointer.read(BodiesRequest { tasks, answer: Box::new(answer) });
    }

    /// Asks the other replicas for bodies that this node's disk can't read.
    pub(super) fn accept_unread(&mut self, unread: Unread) {
        let mut wanted: Vec<(usize, TaskId, Vec<NodeId>)> = Vec::new();
        for (position, (&task, read)) in unread.tasks.iter().zip(&unread.read).enumerate() {
            if let Err(reason) = read {
                tracing::error!("the body of task {task} can't be read from disk: {reason}");
                wanted.push((position, task, self.other_replicas(task)));
            }
        }
        let has_others = wanted.iter().any(|(_, _, nodes)| !nodes.is_empty());
        let Some(runtime) = self.runtime.as_ref().filter(|_| has_others) else {
            return (unread.then)(unread.read);
        };
        let (handle, inbox) = (self.handle.clone(), Arc::clone(&self.inbox));
        runtime.spawn(async move {
            let mut found = Vec::new();
            for (position, task, nodes) in wanted {
                for node in nodes {
                    if let Some(body) = handle.spare_body(node, task).await {
                        found.push((position, body));
                        break;
                    }
                }
            }
            let _ = inbox.push(Input::Spared { unread, found });
        });
    }

    /// Takes the bodies of other replicas that match the state.
    pub(super) fn accept_spared(&mut self, mut unread: Unread, found: Vec<(usize, Bytes)>) {
        for (position, body) in found {
            let task = unread.tasks[position];
            let Some(shard) = self.shards.get_mut(usize::from(task.home.0)) else { continue };
            if !shard.machine().is_body(task, &body) {
                continue;
            }
            tracing::warn!("the body of task {task} came from another replica: check the disk");
            let is_live = shard.machine().task(task).is_some_and(|task| !task.state.is_finished());
            if is_live && shard.state().bodies.get(task).is_none() {
                shard.replica.machine_mut().bodies.put(task, &body);
                self.memory.note(shard);
            }
            unread.read[position] = Ok(Some(body));
        }
        (unread.then)(unread.read);
    }

    /// Answers another node's request for a body, whichever replica leads.
    pub(super) fn accept_spare(&self, task: TaskId, answer: Answer<Option<Bytes>>) {
        let shard = self.shards.get(usize::from(task.home.0));
        if let Some(body) = shard.and_then(|shard| shard.state().bodies.get(task)) {
            return drop(answer.send(Ok(Some(body))));
        }
        let then = move |mut read: Vec<StoredBody>| {
            let _ = answer.send(Ok(read.pop().and_then(Result::ok).flatten()));
        };
        self.checkpointer.read(BodiesRequest { tasks: vec![task], answer: Box::new(then) });
    }

    /// The other nodes with a replica of a task's shard.
    fn other_replicas(&self, task: TaskId) -> Vec<NodeId> {
        let Some(shard) = self.shards.get(usize::from(task.home.0)) else { return Vec::new() };
        let me = self.routes.me();
        let control = self.routes.control();
        let nodes = control.replicas(shard.group).iter().map(|at| at.node);
        nodes.filter(|node| *node != me).collect()
    }
}
