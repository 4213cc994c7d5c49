//! Snapshots: checkpoints of this node's shards, for nodes that are too far behind the log.
//!
//! Raft's message names a checkpoint and its node; the receiver fetches the parts with calls of its
//! own. They come from a view of the store, which is kept while it is used.
//!
//! Invariant: a position means the same in every view of one checkpoint, so that a transfer
//! outlives its view: raft's next message registers the checkpoint again, and the transfer
//! continues. A replica that asks again, as after a crash, is offered the same checkpoint for as
//! long as the log follows it. Newer checkpoints come all the time, and the replica would never
//! complete one.
//!
//! An offer may wait for its turn behind those of other shards, so a transfer begins with the
//! newest checkpoint at that time. From then on the log after the checkpoint is kept, within a
//! bound, because a snapshot without the log after it is useless to its receiver.

use super::{call_kind, kept::KeptCopies};
use crate::{
    checkpoint::{Cut, Part, Position, Store, View, decode_cut, encode_cut},
    clock,
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_machine::{
    DecodeError, ShardId,
    wire::{decode_from_node, encode_for_node, wire_enum, wire_struct},
};
use taskyard_replica::{NodeId, SnapshotSource, SnapshotState, eraftpb::ConfState};

/// The version of requests, replies, and the data of raft's messages.
const VERSION: u8 = 1;
/// About the size of a part. Each is written and synced as one batch, which blocks other writes.
const PART_BYTES: usize = 2 << 20;
/// A view that is not used for this long is closed, because it takes disk space.
const UNUSED_FOR_MAX: Duration = Duration::from_secs(60);
/// The most views at once. Further replicas wait until raft asks again.
const VIEWS_MAX: usize = 256;

/// The data of raft's message: where to fetch the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotOffer {
    /// The node with the snapshot.
    pub source: NodeId,
    /// The snapshot's shard.
    pub shard: ShardId,
    /// The last entry in the snapshot.
    pub index: u64,
}

wire_struct!(SnapshotOffer { source, shard, index });

impl SnapshotOffer {
    pub(super) fn encode(&self) -> Bytes {
        encode_for_node(VERSION, self).into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SnapshotOffer, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

/// A request about a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartRequest {
    pub shard: ShardId,
    pub index: u64,
    pub wants: Wants,
}

wire_struct!(PartRequest { shard, index, wants });

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// Keep the snapshot for later.
    Keep,
    /// Begin the transfer to this replica. The answer names the snapshot: the offered one or a
    /// newer one.
    Begin(u64),
    /// The part at this position.
    Part(Position),
}

wire_enum!(Wants { 1 => Keep, 2 => Begin(to), 3 => Part(position) });

impl PartRequest {
    /// The whole call, with its kind.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = vec![call_kind::SNAPSHOT];
        bytes.extend(encode_for_node(VERSION, self));
        bytes.into()
    }
}

/// The answer to a [`PartRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartReply {
    Part(Part),
    /// The snapshot is kept for a while.
    Kept,
    /// This node no longer has the snapshot.
    Gone,
    /// The snapshot or the request can't be read, for this reason.
    Failed(String),
    /// The snapshot to fetch, as written by [`encode_cut`].
    Begun(Vec<u8>),
}

wire_enum!(PartReply { 1 => Part(part), 2 => Kept, 3 => Gone, 4 => Failed(why), 5 => Begun(cut) });

