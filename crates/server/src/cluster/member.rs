//! Member: a node's place in its cluster: its answers to other nodes, and its questions to them.
//!
//! Cheap to clone. It has no state that matters, because the control group keeps every decision.

use super::{About, ClusterCall, ClusterReply, Routes, call::Report};
use crate::{
    Clock, Error,
    clock::real_now,
    peer::{CallError, PeerHello, Refusal, RefusalCode},
    sessions::Sessions,
    shard::Shards,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_replica::{ControlCommand, Node, NodeId, Start};
use tokio::{task::spawn_blocking, time::timeout};

/// How long a call searches and waits for a leader.
const LEADER_FOR_MAX: Duration = Duration::from_secs(10);
/// The pause before a node asks for the leader again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long the leader that an operator has pinned stays.
const CHOSEN_FOR: Duration = Duration::from_secs(600);

/// This node's place in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: Shards,
    /// The workers that are connected to this node.
    sessions: Sessions,
    about: About,
    clock: Clock,
    /// Groups whose leader an operator has pinned, and when.
    chosen: Mutex<BTreeMap<u64, Instant>>,
}

impl Cluster {
    pub(crate) fn new(shards: Shards, about: About, clock: Clock) -> Cluster {
        let sessions = Sessions::new(shards.clone(), clock.clone());
        let chosen = Mutex::default();
        Cluster(Arc::new(Inner { shards, sessions, about, clock, chosen }))
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.0.shards
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub(super) fn routes(&self) -> &Routes {
        self.0.shards.routes()
    }

    pub(super) fn me(&self) -> NodeId {
        self.routes().me()
    }

    pub(super) fn about(&self) -> &About {
        &self.0.about
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Whether a node that has proved the secret may connect.
    pub(crate) fn admit(&self, hello: &PeerHello) -> Result<(), Refusal> {
        let refused = |words| Err(Refusal { code: RefusalCode::NotAMember, words });
        let (control, node) = (self.routes().control(), hello.node);
        let (known, rules) = (hello.rules, control.rules());
        if known < rules {
            return refused(format!(
                "node {node} knows rules up to {known}, the cluster runs on {rules}; start it with the \
                 version of the others"
            ));
        }
        self.check_start(node, hello.start)?;
        // A number beyond all known ones belongs to a node of which this one has not heard yet.
        match control.was_removed(node) || control.has_given_up(node) {
            false => Ok(()),
            true => refused(format!(
                "node {node} was removed from this cluster; to use its machine again, start it with a new \
                 data directory and --join"
            )),
        }
    }

    /// Checks that a node's data is as new as its newest known start, here or in the control group.
    fn check_start(&self, node: NodeId, start: Start) -> Result<(), Refusal> {
        let here = self.shards().seen().start(node);
        let known = here.into_iter().chain(self.routes().control().started(node));
        match known.into_iter().find(|known| !start.may_follow(*known)) {
            Some(known) => Err(outdated(node, start, known)),
            None => Ok(()),
        }
    }

    /// Stores the start of a node that is about to be let in, because older data lacks what the
    /// node promises from now on.
    pub(crate) fn note_start(&self, hello: &PeerHello) -> BoxFuture<'static, Result<(), Refusal>> {
        let (shards, node, start) = (self.shards().clone(), hello.node, hello.start);
        Box::pin(async move {
            if shards.seen().start(node) == Some(start) {
                return Ok(());
            }
            let me = shards.routes().me();
            let noted = spawn_blocking(move || shards.seen().note(node, start)).await;
            let noted = noted.map_err(|error| error.to_string());
            let noted = noted.and_then(|noted| noted.map_err(|error| error.to_string()));
            match noted {
                Ok(Ok(())) => Ok(()),
                Ok(Err(known)) => Err(outdated(node, start, known)),
                Err(error) => Err(Refusal {
                    code: RefusalCode::Other,
                    words: format!(
                        "node {me} can't store the start of the node that connects: {error}"
                    ),
                }),
            }
        })
    }

    /// The reason to stop, if the control group knows newer data of this node.
    pub(super) fn outdated(&self) -> Option<String> {
        let (start, known) = (self.start(), self.routes().control().started(self.me())?);
        (!start.may_follow(known)).then(|| start.is_outdated(self.me(), known))
    }

    /// This node's present start.
    pub(super) fn start(&self) -> Start {
        self.shards().starts().start()
    }

    /// Answers a call about the cluster: what comes after its first byte.
    pub(crate) async fn serve(&self, call: &[u8]) -> Bytes {
        let reply = match ClusterCall::decode(call) {
            Ok(call) => self.answer(call).await,
            Err(error) => ClusterReply::Unread(error.what),
        };
        reply.encode()
    }

    /// Boxed, because an answer may in turn call this node and others.
    pub(super) fn answer(&self, call: ClusterCall) -> BoxFuture<'_, ClusterReply> {
        Box::pin(async move {
            let answered = match call {
                ClusterCall::Report => self.report().await.map(ClusterReply::Report),
                ClusterCall::Change { group, fence, changes } => {
                    let changes = changes.into_iter().map(Into::into).collect();
                    self.shards().change(group, fence, changes).await.map(|()| ClusterReply::Done)
                }
                ClusterCall::PauseDelivery { backup, pause_ms } => self
                    .shards()
                    .pause_delivery(backup, pause_ms)
                    .await
                    .map(|()| ClusterReply::Done),
                ClusterCall::Quiet { quiet_ms } => {
                    self.shards().keep_quiet(quiet_ms).await.map(|()| ClusterReply::Done)
                }
                ClusterCall::Freeze { backup, shards } => {
                    self.freeze(backup, &shards).await.map(ClusterReply::Frozen)
                }
                ClusterCall::Copied { backup } => {
                    self.copied(backup).await.map(ClusterReply::Copied)
                }
                ClusterCall::DropCopies { backup } => {
                    self.shards().snapshots().kept.remove(backup);
                    Ok(ClusterReply::Done)
                }
                ClusterCall::CopiedPart { backup, shard, from } => {
                    self.copied_part(backup, shard, from).await.map(ClusterReply::Part)
                }
                ClusterCall::Transfer { group, to } => {
                    self.shards().transfer(group, to).await.map(|()| ClusterReply::Done)
                }
                ClusterCall::Worker(call) => {
                    Ok(ClusterReply::Worker(self.answer_about_workers(call)))
                }
                call => self.decide(call).await,
            };
            answered.unwrap_or_else(ClusterReply::Failed)
        })
    }

