//! Fetcher: fetches snapshots of shards from the nodes that offer them, beside the shard loop.
//!
//! Parts come one after the other and go to the store, which remembers the position. So a broken
//! connection or a killed node costs one part. A complete snapshot is loaded here, and then handed
//! to the loop with raft's message, which raft gets only then.
//!
//! Invariant: at most one transfer of a shard is under way. Each order ends with one input to the
//! loop, unless a newer order or the removal of the replica replaces it.

use super::snapshots::{PartReply, PartRequest, SnapshotOffer, Wants};
use crate::{
    checkpoint::{
        Arrived, Cut, Failure, InstallError, Part, Position, Report, SnapshotId, Store, StoreError,
    },
    clock,
    data_dir::DataDir,
    peer::{CallError, PeerNetwork},
    shard::inbox::{Inbox, Input},
    shard_loop::{load, panic_message},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_machine::{Identity, Machine, ShardId};
use taskyard_replica::{NodeId, eraftpb::Message};
use tokio::{sync::Semaphore, task::AbortHandle};

/// Transfers to this node at once. More would only slow each other down.
const TRANSFERS_MAX: usize = 2;
/// The rate of all transfers together.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// The longest wait for one part.
const PART_FOR_MAX: Duration = Duration::from_secs(30);
/// How often an order that waits for its turn tells its source to keep the snapshot.
const KEEP_EVERY: Duration = Duration::from_secs(20);
/// How often a transfer that waits for free disk space checks again.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// A source that is silent for this long is given up, because it has closed its view by then.
const SILENT_FOR_MAX: Duration = Duration::from_secs(60);
const RETRY_AFTER_MIN: Duration = Duration::from_millis(50);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);
/// How often a transfer restarts because a part did not fit.
const RESTARTS_MAX: u32 = 3;

/// A snapshot that raft wants installed.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotOrder {
    pub shard: ShardId,
    /// The node with the snapshot.
    pub source: NodeId,
    /// Raft's message, which is stepped once the snapshot is complete.
    pub message: Message,
}

impl SnapshotOrder {
    /// Reads the order from a `MsgSnapshot` to this node's replica of `shard`, or says why it can't
    /// be used.
    pub(crate) fn read(shard: ShardId, message: Message) -> Result<SnapshotOrder, String> {
        let snapshot = message.get_snapshot();
        let offer = SnapshotOffer::decode(&snapshot.data).map_err(|error| error.what)?;
        let index = snapshot.get_metadata().index;
        if (offer.shard, offer.index) != (shard, index) {
            let (of, at) = (offer.shard, offer.index);
            return Err(format!(
                "a snapshot of shard {of} at {at} was sent for shard {shard} at {index}"
            ));
        }
        // Raft would refuse the snapshot only after the store has switched to it.
        let (members, to) = (snapshot.get_metadata().get_conf_state(), message.to);
        let lists = [&members.voters, &members.learners, &members.voters_outgoing];
        if !lists.iter().any(|ids| ids.contains(&to)) {
            return Err(format!("replica {to}, which it was sent to, is no member in it"));
        }
        Ok(SnapshotOrder { shard, source: offer.source, message })
    }

    /// The last entry in the snapshot.
    pub(crate) fn index(&self) -> u64 {
        self.message.get_snapshot().get_metadata().index
    }

    /// The cut of the snapshot's state.
    pub(crate) fn cut(&self) -> Cut {
        let metadata = self.message.get_snapshot().get_metadata();
        let conf_state = metadata.get_conf_state().clone();
        Cut { index: metadata.index, term: metadata.term, conf_state }
    }

    /// The same order for another snapshot of the same source.
    fn with(mut self, cut: Cut) -> SnapshotOrder {
        let offer = SnapshotOffer { source: self.source, shard: self.shard, index: cut.index };
        let snapshot = self.message.mut_snapshot();
        snapshot.data = offer.encode();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (cut.index, cut.term);
        metadata.set_conf_state(cut.conf_state);
        self
    }

    pub(crate) fn id(&self) -> SnapshotId {
        let metadata = self.message.get_snapshot().get_metadata();
        let (source, replica) = (self.source, self.message.to);
        SnapshotId { source, index: metadata.index, term: metadata.term, replica }
    }
}

