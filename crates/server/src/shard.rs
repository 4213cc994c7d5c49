//! Shards: the handle through which the rest of a node reaches all shards, on any node.
//!
//! The handle is cheap to clone. Every method asks the node that leads the shard: this node through
//! the shard loop's thread (`local.rs`), another node by a call (`remote.rs`). Nothing here decides
//! about a task. A node without peers skips the routing.
//!
//! ```text
//! route.rs       whom to ask next, and for how long         forward.rs   one call to one node
//! proposals.rs   commands      claims.rs   claims           reads.rs     questions, bodies, hints, waits
//! hints.rs       which shards have something for a claim over several
//! identity.rs    what may be sent again when its outcome got lost
//! session_news.rs   what nodes tell each other of workers
//! spread.rs      where queues lie that are spread over shards
//! gateway.rs     what leaders tell the node that a worker is connected to
//! ```

mod claims;
pub(crate) mod comparison;
pub(crate) mod engine;
pub(crate) mod firing;
mod forward;
mod gateway;
mod hints;
mod identity;
pub(crate) mod inbox;
pub(crate) mod leader_clock;
mod local;
pub(crate) mod outbox;
mod proposals;
mod reads;
pub mod remote;
mod route;
mod session_news;
pub(crate) mod sessions;
mod spread;
pub(crate) mod standstill;
mod task_types;
#[cfg(test)]
mod tests;
pub(crate) mod timer;
pub(crate) mod waiters;
pub(crate) mod watchers;

pub use engine::Engine;
use gateway::Gateway;
pub(crate) use gateway::News;
pub use gateway::{CancelledClaim, HeardWorker};
pub use hints::{Hint, Hints, Look, Sought};
pub use local::LocalShards;
pub use session_news::SessionNews;
pub use task_types::TaskTypes;

use crate::{
    Error, backup,
    buffers::Buffers,
    checkpoint::View,
    clock::real_now,
    cluster::{Routes, Snapshots},
    data_dir::{Format, Seen, Starts},
    peer::PeerNetwork,
    telemetry::Telemetry,
};
use bytes::Bytes;
use inbox::{BackupOrder, Inbox, Input};
use proposals::ANSWER_FOR_MAX;
use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::{Duration, Instant},
};
use taskyard_machine::{
    Ask, Claim, ClaimNumber, ClaimQueue, ClaimedTask, EncodedCommand, Event, Machine, Outcome,
    ParentResult, QueuePage, QueueView, SessionId, ShardId, TaskId, ask, limits,
};
use tokio::sync::{broadcast, mpsc, oneshot};

/// A handle to all shards of the cluster.
#[derive(Clone)]
pub struct Shards(Arc<Handle>);

struct Handle {
    inbox: Arc<Inbox>,
    format: Format,
    tickets: AtomicU64,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    telemetry: Arc<Telemetry>,
    routes: Arc<Routes>,
    /// The connections to other nodes, once they are set.
    network: Arc<OnceLock<PeerNetwork>>,
    /// The checkpoints that other nodes may fetch.
    snapshots: Arc<Snapshots>,
    /// The workers' side of this node, once it is set.
    gateway: OnceLock<Gateway>,
    /// How often this data directory was started.
    starts: Starts,
    /// Which start of each peer was let in here.
    seen: Seen,
    /// The memory that requests and answers in flight take.
    buffers: Buffers,
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// A claim in owned form, because it may be parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Queue names and weights; all queues must be on the same shard.
    pub queues: Vec<(String, u32)>,
    /// The task types that the worker can run.
    pub types: TaskTypes,
    /// `true`: queues are drawn by weight; otherwise in strict order.
    pub weighted: bool,
    /// The most tasks to claim.
    pub tasks_max: u32,
    /// The claim ends once its tasks have this many bytes together.
    pub bytes_max: u32,
    /// The lease of each claim.
    pub lease_ms: u64,
    /// The session that will hold the claims.
    pub session: Option<SessionId>,
    /// The session's number for this claim. A repeated claim with the same number gets the same
    /// tasks.
    pub number: Option<ClaimNumber>,
    /// The claimed tasks count as begun.
    pub begun: bool,
    /// The worker's name, for people.
    pub worker: String,
}

impl ClaimRequest {
    /// A claim from one queue without a session, of tasks of any type.
    pub fn of_queue(queue: &str, tasks_max: u32) -> ClaimRequest {
        ClaimRequest {
            queues: vec![(queue.to_owned(), 1)],
            types: TaskTypes::ANY,
            weighted: false,
            tasks_max,
            bytes_max: u32::MAX,
            lease_ms: limits::LEASE_MS_DEFAULT,
            session: None,
            number: None,
            begun: false,
            worker: String::new(),
        }
    }