    /// Answers a call that only the control group's leader decides.
    async fn decide(&self, call: ClusterCall) -> Result<ClusterReply, Error> {
        self.check_leads()?;
        match call {
            ClusterCall::Join(candidate) => self.take_in(candidate).await.map(ClusterReply::Joined),
            ClusterCall::Announce { node, about, starts, boot } => {
                let start = Start { count: starts, boot };
                Ok(self.note(node, about, start).await.into())
            }
            ClusterCall::Operate(operation) => Ok(self.carry_out(operation).await.into()),
            ClusterCall::Report
            | ClusterCall::Change { .. }
            | ClusterCall::PauseDelivery { .. }
            | ClusterCall::Worker(_)
            | ClusterCall::Quiet { .. }
            | ClusterCall::Freeze { .. }
            | ClusterCall::Copied { .. }
            | ClusterCall::DropCopies { .. }
            | ClusterCall::CopiedPart { .. }
            | ClusterCall::Transfer { .. } => {
                unreachable!("the asked node answers this call itself")
            }
        }
    }

    /// The control group accepts commands only from its leader, so that the caller must ask that
    /// node.
    fn check_leads(&self) -> Result<(), Error> {
        let leader = self.routes().control_leader();
        if leader == Some(self.me()) { Ok(()) } else { Err(Error::NotLeader { shard: 0, leader }) }
    }

    async fn report(&self) -> Result<Report, Error> {
        let (build, leaving) = (BUILD.to_owned(), self.routes().is_stopping());
        let (disk_low, slow) = (self.routes().is_disk_low(), self.routes().is_slow());
        let (groups, problem) = (self.shards().groups().await?, self.routes().problem());
        Ok(Report { build, groups, leaving, disk_low, slow, problem })
    }

