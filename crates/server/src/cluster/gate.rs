//! Gate: the wait for peers before a started node takes part in its cluster again.
//!
//! Each peer stores which start of this node it let in last, and refuses older data. So a node
//! first says hello to all peers, and only then votes, appends or acknowledges:
//!
//! - Each start waits until every peer was tried once, at most [`HEARS_FOR_MAX`]. A majority that
//!   is down or cut off for longer does not prevent a start.
//! - A copied data directory may be older than what the node has promised since the copy. Such a
//!   node waits until every other node has let it in, without a time limit, or until an operator
//!   says that the copy is the newest. One peer alone may be the one that knows of a newer one.
//!
//! A node without peers does not wait.

use super::{Cluster, join::addresses};
use crate::{clock::real_now, limits::START_HEARS_MS_MAX, pauses::Pauses, peer::RefusalCode};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_replica::NodeId;
use tokio::time::sleep;

/// How long a start waits for peers that do not answer.
const HEARS_FOR_MAX: Duration = Duration::from_millis(START_HEARS_MS_MAX);
/// The shortest and the longest pause between two checks.
const LOOK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// The shortest time between two log lines about the wait.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Whether a node takes part in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The node takes part.
    Open = 0,
    /// The node has just started, and says hello to its peers.
    Hears = 1,
    /// The data directory was copied: all other nodes must let the node in first.
    Copied = 2,
}

impl Cluster {
    /// Opens the gate once the node may take part. `joined_with` are the peers of a node without a
    /// map.
    pub(crate) async fn open_gate(self, joined_with: BTreeMap<NodeId, String>) {
        let begun = real_now();
        let [first, longest] = LOOK_AGAIN_AFTER;
        let mut pauses = Pauses::between(first, longest);
        let mut said: Option<Instant> = None;
        let mut welcomed = BTreeSet::new();
        loop {
            let Some(network) = self.shards().network() else { return };
            let control = self.routes().control();
            let named = match control.cluster() {
                Some(_) => addresses(&control),
                None => joined_with.clone(),
            };
            let peers: BTreeSet<NodeId> =
                named.into_keys().filter(|node| *node != self.me()).collect();
            let status = network.status();
            let is_outdated = |code| code == RefusalCode::Outdated;
            if status
                .iter()
                .any(|peer| peer.verdict.as_ref().is_some_and(|no| is_outdated(no.code)))
            {
                // A peer refused outdated data: the process is about to end.
                return;
            }
            let connected = status.iter().filter(|peer| peer.connected_since_ms.is_some());
            welcomed.extend(connected.map(|peer| peer.node));
            let tried = status.iter().filter(|peer| peer.last_error.is_some());
            let tried: BTreeSet<NodeId> = tried.map(|peer| peer.node).collect();
            let missing: Vec<NodeId> = peers.difference(&welcomed).copied().collect();
            let is_over = begun.elapsed() >= HEARS_FOR_MAX;
            let is_map_there = self.routes().has_replayed();
            let opens = match self.routes().gate() {
                Gate::Open => return,
                Gate::Hears => {
                    is_over || (is_map_there && missing.iter().all(|node| tried.contains(node)))
                }
                Gate::Copied => is_map_there && missing.is_empty(),
            };
            if opens {
                return self.take_part().await;
            }
            if self.routes().gate() == Gate::Copied && is_over {
                let words = self.waits_for(&missing);
                if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                    tracing::warn!("{words}");
                    said = Some(real_now());
                }
                self.routes().set_kept_out(Some(words));
            }
            sleep(pauses.next()).await;
        }
    }

    /// Opens the gate: this node votes and acknowledges from now on.
    async fn take_part(&self) {
        let shards = self.shards().clone();
        if shards.starts().is_copy() {
            let accepted = tokio::task::spawn_blocking(move || shards.starts().accept_copy()).await;
            match accepted {
                Ok(Ok(())) => tracing::info!("this copy of the data directory is the newest one"),
                Ok(Err(error)) => tracing::warn!("the next start will ask again: {error}"),
                Err(error) => tracing::warn!("the next start will ask again: {error}"),
            }
        }
        self.routes().set_kept_out(None);
        self.routes().set_gate(Gate::Open);
        self.shards().look();
    }

    fn waits_for(&self, missing: &[NodeId]) -> String {
        let me = self.me();
        let whom = match missing {
            [] => "the map of its cluster".to_owned(),
            [one] => format!("node {one}"),
            many => {
                let many: Vec<String> = many.iter().map(NodeId::to_string).collect();
                format!("nodes {}", many.join(", "))
            }
        };
        format!(
            "the data directory of node {me} was copied, and may be older than what the node has promised \
             since: it takes no part before it has heard from {whom} that no newer copy was started; start \
             what is down, or, if you are sure that this is the newest copy, start this node with --newest-copy"
        )
    }
}
