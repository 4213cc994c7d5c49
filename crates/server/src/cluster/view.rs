//! What people are shown of a cluster: its nodes, who leads what, how far each replica is, what moves.

use super::{Cluster, GroupStatus, call::About, member::BUILD, sight::Sight};
use crate::{clock::real_now, peer::PeerStatus};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use taskyard_replica::{CONTROL_GROUP, NodeId, Placement};
use tokio::time::timeout;

/// How long a view waits for what others know already; longer than news takes to a node that is well.
const NEWEST_WITHIN: Duration = Duration::from_secs(1);
/// Not all that makes a node as new as the others changes what it knows.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// Names the cluster for ever.
    pub cluster_id: String,
    /// The node that says all this.
    pub seen_by: NodeId,
    /// How many replicas each shard is to have, where there are nodes enough.
    pub replication: u8,
    /// The rules that all shards follow.
    pub rules: u16,
    /// All nodes, by number.
    pub nodes: Vec<NodeView>,
    /// The group that holds this map.
    pub control: GroupView,
    /// All shards, in order.
    pub shards: Vec<GroupView>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its number.
    pub id: NodeId,
    /// Where clients reach it; empty if nobody said.
    pub address: String,
    /// Where its peers reach it.
    pub peer_address: String,
    /// What it fails together with; empty if unknown.
    pub zone: String,
    /// How it is.
    pub state: NodeState,
    /// It is being emptied.
    pub drains: bool,
    /// What it runs; empty if it does not answer.
    pub version: String,
    /// The newest rules it knows.
    pub rules_max: u16,
    /// How far its clock is ahead of the one of the node that says this.
    pub clock_skew_ms: Option<i64>,
    /// Shards that it leads.
    pub leads: usize,
    /// Shards that it has a replica of.
    pub replicas: usize,
    /// Its disk has no room, or soon none: it gets neither leaders nor replicas.
    pub disk_low: bool,
    /// Why it can't be reached.
    pub problem: Option<String>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It answers.
    Up,
    /// It does not answer.
    Down,
    /// It answers and is being emptied.
    Draining,
    /// It was taken in, and does not follow the cluster yet.
    Joining,
    /// It answers still, and stops: others lead what it led.
    Stopping,
    /// It was given up, and goes when others have what it held.
    Removing,
}

impl NodeState {
    /// Its word on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Up => "up",
            NodeState::Down => "down",
            NodeState::Draining => "draining",
            NodeState::Joining => "joining",
            NodeState::Stopping => "stopping",
            NodeState::Removing => "removing",
        }
    }
}

/// One group of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupView {
    /// The shard; 0 for the control group too.
    pub id: u16,
    /// The node that leads it and serves.
    pub leader: Option<NodeId>,
    /// The newest term that was heard of.
    pub term: u64,
    /// Its replicas, by node.
    pub replicas: Vec<ReplicaView>,
    /// The nodes that its voters are to be on, while they are not. Of groups that wait for their turn to
    /// move, the next has it.
    pub moves_to: Option<Vec<NodeId>>,
}

/// One replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// The node that holds it.
    pub node: NodeId,
    /// Its id in the group.
    pub replica: u64,
    /// What it is there.
    pub role: ReplicaRole,
    /// The last entry that it is known to have on disk.
    pub matched: u64,
    /// How many entries it lacks, if it was heard of lately.
    pub lag: Option<u64>,
    /// It is being sent the whole state: bytes that have arrived.
    pub installing: Option<u64>,
}

/// What a replica is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    /// It decides.
    Voter,
    /// It follows.
    Learner,
    /// It was placed, and is not in the group yet.
    Placed,
    /// It is let go.
    Leaving,
}

impl ReplicaRole {
    /// Its word on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaRole::Voter => "voter",
            ReplicaRole::Learner => "learner",
            ReplicaRole::Placed => "placed",
            ReplicaRole::Leaving => "leaving",
        }
    }
}

/// A group as people know it.
pub(crate) fn name_of(group: u64) -> String {
    match group.checked_sub(1) {
        None => "the control group".into(),
        Some(shard) => format!("shard {shard}"),
    }
}

impl Cluster {
    /// How the cluster stands, as far as can be seen from here.
    pub(crate) async fn view(&self) -> ClusterView {
        let sight = self.look_at_newest().await;
        let peers = self.shards().network().map(|network| network.status()).unwrap_or_default();
        let peers: BTreeMap<NodeId, PeerStatus> =
            peers.into_iter().map(|peer| (peer.node, peer)).collect();
        let mut moves = sight.control.moves(&sight.seen());
        let mut group = |group: u64| sight.group(group, moves.remove(&group));
        let control = group(CONTROL_GROUP);
        let shards: Vec<GroupView> = sight.control.groups().skip(1).map(group).collect();
        let mut view = ClusterView {
            cluster_id: format!("{:032x}", self.shards().cluster()),
            seen_by: self.me(),
            replication: sight.control.factor(),
            rules: sight.control.rules(),
            nodes: Vec::new(),
            control,
            shards,
        };
        let nodes = sight.control.nodes().keys();
        view.nodes = nodes.map(|&id| self.node(id, &sight, &view, peers.get(&id))).collect();
        if view.nodes.is_empty() {
            // It has joined, and nobody has told it who is there.
            view.nodes.push(self.alone());
        }
        view
    }