    /// Records a node's facts about itself, if they are new.
    async fn note(&self, node: NodeId, about: About, start: Start) -> Result<(), Error> {
        let control = self.routes().control();
        let Some(known) = control.nodes().get(&node) else {
            return Err(Error::NotFound(format!("there is no node {node} in this cluster")));
        };
        // The start comes first, because older data is of no use at any address.
        if control.started(node) != Some(start) {
            self.shards().control(ControlCommand::Start { id: node, start }).await?;
        }
        if about.is(known) {
            return Ok(());
        }
        let About { address, serves, zone, rules_max } = about;
        tracing::info!(node, address, serves, zone, rules_max, "a node tells where it is");
        let told = Node { instance: 0, address, serves, zone, rules_max };
        self.shards().control(ControlCommand::SetNode { id: node, node: told }).await
    }

    /// Asks the control group's leader, on any node, as soon as there is one.
    pub(super) async fn ask_leader(&self, call: ClusterCall) -> Result<ClusterReply, Error> {
        let until = real_now() + LEADER_FOR_MAX;
        let mut changes = self.routes().changes();
        let mut told = None;
        loop {
            changes.borrow_and_update();
            if let Some(leader) = told.take().or_else(|| self.likely_leader()) {
                let left = until.saturating_duration_since(real_now());
                match self.ask(leader, call.clone(), left.max(LOOK_AGAIN_AFTER)).await? {
                    ClusterReply::Failed(Error::NotLeader { leader: known, .. }) => {
                        told = known.filter(|known| *known != leader);
                    }
                    reply => return Ok(reply),
                }
            }
            if real_now() >= until {
                return Err(Error::NoControl);
            }
            if told.is_none() {
                let _ = timeout(LOOK_AGAIN_AFTER, changes.changed()).await;
            }
        }
    }

    /// The leader of the control group, or a connected node that may know it.
    fn likely_leader(&self) -> Option<NodeId> {
        self.routes().control_leader().or_else(|| {
            let peers = self.shards().network()?.status();
            peers.into_iter().find(|peer| peer.connected_since_ms.is_some()).map(|peer| peer.node)
        })
    }

    /// Asks one node. An unreachable node counts as not leading; an unknown outcome is an error.
    pub(super) async fn ask(
        &self,
        node: NodeId,
        call: ClusterCall,
        wait: Duration,
    ) -> Result<ClusterReply, Error> {
        if node == self.me() {
            return Ok(self.answer(call).await);
        }
        let Some(network) = self.shards().network() else {
            return Ok(ClusterReply::Failed(Error::NotLeader { shard: 0, leader: None }));
        };
        match network.call(node, call.encode(), wait).await {
            Ok(reply) => match ClusterReply::decode(&reply) {
                Ok(ClusterReply::Unread(words)) => Err(Error::Unavailable(format!(
                    "node {node} is of another version and can't read this: {words}; upgrade all nodes"
                ))),
                Ok(reply) => Ok(reply),
                Err(error) => Err(Error::Unavailable(format!(
                    "the answer of node {node} can't be read: {}; upgrade all nodes",
                    error.what
                ))),
            },
            Err(CallError::NotSent { .. } | CallError::TooManyParked { .. }) => {
                Ok(ClusterReply::Failed(Error::NotLeader { shard: 0, leader: None }))
            }
            Err(CallError::Lost | CallError::TimedOut) => Err(Error::OutcomeUnknown),
        }
    }

    /// Pins the leader of a group for a while.
    pub(super) fn choose(&self, group: u64) {
        self.chosen().insert(group, self.clock().monotonic());
    }

    /// Groups whose leader was pinned lately.
    pub(super) fn chosen_lately(&self) -> Vec<u64> {
        let now = self.clock().monotonic();
        let mut chosen = self.chosen();
        chosen.retain(|_, at| now.saturating_duration_since(*at) < CHOSEN_FOR);
        chosen.keys().copied().collect()
    }

    fn chosen(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.0.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outdated(node: NodeId, start: Start, known: Start) -> Refusal {
    Refusal { code: RefusalCode::Outdated, words: start.is_outdated(node, known) }
}

/// What this node runs, for people.
pub(super) const BUILD: &str = env!("CARGO_PKG_VERSION");

impl About {
    /// Whether these are the known facts about a node.
    pub(super) fn is(&self, known: &Node) -> bool {
        let Node { instance: _, address, serves, zone, rules_max } = known;
        (&self.address, &self.serves, &self.zone, self.rules_max)
            == (address, serves, zone, *rules_max)
    }
}
