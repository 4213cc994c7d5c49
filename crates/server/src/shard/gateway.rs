//! Gateway: what the workers' side of this node is told, by the leaders of shards and by other
//! nodes.
//!
//! A leader knows the session that holds a claim, and which nodes last named that session alive. It
//! tells those; while it does not know one, it tells all. What does not arrive is told with the
//! next renewal of the claim, so that nobody waits for it.

use super::{Shards, session_news::SessionNews};
use crate::sessions::Activity;
use std::fmt;
use taskyard_machine::{ClaimToken, SessionId, TaskId, wire::wire_struct};
use taskyard_replica::NodeId;

/// A claim whose task was cancelled: its worker should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledClaim {
    /// Who holds it.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// Its token.
    pub token: ClaimToken,
}

wire_struct!(CancelledClaim { session, task, token });

/// A worker that asks over connections of its own, to whichever nodes, and beats on one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardWorker {
    /// Its session.
    pub session: SessionId,
    /// What it says it does.
    pub activity: Activity,
    /// How long ago it said anything.
    pub silent_ms: u64,
}

wire_struct!(HeardWorker { session, activity, silent_ms });

/// What the workers' side of a node is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    /// These are to stop.
    Cancelled(&'a [CancelledClaim]),
    /// Another node has these sessions.
    Elsewhere(&'a [SessionId]),
    /// Another node has connections of these workers, which may have some here.
    Heard(&'a [HeardWorker]),
}

/// Who takes it; must be quick, for leaders wait for it.
pub(super) struct Gateway(Box<dyn Fn(News<'_>) + Send + Sync>);

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gateway")
    }
}

impl Shards {
    /// Says who takes what this node's workers are told, once.
    pub(crate) fn set_gateway(&self, take: impl Fn(News<'_>) + Send + Sync + 'static) {
        let _ = self.0.gateway.set(Gateway(Box::new(take)));
    }

    pub(super) fn tell_gateway(&self, news: News<'_>) {
        if let Some(Gateway(take)) = self.0.gateway.get() {
            take(news);
        }
    }

    /// Tells the other nodes what workers said here that may have connections there too (once a
    /// second, from the gateway).
    pub fn heard(&self, workers: Vec<HeardWorker>) {
        if !workers.is_empty() {
            self.tell_others(&SessionNews::Heard(workers));
        }
    }

    /// Tells a node that has their sessions that these claims were cancelled; every node if none is
    /// known.
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