    /// Looks until this node knows the map as well as anybody who answers: what an operator was told is
    /// done must be seen, whoever did it and whoever is asked.
    async fn look_at_newest(&self) -> Sight {
        let until = real_now() + NEWEST_WITHIN;
        let mut changes = self.routes().changes();
        loop {
            changes.borrow_and_update();
            let sight = self.look().await;
            let is_current = Arc::ptr_eq(&sight.control, &self.routes().control());
            if is_current && sight.is_newest_on(self.me()) || real_now() >= until {
                return sight;
            }
            let _ = timeout(LOOK_AGAIN_AFTER, changes.changed()).await;
        }
    }

    fn alone(&self) -> NodeView {
        let About { address, serves, zone, rules_max } = self.about().clone();
        NodeView {
            id: self.me(),
            address: serves,
            peer_address: address,
            zone,
            state: NodeState::Joining,
            drains: false,
            version: BUILD.to_owned(),
            rules_max,
            clock_skew_ms: None,
            leads: 0,
            replicas: 0,
            disk_low: false,
            problem: self.routes().problem(),
        }
    }

    fn node(
        &self,
        id: NodeId,
        sight: &Sight,
        view: &ClusterView,
        peer: Option<&PeerStatus>,
    ) -> NodeView {
        let mut known = sight.control.nodes().get(&id).cloned().unwrap_or_default();
        if id == self.me() {
            // What it tells may be on its way still.
            let about = self.about().clone();
            (known.serves, known.address, known.zone) = (about.serves, about.address, about.zone);
        }
        let report = sight.reports.get(&id);
        let follows = |report: &super::call::Report| {
            let control = report.groups.iter().find(|status| status.group == CONTROL_GROUP);
            control.is_some_and(|status| status.applied > 0)
        };
        let state = match report {
            _ if sight.control.has_given_up(id) => NodeState::Removing,
            None => NodeState::Down,
            Some(report) if report.leaving => NodeState::Stopping,
            Some(_) if sight.control.drains(id) => NodeState::Draining,
            Some(report) if !follows(report) => NodeState::Joining,
            Some(_) => NodeState::Up,
        };
        let problem = || peer.and_then(|peer| peer.last_error.clone());
        let here = self.me() == id;
        NodeView {
            id,
            address: known.serves,
            peer_address: known.address,
            zone: known.zone,
            state,
            drains: sight.control.drains(id),
            version: report.map(|report| report.build.clone()).unwrap_or_default(),
            rules_max: known.rules_max,
            clock_skew_ms: peer.and_then(|peer| peer.clock_skew_ms).or(here.then_some(0)),
            leads: view.shards.iter().filter(|shard| shard.leader == Some(id)).count(),
            replicas: view.shards.iter().filter(|shard| shard.is_on(id)).count(),
            disk_low: report.is_some_and(|report| report.disk_low),
            problem: report.map_or_else(problem, |report| report.problem.clone()),
        }
    }
}

impl GroupView {
    fn is_on(&self, node: NodeId) -> bool {
        self.replicas.iter().any(|replica| replica.node == node)
    }
}

impl Sight {
    /// Whether nobody who answered has applied more of the map than a node has.
    fn is_newest_on(&self, node: NodeId) -> bool {
        let applied = |node| self.replica(CONTROL_GROUP, node).map(|status| status.applied);
        self.reports.keys().all(|&other| applied(other) <= applied(node))
    }

    fn group(&self, group: u64, moves_to: Option<Vec<NodeId>>) -> GroupView {
        let leader = self.leader(group);
        let told = self.reports.values().flat_map(|report| &report.groups);
        let terms = told.filter(|status| status.group == group).map(|status| status.term);
        let replicas = self.control.replicas(group).iter();
        GroupView {
            id: u16::try_from(group.saturating_sub(1)).unwrap_or(u16::MAX),
            leader: leader.map(|(node, _)| node),
            term: terms.max().unwrap_or_default(),
            replicas: replicas
                .map(|at| self.placed(group, *at, leader.map(|(_, of)| of)))
                .collect(),
            moves_to,
        }
    }

    fn placed(&self, group: u64, at: Placement, leader: Option<&GroupStatus>) -> ReplicaView {
        let own = self.replica(group, at.node).filter(|status| status.replica == at.replica);
        // Without a leader the replica's own idea of its group is the best there is.
        let role = match leader.or(own) {
            Some(of) if of.voters.contains(&at.replica) => ReplicaRole::Voter,
            Some(of) if of.learners.contains(&at.replica) => ReplicaRole::Learner,
            Some(of) if of.outgoing.contains(&at.replica) => ReplicaRole::Leaving,
            Some(_) => ReplicaRole::Placed,
            None => ReplicaRole::Voter,
        };
        let member = leader.map(|of| of.members.as_slice()).unwrap_or_default();
        let member = member.iter().find(|member| member.replica == at.replica);
        ReplicaView {
            node: at.node,
            replica: at.replica,
            role,
            matched: member
                .map(|member| member.matched)
                .or(own.map(|own| own.persisted))
                .unwrap_or(0),
            lag: member.filter(|member| member.active).map(|member| member.lag),
            installing: own.and_then(|own| own.installing),
        }
    }
}
