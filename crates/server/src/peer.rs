//! Peers: the connections between the nodes of a cluster.
//!
//! Each node dials each other node, so that a pair has two connections. A node sends Raft messages
//! and calls on the connection that it dialled, and gets answers back on it. A connection begins
//! with a handshake (`handshake.rs`) that proves the cluster's secret; frames (`frame.rs`) follow.
//!
//! ```text
//! dial.rs     keeps one peer connected         accept.rs   who may connect here
//! calls.rs    calls on what we dialled         serve.rs    calls of who dialled us
//! queue.rs    what waits to be written         connection.rs   reading, writing, silence
//! pings.rs    distance and clock skew          warnings.rs     what is refused, once a minute
//! hearing.rs  who was heard lately
//! ```
//!
//! Invariants: everything is bounded, so that no peer, slow, dead or hostile, fills this node's
//! memory; a call that ends with `NotSent` was not executed; no input makes the node panic.

mod accept;
mod calls;
mod connection;
mod dial;
mod frame;
mod handshake;
mod hearing;
mod pings;
mod queue;
mod serve;
#[cfg(test)]
pub(crate) mod tests;
mod warnings;

pub use calls::{CallError, CallOptions, LateReply};
pub use dial::JoinError;
pub use handshake::{PeerHello, Refusal, RefusalCode};

use crate::{clock::Clock, limits, random::random_u128};
use accept::Accepted;
use bytes::Bytes;
use calls::{CALLS_MAX, CallsMax, Dialled};
use connection::{Heard, PATIENCE, Patience};
use dial::Link;
use frame::{Frame, Kind};
use futures_util::future::BoxFuture;
use handshake::Identity;
use hearing::Hearing;
use serve::{ALLOWANCE, Allowance};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    time::Duration,
};
use taskyard_replica::{NodeId, Start};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    task::{AbortHandle, JoinHandle},
};
use warnings::Warnings;

/// Receives what peers send. Called on the network's threads: nothing here may block.
pub trait PeerHandler: Send + Sync + 'static {
    /// Receives a Raft message of a group. Messages may be lost, and come in another order after a
    /// connection broke.
    fn raft(&self, from: NodeId, group: u64, message: Bytes);

    /// Receives a message that has no answer. Messages of one peer arrive in the order in which
    /// they were sent, and may be lost.
    fn told(&self, from: NodeId, message: Bytes);

    /// Executes a call. The future is dropped when the caller goes away.
    fn call(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// Answers a node without a place in the cluster, which asks for one or asks about the cluster.
    /// The node has proved the secret and nothing else. It may ask again if it did not get the
    /// answer.
    fn joined(&self, hello: PeerHello, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// Whether a node that has proved the secret may connect; not, for example, if it was removed
    /// from the cluster.
    fn admit(&self, _hello: &PeerHello) -> Result<(), Refusal> {
        Ok(())
    }

    /// The node has its place here until its connection ends, because no other live process has its
    /// number. Once the future completes, the node is welcomed and its messages are taken.
    fn seated(&self, _hello: &PeerHello) -> BoxFuture<'static, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    /// The peer can be sent to. Alternates with `peer_down`.
    fn peer_up(&self, node: NodeId);

    /// The peer can no longer be sent to.
    fn peer_down(&self, node: NodeId);

    /// The peer has been silent for a second on all connections in spite of pings, or is heard
    /// again. The two alternate; a peer that was just named counts as heard.
    fn peer_heard(&self, _node: NodeId, _is_heard: bool) {}
}

/// A node's identity for its peers.
#[derive(Clone)]
pub struct PeerConfig {
    /// The node's cluster; not 0.
    pub cluster: u128,
    /// The node's number in the cluster, from 1.
    pub node: NodeId,
    /// The cluster's secret; empty without one. Then any process that reaches the port can claim to
    /// be any node.
    pub secret: Vec<u8>,
    /// The version that the node runs, for people.
    pub build: String,
    /// The newest rules of the machine that the node knows.
    pub rules: u16,
    /// The start of the node's data directory; `None` for a process without one.
    pub start: Option<Start>,
}

impl fmt::Debug for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("PeerConfig")
            .field("cluster", &self.cluster)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl PeerConfig {
    fn identity(&self) -> Identity {
        let PeerConfig { cluster, node, rules, .. } = *self;
        let start = self.start.unwrap_or_else(|| Start { count: 0, boot: random_u128() });
        let hello = PeerHello { cluster, node, start, build: self.build.clone(), rules };
        Identity { hello, secret: self.secret.clone() }
    }

    /// The identity of a node without a cluster.
    fn outside(&self) -> Identity {
        let mut me = self.identity();
        (me.hello.cluster, me.hello.node) = (0, 0);
        me
    }
}

/// The state of one peer, as seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's number.
    pub node: NodeId,
    /// The address that is dialled.
    pub address: String,
    /// Since when the peer can be sent to, in milliseconds since the Unix epoch; `None` while it
    /// can't.
    pub connected_since_ms: Option<u64>,
    /// The peer has dialled this node, so that its Raft messages and calls arrive.
    pub connects_here: bool,
    /// The version that the peer runs, while connected.
    pub build: Option<String>,
    /// The newest rules that the peer knows, while connected.
    pub rules: Option<u16>,
    /// The round trip of the last ping.
    pub round_trip: Option<Duration>,
    /// How far the peer's wall clock is ahead of this node's, or behind if negative.
    pub clock_skew_ms: Option<i64>,
    /// Queued Raft messages and calls.
    pub frames_waiting: usize,
    /// The bytes of queued frames.
    pub bytes_waiting: usize,
    /// Calls without an answer so far.
    pub calls_under_way: usize,
    /// Raft messages that were dropped because the peer was slow or not connected.
    pub raft_dropped: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
    /// Why the peer refused the last attempt to connect, after it had proved the secret and its
    /// number. What an unproved process at the peer's address says is only in `last_error`.
    pub verdict: Option<Refusal>,
}

