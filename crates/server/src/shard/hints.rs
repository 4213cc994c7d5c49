//! Hints: which shards have tasks for a claim over several shards; each node is asked once.
//!
//! A hint promises nothing, because the claim that follows decides through the log. So a leader
//! need not confirm that it leads, and a claim over many queues costs one call per node instead of
//! one per shard. A shard that was asked at the wrong node is asked again alone, by the search in
//! `reads.rs`.

use super::{
    Shards, TaskTypes,
    forward::ANSWER_MARGIN,
    remote::{ShardCall, ShardReply, wait_ms},
    route::Tried,
};
use crate::{Error, clock::real_now, peer::PeerNetwork};
use futures_util::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};
use taskyard_machine::{ShardId, ask, wire::wire_struct};
use taskyard_replica::NodeId;
use tokio::time::timeout;

/// A shard, and the tasks that a caller would claim there.
pub type Look = (ShardId, Sought);

/// The tasks that a caller would claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// The queues to claim from.
    pub queues: Vec<String>,
    /// The task types to claim.
    pub types: TaskTypes,
}

impl Sought {
    /// Tasks of any type.
    pub fn of_any_type(queues: Vec<String>) -> Sought {
        Sought { queues, types: TaskTypes::ANY }
    }
}

wire_struct!(Sought { queues, types });

/// A shard, and how many tasks there may be to claim.
pub type Hint = (ShardId, Result<u64, Error>);

/// The shard has tasks; their number is unknown.
pub(super) const SOME: u64 = u64::MAX;

/// The hints of one node.
#[derive(Default)]
struct NodeHints {
    hints: Vec<Hint>,
    /// Shards that the node has not answered for yet.
    rest: Vec<ShardId>,
    /// Shards whose leader must be searched for.
    lost: Vec<ShardId>,
}

impl Shards {
    /// Which shards have tasks now, by leaders that do not confirm that they lead. A shard whose
    /// leader does not answer within `patience` has an error.
    pub async fn probe(&self, looks: &[Look], patience: Duration) -> Vec<Hint> {
        let until = real_now() + patience;
        let (nodes, mut lost) = self.by_leader(looks.to_vec());
        let told = nodes.into_iter().map(|(node, looks)| {
            let shards: Vec<ShardId> = looks.iter().map(|(shard, _)| *shard).collect();
            async move {
                let told = timeout(patience, self.look_at(node, looks, Duration::ZERO)).await;
                told.unwrap_or(NodeHints { lost: shards, ..NodeHints::default() })
            }
        });
        let mut hints = Vec::with_capacity(looks.len());
        for told in join_all(told).await {
            hints.extend(told.hints);
            lost.extend(told.rest.into_iter().chain(told.lost));
        }
        let searched = looks.iter().filter(|(shard, _)| lost.contains(shard));
        hints.extend(self.ask_each(searched, until).await);
        hints
    }

    /// Like `probe`, by leaders that confirm that they lead.
    pub async fn probe_strictly(&self, looks: &[Look], patience: Duration) -> Vec<Hint> {
        self.ask_each(looks.iter(), real_now() + patience).await
    }

    async fn ask_each(&self, looks: impl Iterator<Item = &Look>, until: Instant) -> Vec<Hint> {
        let asked = looks.map(|(shard, sought)| async move {
            let (queues, types) = (sought.queues.clone(), sought.types.names().to_vec());
            let question = ask::Claimable { queues, types };
            let left = until.saturating_duration_since(real_now());
            let found = timeout(left, self.ask(*shard, question)).await;
            let found = found.unwrap_or(Err(Error::NoQuorum { shard: shard.0 }));
            (*shard, found.map(|has_something| if has_something { SOME } else { 0 }))
        });
        join_all(asked).await
    }

