//! Announce: the news that a node sends and hears regularly: addresses, leaders, clocks.
//!
//! Invariant: the peers of a node are the nodes of its applied control state. Before it has that
//! state, the peers are the nodes that it learned when it joined.

use super::{Cluster, ClusterCall, ClusterReply, Routes, join::addresses};
use crate::{clock::real_now, limits::PEER_SILENCE_MS_MAX, pauses::Pauses, peer::RefusalCode};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use taskyard_replica::{Node, NodeId};
use tokio::time::timeout;

/// The interval between two looks at things that rarely change.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two searches for unknown leaders. A search asks every
/// node for all its groups, and calls search for a leader by themselves.
const ROUTES_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
/// The pause before a node announces its address again.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// The interval at which a running node raises its count of starts.
const COUNT_EVERY: Duration = Duration::from_secs(60 * 60);
/// How long another process may have this node's number before this one stops. An earlier process
/// of this node, whose machine lost power, is forgotten sooner: when its connections are silent.
const IN_USE_FOR_MAX: Duration = Duration::from_millis(2 * PEER_SILENCE_MS_MAX);
/// A larger difference between clocks is warned of, because leases and schedules follow the
/// leader's clock.
pub(super) const SKEW_MS_MAX: u64 = 2_000;
/// The least time between two warnings about one clock.
const WARN_EVERY: Duration = Duration::from_secs(60);

impl Cluster {
    /// Keeps this node's peers equal to the nodes of the control state. `joined_with` are the peers
    /// before.
    pub(crate) async fn keep_peers(self, joined_with: BTreeMap<NodeId, String>) {
        let mut changes = self.routes().changes();
        loop {
            changes.borrow_and_update();
            self.name_peers(&joined_with);
            // The sender lives as long as the shards of this handle.
            let _ = changes.changed().await;
        }
    }

    /// Sets the peers once. A node does so before it answers any call, because the network ignores
    /// unknown nodes, and calls that need them would be refused.
    pub(crate) fn name_peers(&self, joined_with: &BTreeMap<NodeId, String>) {
        let control = self.routes().control();
        if let Some(network) = self.shards().network() {
            match control.cluster() {
                Some(_) => network.set_peers(&addresses(&control)),
                None => network.set_peers(joined_with),
            }
        }
    }