/// A node's connections to its peers. Cheap to clone; the connections end with the last clone, or
/// by [`PeerNetwork::stop`].
#[derive(Clone, Debug)]
pub struct PeerNetwork {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    links: RwLock<Links>,
    listener: Mutex<Option<Running>>,
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Links {
    stopped: bool,
    by_node: BTreeMap<NodeId, (Arc<Link>, [Running; 2])>,
}

/// The state that all connections of a node share.
struct Core {
    me: Identity,
    handler: Arc<dyn PeerHandler>,
    accepted: Accepted,
    /// By node: whether it was heard lately.
    hearing: RwLock<BTreeMap<NodeId, Arc<Hearing>>>,
    warnings: Warnings,
    clock: Clock,
    tuning: Tuning,
}

impl Core {
    /// The hearing of a peer; begins it for a new peer.
    fn listen_for(&self, node: NodeId) -> Arc<Hearing> {
        let mut hearing = self.hearing.write().unwrap_or_else(PoisonError::into_inner);
        hearing.entry(node).or_insert_with(|| Arc::new(Hearing::new())).clone()
    }

    /// The hearing of a peer; `None` if the peer was never named.
    fn hearing(&self, node: NodeId) -> Option<Arc<Hearing>> {
        self.hearing.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    /// A callback for everything that arrives from a peer. The peer may have dialled before it was
    /// named here.
    fn heard(self: &Arc<Core>, node: NodeId) -> Heard {
        let (core, known) = (self.clone(), OnceLock::new());
        Heard(Box::new(move || {
            if known.get().is_none()
                && let Some(hearing) = core.hearing(node)
            {
                let _ = known.set(hearing);
            }
            if known.get().is_some_and(|hearing: &Arc<Hearing>| hearing.heard()) {
                core.handler.peer_heard(node, true);
            }
        }))
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("me", &self.me).finish_non_exhaustive()
    }
}

/// Bounds that tests make small.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    patience: Patience,
    allowance: Allowance,
    calls_max: CallsMax,
    strangers_max: usize,
}

const TUNING: Tuning = Tuning {
    patience: PATIENCE,
    allowance: ALLOWANCE,
    calls_max: CALLS_MAX,
    strangers_max: limits::PEER_STRANGERS_MAX,
};

/// A task that is aborted when this is dropped.
#[derive(Debug)]
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl From<JoinHandle<()>> for Running {
    fn from(task: JoinHandle<()>) -> Running {
        Running(task.abort_handle())
    }
}

impl PeerNetwork {
    /// Listens for peers. Dials other nodes once [`PeerNetwork::set_peers`] names them.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and if cluster or node are 0.
    pub fn start(
        config: &PeerConfig,
        listener: TcpListener,
        handler: Arc<dyn PeerHandler>,
        clock: Clock,
    ) -> PeerNetwork {
        let me = config.identity();
        assert!(me.hello.cluster != 0, "a node is a peer once it is in a cluster");
        assert!(me.hello.node != 0, "nodes are counted from 1");
        PeerNetwork::tuned(me, listener, handler, clock, TUNING)
    }

