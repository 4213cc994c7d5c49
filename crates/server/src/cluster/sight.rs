//! Sight: the state of all nodes of the cluster at one moment, as the nodes report it.
//!
//! Any node can look. A node that does not answer is missing. The report of a group's leader
//! counts, and of two replicas that both claim to lead, the one with the higher term.

use super::{Cluster, ClusterCall, ClusterReply, GroupStatus, MemberStatus, call::Report};
use futures_util::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use taskyard_replica::{Control, GroupSeen, Members, NodeId, Seen};

/// How long a node may take to report.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The result of a look.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    /// The control state that this node has applied.
    pub(super) control: Arc<Control>,
    /// The reports of the nodes that answered.
    pub(super) reports: BTreeMap<NodeId, Report>,
}

impl Cluster {
    /// Asks every node for its report.
    pub(super) async fn look(&self) -> Sight {
        let control = self.routes().control();
        let asked = control.nodes().keys().map(|&node| async move {
            match self.ask(node, ClusterCall::Report, ANSWER_WITHIN).await {
                Ok(ClusterReply::Report(report)) => Some((node, report)),
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

    /// The report of one node about its replica of a group.
    pub(super) fn replica(&self, group: u64, node: NodeId) -> Option<&GroupStatus> {
        let report = self.reports.get(&node)?;
        report.groups.iter().find(|status| status.group == group)
    }

    /// The facts for the plan. The caller adds the nodes that are lost for good.
    pub(super) fn seen(&self) -> Seen {
        let groups = self.control.groups().filter_map(|group| {
            let (_, status) = self.leader(group)?;
            // A member without any entry may lack few entries, and yet the whole state before them.
            // them.
            let has_begun = |member: &&MemberStatus| member.active && member.matched > 0;
            let active = status.members.iter().filter(has_begun);
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
            away: self.control.nodes().keys().copied().filter(|node| self.is_away(*node)).collect(),
            full: self.that_are(|report| report.disk_low),
            slow: self.that_are(|report| report.slow),
            ..Seen::default()
        }
    }

    /// Whether a node must get no leaders, because it is silent or stops. A stopping node still
    /// answers, and would get back the leaders that it has just handed over.
    pub(super) fn is_away(&self, node: NodeId) -> bool {
        self.reports.get(&node).is_none_or(|report| report.leaving)
    }

    fn that_are(&self, such: impl Fn(&Report) -> bool) -> BTreeSet<NodeId> {
        let nodes = self.reports.iter().filter(|(_, report)| such(report));
        nodes.map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_replica::{ControlCommand, Node, StateMachine};

    fn leads(group: u64, replica: u64, term: u64, members: &[(u64, u64)]) -> GroupStatus {
        let member = |&(replica, matched): &(u64, u64)| MemberStatus {
            replica,
            matched,
            lag: 10 - matched,
            active: true,
        };
        let members = members.iter().map(member).collect();
        GroupStatus { group, replica, term, serves: true, members, ..GroupStatus::default() }
    }

    fn sight(reports: Vec<(NodeId, Vec<GroupStatus>)>) -> Sight {
        let mut control = Control::default();
        let found = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
        control.apply(1, &found.encode()).unwrap();
        let node = Node { rules_max: 1, ..Node::default() };
        control.apply(2, &ControlCommand::SetNode { id: 1, node }.encode()).unwrap();
        let report = |groups| Report { groups, ..Report::default() };
        let reports = reports.into_iter().map(|(node, groups)| (node, report(groups))).collect();
        Sight { control: Arc::new(control), reports }
    }

    #[test]
    fn of_two_leaders_the_one_with_the_higher_term_counts() {
        let old = leads(1, 1, 4, &[]);
        let new = leads(1, 2, 5, &[]);
        let sight = sight(vec![(1, vec![old]), (2, vec![new.clone()]), (3, vec![])]);
        assert_eq!(sight.leader(1), Some((2, &new)));
        assert_eq!(sight.leader(0), None);
        let seen = sight.seen();
        assert_eq!(seen.groups.keys().copied().collect::<Vec<_>>(), [1]);
        assert_eq!(seen.alive, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn stopping_and_silent_nodes_are_away_and_full_ones_say_so() {
        let mut sight = sight(vec![(2, vec![]), (3, vec![])]);
        let seen = sight.seen();
        assert_eq!((seen.away, seen.full), (BTreeSet::from([1]), BTreeSet::new()), "1 is silent");
        sight.reports.insert(1, Report { leaving: true, ..Report::default() });
        sight.reports.insert(3, Report { disk_low: true, ..Report::default() });
        let seen = sight.seen();
        assert_eq!((seen.away, seen.full), (BTreeSet::from([1]), BTreeSet::from([3])));
        sight.reports.insert(1, Report::default());
        assert_eq!(sight.seen().away, BTreeSet::new());
    }

    #[test]
    fn a_replica_that_holds_nothing_yet_has_not_caught_up_however_short_the_log() {
        let mut status = leads(1, 1, 4, &[(1, 10), (2, 0), (3, 9)]);
        status.members.push(MemberStatus { replica: 4, matched: 8, lag: 2, active: false });
        let seen = sight(vec![(1, vec![status])]).seen();
        assert_eq!(seen.groups[&1].lags, BTreeMap::from([(1, 0), (3, 1)]));
    }
}