    /// Announces this node's address to the control group's leader whenever the control state
    /// differs.
    pub(crate) async fn keep_telling(self) {
        let mut changes = self.routes().changes();
        loop {
            changes.borrow_and_update();
            let (control, start) = (self.routes().control(), self.start());
            let is_known =
                |known: &Node| self.about().is(known) && control.started(self.me()) == Some(start);
            let known = control.nodes().get(&self.me()).cloned();
            let Some(known) = known.filter(|known| !is_known(known)) else {
                let _ = changes.changed().await;
                continue;
            };
            let (about, starts, boot) = (self.about().clone(), start.count, start.boot);
            let call = ClusterCall::Announce { node: self.me(), about, starts, boot };
            match self.ask_leader(call).await.and_then(ClusterReply::done) {
                // The control state will follow; until then there is nothing to announce.
                Ok(()) => drop(timeout(TELL_AGAIN_AFTER, changes.changed()).await),
                Err(error) => {
                    let at = &known.address;
                    tracing::warn!(
                        "the cluster knows this node at {at:?} and can't be told better: {error}"
                    );
                    tokio::time::sleep(TELL_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Raises this node's count of starts while it runs, and announces the count. A copy of a
    /// running node's data, such as a disk image, is then recognised as older soon, not only after
    /// the next start.
    pub(crate) async fn keep_counting(self) {
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            let shards = self.shards().clone();
            match tokio::task::spawn_blocking(move || shards.starts().raise()).await {
                Ok(Ok(())) => self.routes().note_start(),
                Ok(Err(error)) => {
                    tracing::warn!("the starts of this data can't be counted on: {error}")
                }
                Err(error) => {
                    tracing::warn!("the starts of this data can't be counted on: {error}")
                }
            }
        }
    }

    /// Searches for the leaders of shards that have no replica on this node. A local replica learns
    /// its leader by itself.
    pub(crate) async fn keep_routes(self) {
        let mut changes = self.routes().changes();
        let [first, longest] = ROUTES_AGAIN_AFTER;
        let mut pauses = Pauses::between(first, longest);
        loop {
            changes.borrow_and_update();
            if unled_elsewhere(self.routes()).is_empty() {
                pauses.begin_again();
                let _ = changes.changed().await;
                continue;
            }
            let sight = self.look().await;
            // A leader that was found meanwhile is as good.
            for group in unled_elsewhere(self.routes()) {
                self.routes().set_leader(group, sight.leader(group).map(|(node, _)| node));
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }

    /// Completes with a reason when this node has no place in the cluster any more: it was removed,
    /// its data is too old, or another live process has its number. A node that was removed while
    /// it was away learns this in no other way. Only authenticated peers are believed, because
    /// anybody could answer at a peer's address.
    pub(crate) async fn turned_away(&self) -> String {
        let mut in_use_since: Option<Instant> = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(words) = self.outdated() {
                return self.outdate(words);
            }
            let Some(network) = self.shards().network() else { continue };
            let (mut removed, mut in_use) = (None, None);
            for verdict in network.status().into_iter().filter_map(|peer| peer.verdict) {
                match verdict.code {
                    RefusalCode::Outdated => return self.outdate(verdict.words),
                    RefusalCode::NotAMember => removed = Some(verdict.words),
                    RefusalCode::NodeInUse => in_use = Some(verdict.words),
                    _ => {}
                }
            }
            let is_long = in_use.is_some()
                && in_use_since.get_or_insert_with(real_now).elapsed() >= IN_USE_FOR_MAX;
            if in_use.is_none() {
                in_use_since = None;
            }
            if let Some(words) = removed.or(in_use.filter(|_| is_long)) {
                return words;
            }
        }
    }

    /// This data is older than what its node has promised since: it is never started again, so that
    /// its count does not rise beyond what is known.
    fn outdate(&self, words: String) -> String {
        if let Err(error) = self.shards().starts().outdate(&words) {
            tracing::error!("never start this data directory again; it can't be marked: {error}");
        }
        words
    }

    /// Warns of clocks that differ.
    pub(crate) async fn keep_comparing_clocks(self) {
        let mut warned = BTreeMap::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(network) = self.shards().network() else { continue };
            let skews = network.status().into_iter();
            let skews = skews.filter_map(|peer| Some((peer.node, peer.clock_skew_ms?)));
            for (node, skew_ms) in worth_saying(&mut warned, skews, self.clock().monotonic()) {
                let (far, way) =
                    (skew_ms.unsigned_abs(), if skew_ms > 0 { "ahead of" } else { "behind" });
                tracing::warn!(
                    "the clock of node {node} is {far} ms {way} this one's; set both by NTP: leases and \
                     schedules follow the clock of the leader"
                );
            }
        }
    }
}

/// The shards without a known leader and without a replica on this node.
fn unled_elsewhere(routes: &Routes) -> Vec<u64> {
    let control = routes.control();
    let is_elsewhere = |group: &u64| !routes.has_replica(*group);
    let unled = control.groups().skip(1).filter(|group| routes.leader_of(*group).is_none());
    unled.filter(is_elsewhere).collect()
}

/// The clocks that differ by too much and were not reported within the last minute.
fn worth_saying(
    warned: &mut BTreeMap<NodeId, Instant>,
    skews: impl Iterator<Item = (NodeId, i64)>,
    now: Instant,
) -> Vec<(NodeId, i64)> {
    warned.retain(|_, at| now.saturating_duration_since(*at) < WARN_EVERY);
    let mut said = Vec::new();
    for (node, skew_ms) in skews.filter(|(_, skew_ms)| skew_ms.unsigned_abs() > SKEW_MS_MAX) {
        warned.entry(node).or_insert_with(|| {
            said.push((node, skew_ms));
            now
        });
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use taskyard_replica::{Control, ControlCommand, Node, Placement, StateMachine};

    /// A local replica without a leader once made its node ask all nodes four times a second, for
    /// nothing.
    #[test]
    fn leaders_are_looked_for_only_where_no_replica_here_hears_of_them() {
        let mut control = Control::default();
        let mut commands =
            vec![ControlCommand::Found { cluster: 1, incarnation: 1, shards: 3, rules: 1 }];
        for id in [1, 2] {
            let node = Node { rules_max: 1, ..Node::default() };
            commands.push(ControlCommand::SetNode { id, node });
        }
        for (group, node) in [(1, 1), (2, 2), (3, 2)] {
            let replicas = vec![Placement { node, replica: 1 }];
            commands.push(ControlCommand::Place { group, replicas });
        }
        for command in commands {
            control.apply(1, &command.encode()).unwrap();
        }
        let routes = Routes::new(1, 3);
        assert_eq!(unled_elsewhere(&routes), [0; 0], "nothing is known yet");
        routes.set_control(Arc::new(control));
        assert_eq!(unled_elsewhere(&routes), [2, 3]);
        routes.set_leader(2, Some(2));
        assert_eq!(unled_elsewhere(&routes), [3]);
        routes.set_leader(3, Some(2));
        assert_eq!(unled_elsewhere(&routes), [0; 0]);
    }

    #[test]
    fn a_clock_is_warned_of_once_a_minute() {
        let (mut warned, now) = (BTreeMap::new(), crate::clock::real_now());
        let mut say = |skews: &[(NodeId, i64)], after_s: u64| {
            let now = now + Duration::from_secs(after_s);
            worth_saying(&mut warned, skews.iter().copied(), now)
        };
        assert_eq!(say(&[(2, 2_000), (3, -2_001)], 0), [(3, -2_001)]);
        assert_eq!(say(&[(2, 2_001), (3, -9_000)], 1), [(2, 2_001)]);
        assert_eq!(say(&[(2, i64::MIN), (3, -9_000)], 60), [(3, -9_000)]);
    }
}
