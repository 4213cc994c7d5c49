//! Sight: how all nodes of the cluster stand, at one moment, as they say themselves.
//!
//! Any node can look. A node that does not answer is simply not in it; what a group's leader says
//! counts, and of two that say they lead, the one with the higher term.

use super::{Cluster, ClusterCall, ClusterReply, GroupStatus, call::Report};
use futures_util::future::join_all;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use taskyard_replica::{Control, GroupSeen, Members, NodeId, Seen};

/// How long a node may take to say how it stands.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    /// The control state as this node has applied it.
    pub(super) control: Arc<Control>,
    /// What each node that answered says.
    pub(super) reports: BTreeMap<NodeId, Report>,
}

impl Cluster {
    /// Asks every node how it stands.
    pub(super) async fn look(&self) -> Sight {
        let control = self.routes().control();
        let asked = control.nodes().keys().map(|&node| async move {
            match self.ask(node, ClusterCall::Report, ANSWER_WITHIN).await {
                Ok(ClusterReply::Report(Ok(report))) => Some((node, report)),
                _ => None,
            }
        });
        let reports = join_all(asked).await.into_iter().flatten().collect();
        Sight { control, reports }
    }
}

impl Sight {
    /// The replica that serves a group, and its node.
    pub(super) fn leader(&self, group: u64) -> Option<(NodeId, &GroupStatus)> {
        let all = self
            .reports
            .iter()
            .flat_map(|(node, report)| report.groups.iter().map(move |status| (*node, status)));
        let serving = all.filter(|(_, status)| status.group == group && status.serves);
        serving.max_by_key(|(_, status)| status.term)
    }

    /// What one node says of its replica of a group.
    pub(super) fn replica(&self, group: u64, node: NodeId) -> Option<&GroupStatus> {
        let report = self.reports.get(&node)?;
        report.groups.iter().find(|status| status.group == group)
    }

    /// As the plan wants it. Who is gone for good is for others to say.
    pub(super) fn seen(&self) -> Seen {
        let groups = self.control.groups().filter_map(|group| {
            let (_, status) = self.leader(group)?;
            let active = status.members.iter().filter(|member| member.active);
            let seen = GroupSeen {
                leader: status.replica,
                members: Members {
                    voters: status.voters.clone(),
                    learners: status.learners.clone(),
                    outgoing: status.outgoing.clone(),
                },
                lags: active.map(|member| (member.replica, member.lag)).collect(),
            };
            Some((group, seen))
        });
        Seen {
            groups: groups.collect(),
            alive: self.reports.keys().copied().collect(),
            ..Seen::default()
        }
    }
}
