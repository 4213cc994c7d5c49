//! Questions, bodies, hints and waits for an end, on whichever node leads. They change nothing, so
//! that a call with a lost answer is repeated.

use super::{
    Shards, Sought,
    forward::ANSWER_MARGIN,
    proposals::ANSWER_FOR_MAX,
    remote::{ShardCall, ShardReply, wait_ms},
    route::{Search, Tried},
};
use crate::{Error, clock::real_now, peer::PeerNetwork, shard_loop::Spare};
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use taskyard_machine::{Ask, Machine, Query, Rejection, ShardId, TaskId, ask};
use taskyard_replica::NodeId;

/// How long another replica may take to send a body.
const SPARE_WITHIN: Duration = Duration::from_secs(5);

impl Shards {
    /// Asks the shard's leader until one answers. `ask` asks one node, for at most the given time.
    async fn read_routed<T, F>(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        ask: impl Fn(NodeId, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Tried<Result<T, Error>>>,
    {
        let mut search = Search::new(self, network, shard, real_now() + ANSWER_FOR_MAX);
        loop {
            let node = search.next().await?;
            match ask(node, search.left()).await {
                Tried::Answered(answer) => {
                    search.answered(node);
                    return answer;
                }
                Tried::Refused(leader) => search.refused(node, leader),
                Tried::Unknown => search.refused(node, None),
            }
        }
    }

    /// Waits at the shard's leader until `ask` says `true`; `false` once the wait is over. `ask`
    /// waits at one node, for at most the given time.
    async fn wait_routed<F>(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        wait: Duration,
        ask: impl Fn(NodeId, Duration) -> F,
    ) -> Result<bool, Error>
    where
        F: Future<Output = Tried<Result<bool, Error>>>,
    {
        let mut search = Search::new(self, network, shard, real_now() + wait);
        loop {
            let node = match search.next().await {
                Ok(node) => node,
                // The wait is over, and was spent at a leader.
                Err(_) if search.has_waited && search.left().is_zero() => return Ok(false),
                Err(error) => return Err(error),
            };
            let is_here = node == self.routes().me();
            match ask(node, search.left()).await {
                // A node that stops answers early, which says nothing about the shard.
                Tried::Answered(Ok(false)) if !is_here && !search.left().is_zero() => {
                    search.refused(node, None);
                }
                Tried::Answered(answer) => {
                    search.answered(node);
                    return answer;
                }
                Tried::Refused(leader) => search.refused(node, leader),
                Tried::Unknown => search.refused(node, None),
            }
        }
    }

    pub(super) async fn ask_routed<Q: Ask>(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        question: Q,
    ) -> Result<Q::Answer, Error> {
        let query: Arc<Query> = Arc::new(question.into());
        let ask = |node, left| {
            let query = Arc::clone(&query);
            async move {
                let tried = if node == self.routes().me() {
                    let look = move |machine: &Machine, now| machine.ask(&query, now);
                    let read = self.local().read_at(shard, look);
                    Tried::here(read.await)
                } else {
                    let call = ShardCall::Ask { shard, query: Query::clone(&query) };
                    let take = |reply| match reply {
                        ShardReply::Found(found) => Some(*found),
                        _ => None,
                    };
                    self.forward(network, node, &call, left, take).await
                };
                let other = || Error::Unavailable(format!("node {node} answered another question"));
                tried.map(|found| Q::answer(found).ok_or_else(other))
            }
        };
        self.read_routed(network, shard, ask).await?
    }

    pub(super) async fn bodies_routed(
        &self,
        network: &PeerNetwork,
        tasks: Vec<TaskId>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let mut by_shard: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
        for (position, task) in tasks.iter().enumerate() {
            by_shard.entry(task.home).or_default().push(position);
        }
        let read = by_shard.iter().map(|(&shard, positions)| {
            let tasks = positions.iter().map(|&position| tasks[position]).collect();
            self.bodies_of(network, shard, tasks)
        });
        let read = try_join_all(read).await?;
        let mut bodies = vec![None; tasks.len()];
        for (positions, read) in by_shard.into_values().zip(read) {
            for (position, body) in positions.into_iter().zip(read) {
                bodies[position] = body;
            }
        }
        Ok(bodies)
    }

    /// The bodies of tasks of one shard.
    async fn bodies_of(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        tasks: Vec<TaskId>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let ask = |node, left| {
            let tasks = tasks.clone();
            async move {
                if node == self.routes().me() {
                    return Tried::here(self.local().bodies(tasks).await);
                }
                let count = tasks.len();
                let take = |reply| match reply {
                    ShardReply::Bodies(Ok(bodies)) if bodies.len() != count => None,
                    ShardReply::Bodies(bodies) => Some(bodies),
                    _ => None,
                };
                self.forward(network, node, &ShardCall::Bodies { tasks }, left, take)
                    .await
                    .map(|bodies| bodies.into_iter().map(|body| body.map(|body| body.0)).collect())
            }
        };
        self.read_routed(network, shard, ask).await
    }

    /// Fetches the body of a task from another node's replica, because this node's disk can't read
    /// it.
    pub(crate) async fn spare_body(&self, node: NodeId, task: TaskId) -> Spare {
        let call = ShardCall::Spare { task };
        let take = |reply| match reply {
            ShardReply::Bodies(Ok(bodies)) => bodies.into_iter().next().map(Ok),
            _ => None,
        };
        let Some(others) = self.others() else { return Spare::NoAnswer };
        match self.forward(others, node, &call, SPARE_WITHIN, take).await {
            Tried::Answered(Ok(Some(body))) => Spare::Body(body.0),
            Tried::Answered(Ok(None)) => Spare::NoBody,
            Tried::Answered(Err(_)) | Tried::Refused(_) | Tried::Unknown => Spare::NoAnswer,
        }
    }

    pub(super) async fn claimable_routed(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        sought: Sought,
        wait: Duration,
    ) -> Result<bool, Error> {
        let ask = |node, left| {
            let sought = sought.clone();
            async move {
                if node == self.routes().me() {
                    return Tried::here(self.local().claimable_one(shard, sought, left).await);
                }
                let call =
                    ShardCall::Claimable { looks: vec![(shard, sought)], wait_ms: wait_ms(left) };
                let take = |reply| match reply {
                    ShardReply::Claimable(Ok(hints)) => {
                        let hint = hints.into_iter().next().map(|(_, hint)| hint);
                        Some(hint.map_or(Ok(false), |hint| hint.map(|count| count > 0)))
                    }
                    ShardReply::Claimable(Err(error)) => Some(Err(error)),
                    _ => None,
                };
                self.forward(network, node, &call, left + ANSWER_MARGIN, take).await
            }
        };
        self.wait_routed(network, shard, wait, ask).await
    }

    pub(super) async fn finished_routed(
        &self,
        network: &PeerNetwork,
        task: TaskId,
        wait: Duration,
    ) -> Result<bool, Error> {
        let ask = |node, left| async move {
            let tried = if node == self.routes().me() {
                Tried::here(self.local().finished(task, left).await)
            } else {
                let call = ShardCall::Finished { task, wait_ms: wait_ms(left) };
                let take = |reply| match reply {
                    ShardReply::Finished(finished) => Some(finished),
                    _ => None,
                };
                self.forward(network, node, &call, left + ANSWER_MARGIN, take).await
            };
            if let Tried::Answered(Err(Error::Rejected(Rejection::TaskNotFound { .. }))) = tried {
                // A watch confirms no leadership: a deposed leader may not know the task.
                match self.is_there(network, task).await {
                    Ok(true) => return Tried::Refused(None),
                    Ok(false) => {}
                    Err(error) => return Tried::Answered(Err(error)),
                }
            }
            tried
        };
        self.wait_routed(network, task.home, wait, ask).await
    }

    /// Whether the shard's leader has such a task or flow.
    async fn is_there(&self, network: &PeerNetwork, id: TaskId) -> Result<bool, Error> {
        let task = ask::Sketches { tasks: vec![id] };
        let task = self.ask_routed(network, id.home, task).await?;
        let flow = ask::Flow { flow: id, with_nodes: false };
        let is_task = task.iter().any(Option::is_some);
        Ok(is_task || self.ask_routed(network, id.home, flow).await?.is_some())
    }
}
