//! Workers: the workers of all nodes at one moment, and orders to one of them.
//!
//! A node knows the workers that are connected to it, and no log has them. A question about workers
//! therefore goes to all nodes, and takes as long as the slowest answer, at most a second.
//! Invariant: the answer names the nodes that did not answer, and never reports a worker as absent
//! that may be there.

use super::{Cluster, ClusterCall, ClusterReply};
use crate::{
    Error,
    clock::real_now,
    sessions::{Activity, Heard, Ordered, WorkerView},
};
use futures_util::future::join_all;
use std::{collections::BTreeMap, time::Duration};
use taskyard_machine::{SessionId, wire::wire_enum};
use taskyard_replica::NodeId;

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long a node may take to list all its workers.
const LIST_WITHIN: Duration = Duration::from_secs(5);
/// The most workers in one answer. A worker takes up to 74 KiB, most of it its types, and an answer
/// must not delay others behind it.
const WORKERS_PER_ANSWER: usize = 100;

/// A question to a node about its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCall {
    /// Lists the workers with ids after this one.
    List { after: Option<SessionId> },
    /// Orders a worker of this node to change its activity.
    Order { session: SessionId, activity: Activity },
    /// Remembers an order for a worker of another node, because the worker may connect here before
    /// it hears the order.
    Remember { session: SessionId, activity: Activity },
    /// Asks whether a worker or a waiting claim would take tasks of a queue and a type.
    Listens { queue: String, task_type: String },
}

/// The answer to a [`WorkerCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerReply {
    /// Answers `List`, and says whether there are more.
    List { workers: Vec<WorkerView>, more: bool },
    /// Answers `Order`.
    Ordered(Ordered),
    /// Answers `Remember`.
    Remembered,
    /// Answers `Listens`.
    Listens(Heard),
}

wire_enum!(WorkerCall {
    1 => List { after },
    2 => Order { session, activity },
    3 => Remember { session, activity },
    4 => Listens { queue, task_type },
});
wire_enum!(WorkerReply {
    1 => List { workers, more },
    2 => Ordered(ordered),
    3 => Remembered,
    4 => Listens(heard),
});

/// The workers of a cluster.
#[derive(Clone, Debug)]
pub struct Workers {
    /// The workers, those with the oldest connection first.
    pub workers: Vec<WorkerView>,
    /// Nodes that did not answer; their workers are missing.
    pub missing: Vec<NodeId>,
}

impl Cluster {
    /// The workers of all nodes that answer.
    pub(crate) async fn workers(&self) -> Result<Workers, Error> {
        let asked = self.other_nodes()?.into_iter().map(|node| async move {
            let listed = self.workers_of(node).await;
            (node, listed)
        });
        let (own, _) = self.sessions().workers(None, usize::MAX);
        let (listed, missing) = sort_out(join_all(asked).await);
        let all = own.into_iter().chain(listed.into_iter().flat_map(|(_, workers)| workers));
        Ok(Workers { workers: each_once(all), missing })
    }

    /// All workers of another node; `None` if they do not arrive in time.
    async fn workers_of(&self, node: NodeId) -> Option<Vec<WorkerView>> {
        let until = real_now() + LIST_WITHIN;
        let mut all: Vec<WorkerView> = Vec::new();
        loop {
            let call = WorkerCall::List { after: all.last().map(|worker| worker.id) };
            let left = until.saturating_duration_since(real_now());
            match self.ask_about_workers(node, call, left.min(ANSWER_WITHIN)).await? {
                WorkerReply::List { workers, more } => {
                    all.extend(workers);
                    if !more {
                        return Some(all);
                    }
                }
                _ => return None,
            }
        }
    }

