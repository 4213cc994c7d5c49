//! Shards: the handle through which everything else reaches the shards, on whichever node.
//!
//! Cheap to clone. Every method asks the node that leads the shard: this one by the shard loop's
//! thread (`local.rs`), another by a call (`remote.rs`); nothing here decides anything about a
//! task. In a node that is alone there is nothing to route, and no cost of it.
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
    QueuePage, QueueView, SessionId, ShardId, TaskId, ask, limits,
};
use tokio::sync::{broadcast, mpsc, oneshot};

/// All shards of this node.
#[derive(Clone)]
pub struct Shards(Arc<Handle>);

struct Handle {
    inbox: Arc<Inbox>,
    format: Format,
    tickets: AtomicU64,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    telemetry: Arc<Telemetry>,
    routes: Arc<Routes>,
    /// The way to other nodes, once there is one.
    network: Arc<OnceLock<PeerNetwork>>,
    /// What other nodes may fetch of this one's shards.
    snapshots: Arc<Snapshots>,
    /// The workers' side of this node, once there is one.
    gateway: OnceLock<Gateway>,
    /// How often its data directory was started.
    starts: Starts,
    /// Which start of each peer was let in here.
    seen: Seen,
    /// What requests and answers in flight take of this node's memory.
    buffers: Buffers,
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// A claim, owned, as it may be parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Queue names and weights; all must live on the same shard.
    pub queues: Vec<(String, u32)>,
    /// The types of tasks that the worker can run.
    pub types: TaskTypes,
    /// `true`: drawn by weight; else strict order.
    pub weighted: bool,
    /// At most this many.
    pub tasks_max: u32,
    /// Lease of each claim.
    pub lease_ms: u64,
    /// The session that will hold them.
    pub session: Option<SessionId>,
    /// The session's number for this claim: sent again under it, it gets the tasks that it got
    /// before.
    pub number: Option<ClaimNumber>,
    /// They count as begun.
    pub begun: bool,
    /// Who claims, for people.
    pub worker: String,
}

