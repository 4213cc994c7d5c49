//! Copy: a backup of the whole cluster, written by any node from the replicas of all nodes.
//!
//! A shard sends its outbox messages to other shards, and drops a message once the other shard has
//! it. Two copies from different moments may therefore disagree. One may have dropped a message
//! that the other has not got, or have got a message that the other has not sent. For this reason
//! no leader sends or drops messages while replicas are frozen, and each frozen replica has first
//! applied everything that its leader had applied when the pause began. All copies then fit
//! together, whichever replicas they come from: a message in two copies is taken once, by its
//! number.
//!
//! Shards are frozen in memory, which takes no time. They are written to disk, and read from there,
//! when messages flow again. A shard without a replica on this node is fetched from a node that has
//! one, and from another node if the first one is lost.

use super::{Cluster, ClusterCall, ClusterReply, sight::Sight};
use crate::{
    Error,
    backup::{self, Copies, ShardCopy},
    checkpoint::{Part, Position, decode_cut},
    clock::real_now,
    random::random_u64,
    shard::BackupPart,
};
use futures_util::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use taskyard_machine::ShardId;
use taskyard_replica::{CONTROL_GROUP, NodeId};
use tokio::{
    sync::{OnceCell, mpsc, oneshot},
    time::timeout,
};

/// How long nodes may take to finish checkpoints that are in progress when a backup begins.
const QUIET_WITHIN: Duration = Duration::from_secs(20);
/// How long nodes then start no other checkpoint.
const QUIET_FOR: Duration = Duration::from_secs(40);
/// The longest pause of messages between shards.
const PAUSE_FOR: Duration = Duration::from_secs(30);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a node may take to freeze its replicas, once they have applied enough.
const FREEZE_WITHIN: Duration = Duration::from_secs(10);
/// A replica that lacks more entries than this is not waited for.
const LAG_MAX: u64 = 10_000;
/// The most tries; a try fails when leaders change during it.
const TRIES: usize = 3;
/// The time after which no further try begins.
const TRY_FOR: Duration = Duration::from_secs(40);
/// How long nodes may take to write the frozen state to disk.
const WRITTEN_WITHIN: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A node that does not answer for this long is lost for this backup.
const SILENT_FOR_MAX: Duration = Duration::from_secs(10);
/// The interval at which nodes are asked to keep copies that are not being read.
const KEEP_EVERY: Duration = Duration::from_secs(20);

