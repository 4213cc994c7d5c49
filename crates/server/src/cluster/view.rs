//! View: a cluster as operators see it: nodes, leaders, the progress of replicas, and moves.

use super::{Cluster, GroupStatus, call::About, member::BUILD, sight::Sight};
use crate::{clock::real_now, peer::PeerStatus};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use taskyard_replica::{CONTROL_GROUP, NodeId, Placement};
use tokio::time::timeout;

/// How long a view waits until this node is up to date; news reaches a healthy node sooner.
const NEWEST_WITHIN: Duration = Duration::from_secs(1);
/// The pause before another look, because this node may catch up without a change that wakes the
/// view.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The cluster's permanent id.
    pub cluster_id: String,
    /// The node whose view this is.
    pub seen_by: NodeId,
    /// The number of replicas that each shard gets if there are enough nodes.
    pub replication: u8,
    /// The rules that all shards follow.
    pub rules: u16,
    /// All nodes, by number.
    pub nodes: Vec<NodeView>,
    /// The control group, which has this map.
    pub control: GroupView,
    /// All shards, in order.
    pub shards: Vec<GroupView>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node's number.
    pub id: NodeId,
    /// The address for clients; empty if unknown.
    pub address: String,
    /// The address for peers.
    pub peer_address: String,
    /// The zone of the node; empty if unknown.
    pub zone: String,
    /// The state of the node.
    pub state: NodeState,
    /// Whether the node is being drained.
    pub drains: bool,
    /// The version that the node runs; empty if it does not answer.
    pub version: String,
    /// The newest rules that it knows.
    pub rules_max: u16,
    /// How far the node's clock is ahead of the clock of the viewing node.
    pub clock_skew_ms: Option<i64>,
    /// The number of shards that the node leads.
    pub leads: usize,
    /// The number of shards that the node has a replica of.
    pub replicas: usize,
    /// Whether the node is low on disk, so that it gets neither leaders nor replicas.
    pub disk_low: bool,
    /// Why the node cannot be reached.
    pub problem: Option<String>,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The node answers.
    Up,
    /// The node does not answer.
    Down,
    /// The node answers and is being drained.
    Draining,
    /// The node has joined, and does not follow the cluster yet.
    Joining,
    /// The node still answers, and stops: its leaders move to others.
    Stopping,
    /// The node was given up, and is removed when others have its replicas.
    Removing,
}

impl NodeState {
    /// The name of the state, the same on every front.
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
    /// The shard; 0 also stands for the control group.
    pub id: u16,
    /// The node that leads the group and serves.
    pub leader: Option<NodeId>,
    /// The newest known term.
    pub term: u64,
    /// The replicas, by node.
    pub replicas: Vec<ReplicaView>,
    /// The target nodes of the group's voters while the group moves. Of the groups that wait to
    /// move, only the next one has a value.
    pub moves_to: Option<Vec<NodeId>>,
}

/// One replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// The node of the replica.
    pub node: NodeId,
    /// The replica's id in the group.
    pub replica: u64,
    /// The role of the replica.
    pub role: ReplicaRole,
    /// The last entry that the replica is known to have on disk.
    pub matched: u64,
    /// The number of entries that it lacks, if it was heard lately.
    pub lag: Option<u64>,
    /// The bytes of a snapshot that have arrived, while one is being installed.
    pub installing: Option<u64>,
}

/// The role of a replica in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    /// The replica votes.
    Voter,
    /// The replica follows without a vote.
    Learner,
    /// The replica is placed, and not in the group yet.
    Placed,
    /// The replica is being removed.
    Leaving,
}

impl ReplicaRole {
    /// The name of the role, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaRole::Voter => "voter",
            ReplicaRole::Learner => "learner",
            ReplicaRole::Placed => "placed",
            ReplicaRole::Leaving => "leaving",
        }
    }
}

/// The name of a group for people.
pub(crate) fn name_of(group: u64) -> String {
    match group.checked_sub(1) {
        None => "the control group".into(),
        Some(shard) => format!("shard {shard}"),
    }
}

impl Cluster {
    /// The state of the cluster, as far as this node can see it.
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
            // The node has joined, and does not know the other nodes yet.
            view.nodes.push(self.alone());
        }
        view
    }

    /// Looks until this node has applied the map as far as every node that answers. An operator
    /// must see a change that was reported as done, on whichever node.
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
            // This node's announcement may still be on its way.
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
            Some(_) if sight.control.is_draining(id) => NodeState::Draining,
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
            drains: sight.control.is_draining(id),
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
    /// Whether a node has applied the map as far as every node that answered.
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
        // Without a leader, the replica's own view of its group is the best source.
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