impl ClaimRequest {
    /// The queues, borrowed.
    pub fn queues(&self) -> Vec<ClaimQueue<'_>> {
        self.queues.iter().map(|(name, weight)| ClaimQueue { name, weight: *weight }).collect()
    }

    /// As it is proposed. `seed` is for a weighted draw.
    pub(crate) fn command(&self, seed: u64) -> Claim<'_> {
        Claim {
            queues: self.queues(),
            types: self.types.borrowed(),
            weighted_seed: self.weighted.then_some(seed),
            tasks_max: self.tasks_max,
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

/// The shards of this node as of one moment, on their way to the disk.
pub(crate) struct Frozen(oneshot::Receiver<Result<View, Error>>);

impl Frozen {
    /// A view of them, once all is written.
    pub(crate) async fn written(self) -> Result<View, Error> {
        self.0.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The next bytes of a backup.
#[derive(Clone, Debug)]
pub struct BackupPart {
    /// The file's next bytes.
    pub data: Bytes,
    /// Shards that are in it whole.
    pub shards_done: u16,
}

/// How one shard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// Which.
    pub shard: ShardId,
    /// Its term.
    pub term: u64,
    /// The replica of this node leads it and has applied its own first entry: it serves.
    pub serves: bool,
    /// Index of the last entry on this node's disk.
    pub persisted: u64,
    /// Index of the last entry that was applied.
    pub applied: u64,
}

impl Shards {
    /// How many shards there are.
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

    /// What requests and answers in flight take of this node's memory.
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

    /// Has the loop look at what has changed beside it.
    pub(crate) fn look(&self) {
        let _ = self.push(Input::Look);
    }

    /// Who leads what, as far as this node knows.
    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.0.routes
    }

    /// The way to other nodes; none in a node that is alone for good.
    pub(crate) fn network(&self) -> Option<&PeerNetwork> {
        self.0.network.get()
    }

    /// What other nodes may fetch of this one's shards.
    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.0.snapshots
    }

    /// Lets the shards talk to other nodes, once.
    pub(crate) fn connect(&self, network: PeerNetwork) {
        let _ = self.0.network.set(network);
    }

    /// The shard of a queue.
    pub fn home(&self, queue: &str) -> ShardId {
        taskyard_machine::home_shard(queue, self.count())
    }

    /// The shards that this node leads, without a look at where the others are.
    pub fn local(&self) -> LocalShards<'_> {
        LocalShards(self)
    }

    /// The way to other nodes, if there are some: one that is alone has nobody to ask.
    fn others(&self) -> Option<&PeerNetwork> {
        self.network().filter(|_| !self.routes().is_alone())
    }

    /// Counts commands and claims by who leads their shard.
    fn note_routed(&self, count: usize, is_here: bool) {
        self.0.telemetry.note_routed(count, is_here);
    }

    /// Proposes a command and awaits its outcome, durable by then. `enqueue` tells whether it adds
    /// tasks, and so is refused when disk or memory budgets are used up.
    pub async fn propose(
        &self,
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
    ) -> Result<Outcome, Error> {
        match self.others() {
            None => {
                self.note_routed(1, true);
                self.local().propose(shard, command, enqueue).await.map_err(alone)
            }
            Some(network) => self.propose_routed(network, shard, command, enqueue).await,
        }
    }

    /// Proposes several commands with one hand-off per node; answers in the same order.
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
                    *answer = alone(std::mem::replace(answer, Error::OutcomeUnknown));
                }
                answers
            }
            Some(network) => self.propose_all_routed(network, commands, enqueue, until).await,
        }
    }

    /// Claims from queues of one shard; parks up to `wait` when nothing is ready, without a log
    /// entry. Empty when the wait is over. Dropping the future takes the waiter away; what was
    /// claimed for it by then, even if already handed over, is released: no claim is ever orphaned.
    pub async fn claim(
        &self,
        shard: ShardId,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        match self.others() {
            None => {
                self.note_routed(1, true);
                self.local().claim(shard, request, wait).await.map_err(alone)
            }
            Some(network) => self.claim_routed(network, shard, request, wait).await,
        }
    }

    /// Parks until `sought` (all on `shard`) may have something to claim, or `wait` is over
    /// (`false`). For claims over several shards: the gateway then claims from one shard at a time.
    /// A hint is no claim: it takes nothing from parked claims, and if the one that was woken does
    /// not claim (it went away), the next one is woken soon.
    pub async fn claimable(
        &self,
        shard: ShardId,
        sought: Sought,
        wait: Duration,
    ) -> Result<bool, Error> {
        match self.others() {
            None => self.local().claimable_one(shard, sought, wait).await.map_err(alone),
            Some(network) => self.claimable_routed(network, shard, sought, wait).await,
        }
    }

    /// Puts a question to a shard: a strong read, after confirming leadership.
    pub async fn ask<Q: Ask>(&self, shard: ShardId, question: Q) -> Result<Q::Answer, Error> {
        match self.others() {
            None => self.local().ask(shard, question).await.map_err(alone),
            Some(network) => self.ask_routed(network, shard, question).await,
        }
    }

    /// Looks at the state of a shard that this node leads. A function can't be sent to another
    /// node: what is asked outside of tests is a question.
    #[doc(hidden)]
    pub async fn read<T, F>(&self, shard: ShardId, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Machine) -> T + Send + 'static,
    {
        self.local().read(shard, read).await
    }

    /// The encoded bodies of tasks, from memory or disk; `None` for one that is gone. A strong
    /// read, as a question is.
    pub async fn bodies(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Bytes>>, Error> {
        match self.others() {
            None => self.local().bodies(tasks).await.map_err(alone),
            Some(network) => self.bodies_routed(network, tasks).await,
        }
    }

    /// Waits until the task has ended or `wait` is over; `true` if it has ended.
    pub async fn finished(&self, task: TaskId, wait: Duration) -> Result<bool, Error> {
        match self.others() {
            None => self.local().finished(task, wait).await.map_err(alone),
            Some(network) => self.finished_routed(network, task, wait).await,
        }
    }

    /// Tells all leaders which sessions live (once a second, from the gateway).
    pub fn sessions_alive(&self, sessions: Vec<SessionId>) {
        if !sessions.is_empty() {
            self.spread_news(SessionNews::Alive(sessions));
        }
    }

    /// The same of sessions that ask over connections of their own. They go on elsewhere by
    /// themselves when this node is gone, but not at once: they may be silent for a minute.
    pub fn sessions_asking(&self, sessions: Vec<SessionId>) {
        if !sessions.is_empty() {
            self.spread_news(SessionNews::Asking(sessions));
        }
    }

    /// The connection of a session closed without a goodbye: its silence limit becomes 5 s from
    /// now, unless it is named alive again.
    pub fn session_cut(&self, session: SessionId) {
        self.spread_news(SessionNews::Cut(session));
    }

    /// Claims that a session was handed and never reported started, as the gateway knows them when
    /// the session falls silent; replaces what was said before. They go into its `EndSession` as
    /// `not_started`: released, not lost. Forgotten when the session is named alive again.
    pub fn session_not_started(&self, session: SessionId, tasks: Vec<TaskId>) {
        self.spread_news(SessionNews::NotStarted(session, tasks));
    }

    /// A consistent copy of every shard of a node that is alone, as the bytes of one file, in
    /// parts. A slow reader slows the copy, not the shards; dropping the receiver ends it.
    pub async fn backup(&self) -> Result<mpsc::Receiver<Result<BackupPart, Error>>, Error> {
        let view = self.freeze().await?.written().await?;
        Ok(backup::stream_alone(self.0.format, view))
    }

    /// Freezes all shards of this node at one moment, which has come when this returns.
    pub(crate) async fn freeze(&self) -> Result<Frozen, Error> {
        let (frozen, is_frozen) = oneshot::channel();
        let (written, view) = oneshot::channel();
        self.0.inbox.push(Input::Backup(BackupOrder { frozen, written }))?;
        match is_frozen.await {
            Ok(()) => Ok(Frozen(view)),
            // It was not taken; the other one says why.
            Err(_) => view.await.unwrap_or_else(|_| Err(gone())).and(Err(gone())),
        }
    }

    /// How each shard stands on this node, in order.
    pub async fn status(&self) -> Result<Vec<ShardStatus>, Error> {
        self.local().status().await
    }

    /// Whether nothing is on its way from one shard to another: no task that was promised, no end
    /// of one that others wait for. For tests, which want to look when all is done.
    pub async fn are_settled(&self) -> Result<bool, Error> {
        let before = self.status().await?;
        let shards = (0..self.count()).map(ShardId);
        let read = shards.map(|shard| self.read(shard, |machine| machine.outgoing(1).is_empty()));
        let owe_nothing = futures_util::future::try_join_all(read).await?;
        // What one of them received meanwhile it may have passed on to one that was read before.
        let stood_still =
            before.iter().zip(self.status().await?).all(|(b, a)| b.applied == a.applied);
        Ok(stood_still && owe_nothing.into_iter().all(|nothing| nothing))
    }

    /// Metrics of this node, in the Prometheus text format. Of queues it shows those on shards that
    /// it leads, so that a sum over all nodes counts each once.
    pub async fn metrics(&self) -> Result<String, Error> {
        let shards = (0..self.count()).map(ShardId);
        let queues =
            shards.map(|shard| all_queues(move |question| self.local().ask(shard, question)));
        let mut led = Vec::new();
        for queues in futures_util::future::join_all(queues).await {
            match queues {
                Ok(queues) => led.extend(queues),
                Err(Error::NotLeader { .. } | Error::NoQuorum { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let cluster = self.cluster_gauges().await?;
        Ok(self.0.telemetry.render(&merge_by_name(led), &cluster))
    }

    /// All events of all shards from now on, batched per loop turn. A slow reader misses some and
    /// is told how many.
    pub fn events(&self) -> broadcast::Receiver<Arc<Vec<Event>>> {
        self.0.events.subscribe()
    }

    /// Something nobody waits for; a loop that has ended needs it no more.
    fn tell(&self, input: Input) {
        let _ = self.push(input);
    }

    /// Hands something to the shard loop.
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

/// Queues that lie on several shards of this node, as one each.
fn merge_by_name(mut queues: Vec<QueueView>) -> Vec<QueueView> {
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    let same = |one: &QueueView, other: &QueueView| one.name == other.name;
    let merged = queues.chunk_by(same).map(|views| {
        let (first, rest) = views.split_first().expect("a chunk has one at least");
        rest.iter().fold(first.clone(), |sum, view| sum.with(view))
    });
    merged.collect()
}

/// Nothing was changed by what was asked: the loop ended before.
pub(crate) fn gone() -> Error {
    Error::Unavailable("this node has stopped; send it to another one, or again later".into())
}

/// Nobody else could lead: what another node would look for is not there.
fn alone(error: Error) -> Error {
    match error {
        Error::NotLeader { shard, .. } => Error::NoQuorum { shard },
        error => error,
    }
}