/// A snapshot that is complete in the store, with its loaded state.
pub(crate) struct Fetched {
    pub order: SnapshotOrder,
    pub machine: Machine,
}

/// Why a transfer ended without a snapshot.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the source no longer has it")]
    Gone,
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Store(StoreError),
}

impl From<InstallError> for FetchError {
    fn from(error: InstallError) -> FetchError {
        match error {
            InstallError::Store(error) => FetchError::Store(error),
            InstallError::GivenUp | InstallError::Unfit(_) => FetchError::Failed(error.to_string()),
        }
    }
}

struct Running {
    order: SnapshotOrder,
    /// A newer order, taken up if this one fails.
    next: Option<SnapshotOrder>,
    /// The snapshot is complete and on its way to the loop; it is not fetched again before the loop
    /// takes it.
    is_here: bool,
    bytes: u64,
    task: AbortHandle,
}

struct Shared {
    data: Arc<DataDir>,
    store: Arc<Store>,
    network: Arc<OnceLock<PeerNetwork>>,
    inbox: Arc<Inbox>,
    turns: Semaphore,
    /// When the next part may be requested.
    next_part_at: Mutex<Option<Instant>>,
    running: Mutex<BTreeMap<ShardId, Running>>,
    /// The disk has no room for more parts.
    is_paused: AtomicBool,
    /// Bytes of all fetched parts.
    bytes_fetched: AtomicU64,
}

/// The loop's handle to all transfers; dropping it ends them.
pub(crate) struct Fetcher(Arc<Shared>);

impl Fetcher {
    /// Each transfer keeps `data`, and so its lock, until the transfer ends.
    pub(crate) fn new(
        data: &Arc<DataDir>,
        store: &Arc<Store>,
        network: &Arc<OnceLock<PeerNetwork>>,
        inbox: &Arc<Inbox>,
    ) -> Fetcher {
        Fetcher(Arc::new(Shared {
            data: Arc::clone(data),
            store: Arc::clone(store),
            network: Arc::clone(network),
            inbox: Arc::clone(inbox),
            turns: Semaphore::new(TRANSFERS_MAX),
            next_part_at: Mutex::default(),
            running: Mutex::default(),
            is_paused: AtomicBool::new(false),
            bytes_fetched: AtomicU64::new(0),
        }))
    }

    /// Begins to fetch. Ends with [`Input::Fetched`] or [`Input::FetchFailed`]. A repeated order
    /// changes nothing; another order waits until the one under way fails.
    pub(crate) fn fetch(&self, order: SnapshotOrder) {
        let mut running = self.0.running();
        match running.get_mut(&order.shard) {
            Some(same) if same.order.id() == order.id() => same.order = order,
            Some(other) => other.next = Some(order),
            None => self.0.begin(&mut running, order),
        }
    }