    /// The queues, borrowed.
    pub fn queues(&self) -> Vec<ClaimQueue<'_>> {
        self.queues.iter().map(|(name, weight)| ClaimQueue { name, weight: *weight }).collect()
    }

    /// The command to propose; `seed` is for a weighted draw.
    pub(crate) fn command(&self, seed: u64) -> Claim<'_> {
        Claim {
            queues: self.queues(),
            types: self.types.borrowed(),
            weighted_seed: self.weighted.then_some(seed),
            tasks_max: self.tasks_max,
            bytes_max: self.bytes_max,
            lease_ms: self.lease_ms,
            session: self.session,
            number: self.number,
            begun: self.begun,
            worker: &self.worker,
        }
    }
}

/// A claimed task with its body (see `taskyard_machine::Body::decode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedTask {
    /// The claim.
    pub task: ClaimedTask,
    /// The encoded body.
    pub body: Bytes,
}

impl HandedTask {
    /// About the bytes that the task takes in an answer.
    pub(crate) fn bytes(&self) -> usize {
        const FIELDS_BYTES: usize = 128;
        let ClaimedTask { resume_state, parents, .. } = &self.task;
        let result =
            |parent: &ParentResult| parent.result.as_ref().map_or(0, |result| result.len());
        let parents: usize = parents.iter().map(|parent| FIELDS_BYTES + result(parent)).sum();
        let resume_state = resume_state.as_ref().map_or(0, |state| state.len());
        FIELDS_BYTES + self.body.len() + resume_state + parents
    }
}

/// A freeze of all shards of this node that is being written to disk.
pub(crate) struct Frozen(oneshot::Receiver<Result<View, Error>>);

impl Frozen {
    /// A view of the frozen shards, once all is written.
    pub(crate) async fn written(self) -> Result<View, Error> {
        self.0.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The next bytes of a backup.
#[derive(Clone, Debug)]
pub struct BackupPart {
    /// The file's next bytes.
    pub data: Bytes,
    /// The number of shards that are complete in the file.
    pub shards_done: u16,
}

/// The status of one shard on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// Its term.
    pub term: u64,
    /// This node's replica leads, and has applied the first entry of its term.
    pub serves: bool,
    /// Index of the last entry on this node's disk.
    pub persisted: u64,
    /// Index of the last applied entry.
    pub applied: u64,
}

impl Shards {
    /// The number of shards.
    pub fn count(&self) -> u16 {
        self.0.format.shards
    }

    pub(crate) fn format(&self) -> Format {
        self.0.format
    }

    /// The cluster that this node belongs to: random, fixed when its data directory was made.
    pub fn cluster(&self) -> u128 {
        self.0.format.cluster
    }

    /// The memory that requests and answers in flight take.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.0.buffers
    }

    /// How often this data directory was started.
    pub(crate) fn starts(&self) -> &Starts {
        &self.0.starts
    }

    /// Which start of each peer was let in here.
    pub(crate) fn seen(&self) -> &Seen {
        &self.0.seen
    }

    /// Wakes the loop to look at a change that is no input.
    pub(crate) fn look(&self) {
        let _ = self.push(Input::Look);
    }

