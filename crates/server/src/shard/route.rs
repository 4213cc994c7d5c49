//! Route: the search for the node that answers for a shard.
//!
//! A call is asked of the leader that is known here. Whoever does not lead says so and names the leader
//! if it knows one; then that one is asked, then whoever holds a replica, and when nobody is left the
//! search waits for news. Nobody is asked who was not heard lately. It ends when patience does, and at once
//! where too few are heard for a leader that could be found.
//!
//! Invariant: nothing here asks twice. It says whom to ask next; whether a call may be repeated is for
//! those to know who make it.

use super::Shards;
use crate::{Error, clock::real_now, log::group_of, peer::PeerNetwork};
use std::time::{Duration, Instant};
use taskyard_machine::ShardId;
use taskyard_replica::NodeId;
use tokio::{sync::watch, time::timeout};

/// How long a call waits for a shard without a leader: an election takes less than two seconds, and one
/// that was split comes again after that.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// A shard that has been without a leader for so long gets none soon: nearly every election takes less.
pub(super) const NO_LEADER_FOR_MAX: Duration = Duration::from_secs(2);
/// The first pause before nodes that have refused are asked again. What the routes tell in the meantime
/// ends it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest one: nobody should be asked in vain more often than a few times in a second.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// An attempt that took this long has waited at a leader.
const WAITED_MIN: Duration = Duration::from_millis(100);

/// What came of asking one node.
#[derive(Debug)]
pub(super) enum Tried<T> {
    /// It leads, and has answered.
    Answered(T),
    /// Surely nothing was done; who leads, if it knows.
    Refused(Option<NodeId>),
    /// It may have been done.
    Unknown,
}

impl<T> Tried<Result<T, Error>> {
    /// What an answer of this node means.
    pub(super) fn here(answer: Result<T, Error>) -> Self {
        match answer {
            Err(Error::NotLeader { leader, .. }) => Tried::Refused(leader),
            Err(Error::NoQuorum { .. }) => Tried::Refused(None),
            Err(Error::OutcomeUnknown) => Tried::Unknown,
            answer => Tried::Answered(answer),
        }
    }

    /// What an answer of another node means: one that stops is not yet the end of the shard.
    pub(super) fn there(answer: Result<T, Error>) -> Self {
        match answer {
            Err(Error::Unavailable(_)) => Tried::Refused(None),
            answer => Tried::here(answer),
        }
    }

    /// The same with another form of the answer.
    pub(super) fn map<U>(self, form: impl FnOnce(T) -> U) -> Tried<Result<U, Error>> {
        match self {
            Tried::Answered(answer) => Tried::Answered(answer.map(form)),
            Tried::Refused(leader) => Tried::Refused(leader),
            Tried::Unknown => Tried::Unknown,
        }
    }
}