    /// Waits for up to `wait` until one of these shards has tasks.
    pub fn hints(&self, looks: Vec<Look>, wait: Duration) -> Hints<'_> {
        let idle = looks.iter().map(|(shard, _)| *shard).collect();
        Hints {
            shards: self,
            until: real_now() + wait,
            looks: looks.into_iter().collect(),
            idle,
            told: VecDeque::new(),
            asked: FuturesUnordered::new(),
        }
    }

    /// Groups shards by known leader; the other shards are returned apart.
    fn by_leader(&self, looks: Vec<Look>) -> (BTreeMap<NodeId, Vec<Look>>, Vec<ShardId>) {
        let (routes, others) = (self.routes(), self.others());
        let me = routes.me();
        let is_reached = |leader: &NodeId| {
            *leader == me || others.is_some_and(|network| network.is_reached(*leader))
        };
        let (mut nodes, mut lost) = (BTreeMap::<NodeId, Vec<Look>>::new(), Vec::new());
        for (shard, sought) in looks {
            let leader = match others {
                None => Some(me),
                Some(_) => routes.leader(shard).filter(is_reached),
            };
            match leader {
                Some(leader) => nodes.entry(leader).or_default().push((shard, sought)),
                None => lost.push(shard),
            }
        }
        (nodes, lost)
    }

    /// Asks one node, and waits there for up to `wait` until one of the shards has tasks.
    async fn look_at(&self, node: NodeId, looks: Vec<Look>, wait: Duration) -> NodeHints {
        let asked: Vec<ShardId> = looks.iter().map(|(shard, _)| *shard).collect();
        let until = real_now() + wait;
        let is_here = node == self.routes().me();
        let hints = match self.others().filter(|_| !is_here) {
            None => Tried::here(self.local().claimable(looks, wait).await),
            Some(network) => self.look_there(network, node, looks, wait).await,
        };
        let Tried::Answered(Ok(hints)) = hints else {
            return NodeHints { lost: asked, ..NodeHints::default() };
        };
        let mut told = NodeHints::default();
        // A node answers before the wait ends only with a hint, unless it stops.
        let ended_early = hints.is_empty() && (wait.is_zero() || real_now() < until);
        match ended_early {
            true => told.lost = asked.clone(),
            false => told.rest = asked.clone(),
        }
        for (shard, hint) in hints.into_iter().filter(|(shard, _)| asked.contains(shard)) {
            told.rest.retain(|rest| *rest != shard);
            match if is_here { Tried::here(hint) } else { Tried::there(hint) } {
                // A node that stops answers early with 0, which says nothing about the shard.
                Tried::Answered(Ok(0)) if !is_here && !wait.is_zero() => told.lost.push(shard),
                Tried::Answered(hint) => told.hints.push((shard, hint)),
                Tried::Refused(_) | Tried::Unknown => told.lost.push(shard),
            }
        }
        told
    }

    async fn look_there(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        looks: Vec<Look>,
        wait: Duration,
    ) -> Tried<Result<Vec<Hint>, Error>> {
        let call = ShardCall::Claimable { looks, wait_ms: wait_ms(wait) };
        let take = |reply| match reply {
            ShardReply::Claimable(hints) => Some(hints),
            _ => None,
        };
        self.forward(network, node, &call, wait + ANSWER_MARGIN, take).await
    }
}

/// A wait for hints. Dropping it ends the wait.
pub struct Hints<'a> {
    shards: &'a Shards,
    until: Instant,
    looks: BTreeMap<ShardId, Sought>,
    /// Shards that no node is being asked about.
    idle: Vec<ShardId>,
    told: VecDeque<Hint>,
    asked: FuturesUnordered<BoxFuture<'a, NodeHints>>,
}

impl<'a> Hints<'a> {
    /// The next shard that may have tasks, or the error of a shard without a leader. `None`, or a
    /// hint of 0, once the wait is over.
    pub async fn next(&mut self) -> Option<Hint> {
        loop {
            if let Some(hint) = self.told.pop_front() {
                return Some(hint);
            }
            self.ask_idle();
            let NodeHints { hints, rest, lost } = self.asked.next().await?;
            self.told.extend(hints);
            self.idle.extend(rest);
            for shard in lost {
                self.search(shard, Duration::ZERO);
            }
        }
    }

    /// Waits again for a shard that had tasks before.
    pub fn again(&mut self, shard: ShardId) {
        self.idle.push(shard);
    }

    /// Searches for the shard's leader after a pause, and waits there.
    pub fn search(&mut self, shard: ShardId, pause: Duration) {
        let (shards, sought, until) = (self.shards, self.looks[&shard].clone(), self.until);
        self.asked.push(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let left = until.saturating_duration_since(real_now());
            let found = shards.claimable(shard, sought, left).await;
            let hint = found.map(|has_something| if has_something { SOME } else { 0 });
            NodeHints { hints: vec![(shard, hint)], ..NodeHints::default() }
        }));
    }

    fn ask_idle(&mut self) {
        let left = self.until.saturating_duration_since(real_now());
        if self.idle.is_empty() || left.is_zero() {
            return;
        }
        let looks = self.idle.drain(..).map(|shard| (shard, self.looks[&shard].clone())).collect();
        let (nodes, lost) = self.shards.by_leader(looks);
        for (node, looks) in nodes {
            self.asked.push(Box::pin(self.shards.look_at(node, looks, left)));
        }
        for shard in lost {
            self.search(shard, Duration::ZERO);
        }
    }
}