    /// The known leaders and the map.
    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.0.routes
    }

    /// The connections to other nodes; `None` on a node that never has peers.
    pub(crate) fn network(&self) -> Option<&PeerNetwork> {
        self.0.network.get()
    }

    /// The checkpoints that other nodes may fetch.
    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.0.snapshots
    }

    /// Sets the connections to other nodes, once.
    pub(crate) fn connect(&self, network: PeerNetwork) {
        let _ = self.0.network.set(network);
    }

    /// The home shard of a queue.
    pub fn home(&self, queue: &str) -> ShardId {
        taskyard_machine::home_shard(queue, self.count())
    }

    /// Calls on this node's own replicas, without routing.
    pub fn local(&self) -> LocalShards<'_> {
        LocalShards(self)
    }

    /// The connections to other nodes; `None` if the cluster has no other node.
    fn others(&self) -> Option<&PeerNetwork> {
        self.network().filter(|_| !self.routes().is_alone())
    }

    /// Counts commands and claims by whether this node leads their shard.
    fn note_routed(&self, count: usize, is_here: bool) {
        self.0.telemetry.note_routed(count, is_here);
    }

    /// Proposes a command and waits for its outcome, which is durable. `enqueue` says that the
    /// command adds tasks; such a command is refused while disk or memory budgets are used up.
    pub async fn propose(
        &self,
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
    ) -> Result<Outcome, Error> {
        match self.others() {
            None => {
                self.note_routed(1, true);
                self.local().propose(shard, command, enqueue).await.map_err(without_peers)
            }
            Some(network) => self.propose_routed(network, shard, command, enqueue).await,
        }
    }

    /// Proposes several commands with one call per node. Answers come in the order of the commands.
    pub async fn propose_all(
        &self,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
    ) -> Vec<Result<Outcome, Error>> {
        self.propose_all_until(commands, enqueue, real_now() + ANSWER_FOR_MAX).await
    }

    async fn propose_all_until(
        &self,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
        until: Instant,
    ) -> Vec<Result<Outcome, Error>> {
        match self.others() {
            None => {
                self.note_routed(commands.len(), true);
                let mut answers = self.local().propose_all(commands, enqueue).await;
                for answer in answers.iter_mut().filter_map(|answer| answer.as_mut().err()) {
                    *answer = without_peers(std::mem::replace(answer, Error::OutcomeUnknown));
                }
                answers
            }
            Some(network) => self.propose_all_routed(network, commands, enqueue, until).await,
        }
    }

    /// Claims from queues of one shard. If nothing is ready, the claim is parked for up to `wait`,
    /// without a log entry; the result is empty once the wait is over. Dropping the future removes
    /// the parked claim and releases its tasks, even if they were already handed over, so that no
    /// claim is orphaned.
    pub async fn claim(
        &self,
        shard: ShardId,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        match self.others() {
            None => {
                self.note_routed(1, true);
                self.local().claim(shard, request, wait).await.map_err(without_peers)
            }
            Some(network) => self.claim_routed(network, shard, request, wait).await,
        }
    }

    /// Waits until `sought` (all on `shard`) may have a task to claim; `false` once `wait` is over.
    /// A claim over several shards waits this way, and then claims from one shard at a time. A hint
    /// is no claim: it takes no task from parked claims. If the woken caller does not claim, the
    /// next one is woken soon.
    pub async fn claimable(
        &self,
        shard: ShardId,
        sought: Sought,
        wait: Duration,
    ) -> Result<bool, Error> {
        match self.others() {
            None => self.local().claimable_one(shard, sought, wait).await.map_err(without_peers),
            Some(network) => self.claimable_routed(network, shard, sought, wait).await,
        }
    }

    /// Asks a shard a question: a strong read, because the leader first confirms that it leads.
    pub async fn ask<Q: Ask>(&self, shard: ShardId, question: Q) -> Result<Q::Answer, Error> {
        match self.others() {
            None => self.local().ask(shard, question).await.map_err(without_peers),
            Some(network) => self.ask_routed(network, shard, question).await,
        }
    }

    /// Reads the state of a shard that this node leads. For tests: a function can't be sent to
    /// another node, so that other callers use `ask`.
    #[doc(hidden)]
    pub async fn read<T, F>(&self, shard: ShardId, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Machine) -> T + Send + 'static,
    {
        self.local().read(shard, read).await
    }

    /// The encoded bodies of tasks, from memory or disk; `None` for a body that is gone. A strong
    /// read.
    pub async fn bodies(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Bytes>>, Error> {
        match self.others() {
            None => self.local().bodies(tasks).await.map_err(without_peers),
            Some(network) => self.bodies_routed(network, tasks).await,
        }
    }

    /// Waits until the task has ended or `wait` is over; `true` if it has ended.
    pub async fn finished(&self, task: TaskId, wait: Duration) -> Result<bool, Error> {
        match self.others() {
            None => self.local().finished(task, wait).await.map_err(without_peers),
            Some(network) => self.finished_routed(network, task, wait).await,
        }
    }

    /// Tells all leaders which sessions are alive. The gateway calls this once a second.
    pub fn sessions_alive(&self, sessions: Vec<SessionId>) {
        if !sessions.is_empty() {
            self.broadcast_news(SessionNews::Alive(sessions));
        }
    }

    /// `sessions_alive` for sessions whose worker calls over connections of its own. Such a worker
    /// may take up to a minute to beat at another node after this node is gone.
    pub fn sessions_asking(&self, sessions: Vec<SessionId>) {
        if !sessions.is_empty() {
            self.broadcast_news(SessionNews::Asking(sessions));
        }
    }

    /// Tells all leaders that a session's connection closed without a goodbye. The session then
    /// ends after 5 s unless it is reported alive again.
    pub fn session_cut(&self, session: SessionId) {
        self.broadcast_news(SessionNews::Cut(session));
    }

    /// Reports the claims that a silent session received and never reported as started. It replaces
    /// an earlier report. The session's `EndSession` lists them as `not_started`: they are released
    /// instead of lost. The report is dropped once the session is alive again.
    pub fn session_not_started(&self, session: SessionId, tasks: Vec<TaskId>) {
        self.broadcast_news(SessionNews::NotStarted(session, tasks));
    }

    /// A consistent copy of all shards of a node without peers, as the parts of one file. A slow
    /// reader slows the copy, not the shards. Dropping the receiver ends the copy.
    pub async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        let view = self.freeze().await?.written().await?;
        Ok(backup::stream_alone(self.0.format, view))
    }

    /// Freezes all shards of this node at one moment, before this returns.
    pub(crate) async fn freeze(&self) -> Result<Frozen, Error> {
        let (frozen, is_frozen) = oneshot::channel();
        let (written, view) = oneshot::channel();
        self.0.inbox.push(Input::Backup(BackupOrder { frozen, written }))?;
        match is_frozen.await {
            Ok(()) => Ok(Frozen(view)),
            // The order was refused, and the other channel says why.
            Err(_) => view.await.unwrap_or_else(|_| Err(gone())).and(Err(gone())),
        }
    }

    /// The status of each shard on this node, in order.
    pub async fn status(&self) -> Result<Vec<ShardStatus>, Error> {
        self.local().status().await
    }

    /// Whether no message is on its way from one shard to another. For tests that look once all is
    /// done.
    pub async fn are_settled(&self) -> Result<bool, Error> {
        let before = self.status().await?;
        let shards = (0..self.count()).map(ShardId);
        let read = shards.map(|shard| self.read(shard, |machine| machine.outgoing(1).is_empty()));
        let owe_nothing = futures_util::future::try_join_all(read).await?;
        // A shard may have passed on a message to a shard that was read before it.
        let stood_still =
            before.iter().zip(self.status().await?).all(|(b, a)| b.applied == a.applied);
        Ok(stood_still && owe_nothing.into_iter().all(|nothing| nothing))
    }

    /// Metrics of this node, in the Prometheus text format. Queues are shown by the leader of their
    /// shard, so that a sum over all nodes counts each queue once.
    pub async fn metrics(&self) -> Result<String, Error> {
        let shards = (0..self.count()).map(ShardId);
        let queues =
            shards.map(|shard| all_queues(move |question| self.local().ask(shard, question)));
        let mut led = Vec::new();
        for (number, queues) in futures_util::future::join_all(queues).await.into_iter().enumerate()
        {
            match queues {
                // A shard that a queue was on lately has totals that no list shows any more.
                Ok(queues) => led.extend(queues.into_iter().filter(|queue| {
                    self.reach(queue.name.as_str())
                        .iter()
                        .any(|shard| usize::from(shard.0) == number)
                })),
                Err(Error::NotLeader { .. } | Error::NoQuorum { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let cluster = self.cluster_gauges().await?;
        Ok(self.0.telemetry.render(&merge_by_name(led), &cluster))
    }

    /// All events of this node's shards from now on, in batches per turn. A slow reader misses
    /// some, and learns how many.
    pub fn events(&self) -> broadcast::Receiver<Arc<Vec<Event>>> {
        self.0.events.subscribe()
    }

    /// Pushes an input that needs no answer; a loop that has ended does not need it either.
    fn tell(&self, input: Input) {
        let _ = self.push(input);
    }

    /// Pushes an input to the shard loop.
    pub(crate) fn push(&self, input: Input) -> Result<(), Error> {
        self.0.inbox.push(input)
    }
}

/// All queues of a shard, by name, look after look.
pub(crate) async fn all_queues<F>(look: impl Fn(ask::Queues) -> F) -> Result<Vec<QueueView>, Error>
where
    F: Future<Output = Result<QueuePage, Error>>,
{
    let (mut queues, mut after) = (Vec::new(), None);
    loop {
        let page = look(ask::Queues { after, limit: limits::PAGE_TASKS_MAX as u32 }).await?;
        queues.extend(page.queues);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(queues),
        }
    }
}

/// Merges the views of queues that are spread over several shards of this node.
fn merge_by_name(mut queues: Vec<QueueView>) -> Vec<QueueView> {
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    let same = |one: &QueueView, other: &QueueView| one.name == other.name;
    let merged = queues.chunk_by(same).map(|views| {
        let (first, rest) = views.split_first().expect("a chunk has one at least");
        rest.iter().fold(first.clone(), |sum, view| sum.with(view))
    });
    merged.collect()
}

/// The error of a call to a loop that has ended: the call has changed nothing.
pub(crate) fn gone() -> Error {
    Error::Unavailable("this node has stopped; send it to another node, or again later".into())
}

/// Turns "not the leader" into "no majority", because a node without peers has no other leader.
fn without_peers(error: Error) -> Error {
    match error {
        Error::NotLeader { shard, .. } => Error::NoQuorum { shard },
        error => error,
    }
}