    /// `start` with bounds for calls. Peers count as silent only by [`PeerNetwork::silence`],
    /// because a test with all nodes in one thread would take a busy machine for a cut.
    #[cfg(test)]
    pub(crate) fn start_bounded(
        config: &PeerConfig,
        listener: TcpListener,
        handler: Arc<dyn PeerHandler>,
        (calls_max, parked_max): (usize, usize),
    ) -> PeerNetwork {
        let calls_max = CallsMax { all: calls_max, parked: parked_max };
        let patience = Patience { look_every: Duration::from_secs(3_600), ..PATIENCE };
        let tuning = Tuning { calls_max, patience, ..TUNING };
        PeerNetwork::tuned(config.identity(), listener, handler, Clock::system(), tuning)
    }

    /// Listens while this node has no cluster: other nodes without a cluster are answered by
    /// [`PeerHandler::joined`], and peers are refused. Dials no node.
    pub fn wait(
        config: &PeerConfig,
        listener: TcpListener,
        handler: Arc<dyn PeerHandler>,
        clock: Clock,
    ) -> PeerNetwork {
        PeerNetwork::tuned(config.outside(), listener, handler, clock, TUNING)
    }

    fn tuned(
        me: Identity,
        listener: TcpListener,
        handler: Arc<dyn PeerHandler>,
        clock: Clock,
        tuning: Tuning,
    ) -> PeerNetwork {
        let core = Arc::new(Core {
            me,
            handler,
            accepted: Accepted::new(),
            hearing: RwLock::default(),
            warnings: Warnings::new(clock.clone()),
            clock,
            tuning,
        });
        let accepting = tokio::spawn(accept::accept(core.clone(), listener));
        PeerNetwork {
            inner: Arc::new(Inner {
                core,
                links: RwLock::default(),
                listener: Mutex::new(Some(accepting.into())),
                runtime: Handle::current(),
            }),
        }
    }

    /// Sets all peers, as host and port. New peers are dialled, moved peers are dialled at their
    /// new address at once, and missing peers are disconnected. This node itself may be among them.
    pub fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let me = self.inner.core.me.hello.node;
        let mut links = self.inner.links.write().unwrap_or_else(PoisonError::into_inner);
        if links.stopped {
            return;
        }
        for (&node, address) in peers.iter().filter(|(node, _)| **node != me) {
            let (link, _) = links.by_node.entry(node).or_insert_with(|| {
                let link = Arc::new(Link::new(node));
                let core = &self.inner.core;
                core.listen_for(node);
                let keeping = self.inner.runtime.spawn(link.clone().keep(core.clone()));
                let listening = self.inner.runtime.spawn(link.clone().listen(core.clone()));
                (link, [keeping.into(), listening.into()])
            });
            link.set_address(Some(address));
        }
        for (&node, (link, _)) in links.by_node.iter().filter(|(node, _)| !peers.contains_key(node))
        {
            if link.set_address(None) {
                self.inner.core.accepted.hang_up(node);
            }
        }
    }

    /// Queues a Raft message; `false` if the peer is not connected. May be called from any thread,
    /// and never waits.
    pub fn raft(&self, node: NodeId, group: u64, message: Bytes) -> bool {
        if !frame::fits(message.len()) {
            tracing::error!(node, group, bytes = message.len(), "a message does not fit a frame");
            return false;
        }
        self.link(node).is_some_and(|link| link.raft(Frame::new(Kind::Raft, group, message)))
    }

    /// Drops a group's queued Raft messages, because they belong to a leadership that is over.
    pub(crate) fn forget_raft(&self, group: u64) {
        let links = self.inner.links.read().unwrap_or_else(PoisonError::into_inner);
        for (link, _) in links.by_node.values() {
            if let Some(dialled) = link.dialled() {
                dialled.queue.forget_raft(group);
            }
        }
    }

