//! ClusterHandler: receives everything that peers send.
//!
//! Raft messages and changes of connections go to the shard loop. The first byte of a call names
//! the part that answers: the shards of this node, or one of the functions in the handler.

use super::call_kind;
use crate::{
    peer::{PeerHandler, PeerHello, Refusal},
    shard::{SessionNews, Shards, remote},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{fmt, sync::Arc};
use taskyard_replica::NodeId;

/// Answers the calls of one kind, without their first byte.
pub type AnswerCall = Arc<dyn Fn(NodeId, Bytes) -> BoxFuture<'static, Bytes> + Send + Sync>;
/// Answers a node that asks for a place in the cluster.
pub type AnswerJoin = Arc<dyn Fn(PeerHello, Bytes) -> BoxFuture<'static, Bytes> + Send + Sync>;
/// Says whether a node may connect, and if not, why.
pub type Admit = Arc<dyn Fn(&PeerHello) -> Result<(), Refusal> + Send + Sync>;
/// Stores the start of a node that is about to be let in.
pub type Seated = Arc<dyn Fn(&PeerHello) -> BoxFuture<'static, Result<(), Refusal>> + Send + Sync>;

/// The parts of a node that its peers can call. A kind without a function gets an empty answer.
#[derive(Clone)]
pub struct ClusterHandler {
    /// The shards of this node.
    pub shards: Shards,
    /// Answers calls about the cluster itself.
    pub cluster: Option<AnswerCall>,
    /// Answers calls for pieces of a snapshot.
    pub snapshot: Option<AnswerCall>,
    /// Answers nodes that ask to join.
    pub joined: Option<AnswerJoin>,
    /// Decides which nodes may connect; without it, every node that knows the secret.
    pub admit: Option<Admit>,
    /// Stores the start of a node before it is let in.
    pub seated: Option<Seated>,
}

impl ClusterHandler {
    /// A handler that serves only the shards.
    pub fn new(shards: Shards) -> ClusterHandler {
        let (cluster, snapshot, joined) = (None, None, None);
        ClusterHandler { shards, cluster, snapshot, joined, admit: None, seated: None }
    }
}

impl fmt::Debug for ClusterHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterHandler").field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl PeerHandler for ClusterHandler {
    fn raft(&self, from: NodeId, group: u64, message: Bytes) {
        self.shards.raft(from, group, message);
    }

    fn told(&self, from: NodeId, message: Bytes) {
        match SessionNews::decode(&message) {
            Ok(news) => self.shards.take_news(from, news),
            Err(error) => {
                tracing::warn!(from, %error, "a node has sent news that can't be read here")
            }
        }
    }

    fn call(&self, from: NodeId, mut request: Bytes) -> BoxFuture<'static, Bytes> {
        let kind = if request.is_empty() { 0 } else { request.split_to(1)[0] };
        let plugged_in = match kind {
            call_kind::SHARD => {
                let shards = self.shards.clone();
                return Box::pin(
                    async move { remote::serve_bytes(&shards, &request).await.into() },
                );
            }
            call_kind::CLUSTER => &self.cluster,
            call_kind::SNAPSHOT => &self.snapshot,
            _ => &None,
        };
        match plugged_in {
            Some(answer) => answer(from, request),
            None => {
                tracing::warn!(
                    from,
                    kind,
                    "a node has sent a call of a kind that nothing answers here"
                );
                Box::pin(async { Bytes::new() })
            }
        }
    }

    fn joined(&self, hello: PeerHello, request: Bytes) -> BoxFuture<'static, Bytes> {
        match &self.joined {
            Some(joined) => joined(hello, request),
            None => Box::pin(async { Bytes::new() }),
        }
    }

    fn admit(&self, hello: &PeerHello) -> Result<(), Refusal> {
        self.admit.as_ref().map_or(Ok(()), |admit| admit(hello))
    }

    fn seated(&self, hello: &PeerHello) -> BoxFuture<'static, Result<(), Refusal>> {
        match &self.seated {
            Some(seated) => seated(hello),
            None => Box::pin(async { Ok(()) }),
        }
    }

    fn peer_up(&self, node: NodeId) {
        self.shards.peer(node, true);
        self.shards.routes().note_hearing();
    }

    fn peer_down(&self, node: NodeId) {
        self.shards.peer(node, false);
    }

    fn peer_heard(&self, _node: NodeId, _is_heard: bool) {
        self.shards.routes().note_hearing();
    }
}
