//! Watch: the knowledge of the control group's leader about the cluster, from the reports of nodes.
//! Reports may be late, lost or overtaken; an old report does not count.

use std::collections::BTreeMap;
use taskyard_replica::{Control, GroupSeen, NodeId, Replica, Role, Seen, StateMachine};

/// A node that was heard within this time is alive.
const ALIVE_MS: u64 = 1_500;
/// A node that was silent for this long is replaced.
const GONE_MS: u64 = 8_000;
/// How long a leader's report about its group counts.
const NEWS_MS: u64 = 2_000;

/// A node's report about itself.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) node: NodeId,
    /// The time of the report, by the node's own monotonic clock.
    pub(crate) at: u64,
    /// The newest rules that the node knows.
    pub(crate) rules_max: u16,
    /// The groups that the node leads.
    pub(crate) leads: Vec<(u64, GroupReport)>,
}

/// A leader's report about its group.
#[derive(Clone, Debug)]
pub(crate) struct GroupReport {
    pub(crate) term: u64,
    /// The index at which its members last changed.
    pub(crate) since: u64,
    pub(crate) seen: GroupSeen,
}

impl GroupReport {
    /// The report of a replica, if it leads.
    pub(crate) fn by<M: StateMachine>(replica: &Replica<M>) -> Option<GroupReport> {
        let Role::Leader { term } = replica.role() else { return None };
        let heard_of = replica.peers().into_iter().filter(|peer| peer.active);
        let seen = GroupSeen {
            leader: replica.id(),
            members: replica.members(),
            lags: heard_of.map(|peer| (peer.id, peer.lag)).collect(),
        };
        Some(GroupReport { term, since: replica.members_since(), seen })
    }
}

/// The reports that one leader of the control group has heard.
#[derive(Debug)]
pub(crate) struct Watch {
    began_at: u64,
    heard: BTreeMap<NodeId, u64>,
    /// For each group: when the report came, its time, and its content.
    groups: BTreeMap<u64, (u64, u64, GroupReport)>,
}

impl Watch {
    pub(crate) fn new(began_at: u64) -> Watch {
        Watch { began_at, heard: BTreeMap::new(), groups: BTreeMap::new() }
    }

    pub(crate) fn hear(&mut self, status: Status, now: u64) {
        self.heard.insert(status.node, now);
        for (group, report) in status.leads {
            let newer = |(_, at, known): &(u64, u64, GroupReport)| {
                (report.term, status.at) >= (known.term, *at)
            };
            if self.groups.get(&group).is_none_or(newer) {
                self.groups.insert(group, (now, status.at, report));
            }
        }
    }

    pub(crate) fn seen(&self, control: &Control, now: u64) -> Seen {
        let silent_for = |node: &NodeId| {
            let heard = self.heard.get(node).copied();
            (now - heard.unwrap_or(self.began_at), heard.is_some())
        };
        let nodes = || control.nodes().keys().copied();
        let alive = |node: &NodeId| matches!(silent_for(node), (ms, true) if ms <= ALIVE_MS);
        let news = self.groups.iter().filter(|(_, (came, ..))| now - came <= NEWS_MS);
        Seen {
            groups: news.map(|(&group, (.., report))| (group, report.seen.clone())).collect(),
            alive: nodes().filter(alive).collect(),
            gone: nodes().filter(|node| silent_for(node).0 > GONE_MS).collect(),
            ..Seen::default()
        }
    }

    /// The term and index of a group's members in the last report.
    pub(crate) fn fence(&self, group: u64) -> Option<(u64, u64)> {
        self.groups.get(&group).map(|(.., report)| (report.term, report.since))
    }

    /// The leading replica of a group in the last report.
    pub(crate) fn leader(&self, group: u64) -> Option<u64> {
        self.groups.get(&group).map(|(.., report)| report.seen.leader)
    }
}
