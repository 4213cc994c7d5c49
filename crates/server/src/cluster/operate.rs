//! Operate: the requests of operators: drain, remove, transfer, replication. Any node takes them,
//! and the control group's leader decides.
//!
//! The control group rejects what its own state rules out. This file checks what that state does
//! not know, such as which nodes are up and which lead, so that no operation begins that could not
//! end.

use super::{Cluster, ClusterCall, Operation, sight::Sight, view::name_of};
use crate::Error;
use std::time::Duration;
use taskyard_machine::ShardId;
use taskyard_replica::{ControlCommand, NodeId};

/// How long a shard's leader may take to begin a hand-over.
const TRANSFER_WITHIN: Duration = Duration::from_secs(5);

impl Cluster {
    /// Carries out an operator's request; an error says why not.
    pub(crate) async fn operate(&self, operation: Operation) -> Result<(), Error> {
        self.ask_leader(ClusterCall::Operate(operation)).await?.done()
    }

    /// The part of an operation on the control group's leader.
    pub(super) async fn carry_out(&self, operation: Operation) -> Result<(), Error> {
        let command = match operation {
            Operation::Drain { node, drains } => {
                if drains {
                    check_room(&self.look().await, node)?;
                }
                ControlCommand::Drain { id: node, drains }
            }
            Operation::Remove { node, force: false } => ControlCommand::RemoveNode { id: node },
            Operation::Remove { node, force: true } => {
                self.check_lost(node).await?;
                ControlCommand::GiveUp { id: node }
            }
            Operation::SetReplication { factor } => ControlCommand::SetReplication { factor },
            Operation::Transfer { shard, node } => return self.transfer(shard, node).await,
        };
        tracing::info!(?operation, "an operator asks");
        self.shards().control(command).await
    }

    /// Checks that a node may be given up: it is down, and other nodes have all its data.
    async fn check_lost(&self, node: NodeId) -> Result<(), Error> {
        let sight = self.look().await;
        check_known(&sight, node)?;
        if sight.reports.contains_key(&node) {
            return Err(Error::Refused(format!(
                "node {node} is up; empty it with `taskyard cluster drain {node}`, then remove it \
                 without --force"
            )));
        }
        let held = sight.control.groups();
        let mut held = held.filter(|&group| sight.control.replica_on(group, node).is_some());
        match held.find(|&group| sight.leader(group).is_none()) {
            None => Ok(()),
            Some(group) if group > 0 && sight.control.replicas(group).len() == 1 => {
                Err(Error::Refused(format!(
                    "node {node} holds the last replica of {}: without it that is lost; start it again, \
                     or restore a backup into a new cluster",
                    name_of(group)
                )))
            }
            Some(group) => Err(Error::Refused(format!(
                "{} has no leader without node {node}; start the nodes that hold it, or restore a backup \
                 into a new cluster",
                name_of(group)
            ))),
        }
    }

    /// Hands over a shard to a node, and pins the leader there for a while.
    async fn transfer(&self, shard: ShardId, node: NodeId) -> Result<(), Error> {
        let sight = self.look().await;
        check_known(&sight, node)?;
        let group = u64::from(shard.0) + 1;
        if shard.0 >= sight.control.shards() {
            let shards = sight.control.shards();
            return Err(Error::NotFound(format!(
                "there is no shard {shard}; this cluster has {shards}, from 0"
            )));
        }
        let Some((leader, status)) = sight.leader(group) else {
            return Err(Error::NoQuorum { shard: shard.0 });
        };
        let voter = sight.control.replica_on(group, node).filter(|id| status.voters.contains(id));
        let Some(to) = voter else {
            let voters = status.voters.iter().filter_map(|id| sight.control.node_of(group, *id));
            let voters: Vec<NodeId> = voters.collect();
            return Err(Error::Refused(format!(
                "node {node} has no vote in shard {shard}, so it can't lead it; choose one of nodes {}",
                listed(&voters)
            )));
        };
        let Some(report) = sight.reports.get(&node).filter(|report| !report.leaving) else {
            return Err(Error::Refused(format!(
                "node {node} is down; transfer shard {shard} when it is up again"
            )));
        };
        if report.disk_low {
            return Err(Error::Refused(format!(
                "node {node} is low on disk and would hand shard {shard} on at once; free some space there \
                 first"
            )));
        }
        if sight.control.is_draining(node) {
            return Err(Error::Refused(format!(
                "node {node} is being emptied; use it again first with `taskyard cluster undrain {node}`"
            )));
        }
        self.choose(group);
        if leader == node {
            return Ok(());
        }
        tracing::info!(shard = shard.0, from = leader, to = node, "an operator moves a leader");
        let asked = self.ask(leader, ClusterCall::Transfer { group, to }, TRANSFER_WITHIN).await?;
        match asked.done() {
            Err(Error::NotLeader { .. }) => Err(Error::NoQuorum { shard: shard.0 }),
            done => done,
        }
    }
}

/// Checks that the replicas of a node could move to others. The control group knows the number of
/// other nodes, but not which of them are up.
fn check_room(sight: &Sight, node: NodeId) -> Result<(), Error> {
    let control = &sight.control;
    let others: Vec<NodeId> = control.in_use().filter(|other| *other != node).collect();
    let replicas = control.voters_wanted();
    // The control group itself handles a node that is drained already, or that never could be.
    if control.is_draining(node) || others.len() < replicas {
        return Ok(());
    }
    let (away, there): (Vec<NodeId>, Vec<NodeId>) =
        others.into_iter().partition(|other| sight.is_away(*other));
    if there.len() >= replicas {
        return Ok(());
    }
    let down = listed(&away);
    let (down, next) = match &away[..] {
        [one] => (
            format!("node {down} is down"),
            format!(
                "start node {one} again, give it up with `taskyard cluster remove {one} --force`"
            ),
        ),
        _ => (format!("nodes {down} are down"), format!("start nodes {down} again")),
    };
    let left = match there.len() {
        0 => "no node is left that".to_owned(),
        1 => "1 node is left that".to_owned(),
        many => format!("{many} nodes are left that"),
    };
    let noun = if replicas == 1 { "replica" } else { "replicas" };
    Err(Error::Refused(format!(
        "node {node} can't be drained: {down}, so {left} could take what it holds, and each shard has \
         {replicas} {noun}; {next}, or add a node first"
    )))
}

fn listed(nodes: &[NodeId]) -> String {
    let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    nodes.join(", ")
}

fn check_known(sight: &Sight, node: NodeId) -> Result<(), Error> {
    match sight.control.nodes().contains_key(&node) {
        true => Ok(()),
        false => Err(taskyard_replica::ControlRejection::UnknownNode { node }.into()),
    }
}
