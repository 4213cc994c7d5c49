//! Spares: bodies that this node's disk can't read any more, fetched from other replicas.
//!
//! One bad block is no reason to stop a node. A body from another replica is checked against the
//! length and checksum in the state. It then stays in memory, because the disk has no good copy. A
//! body counts as lost only after every other replica has answered that it has none: a replica that
//! is down or behind may have the body.

use super::ShardLoop;
use crate::{
    Error,
    checkpoint::{BodiesRequest, StoredBody},
    shard::inbox::{Answer, Input},
};
use bytes::Bytes;
use std::{collections::BTreeSet, sync::Arc};
use taskyard_machine::{Payloads, TaskId};
use taskyard_replica::NodeId;

/// The result of asking all replicas of a shard for a body that is not in memory.
#[derive(Debug)]
pub(crate) enum SoughtBody {
    Found(Bytes),
    /// The task was removed, and its body with it.
    Gone,
    /// No replica has the body; the text says what this node's disk gave.
    Lost(String),
    /// This node's disk can't give the body, and a replica that may have it has not answered.
    Unanswered(String),
}

/// Another replica's answer about a body.
#[derive(Debug)]
pub(crate) enum Spare {
    Body(Bytes),
    /// The replica knows the task, and its disk can't give the body.
    NoBody,
    /// The replica did not answer, or does not know the task yet.
    NoAnswer,
}

/// The result of a read from disk, with at least one body that can't be read.
pub(crate) struct Unread {
    tasks: Vec<TaskId>,
    read: Vec<StoredBody>,
    then: Box<dyn FnOnce(Vec<SoughtBody>) + Send>,
}

/// What the disk said of a body that it did not give.
fn words(read: &StoredBody) -> String {
    match read {
        Ok(_) => "is gone from the disk".to_owned(),
        Err(reason) => format!("can't be read from the disk: {reason}"),
    }
}

impl ShardLoop {
    /// Reads bodies that are not in memory from the disk, or else from other replicas. `then` is
    /// called on another thread or on this one, with one answer per task.
    pub(super) fn read_bodies(
        &self,
        tasks: Vec<TaskId>,
        then: impl FnOnce(Vec<SoughtBody>) + Send + 'static,
    ) {
        let (inbox, asked) = (Arc::clone(&self.inbox), tasks.clone());
        let answer = move |read: Vec<StoredBody>| {
            if read.iter().all(|body| matches!(body, Ok(Some(_)))) {
                let found = read.into_iter().flatten().flatten();
                return then(found.map(SoughtBody::Found).collect());
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
            if !matches!(read, Ok(Some(_))) && self.knows(task) {
                tracing::error!("the body of task {task} {}", words(read));
                wanted.push((position, task, self.other_replicas(task)));
            }
        }
        let has_others = wanted.iter().any(|(_, _, nodes)| !nodes.is_empty());
        let Some(runtime) = self.runtime.as_ref().filter(|_| has_others) else {
            let unasked = |(position, _, nodes): (usize, TaskId, Vec<NodeId>)| {
                (position, nodes.iter().map(|_| Spare::NoAnswer).collect())
            };
            return self.accept_spared(unread, wanted.into_iter().map(unasked).collect());
        };
        let (handle, inbox) = (self.handle.clone(), Arc::clone(&self.inbox));
        runtime.spawn(async move {
            let mut answers = Vec::new();
            // A silent node must not delay the other tasks by one wait for each body.
            let mut silent = BTreeSet::new();
            for (position, task, nodes) in wanted {
                let mut spares = Vec::new();
                for node in nodes {
                    let spare = match silent.contains(&node) {
                        true => Spare::NoAnswer,
                        false => handle.spare_body(node, task).await,
                    };
                    if matches!(spare, Spare::NoAnswer) {
                        silent.insert(node);
                    }
                    let is_found = matches!(spare, Spare::Body(_));
                    spares.push(spare);
                    if is_found {
                        break;
                    }
                }
                answers.push((position, spares));
            }
            let _ = inbox.push(Input::Spared { unread, answers });
        });
    }

    /// Takes the bodies of other replicas that match the state. `answers` has the positions of the
    /// requested tasks, each with the answers of the other replicas.
    pub(super) fn accept_spared(&mut self, unread: Unread, answers: Vec<(usize, Vec<Spare>)>) {
        let mut sought: Vec<SoughtBody> = unread
            .read
            .iter()
            .map(|read| match read {
                Ok(Some(body)) => SoughtBody::Found(body.clone()),
                Ok(None) | Err(_) => SoughtBody::Gone,
            })
            .collect();
        for (position, spares) in answers {
            let (task, what) = (unread.tasks[position], words(&unread.read[position]));
            sought[position] = self.judge_spares(task, spares, what);
        }
        (unread.then)(sought);
    }

    fn judge_spares(&mut self, task: TaskId, spares: Vec<Spare>, what: String) -> SoughtBody {
        let mut is_answered = true;
        for spare in spares {
            let shard = self.shards.get_mut(usize::from(task.home.0));
            match (spare, shard) {
                (Spare::Body(body), Some(shard)) if shard.machine().is_body(task, &body) => {
                    tracing::warn!(
                        "the body of task {task} came from another replica: check the disk"
                    );
                    let machine = shard.machine();
                    let is_live = machine.task(task).is_some_and(|task| !task.state.is_finished());
                    if is_live && shard.state().bodies.get(task).is_none() {
                        shard.replica.machine_mut().bodies.put(task, &body);
                        self.memory.note(shard);
                    }
                    return SoughtBody::Found(body);
                }
                (Spare::NoBody, _) => {}
                // Another body is that of a replica that is behind.
                (Spare::Body(_) | Spare::NoAnswer, _) => is_answered = false,
            }
        }
        match is_answered {
            true => SoughtBody::Lost(what),
            false => SoughtBody::Unanswered(what),
        }
    }

    /// Answers another node's request for a body, whichever replica leads. A replica that does not
    /// know the task may be behind, and refuses to answer.
    pub(super) fn accept_spare(&self, task: TaskId, answer: Answer<Option<Bytes>>) {
        let shard = self.shards.get(usize::from(task.home.0));
        if let Some(body) = shard.and_then(|shard| shard.state().bodies.get(task)) {
            return drop(answer.send(Ok(Some(body))));
        }
        if !self.knows(task) {
            let words = format!("this replica does not know task {task}; ask again later");
            return drop(answer.send(Err(Error::Unavailable(words))));
        }
        let then = move |mut read: Vec<StoredBody>| {
            let _ = answer.send(Ok(read.pop().and_then(Result::ok).flatten()));
        };
        self.checkpointer.read(BodiesRequest { tasks: vec![task], answer: Box::new(then) });
    }

    fn knows(&self, task: TaskId) -> bool {
        let shard = self.shards.get(usize::from(task.home.0));
        shard.is_some_and(|shard| shard.machine().task(task).is_some())
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