impl Cluster {
    /// A consistent copy of every shard, in parts of one file.
    pub(crate) async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        if self.routes().is_alone() {
            return self.shards().backup().await;
        }
        let cluster = self.clone();
        // In a task of its own, so that the pause ends even if the caller goes away.
        let begun = tokio::spawn(async move { cluster.begin_backup().await });
        let begun = begun.await.unwrap_or_else(|_| Err(crate::shard::gone()))?;
        Ok(backup::stream(self.shards().format(), ClusterCopies::of(self.clone(), begun)))
    }

    async fn begin_backup(&self) -> Result<Begun, Error> {
        let until = real_now() + TRY_FOR;
        let mut tried = 0;
        loop {
            let nodes = self.copying_nodes(tried > 0);
            tried += 1;
            match self.freeze_all(nodes).await {
                Err(error) if tried < TRIES && real_now() < until => {
                    tracing::info!("a backup begins anew: {error}");
                }
                begun => return begun,
            }
        }
    }

    /// The nodes to copy from: this one, if it has all shards; else also the nodes with the missing
    /// shards. `all` adds all other nodes, for the case that this one cannot be used.
    fn copying_nodes(&self, all: bool) -> BTreeSet<NodeId> {
        let (control, me) = (self.routes().control(), self.me());
        let mut nodes = BTreeSet::from([me]);
        for group in control.groups().filter(|group| *group != CONTROL_GROUP) {
            if all || control.replica_on(group, me).is_none() {
                nodes.extend(control.replicas(group).iter().map(|placed| placed.node));
            }
        }
        nodes
    }

    /// Freezes the replicas of these nodes so that they fit together.
    async fn freeze_all(&self, nodes: BTreeSet<NodeId>) -> Result<Begun, Error> {
        let backup = random_u64();
        // Before the pause, because a checkpoint in progress may take a while.
        let quiet_ms = millis(QUIET_FOR);
        let quiet = self.ask_all(&nodes, QUIET_WITHIN, |_| ClusterCall::Quiet { quiet_ms }).await;
        let is_quiet = |(node, reply): (NodeId, Result<ClusterReply, Error>)| {
            reply.and_then(ClusterReply::done).is_ok().then_some(node)
        };
        let nodes = quiet.into_iter().filter_map(is_quiet).collect();
        let begun = self.freeze_paused(backup, &nodes).await;
        // A node that this call does not reach ends its pause by itself.
        let _ = self.pause_delivery(backup, Duration::ZERO).await;
        if begun.is_err() {
            self.drop_copies(backup, &nodes).await;
        }
        begun
    }

    /// Ends the keeping of copies. A node that this call does not reach ends it by itself.
    async fn drop_copies(&self, backup: u64, nodes: &BTreeSet<NodeId>) {
        self.ask_all(nodes, ANSWER_WITHIN, |_| ClusterCall::DropCopies { backup }).await;
    }

    async fn freeze_paused(&self, backup: u64, nodes: &BTreeSet<NodeId>) -> Result<Begun, Error> {
        let paused_until = real_now() + PAUSE_FOR;
        let paused = self.pause_delivery(backup, PAUSE_FOR).await?;
        let before = self.look().await;
        let mut least = BTreeMap::new();
        for (shard, group) in shards(&before) {
            let (node, leader) = before.leader(group).ok_or(Error::NoQuorum { shard: shard.0 })?;
            if !paused.contains(&node) {
                return Err(Error::Unavailable(format!(
                    "node {node} leads shard {shard} and has not answered; take the backup again"
                )));
            }
            least.insert(shard, leader.committed);
        }
        let freeze = |node| {
            let near = |(shard, index): (&ShardId, &u64)| {
                let replica = before.replica(u64::from(shard.0) + 1, node)?;
                (replica.applied + LAG_MAX >= *index).then_some((*shard, *index))
            };
            ClusterCall::Freeze { backup, shards: least.iter().filter_map(near).collect() }
        };
        let mut frozen = BTreeMap::new();
        let mut why = String::new();
        for (node, reply) in self.ask_all(nodes, FREEZE_WITHIN, freeze).await {
            match reply.and_then(ClusterReply::frozen) {
                Ok(shards) => drop(frozen.insert(node, shards)),
                Err(error) => why = format!("{why}; node {node}: {error}"),
            }
        }
        let is_there = |shard| frozen.values().any(|shards| shards.contains(shard));
        if let Some(shard) = least.keys().find(|shard| !is_there(shard)) {
            return Err(Error::Unavailable(format!(
                "no replica of shard {shard} could be copied in time{why}; take the backup again"
            )));
        }
        // A new leader of a shard may not have known of the pause.
        let after = self.look().await;
        let led = |sight: &Sight, group| sight.leader(group).map(|(node, led)| (node, led.term));
        let is_calm = shards(&before).all(|(_, group)| led(&before, group) == led(&after, group));
        if !is_calm || real_now() >= paused_until {
            return Err(Error::Unavailable(
                "leaders have changed while the backup was begun; take it again when the cluster is calm"
                    .into(),
            ));
        }
        Ok(Begun { backup, nodes: frozen.into_keys().collect(), least })
    }

    /// Pauses messages between shards on every node that answers; returns these nodes. A node that
    /// does not answer leads no shard that could go on without it, or the later check finds that it
    /// does.
    async fn pause_delivery(
        &self,
        backup: u64,
        pause: Duration,
    ) -> Result<BTreeSet<NodeId>, Error> {
        let nodes = self.routes().control().nodes().keys().copied().collect();
        let pause_ms = millis(pause);
        let pause = |_| ClusterCall::PauseDelivery { backup, pause_ms };
        let mut paused = BTreeSet::new();
        for (node, reply) in self.ask_all(&nodes, ANSWER_WITHIN, pause).await {
            match reply.and_then(ClusterReply::done) {
                Ok(()) => drop(paused.insert(node)),
                Err(Error::NotLeader { .. } | Error::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(paused)
    }

    /// Asks several nodes at once.
    async fn ask_all(
        &self,
        nodes: &BTreeSet<NodeId>,
        wait: Duration,
        call: impl Fn(NodeId) -> ClusterCall,
    ) -> Vec<(NodeId, Result<ClusterReply, Error>)> {
        let asked = nodes.iter().map(|&node| {
            let call = call(node);
            async move {
                let reply = timeout(wait, self.ask(node, call, wait)).await;
                (node, reply.unwrap_or(Err(Error::OutcomeUnknown)))
            }
        });
        join_all(asked).await
    }

    /// Asks a node that alone can answer, until it answers or is lost.
    async fn ask_on(&self, node: NodeId, call: &ClusterCall) -> Result<ClusterReply, Error> {
        let begun = real_now();
        loop {
            match self.ask(node, call.clone(), ANSWER_WITHIN).await {
                Ok(ClusterReply::Failed(Error::NotLeader { .. })) | Err(Error::OutcomeUnknown) => {}
                Ok(ClusterReply::Failed(error)) => return Err(error),
                answered => return answered,
            }
            if begun.elapsed() >= SILENT_FOR_MAX {
                return Err(Error::Unavailable(format!(
                    "node {node} does not answer any more; take the backup again"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The shards of a cluster and their groups.
fn shards(sight: &Sight) -> impl Iterator<Item = (ShardId, u64)> {
    let groups = sight.control.groups().filter(|group| *group != CONTROL_GROUP);
    groups.filter_map(|group| Some((ShardId(u16::try_from(group - 1).ok()?), group)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A backup whose shards are frozen.
#[derive(Debug)]
struct Begun {
    backup: u64,
    /// The nodes that keep copies for the backup.
    nodes: BTreeSet<NodeId>,
    /// The least index that a copy of each shard must have.
    least: BTreeMap<ShardId, u64>,
}

/// The copies of all nodes for one backup. Nodes keep them as long as this value lives.
struct ClusterCopies {
    cluster: Cluster,
    begun: Begun,
    /// The copies by shard, once they are written.
    written: OnceCell<BTreeMap<ShardId, Vec<ShardCopy>>>,
    /// Dropped with this value, which ends the keeping.
    _keeping: oneshot::Sender<()>,
}

impl ClusterCopies {
    fn of(cluster: Cluster, begun: Begun) -> ClusterCopies {
        let (keeping, ended) = oneshot::channel();
        tokio::spawn(keep(cluster.clone(), begun.backup, begun.nodes.clone(), ended));
        ClusterCopies { cluster, begun, written: OnceCell::new(), _keeping: keeping }
    }

    /// Waits until every node has written its copies, or is lost.
    async fn written(&self) -> BTreeMap<ShardId, Vec<ShardCopy>> {
        let asked = self.begun.nodes.iter().map(|&node| async move {
            match timeout(WRITTEN_WITHIN, self.written_on(node)).await {
                Ok(Ok(copies)) => copies,
                Ok(Err(error)) => {
                    tracing::warn!("the copies of node {node} are lost: {error}");
                    Vec::new()
                }
                Err(_elapsed) => {
                    tracing::warn!("the copies of node {node} are not written in time");
                    Vec::new()
                }
            }
        });
        let mut copies: BTreeMap<ShardId, Vec<ShardCopy>> = BTreeMap::new();
        for (shard, copy) in join_all(asked).await.into_iter().flatten() {
            // A state that a snapshot was about to replace was not frozen, and may be older.
            if self.begun.least.get(&shard).is_some_and(|least| copy.cut.index >= *least) {
                copies.entry(shard).or_default().push(copy);
            }
        }
        let (me, count) = (self.cluster.me(), self.begun.nodes.len() as u64);
        for (shard, copies) in &mut copies {
            // A local copy needs no network; otherwise each node serves about as many shards.
            let turn = |node: NodeId| (node + u64::from(shard.0)) % count;
            copies.sort_by_key(|copy| (copy.node != me, turn(copy.node), copy.node));
        }
        copies
    }

    async fn written_on(&self, node: NodeId) -> Result<Vec<(ShardId, ShardCopy)>, Error> {
        let unread = || Error::Unavailable(format!("the answer of node {node} can't be read"));
        let backup = self.begun.backup;
        let cuts = loop {
            match self.cluster.ask_on(node, &ClusterCall::Copied { backup }).await? {
                ClusterReply::Copied(Some(cuts)) => break cuts,
                ClusterReply::Copied(None) => tokio::time::sleep(LOOK_EVERY).await,
                _ => return Err(unread()),
            }
        };
        let copy = |(shard, cut): (ShardId, Vec<u8>)| {
            let cut = decode_cut(&cut).ok_or_else(unread)?;
            Ok((shard, ShardCopy { node, cut }))
        };
        cuts.into_iter().map(copy).collect()
    }
}

impl Copies for ClusterCopies {
    async fn of(&self, shard: ShardId) -> Result<Vec<ShardCopy>, Error> {
        let written = self.written.get_or_init(|| self.written()).await;
        written.get(&shard).cloned().ok_or_else(|| {
            Error::Unavailable(format!(
                "all nodes that kept a copy of shard {shard} are lost; take the backup again"
            ))
        })
    }

    async fn part(&self, shard: ShardId, copy: &ShardCopy, from: &Position) -> Result<Part, Error> {
        let (backup, from) = (self.begun.backup, from.clone());
        let call = ClusterCall::CopiedPart { backup, shard, from };
        match self.cluster.ask_on(copy.node, &call).await? {
            ClusterReply::Part(part) => Ok(part),
            _ => {
                let node = copy.node;
                Err(Error::Unavailable(format!("the answer of node {node} can't be read")))
            }
        }
    }
}

/// Asks all nodes regularly to keep their copies, and in the end to drop them.
async fn keep(
    cluster: Cluster,
    backup: u64,
    nodes: BTreeSet<NodeId>,
    mut ended: oneshot::Receiver<()>,
) {
    while timeout(KEEP_EVERY, &mut ended).await.is_err() {
        cluster.ask_all(&nodes, ANSWER_WITHIN, |_| ClusterCall::Copied { backup }).await;
    }
    cluster.drop_copies(backup, &nodes).await;
}