    /// Asks a worker to be quiet or to stop. Its node informs it; all others remember the order.
    pub(crate) async fn order_worker(&self, id: &str, activity: Activity) -> Result<(), Error> {
        let parsed = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32);
        let unknown = || Error::NotFound(format!("worker {id:?} is not connected"));
        let session = SessionId(parsed.ok_or_else(unknown)?);
        let others = self.other_nodes()?;
        let own = self.sessions().order(session, activity);
        let order = WorkerCall::Order { session, activity };
        let (mut answers, missing) = self
            .ask_all_about_workers(&others, &order, |reply| match reply {
                WorkerReply::Ordered(ordered) => Some(ordered),
                _ => None,
            })
            .await;
        answers.push((self.me(), own));
        let ordered = answers.iter().map(|(_, ordered)| *ordered).max().unwrap_or(own);
        if ordered > Ordered::Unknown {
            let without = answers.iter().filter(|(_, ordered)| *ordered == Ordered::Unknown);
            self.remember(without.map(|(node, _)| *node).collect(), session, activity).await;
        }
        match ordered {
            Ordered::Told => Ok(()),
            Ordered::Waits if missing.is_empty() => Ok(()),
            Ordered::Unknown if missing.is_empty() => Err(unknown()),
            Ordered::Waits | Ordered::Unknown => Err(Error::Unavailable(format!(
                "worker {id} is not connected to any node that answers, and {}; ask again when all nodes \
                 are up",
                did_not_answer(&missing)
            ))),
        }
    }

    /// Makes nodes remember an order to a worker that they do not have.
    async fn remember(&self, nodes: Vec<NodeId>, session: SessionId, activity: Activity) {
        let (here, others): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| *node == self.me());
        if !here.is_empty() {
            self.sessions().remember(session, activity);
        }
        let remember = WorkerCall::Remember { session, activity };
        // A node that does not answer may as well be down, because the worker knows the order by
        // now.
        self.ask_all_about_workers(&others, &remember, Some).await;
    }

    /// Whether a worker or a waiting claim of any node that answers would take tasks of a queue and
    /// a type, and the nodes that did not answer.
    pub(crate) async fn heard(&self, queue: &str, task_type: &str) -> (Heard, Vec<NodeId>) {
        let own = self.sessions().heard(queue, task_type);
        let others = match self.other_nodes() {
            Ok(others) if own < Heard::Yes => others,
            Ok(_) => return (own, Vec::new()),
            // A node that does not know the other nodes can't say that no worker listens there.
            Err(_) => return (Heard::Yes, Vec::new()),
        };
        let (queue, task_type) = (queue.to_owned(), task_type.to_owned());
        let call = WorkerCall::Listens { queue, task_type };
        let take = |reply| match reply {
            WorkerReply::Listens(heard) => Some(heard),
            _ => None,
        };
        let (answers, missing) = self.ask_all_about_workers(&others, &call, take).await;
        let heard = answers.into_iter().map(|(_, heard)| heard).max();
        (heard.map_or(own, |heard| heard.max(own)), missing)
    }

    /// Answers a question about this node's workers.
    pub(super) fn answer_about_workers(&self, call: WorkerCall) -> WorkerReply {
        let sessions = self.sessions();
        match call {
            WorkerCall::List { after } => {
                let (workers, more) = sessions.workers(after, WORKERS_PER_ANSWER);
                WorkerReply::List { workers, more }
            }
            WorkerCall::Order { session, activity } => {
                WorkerReply::Ordered(sessions.order(session, activity))
            }
            WorkerCall::Remember { session, activity } => {
                sessions.remember(session, activity);
                WorkerReply::Remembered
            }
            WorkerCall::Listens { queue, task_type } => {
                WorkerReply::Listens(sessions.heard(&queue, &task_type))
            }
        }
    }

    /// All nodes but this one.
    fn other_nodes(&self) -> Result<Vec<NodeId>, Error> {
        let control = self.routes().control();
        if control.cluster().is_none() {
            let text = "this node has joined and does not know the cluster's map yet; wait";
            return Err(Error::Unavailable(text.into()));
        }
        Ok(control.nodes().keys().copied().filter(|node| *node != self.me()).collect())
    }

    /// Asks several nodes the same question; returns the answers, and the nodes without a useful
    /// one.
    async fn ask_all_about_workers<T>(
        &self,
        nodes: &[NodeId],
        call: &WorkerCall,
        take: impl Fn(WorkerReply) -> Option<T>,
    ) -> (Vec<(NodeId, T)>, Vec<NodeId>) {
        let asked = nodes.iter().map(|&node| async move {
            (node, self.ask_about_workers(node, call.clone(), ANSWER_WITHIN).await)
        });
        let answers = join_all(asked).await.into_iter();
        sort_out(answers.map(|(node, reply)| (node, reply.and_then(&take))).collect())
    }

    async fn ask_about_workers(
        &self,
        node: NodeId,
        call: WorkerCall,
        wait: Duration,
    ) -> Option<WorkerReply> {
        match self.ask(node, ClusterCall::Worker(call), wait).await {
            Ok(ClusterReply::Worker(reply)) => Some(reply),
            _ => None,
        }
    }
}