/// The search for the leader of one shard, for one call.
pub(super) struct Search<'a> {
    shards: &'a Shards,
    network: &'a PeerNetwork,
    shard: ShardId,
    /// The end of the call itself.
    until: Instant,
    /// When patience began. Time in which a node is asked does not count.
    since: Instant,
    /// When the last node was asked.
    asked_at: Instant,
    /// Who was named by the last one that refused.
    hint: Option<NodeId>,
    /// Who leads by the routes, when they were last looked at.
    leader: Option<NodeId>,
    /// Nodes that are not asked again until the pause is over or the routes name them anew.
    refused: Vec<NodeId>,
    pause: Duration,
    pause_ends_at: Instant,
    /// The own replica brings no news of a leader: others are asked too.
    asks_all: bool,
    /// One that was asked may have done it.
    pub(super) is_unknown: bool,
    /// One that was asked let the call wait, as leaders do.
    pub(super) has_waited: bool,
    changes: Option<watch::Receiver<u64>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        shards: &'a Shards,
        network: &'a PeerNetwork,
        shard: ShardId,
        until: Instant,
    ) -> Search<'a> {
        let now = real_now();
        Search {
            shards,
            network,
            shard,
            until,
            since: now,
            asked_at: now,
            hint: None,
            leader: None,
            refused: Vec::new(),
            pause: PAUSE_MIN,
            pause_ends_at: now,
            asks_all: false,
            is_unknown: false,
            has_waited: false,
            changes: None,
        }
    }

    /// What is left of the call's time.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(real_now())
    }

    /// An error once the call's time is over: what is sent now would be waited for by nobody.
    pub(super) fn in_time(&self) -> Result<(), Error> {
        if self.left().is_zero() { Err(self.over()) } else { Ok(()) }
    }

    /// Whom to ask next; may be this node. Waits while there is nobody. An error once patience is over,
    /// or at once when this node knows that it is cut off.
    pub(super) async fn next(&mut self) -> Result<NodeId, Error> {
        loop {
            if let Some(node) = self.candidate() {
                self.asked_at = real_now();
                return Ok(node);
            }
            let now = real_now();
            let ends_at = self.until.min(self.patient_until());
            if now >= ends_at || self.is_cut_off() {
                return Err(self.over());
            }
            let pause = self.pause_ends_at.min(ends_at).saturating_duration_since(now);
            let Some(changes) = &mut self.changes else {
                // From here on no news is missed; what came just before is looked at once more.
                self.changes = Some(self.shards.routes().changes());
                continue;
            };
            if timeout(pause, changes.changed()).await.is_err() {
                self.refused.clear();
                self.asks_all = true;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                self.pause_ends_at = real_now() + self.pause;
            }
        }
    }

    /// How long a leader is waited for. A shard that has been without one for as long gets none soon: who
    /// asks then is refused at once.
    fn patient_until(&self) -> Instant {
        let ends_at = self.since + PATIENCE;
        let without = self.shards.routes().without_leader_since(self.group());
        match without.filter(|_| self.has_replica_here()) {
            Some(since) => ends_at.min(since + NO_LEADER_FOR_MAX),
            None => ends_at,
        }
    }

    /// The node leads. Noted where no replica here would.
    pub(super) fn answered(&self, node: NodeId) {
        let routes = self.shards.routes();
        if routes.leader(self.shard) != Some(node) && !self.has_replica_here() {
            routes.set_leader(self.group(), Some(node));
        }
    }

    /// The node has surely done nothing, and says who leads if it knows.
    pub(super) fn refused(&mut self, node: NodeId, leader: Option<NodeId>) {
        let (now, routes) = (real_now(), self.shards.routes());
        let asked_for = now.saturating_duration_since(self.asked_at);
        self.since += asked_for;
        self.has_waited |= asked_for >= WAITED_MIN;
        if self.refused.is_empty() {
            self.pause_ends_at = now + self.pause;
        }
        self.refused.push(node);
        self.hint = leader;
        self.leader = routes.leader(self.shard);
        if self.leader == Some(node) && !self.has_replica_here() {
            self.leader = leader.filter(|leader| !self.refused.contains(leader));
            routes.set_leader(self.group(), self.leader);
        }
    }

    /// The node may have done it, and can't say.
    pub(super) fn lost(&mut self, node: NodeId) {
        self.is_unknown = true;
        self.refused(node, None);
    }

    /// Why the search ends without an answer.
    fn over(&self) -> Error {
        match self.is_unknown {
            true => Error::OutcomeUnknown,
            false => match self.shards.routes().stopped(self.group()) {
                Some(words) => Error::Unavailable(words),
                None => Error::NoQuorum { shard: self.shard.0 },
            },
        }
    }

    fn candidate(&mut self) -> Option<NodeId> {
        let routes = self.shards.routes();
        if self.shard.0 >= self.shards.count() {
            // Of a shard that there is not, this node can say so.
            return Some(routes.me());
        }
        if let Some(changes) = &mut self.changes {
            changes.borrow_and_update();
        }
        let leader = routes.leader(self.shard);
        if leader != self.leader {
            // It leads since it refused, or its time came again.
            self.refused.retain(|node| Some(*node) != leader);
            self.leader = leader;
        }
        let hint = self.hint.take();
        let is_open = |node: &NodeId| !self.refused.contains(node) && self.reaches(*node);
        let named = hint.filter(is_open).or(leader.filter(is_open));
        if named.is_some() {
            return named;
        }
        if !self.asks_all && self.has_replica_here() {
            // It hears of a leader as soon as anybody.
            return None;
        }
        let control = routes.control();
        let holders = control.replicas(self.group()).iter().map(|at| at.node);
        holders.filter(|node| *node != routes.me()).find(is_open)
    }

    /// No leader is in sight, and too few of those who could elect one.
    fn is_cut_off(&self) -> bool {
        let leader = self.shards.routes().leader(self.shard);
        !leader.is_some_and(|leader| self.reaches(leader))
            && !self.shards.hears_majority(self.network, self.shard)
    }

    /// Whether a node would probably answer.
    fn reaches(&self, node: NodeId) -> bool {
        node == self.shards.routes().me() || self.network.is_reached(node)
    }

    fn has_replica_here(&self) -> bool {
        self.shards.has_replica_here(self.shard)
    }

    fn group(&self) -> u64 {
        group_of(self.shard)
    }
}

impl Shards {
    /// Whether enough nodes with a replica of a shard were heard lately, or are this one, to elect a
    /// leader. They are where nobody knows yet who has one.
    pub(super) fn hears_majority(&self, network: &PeerNetwork, shard: ShardId) -> bool {
        let (me, control, group) = (self.routes().me(), self.routes().control(), group_of(shard));
        let replicas = control.replicas(group);
        let voters = match control.target(group).len() {
            0 => replicas.len(),
            voters => voters,
        };
        let is_heard = |node: NodeId| node == me || network.is_heard(node);
        replicas.is_empty() || replicas.iter().filter(|at| is_heard(at.node)).count() > voters / 2
    }

    /// Whether this node has a replica of a shard, which hears of its leader as soon as anybody.
    pub(super) fn has_replica_here(&self, shard: ShardId) -> bool {
        self.routes().has_replica(group_of(shard))
    }
}
