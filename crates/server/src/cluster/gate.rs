//! Gate: what a node hears of its peers before it takes part in its cluster again.
//!
//! Each peer knows, on its disk, which start of this node it has let in last, and refuses older
//! data. So a node first says hello to all of them, and only then votes, appends or acknowledges
//! anything:
//!
//! - Each start waits until every peer was tried once, [`HEARS_FOR_MAX`] at most. A majority that
//!   is down or cut off for longer keeps nobody from starting.
//! - A data directory that was copied since its node last took part from it may be older than what
//!   the node has promised since. It waits until every other node of the cluster has let it in,
//!   however long that takes, or until an operator says that there is no newer one. One peer alone
//!   may be the one that knows.
//!
//! A node with nobody beside it has nobody to ask.

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
/// Between two looks, at first and later.
const LOOK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// The least time between two lines about what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Whether a node takes part in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It does.
    Open = 0,
    /// It has just started, and says hello to its peers.
    Hears = 1,
    /// Its data directory was copied, and all other nodes are to let it in first.
    Copied = 2,
}

impl Cluster {
    /// Opens the gate when it is time. `joined_with` are the peers of a node whose map is not there
    /// yet.
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
                // The process is about to end.
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

    /// From here on this node votes and acknowledges.
    async fn take_part(&self) {
        let shards = self.shards().clone();
        if shards.starts().is_copy() {
            let settled = tokio::task::spawn_blocking(move || shards.starts().settle()).await;
            match settled {
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
             since: it takes no part before it has heard from {whom} that no newer one was started; start \
             what is down, or, if you are sure that this is the newest copy, start this node with --newest-copy"
        )
    }
}