impl PartReply {
    /// Decodes the snapshot of a `Begun`.
    pub(super) fn begun(bytes: &[u8]) -> Option<Cut> {
        decode_cut(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<PartReply, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

struct Offered {
    view: Arc<View>,
    cut: Cut,
    used_at: Instant,
    /// The replicas that it was offered to, and whether their transfers have begun.
    to: BTreeMap<u64, bool>,
}

impl Offered {
    /// The snapshot state that raft sends to replica `to`.
    fn offer(&mut self, me: NodeId, shard: ShardId, to: u64, now: Instant) -> SnapshotState {
        self.used_at = now;
        self.to.entry(to).or_default();
        let Cut { index, term, conf_state } = self.cut.clone();
        let data = SnapshotOffer { source: me, shard, index }.encode();
        SnapshotState { index, term, conf_state, data }
    }
}

struct State {
    /// `None` once the node ends.
    store: Option<Arc<Store>>,
    offered: BTreeMap<(ShardId, u64), Offered>,
    /// Shards that need a newer checkpoint for a peer.
    wanted: std::collections::BTreeSet<ShardId>,
    /// Offers that were not fetched to their end: shard and replica.
    unused: Vec<(ShardId, u64)>,
}

impl State {
    /// The newest snapshot that the replica was offered before, unless the log now begins after it.
    fn begun(&mut self, shard: ShardId, index_min: u64, to: u64) -> Option<&mut Offered> {
        let offered = self.offered.range_mut((shard, index_min)..=(shard, u64::MAX));
        offered.rev().map(|(_, offered)| offered).find(|offered| offered.to.contains_key(&to))
    }

    fn close_unused(&mut self, now: Instant) {
        self.offered.retain(|(shard, _), offered| {
            let is_used = now.saturating_duration_since(offered.used_at) < UNUSED_FOR_MAX;
            if !is_used {
                self.unused.extend(offered.to.keys().map(|to| (*shard, *to)));
            }
            is_used
        });
    }
}

/// The snapshots that this node offers. The shard loop offers them through raft, and the network
/// serves their parts.
pub(crate) struct Snapshots {
    me: NodeId,
    state: Mutex<State>,
    /// Copies of all shards, for backups.
    pub(super) kept: KeptCopies,
    /// Bytes of all parts that other nodes have fetched.
    bytes_sent: AtomicU64,
}

impl Snapshots {
    pub(crate) fn new(me: NodeId, store: &Arc<Store>) -> Arc<Snapshots> {
        let state = State {
            store: Some(Arc::clone(store)),
            offered: BTreeMap::new(),
            wanted: Default::default(),
            unused: Vec::new(),
        };
        Arc::new(Snapshots {
            me,
            state: Mutex::new(state),
            kept: KeptCopies::new(),
            bytes_sent: AtomicU64::new(0),
        })
    }

    /// Bytes of snapshots that other nodes have fetched.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    /// Drops the store, because the node ends.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.store = None;
        state.offered.clear();
        self.kept.close();
    }

    /// The source from which a replica of `shard` offers snapshots.
    pub(crate) fn source(self: &Arc<Snapshots>, shard: ShardId) -> Box<dyn SnapshotSource> {
        Box::new(ShardSnapshots { snapshots: Arc::clone(self), shard })
    }

    /// Takes the shards that need a checkpoint, because the last one does not help a peer. Called
    /// each tick.
    pub(crate) fn take_wanted(&self) -> std::collections::BTreeSet<ShardId> {
        std::mem::take(&mut self.lock().wanted)
    }

    /// Closes unused views. Returns the replicas that they were offered to, so that the leader
    /// tells raft to ask for their positions again. Called each tick.
    pub(crate) fn take_unused(&self, now: Instant) -> Vec<(ShardId, u64)> {
        self.kept.close_unused(now);
        let mut state = self.lock();
        state.close_unused(now);
        std::mem::take(&mut state.unused)
    }

    /// The oldest snapshot of a shard that is being fetched, because the log after it is needed.
    pub(crate) fn pinned(&self, shard: ShardId) -> Option<u64> {
        let state = self.lock();
        let mut offered = state.offered.range((shard, 0)..=(shard, u64::MAX));
        let is_fetched = |offered: &Offered| offered.to.values().any(|has_begun| *has_begun);
        offered.find(|(_, offered)| is_fetched(offered)).map(|((_, index), _)| *index)
    }

    /// Drops the older snapshots of a shard whose log now begins after `index`, because they are
    /// useless.
    pub(crate) fn overtaken(&self, shard: ShardId, index: u64) {
        let mut state = self.lock();
        let State { offered, unused, .. } = &mut *state;
        offered.retain(|(of, at), old| {
            let is_older = *of == shard && *at < index;
            if is_older {
                unused.extend(old.to.keys().map(|to| (shard, *to)));
            }
            !is_older
        });
    }

    /// Answers a call of the kind `SNAPSHOT`; `request` is the rest of the call.
    pub(crate) async fn serve(self: Arc<Snapshots>, request: Bytes) -> Bytes {
        // Reads the disk, and so not on a thread of the network.
        let served = tokio::task::spawn_blocking(move || {
            let reply = match decode_from_node(VERSION, &request) {
                Ok(request) => self.reply(&request),
                Err(error) => PartReply::Failed(error.what),
            };
            encode_for_node(VERSION, &reply)
        });
        let failed = |_| encode_for_node(VERSION, &PartReply::Failed("it ended early".into()));
        served.await.unwrap_or_else(failed).into()
    }

    fn reply(&self, PartRequest { shard, index, wants }: &PartRequest) -> PartReply {
        let Some(view) = self.used(*shard, *index) else { return PartReply::Gone };
        let from = match wants {
            Wants::Keep => return PartReply::Kept,
            Wants::Begin(to) => {
                let begun = self.begin(*shard, *index, *to);
                return begun.map_or(PartReply::Gone, |cut| PartReply::Begun(encode_cut(&cut)));
            }
            Wants::Part(from) => from,
        };
        match view.part(*shard, from, PART_BYTES) {
            Ok(part) => {
                self.bytes_sent.fetch_add(part.records.len() as u64, Ordering::Relaxed);
                PartReply::Part(part)
            }
            Err(error) => PartReply::Failed(error.to_string()),
        }
    }

    /// Begins a transfer with the newest checkpoint, or with the offered one if a part of it was
    /// fetched.
    pub(crate) fn begin(&self, shard: ShardId, index: u64, to: u64) -> Option<Cut> {
        let view = self.lock().store.as_ref()?.view();
        let newest = view.cut(shard).ok().flatten();
        let newest = newest.filter(|cut| cut.index > index && knows(&cut.conf_state, to));
        let now = clock::real_now();
        let mut state = self.lock();
        let offered = state.offered.get_mut(&(shard, index))?;
        let has_begun = offered.to.get(&to).copied().unwrap_or_default();
        let Some(cut) = newest.filter(|_| !has_begun) else {
            offered.to.insert(to, true);
            return Some(offered.cut.clone());
        };
        offered.to.remove(&to);
        if offered.to.is_empty() {
            state.offered.remove(&(shard, index));
        }
        let (key, view) = ((shard, cut.index), Arc::new(view));
        let newer = state.offered.entry(key).or_insert_with(|| Offered {
            view,
            cut,
            used_at: now,
            to: BTreeMap::new(),
        });
        newer.used_at = now;
        newer.to.insert(to, true);
        Some(newer.cut.clone())
    }

    fn used(&self, shard: ShardId, index: u64) -> Option<Arc<View>> {
        let mut state = self.lock();
        let offered = state.offered.get_mut(&(shard, index))?;
        offered.used_at = clock::real_now();
        Some(Arc::clone(&offered.view))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offer(&self, shard: ShardId, index_min: u64, to: u64) -> Option<SnapshotState> {
        let view = self.lock().store.as_ref()?.view();
        // An unreadable store stops the node at the next write; until then no snapshot is offered.
        let cut = view.cut(shard).ok().flatten();
        let fitting = cut.filter(|cut| cut.index >= index_min && knows(&cut.conf_state, to));
        let now = clock::real_now();
        let mut state = self.lock();
        state.close_unused(now);
        if let Some(begun) = state.begun(shard, index_min, to) {
            return Some(begun.offer(self.me, shard, to, now));
        }
        let Some(cut) = fitting else {
            state.wanted.insert(shard);
            return None;
        };
        let is_full = state.offered.len() >= VIEWS_MAX;
        let key = (shard, cut.index);
        if is_full && !state.offered.contains_key(&key) {
            return None;
        }
        let view = Arc::new(view);
        let offered = state.offered.entry(key);
        let offered =
            offered.or_insert_with(|| Offered { view, cut, used_at: now, to: BTreeMap::new() });
        Some(offered.offer(self.me, shard, to, now))
    }
}

fn knows(conf_state: &ConfState, replica: u64) -> bool {
    let members = [&conf_state.voters, &conf_state.learners, &conf_state.voters_outgoing];
    members.iter().any(|ids| ids.contains(&replica))
}

struct ShardSnapshots {
    snapshots: Arc<Snapshots>,
    shard: ShardId,
}

impl SnapshotSource for ShardSnapshots {
    fn snapshot(&self, index_min: u64, to: u64) -> Option<SnapshotState> {
        self.snapshots.offer(self.shard, index_min, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints are made at least every minute, and a large snapshot takes longer to fetch.
    #[test]
    fn a_replica_that_asks_again_is_offered_the_same_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let snapshots = Snapshots::new(9, &store);
        let shard = ShardId(2);
        let source = snapshots.source(shard);
        let write = |index| {
            let conf_state = ConfState { voters: vec![1, 2], ..ConfState::default() };
            store.write(shard, &Cut { index, term: 2, conf_state }, Vec::new()).unwrap();
        };
        let offered = |index_min, to| source.snapshot(index_min, to).map(|state| state.index);
        write(40);
        assert_eq!(offered(10, 1), Some(40));
        write(50);
        assert_eq!(offered(10, 1), Some(40), "it may have come far with it");
        assert_eq!(offered(40, 1), Some(40));
        assert_eq!(offered(10, 2), Some(50), "another one begins with the newest");
        assert_eq!(offered(41, 1), Some(50), "the log has left the other behind");
        assert_eq!(offered(10, 1), Some(50), "so that it has begun this one");
        write(60);
        snapshots.take_unused(clock::real_now() + UNUSED_FOR_MAX);
        assert_eq!(offered(10, 1), Some(60));
    }

    /// While an offer waits behind other shards, the log may leave it behind.
    #[test]
    fn a_transfer_begins_with_the_newest_checkpoint_and_keeps_the_log_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let snapshots = Snapshots::new(9, &store);
        let (shard, source) = (ShardId(2), snapshots.source(ShardId(2)));
        let write = |index| {
            let conf_state = ConfState { voters: vec![1, 2], ..ConfState::default() };
            store.write(shard, &Cut { index, term: 2, conf_state }, Vec::new()).unwrap();
        };
        let begin = |index, to| {
            let wants = Wants::Begin(to);
            match snapshots.reply(&PartRequest { shard, index, wants }) {
                PartReply::Begun(cut) => PartReply::begun(&cut).map(|cut| cut.index),
                PartReply::Gone => None,
                other => panic!("{other:?}"),
            }
        };
        write(40);
        for to in [1, 2] {
            assert_eq!(source.snapshot(10, to).map(|state| state.index), Some(40));
        }
        assert_eq!(snapshots.pinned(shard), None, "nobody fetches it yet");
        write(50);
        assert_eq!(begin(40, 1), Some(50));
        assert_eq!(snapshots.pinned(shard), Some(50));
        write(60);
        assert_eq!(begin(50, 1), Some(50), "some of it is there");
        let offered = source.snapshot(10, 1).map(|state| state.index);
        assert_eq!(offered, Some(50), "raft asks again, as after a crash");
        assert_eq!(begin(40, 2), Some(60));
        assert_eq!(begin(40, 2), None, "nobody is offered that any more");
        assert_eq!(snapshots.pinned(shard), Some(50), "the older of the two");

        // The log could not be kept for so long.
        snapshots.overtaken(shard, 55);
        assert_eq!(snapshots.pinned(shard), Some(60));
        assert_eq!(snapshots.take_unused(clock::real_now()), [(shard, 1)]);
        assert_eq!(begin(50, 1), None);
        snapshots.take_unused(clock::real_now() + UNUSED_FOR_MAX);
        assert_eq!(snapshots.pinned(shard), None, "nobody has fetched anything in a long time");
    }

    #[test]
    fn a_checkpoint_that_does_not_help_is_asked_for_anew_and_a_view_ends_when_unused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let snapshots = Snapshots::new(9, &store);
        let (shard, other) = (ShardId(2), ShardId(3));
        let source = snapshots.source(shard);
        assert!(source.snapshot(0, 1).is_none(), "there is none");
        assert_eq!(snapshots.take_wanted(), [shard].into());
        let conf_state =
            ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() };
        let cut = Cut { index: 40, term: 2, conf_state };
        store.write(shard, &cut, Vec::new()).unwrap();
        for (index_min, to, fits) in
            [(41, 1, false), (0, 4, false), (40, 1, true), (0, 2, true), (40, 3, true)]
        {
            let offered = source.snapshot(index_min, to);
            assert_eq!(offered.is_some(), fits, "from {index_min} for {to}");
            let wanted = snapshots.take_wanted();
            assert_eq!(wanted.contains(&shard), !fits);
            if let Some(state) = offered {
                assert_eq!((state.index, state.term), (40, 2));
                let offer = SnapshotOffer::decode(&state.data).unwrap();
                assert_eq!(offer, SnapshotOffer { source: 9, shard, index: 40 });
            }
        }
        let ask = |shard, index, wants| snapshots.reply(&PartRequest { shard, index, wants });
        assert_eq!(ask(shard, 41, Wants::Keep), PartReply::Gone);
        assert_eq!(ask(other, 40, Wants::Keep), PartReply::Gone);
        assert_eq!(ask(shard, 40, Wants::Keep), PartReply::Kept);
        let PartReply::Part(part) = ask(shard, 40, Wants::Part(Position::default())) else {
            panic!("there is a part")
        };
        assert!(part.next.is_end(), "of nothing");
        let now = clock::real_now();
        assert_eq!(snapshots.take_unused(now), []);
        assert_eq!(
            snapshots.take_unused(now + UNUSED_FOR_MAX),
            [(shard, 1), (shard, 2), (shard, 3)]
        );
        assert_eq!(ask(shard, 40, Wants::Keep), PartReply::Gone);
        assert!(source.snapshot(0, 1).is_some());
        snapshots.close();
        assert!(source.snapshot(0, 1).is_none());
        assert_eq!(Arc::strong_count(&store), 1, "nothing holds the store");
    }
}
