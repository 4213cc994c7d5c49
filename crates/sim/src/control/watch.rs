//! Watch: what the control group's leader knows of the cluster, from what nodes have told it. News
//! may be late, lost or overtaken; what is too old counts for nothing.

use std::collections::BTreeMap;
use taskyard_replica::{Control, GroupSeen, NodeId, Replica, Role, Seen, StateMachine};

/// A node that was heard of within this answers.
const ALIVE_MS: u64 = 1_500;
/// One that has been silent for this is to be replaced.
const GONE_MS: u64 = 8_000;
/// What a leader told of its group counts for this long.
const NEWS_MS: u64 = 2_000;

/// What a node tells of itself.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) node: NodeId,
    /// When it was true, by the node's own monotonic clock.
    pub(crate) at: u64,
    /// The newest rules that it knows.
    pub(crate) rules_max: u16,
    /// The groups that it leads.
    pub(crate) leads: Vec<(u64, Told)>,
}

/// What a leader tells of its group.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) term: u64,
    /// Since which index its members are who they are.
    pub(crate) since: u64,
    pub(crate) seen: GroupSeen,
}

impl Told {
    /// What a replica tells, if it leads.
    pub(crate) fn by<M: StateMachine>(replica: &Replica<M>) -> Option<Told> {
        let Role::Leader { term } = replica.role() else { return None };
        let heard_of = replica.peers().into_iter().filter(|peer| peer.active);
        let seen = GroupSeen {
            leader: replica.id(),
            members: replica.members(),
            lags: heard_of.map(|peer| (peer.id, peer.lag)).collect(),
        };
        Some(Told { term, since: replica.members_since(), seen })
    }
}

/// What one leader of the control group has heard.
#[derive(Debug)]
pub(crate) struct Watch {
    began_at: u64,
    heard: BTreeMap<NodeId, u64>,
    /// By group: when it came, when it was true, and what.
    groups: BTreeMap<u64, (u64, u64, Told)>,
}

impl Watch {
    pub(crate) fn new(began_at: u64) -> Watch {
        Watch { began_at, heard: BTreeMap::new(), groups: BTreeMap::new() }
    }

    pub(crate) fn hear(&mut self, status: Status, now: u64) {
        self.heard.insert(status.node, now);
        for (group, told) in status.leads {
            let newer =
                |(_, at, known): &(u64, u64, Told)| (told.term, status.at) >= (known.term, *at);
            if self.groups.get(&group).is_none_or(newer) {
                self.groups.insert(group, (now, status.at, told));
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
            groups: news.map(|(&group, (.., told))| (group, told.seen.clone())).collect(),
            alive: nodes().filter(alive).collect(),
            gone: nodes().filter(|node| silent_for(node).0 > GONE_MS).collect(),
            ..Seen::default()
        }
    }

    /// Term and index that a group's members were told under.
    pub(crate) fn fence(&self, group: u64) -> Option<(u64, u64)> {
        self.groups.get(&group).map(|(.., told)| (told.term, told.since))
    }

    /// The replica that leads a group, as last told.
    pub(crate) fn leader(&self, group: u64) -> Option<u64> {
        self.groups.get(&group).map(|(.., told)| told.seen.leader)
    }
}