    /// Pauses transfers while the disk has no room, or resumes them.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.0.is_paused.store(is_paused, Ordering::Release);
    }

    /// The loop has taken the snapshot.
    pub(crate) fn taken(&self, shard: ShardId, id: SnapshotId) {
        let mut running = self.0.running();
        if running.get(&shard).is_some_and(|running| running.is_here && running.order.id() == id) {
            running.remove(&shard);
        }
    }

    /// Bytes fetched of a shard's snapshot, if a transfer is under way.
    pub(crate) fn installing(&self, shard: ShardId) -> Option<u64> {
        self.0.running().get(&shard).map(|running| running.bytes)
    }

    /// Bytes of snapshots fetched since the start.
    pub(crate) fn bytes_fetched(&self) -> u64 {
        self.0.bytes_fetched.load(Ordering::Relaxed)
    }

    /// Ends the transfer for a replica that was removed.
    pub(crate) fn forget(&self, shard: ShardId) {
        if let Some(running) = self.0.running().remove(&shard) {
            running.task.abort();
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        for running in std::mem::take(&mut *self.0.running()).into_values() {
            running.task.abort();
        }
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, BTreeMap<ShardId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Shared>, running: &mut BTreeMap<ShardId, Running>, order: SnapshotOrder) {
        let (shard, id) = (order.shard, order.id());
        let Some(network) = self.network.get() else {
            self.tell(Input::FetchFailed { shard, index: id.index });
            return;
        };
        let transfer = Transfer { shared: Arc::clone(self), network: network.clone(), shard, id };
        let task = network.runtime().spawn(transfer.run()).abort_handle();
        let is_here = false;
        running.insert(shard, Running { order, next: None, is_here, bytes: 0, task });
    }

    /// Pushes an input; a loop that has ended does not need it.
    fn tell(&self, input: Input) {
        let _ = self.inbox.push(input);
    }

    /// Ends the transfer of a shard: reports its result, or begins the next order.
    fn end(self: &Arc<Shared>, shard: ShardId, fetched: Result<Machine, FetchError>) {
        let mut running = self.running();
        let error = match fetched {
            Ok(machine) => {
                let Some(running) = running.get_mut(&shard) else { return };
                running.is_here = true;
                let order = running.order.clone();
                return self.tell(Input::Fetched(Box::new(Fetched { order, machine })));
            }
            Err(error) => error,
        };
        let Some(Running { order, next, .. }) = running.remove(&shard) else { return };
        let index = order.index();
        match error {
            FetchError::Store(error) => {
                let failure = Failure(format!("{error}; check the disk, then start again"));
                self.tell(Input::Report(Report::Failed(failure)));
            }
            error @ (FetchError::Gone | FetchError::Failed(_)) => {
                let source = order.source;
                tracing::warn!(
                    "the snapshot of shard {shard} at {index} did not come from node {source}: {error}"
                );
                match next {
                    Some(next) => self.begin(&mut running, next),
                    None => self.tell(Input::FetchFailed { shard, index }),
                }
            }
        }
    }

    /// Counts `bytes` that were fetched. Returns the pause that keeps transfers within their rate.
    fn pace(&self, bytes: u64) -> Duration {
        self.bytes_fetched.fetch_add(bytes, Ordering::Relaxed);
        let now = clock::real_now();
        let mut next_at = self.next_part_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = next_at.map_or(now, |at| at.max(now));
        *next_at = Some(from + Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND));
        from.saturating_duration_since(now)
    }
}

struct Transfer {
    shared: Arc<Shared>,
    network: PeerNetwork,
    shard: ShardId,
    id: SnapshotId,
}

impl Transfer {
    async fn run(mut self) {
        let fetched = self.fetch().await;
        self.shared.end(self.shard, fetched);
    }

    async fn fetch(&mut self) -> Result<Machine, FetchError> {
        let shared = Arc::clone(&self.shared);
        let _turn = self.turn(&shared).await?;
        self.begin().await?;
        let (shard, id) = (self.shard, self.id);
        let mut arrived = self.with_store(move |store| store.begin_install(shard, id)).await?;
        let mut restarts = 0;
        while !arrived.position.is_end() {
            self.shared.running().entry(shard).and_modify(|running| running.bytes = arrived.bytes);
            self.until_room().await?;
            let from = arrived.position.clone();
            let part = self.part(from.clone()).await?;
            let wait = self.shared.pace(part.records.len() as u64);
            arrived = match self.with_store(move |store| store.put_part(shard, id, &part)).await {
                Err(InstallError::Unfit(_)) if restarts < RESTARTS_MAX => {
                    restarts += 1;
                    self.with_store(move |store| begin_again(store, shard, id, &from)).await?
                }
                put => put?,
            };
            tokio::time::sleep(wait).await;
        }
        self.load().await
    }