/// Separates the nodes with an answer from the others.
fn sort_out<T>(asked: Vec<(NodeId, Option<T>)>) -> (Vec<(NodeId, T)>, Vec<NodeId>) {
    let (mut answers, mut missing) = (Vec::new(), Vec::new());
    for (node, answer) in asked {
        match answer {
            Some(answer) => answers.push((node, answer)),
            None => missing.push(node),
        }
    }
    (answers, missing)
}

/// Each worker as reported by the node that heard it last, the longest connected first. A worker
/// that moved to another node may still be known at its old one.
fn each_once(all: impl Iterator<Item = WorkerView>) -> Vec<WorkerView> {
    let mut by_id: BTreeMap<SessionId, WorkerView> = BTreeMap::new();
    for worker in all {
        let known = by_id.get(&worker.id);
        if known.is_none_or(|known| worker.silent_ms < known.silent_ms) {
            by_id.insert(worker.id, worker);
        }
    }
    let mut workers: Vec<_> = by_id.into_values().collect();
    workers.sort_by_key(|worker| (worker.connected_at, worker.id));
    workers
}

/// Names the missing nodes.
pub(crate) fn did_not_answer(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    match names.as_slice() {
        [one] => format!("node {one} did not answer"),
        several => format!("nodes {} did not answer", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::{Profile, WorkerState};
    use taskyard_machine::Timestamp;

    fn worker(id: u128, node: NodeId, connected_at: u64, silent_ms: u64) -> WorkerView {
        WorkerView {
            id: SessionId(id),
            node,
            profile: Profile { name: "w".into(), queues: vec!["q".into()], ..Profile::default() },
            busy: 1,
            state: WorkerState::Quiet,
            connected_at: Timestamp(connected_at),
            beat_at: Timestamp(connected_at),
            silent_ms,
            rss_bytes: 7,
        }
    }

    #[test]
    fn a_worker_is_shown_where_it_was_heard_last() {
        let all = [worker(1, 1, 5, 900), worker(2, 1, 9, 0), worker(1, 2, 30, 100)];
        let shown: Vec<_> = each_once(all.into_iter()).iter().map(|w| (w.id.0, w.node)).collect();
        assert_eq!(shown, [(2, 1), (1, 2)], "and those connected longest first");
    }

    #[test]
    fn calls_and_replies_survive_the_wire() {
        let (session, activity) = (SessionId(9), Activity::Stopping);
        for call in [
            WorkerCall::List { after: None },
            WorkerCall::List { after: Some(session) },
            WorkerCall::Order { session, activity },
            WorkerCall::Remember { session, activity: Activity::Quiet },
            WorkerCall::Listens { queue: "mail".into(), task_type: "send".into() },
        ] {
            let call = ClusterCall::Worker(call);
            assert_eq!(ClusterCall::decode(&call.encode()[1..]), Ok(call));
        }
        for reply in [
            WorkerReply::List { workers: vec![worker(1, 2, 3, 4)], more: true },
            WorkerReply::Ordered(Ordered::Waits),
            WorkerReply::Remembered,
            WorkerReply::Listens(Heard::OtherTypes),
        ] {
            let reply = ClusterReply::Worker(reply);
            assert_eq!(ClusterReply::decode(&reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn missing_nodes_are_named() {
        assert_eq!(did_not_answer(&[3]), "node 3 did not answer");
        assert_eq!(did_not_answer(&[2, 3]), "nodes 2, 3 did not answer");
    }
}
