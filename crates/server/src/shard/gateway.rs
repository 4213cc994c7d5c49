//! Gateway: messages of shard leaders and other nodes to the workers' side of this node.
//!
//! A leader knows the session that holds a claim, and the nodes that last reported that session
//! alive. It tells those nodes, or all nodes if it knows none. A lost message does no harm, because
//! the next renewal of the claim carries the same news.

use super::{Shards, session_news::SessionNews};
use crate::sessions::Activity;
use std::fmt;
use taskyard_machine::{ClaimToken, SessionId, TaskId, wire::wire_struct};
use taskyard_replica::NodeId;

/// A claim whose task was cancelled: its worker should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledClaim {
    /// The session that holds the claim.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// The claim's token.
    pub token: ClaimToken,
}

wire_struct!(CancelledClaim { session, task, token });

/// A worker that calls over connections of its own to any node, and beats on one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardWorker {
    /// Its session.
    pub session: SessionId,
    /// The activity that the worker reports.
    pub activity: Activity,
    /// How long ago the worker was last heard.
    pub silent_ms: u64,
}

wire_struct!(HeardWorker { session, activity, silent_ms });

/// A message to the workers' side of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    /// The workers of these claims should stop.
    Cancelled(&'a [CancelledClaim]),
    /// Another node has these sessions.
    Elsewhere(&'a [SessionId]),
    /// Another node has connections of these workers, which may also be connected here.
    Heard(&'a [HeardWorker]),
}

/// The receiver of news. It must be quick, because leaders wait for it.
pub(super) struct Gateway(Box<dyn Fn(News<'_>) + Send + Sync>);

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gateway")
    }
}

impl Shards {
    /// Sets the receiver of news for this node's workers, once.
    pub(crate) fn set_gateway(&self, take: impl Fn(News<'_>) + Send + Sync + 'static) {
        let _ = self.0.gateway.set(Gateway(Box::new(take)));
    }

    pub(super) fn tell_gateway(&self, news: News<'_>) {
        if let Some(Gateway(take)) = self.0.gateway.get() {
            take(news);
        }
    }

    /// Tells the other nodes about workers that may be connected there too. The gateway calls this
    /// once a second.
    pub fn heard(&self, workers: Vec<HeardWorker>) {
        if !workers.is_empty() {
            self.tell_others(&SessionNews::Heard(workers));
        }
    }

    /// Tells a node that the claims of its sessions are cancelled; tells every node if `node` is
    /// unknown.
    pub(crate) fn cancelled(&self, node: Option<NodeId>, claims: Vec<CancelledClaim>) {
        let me = self.routes().me();
        if node.is_none_or(|node| node == me) {
            self.tell_gateway(News::Cancelled(&claims));
        }
        let news = SessionNews::Cancelled(claims);
        match (node, self.others()) {
            (None, _) => self.tell_others(&news),
            (Some(node), Some(network)) if node != me => network.tell(node, news.encode()),
            (Some(_), _) => {}
        }
    }
}