    /// Waits for its turn, while the source keeps the snapshot.
    async fn turn<'a>(
        &self,
        shared: &'a Shared,
    ) -> Result<tokio::sync::SemaphorePermit<'a>, FetchError> {
        loop {
            let turn = tokio::time::timeout(KEEP_EVERY, shared.turns.acquire()).await;
            match turn {
                Ok(turn) => return turn.map_err(|_| FetchError::Failed("the node ends".into())),
                Err(_elapsed) => {
                    // A source that can't be reached now may be reachable later.
                    if matches!(self.ask(Wants::Keep).await, Ok(PartReply::Gone)) {
                        return Err(FetchError::Gone);
                    }
                }
            }
        }
    }

    /// Waits for free disk space, while the source keeps the snapshot.
    async fn until_room(&self) -> Result<(), FetchError> {
        while self.shared.is_paused.load(Ordering::Acquire) {
            if matches!(self.ask(Wants::Keep).await, Ok(PartReply::Gone)) {
                return Err(FetchError::Gone);
            }
            tokio::time::sleep(ROOM_EVERY).await;
        }
        Ok(())
    }

    /// Begins with the source's newest snapshot, or continues one that was begun.
    async fn begin(&mut self) -> Result<(), FetchError> {
        let begun = match self.answer(Wants::Begin(self.id.replica)).await? {
            PartReply::Begun(cut) => PartReply::begun(&cut),
            _ => None,
        };
        let Some(cut) = begun.filter(|cut| cut.index >= self.id.index) else {
            return Err(FetchError::Failed("the name of the first snapshot can't be read".into()));
        };
        let mut running = self.shared.running();
        let Some(running) = running.get_mut(&self.shard) else {
            return Err(FetchError::Failed("the replica was removed".into()));
        };
        if cut.index > self.id.index {
            running.order = running.order.clone().with(cut);
            self.id = running.order.id();
        }
        Ok(())
    }

    async fn ask(&self, wants: Wants) -> Result<PartReply, CallError> {
        let request = PartRequest { shard: self.shard, index: self.id.index, wants };
        let call = self.network.call(self.id.source, request.encode(), PART_FOR_MAX);
        let reply = call.await?;
        Ok(PartReply::decode(&reply).unwrap_or_else(|error| PartReply::Failed(error.what)))
    }

    async fn part(&self, from: Position) -> Result<Part, FetchError> {
        match self.answer(Wants::Part(from)).await? {
            PartReply::Part(part) => Ok(part),
            _ => Err(FetchError::Failed("the source's answer has no part".into())),
        }
    }

    /// The source's answer, over as many connections as it takes.
    async fn answer(&self, wants: Wants) -> Result<PartReply, FetchError> {
        let begun = clock::real_now();
        let mut pause = RETRY_AFTER_MIN;
        loop {
            match self.ask(wants.clone()).await {
                Ok(PartReply::Gone) => return Err(FetchError::Gone),
                Ok(PartReply::Failed(why)) => return Err(FetchError::Failed(why)),
                Ok(reply) => return Ok(reply),
                Err(error) if begun.elapsed() >= SILENT_FOR_MAX || self.has_next() => {
                    return Err(FetchError::Failed(error.to_string()));
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_AFTER_MAX);
                }
            }
        }
    }

    /// Whether another order waits for this one to fail.
    fn has_next(&self) -> bool {
        self.shared.running().get(&self.shard).is_some_and(|running| running.next.is_some())
    }

    async fn load(&self) -> Result<Machine, FetchError> {
        let format = self.shared.data.format();
        let (shard, incarnation, shards) = (self.shard, format.incarnation, format.shards);
        let identity = Identity { incarnation, shard, shards };
        let id = self.id;
        let loaded = self.with_store(move |store| {
            let loaded = load(identity, store.view().installed_records(shard));
            if loaded.is_err() {
                store.discard_install(shard, id);
            }
            loaded
        });
        // Loading a large state takes a while. The source keeps the log after the snapshot only
        // while it is asked.
        let mut loaded = std::pin::pin!(loaded);
        loop {
            match tokio::time::timeout(KEEP_EVERY, &mut loaded).await {
                Ok(loaded) => {
                    return loaded.map_err(|error| FetchError::Failed(error.to_string()));
                }
                Err(_elapsed) => drop(self.ask(Wants::Keep).await),
            }
        }
    }

    /// Runs work on the disk on a thread that may block.
    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Store>) -> T + Send + 'static,
    ) -> T {
        let shared = Arc::clone(&self.shared);
        match tokio::task::spawn_blocking(move || work(&shared.store)).await {
            Ok(done) => done,
            Err(error) => {
                // Without a panic the runtime ends. In both cases this task is over.
                if let Ok(panic) = error.try_into_panic() {
                    let failure = Failure(panic_message(panic.as_ref()));
                    self.shared.tell(Input::Report(Report::Failed(failure)));
                }
                std::future::pending().await
            }
        }
    }
}

/// A part did not fit. Either the last write of a transfer that was ended came in between, or
/// something is wrong, and all of it is fetched anew.
fn begin_again(
    store: &Store,
    shard: ShardId,
    id: SnapshotId,
    from: &Position,
) -> Result<Arrived, InstallError> {
    let arrived = store.begin_install(shard, id)?;
    if arrived.position == *from { store.restart_install(shard, id) } else { Ok(arrived) }
}

#[cfg(test)]
mod tests;
