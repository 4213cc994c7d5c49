//! Hints: which shards have something for a claim that looks at several, asked of each node once.
//!
//! A hint promises nothing: the claim that follows it is what decides, through the log. So nobody
//! confirms leadership for one, and a claim over many queues costs a call per node, not one per
//! shard. What is asked at the wrong node is asked again shard by shard, by `reads.rs`, which
//! searches.

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

/// What somebody would claim of one shard.
pub type Look = (ShardId, Sought);

/// Tasks that somebody would claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// From these queues.
    pub queues: Vec<String>,
    /// Of these types.
    pub types: TaskTypes,
}

impl Sought {
    /// Tasks of any type.
    pub fn of_any_type(queues: Vec<String>) -> Sought {
        Sought { queues, types: TaskTypes::ANY }
    }
}

wire_struct!(Sought { queues, types });

/// What is said of a shard: how many tasks there may be to claim.
pub type Hint = (ShardId, Result<u64, Error>);

/// There are some, and nobody has counted them.
pub(super) const SOME: u64 = u64::MAX;

/// What one node has said.
#[derive(Default)]
struct Told {
    hints: Vec<Hint>,
    /// Shards of which it has not said anything yet.
    rest: Vec<ShardId>,
    /// Shards that have to be searched for.
    lost: Vec<ShardId>,
}

impl Shards {
    /// Which of these shards have something now, as far as their leaders know without asking
    /// whether they still lead. One whose leader does not answer within `patience` has an error.
    pub async fn probe(&self, looks: &[Look], patience: Duration) -> Vec<Hint> {
        let until = real_now() + patience;
        let (nodes, mut lost) = self.by_leader(looks.to_vec());
        let told = nodes.into_iter().map(|(node, looks)| {
            let shards: Vec<ShardId> = looks.iter().map(|(shard, _)| *shard).collect();
            async move {
                let told = timeout(patience, self.look_at(node, looks, Duration::ZERO)).await;
                told.unwrap_or(Told { lost: shards, ..Told::default() })
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

    /// The same, by leaders that have confirmed that they are.
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

    /// Waits for these shards to have something, for so long.
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

    /// Who leads each, as far as is known, and of whom nothing is known.
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

    /// Asks one node: at once, or until it has something of one of them.
    async fn look_at(&self, node: NodeId, looks: Vec<Look>, wait: Duration) -> Told {
        let asked: Vec<ShardId> = looks.iter().map(|(shard, _)| *shard).collect();
        let until = real_now() + wait;
        let is_here = node == self.routes().me();
        let hints = match self.others().filter(|_| !is_here) {
            None => Tried::here(self.local().claimable(looks, wait).await),
            Some(network) => self.look_there(network, node, looks, wait).await,
        };
        let Tried::Answered(Ok(hints)) = hints else {
            return Told { lost: asked, ..Told::default() };
        };
        let mut told = Told::default();
        // Whoever has something to say does so before the end, unless it stops.
        let ended_early = hints.is_empty() && (wait.is_zero() || real_now() < until);
        match ended_early {
            true => told.lost = asked.clone(),
            false => told.rest = asked.clone(),
        }
        for (shard, hint) in hints.into_iter().filter(|(shard, _)| asked.contains(shard)) {
            told.rest.retain(|rest| *rest != shard);
            match if is_here { Tried::here(hint) } else { Tried::there(hint) } {
                // A node that stops sends home who waits there: it is not so by that.
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

/// Hints that are waited for. Dropped, nobody waits for them any more.
pub struct Hints<'a> {
    shards: &'a Shards,
    until: Instant,
    looks: BTreeMap<ShardId, Sought>,
    /// Shards that nobody is asked about now.
    idle: Vec<ShardId>,
    told: VecDeque<Hint>,
    asked: FuturesUnordered<BoxFuture<'a, Told>>,
}

impl<'a> Hints<'a> {
    /// The next shard that may have something; or that can't be found, and why. None of a shard, or
    /// no shard: the wait is over.
    pub async fn next(&mut self) -> Option<Hint> {
        loop {
            if let Some(hint) = self.told.pop_front() {
                return Some(hint);
            }
            self.ask_idle();
            let Told { hints, rest, lost } = self.asked.next().await?;
            self.told.extend(hints);
            self.idle.extend(rest);
            for shard in lost {
                self.search(shard, Duration::ZERO);
            }
        }
    }

    /// Waits for this shard again, which had something before.
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
            Told { hints: vec![(shard, hint)], ..Told::default() }
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
