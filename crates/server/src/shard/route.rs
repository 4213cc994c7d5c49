//! Route: the search for the node that leads a shard.
//!
//! The search first asks the known leader. A node that does not lead says so, and names the leader
//! if it knows one. The search then asks that node, then the other nodes with a replica, and then
//! waits for news. It asks no node that was not heard lately. The search ends when its patience is
//! over, and at once if too few nodes are heard to elect a leader.
//!
//! Invariant: the search repeats no call. It names the next node to ask; the caller decides whether
//! a call is safe to repeat.

use super::Shards;
use crate::{Error, clock::real_now, log::group_of, peer::PeerNetwork};
use std::time::{Duration, Instant};
use taskyard_machine::ShardId;
use taskyard_replica::NodeId;
use tokio::{sync::watch, time::timeout};

/// How long a call waits for a shard without a leader. An election takes less than two seconds, and
/// a split one is repeated after that.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// A shard without a leader for this long will not get one soon, because nearly every election
/// takes less.
pub(super) const NO_LEADER_FOR_MAX: Duration = Duration::from_secs(2);
/// The first pause before nodes that have refused are asked again. News from the routes ends the
/// pause.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause, so that a call asks in vain only a few times per second.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// An attempt that took this long has waited at a leader.
const WAITED_MIN: Duration = Duration::from_millis(100);

/// The result of asking one node.
#[derive(Debug)]
pub(super) enum Tried<T> {
    /// The node leads, and has answered.
    Answered(T),
    /// The node has certainly done nothing; it names the leader if it knows one.
    Refused(Option<NodeId>),
    /// The node may have done it.
    Unknown,
}

impl<T> Tried<Result<T, Error>> {
    /// The meaning of this node's own answer.
    pub(super) fn here(answer: Result<T, Error>) -> Self {
        match answer {
            Err(Error::NotLeader { leader, .. }) => Tried::Refused(leader),
            Err(Error::NoQuorum { .. }) => Tried::Refused(None),
            Err(Error::OutcomeUnknown) => Tried::Unknown,
            answer => Tried::Answered(answer),
        }
    }

    /// The meaning of another node's answer. An unavailable node does not mean that the shard is
    /// unavailable.
    pub(super) fn there(answer: Result<T, Error>) -> Self {
        match answer {
            Err(Error::Unavailable(_)) => Tried::Refused(None),
            answer => Tried::here(answer),
        }
    }

    /// Changes the form of the answer.
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
    /// The start of the patience. Time during which a node is asked does not count.
    since: Instant,
    /// When the last node was asked.
    asked_at: Instant,
    /// The node that the last refusal named.
    hint: Option<NodeId>,
    /// The leader in the routes at the last look.
    leader: Option<NodeId>,
    /// Nodes that are not asked again before the pause ends or the routes name them anew.
    refused: Vec<NodeId>,
    pause: Duration,
    pause_ends_at: Instant,
    /// Whether to ask nodes that are not known to lead, because the local replica brings no news of
    /// a leader.
    asks_all: bool,
    /// Whether a node that was asked may have done it.
    pub(super) is_unknown: bool,
    /// Whether a node that was asked let the call wait, as leaders do.
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

    /// The rest of the call's time.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(real_now())
    }

    /// An error once the call's time is over, because no caller would wait for an answer.
    pub(super) fn in_time(&self) -> Result<(), Error> {
        if self.left().is_zero() { Err(self.over()) } else { Ok(()) }
    }

    /// The next node to ask, perhaps this one. Waits while there is none. An error once the
    /// patience is over, or at once when this node knows that it is cut off.
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
                // From now on no news is missed; the loop checks the present routes once more.
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

    /// Until when to wait for a leader. A shard that has been without a leader for long will not
    /// get one soon, so that later callers are refused at once.
    fn patient_until(&self) -> Instant {
        let ends_at = self.since + PATIENCE;
        let without = self.shards.routes().without_leader_since(self.group());
        match without.filter(|_| self.has_replica_here()) {
            Some(since) => ends_at.min(since + NO_LEADER_FOR_MAX),
            None => ends_at,
        }
    }

    /// Records that the node leads, unless a local replica will.
    pub(super) fn answered(&self, node: NodeId) {
        let routes = self.shards.routes();
        if routes.leader(self.shard) != Some(node) && !self.has_replica_here() {
            routes.set_leader(self.group(), Some(node));
        }
    }

    /// Records that the node has certainly done nothing, and the leader that it named.
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

    /// Records that the node may have done it.
    pub(super) fn lost(&mut self, node: NodeId) {
        self.is_unknown = true;
        self.refused(node, None);
    }

    /// The error of a search without an answer.
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
            // This node itself answers that the shard does not exist.
            return Some(routes.me());
        }
        if let Some(changes) = &mut self.changes {
            changes.borrow_and_update();
        }
        let leader = routes.leader(self.shard);
        if leader != self.leader {
            // The node became leader after it refused, or may be asked again.
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
            // A local replica hears of a leader as soon as any other node.
            return None;
        }
        let control = routes.control();
        let holders = control.replicas(self.group()).iter().map(|at| at.node);
        holders.filter(|node| *node != routes.me()).find(is_open)
    }

    /// Whether no leader is in sight, and too few nodes are heard to elect one.
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
    /// Whether this node hears enough nodes with a replica, itself included, to elect a leader.
    /// Also true while the placement is unknown.
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

    /// Whether this node has a replica of a shard, which hears of its leader as soon as any other
    /// node.
    pub(super) fn has_replica_here(&self, shard: ShardId) -> bool {
        self.routes().has_replica(group_of(shard))
    }
}