    /// Calls a peer, and waits for the answer for up to `wait`. Dropping the future cancels the
    /// call on the other side.
    pub fn call(
        &self,
        node: NodeId,
        request: Bytes,
        wait: Duration,
    ) -> impl Future<Output = Result<Bytes, CallError>> + Send + use<> {
        self.call_with(node, request, wait, CallOptions::default())
    }

    /// `call` for a call that may be parked at the peer, or that takes a late answer.
    pub fn call_with(
        &self,
        node: NodeId,
        request: Bytes,
        wait: Duration,
        options: CallOptions,
    ) -> impl Future<Output = Result<Bytes, CallError>> + Send + use<> {
        let link = self.link(node);
        async move { dialled(link.as_deref(), node)?.call(request, wait, options).await }
    }

    /// Sends a message that has no answer; a message that can't be sent is dropped. Messages to one
    /// peer arrive in the order of these calls, and do not wait behind its calls.
    pub fn tell(&self, node: NodeId, message: Bytes) {
        if !frame::fits(message.len()) {
            tracing::error!(node, bytes = message.len(), "a message does not fit a frame");
            return;
        }
        if let Ok(dialled) = dialled(self.link(node).as_deref(), node) {
            dialled.queue.push_tell(Frame::new(Kind::Tell, 0, message));
        }
    }

    /// The runtime of the connections, for callers on other threads.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// Whether a peer can be sent to.
    pub fn is_connected(&self, node: NodeId) -> bool {
        self.link(node).is_some_and(|link| link.dialled().is_some())
    }

    /// Whether a peer was heard within about a second, on any connection, or was only just named.
    /// Such a peer is counted on.
    pub fn is_heard(&self, node: NodeId) -> bool {
        let hearing = || self.inner.core.hearing(node);
        self.link(node).is_some() && hearing().is_some_and(|hearing| hearing.is_heard())
    }

    /// Whether a peer can be sent to, and would probably answer.
    pub fn is_reached(&self, node: NodeId) -> bool {
        self.is_connected(node) && self.is_heard(node)
    }

    /// Marks a peer as silent, until it is heard again.
    #[cfg(test)]
    pub(crate) fn silence(&self, node: NodeId) {
        self.inner.core.listen_for(node).silence();
        self.inner.core.handler.peer_heard(node, false);
    }

    /// The state of every known peer, by node.
    pub fn status(&self) -> Vec<PeerStatus> {
        let accepted = &self.inner.core.accepted;
        let links = self.inner.links.read().unwrap_or_else(PoisonError::into_inner);
        let of = |(node, (link, _)): (&NodeId, &(Arc<Link>, _))| link.status(accepted.has(*node));
        links.by_node.iter().filter(|(_, (link, _))| link.is_known()).map(of).collect()
    }

    /// How often each kind of refusal or fault occurred at the peer port since the start.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        self.inner.core.warnings.totals()
    }

    /// Closes all connections and the port. Calls under way end.
    pub fn stop(&self) {
        let mut links = self.inner.links.write().unwrap_or_else(PoisonError::into_inner);
        links.stopped = true;
        let removed = std::mem::take(&mut links.by_node);
        drop(links);
        drop(removed);
        self.inner.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        let links = self.inner.links.read().unwrap_or_else(PoisonError::into_inner);
        let (link, _) = links.by_node.get(&node)?;
        link.is_known().then(|| link.clone())
    }
}

/// The connection to a peer, if there is one.
fn dialled(link: Option<&Link>, node: NodeId) -> Result<Arc<Dialled>, CallError> {
    let Some(link) = link else {
        return Err(CallError::not_sent(format!("node {node} is not known here")));
    };
    let no_connection = || CallError::not_sent(format!("node {node} is not connected"));
    link.dialled().ok_or_else(no_connection)
}

/// Asks the node at `address` to take this node into its cluster, on a connection of its own; the
/// cluster and number in `config` are ignored. Returns who answered, and the answer of
/// [`PeerHandler::joined`] there.
pub async fn join(
    config: &PeerConfig,
    address: &str,
    request: Bytes,
    wait: Duration,
) -> Result<(PeerHello, Bytes), JoinError> {
    dial::ask_to_join(address, &config.outside(), request, wait).await
}
