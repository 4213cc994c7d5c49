//! Routes: the leader of each group, and the control state, as far as this node knows.
//!
//! The shard loop records the leaders of groups with a replica on this node, and the router records
//! what other nodes report about the others. Both may be outdated: a node that is asked and does
//! not lead says so.

use super::Gate;
use crate::clock::real_now;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Instant,
};
use taskyard_machine::ShardId;
use taskyard_replica::{CONTROL_GROUP, Control, NodeId, Spread};
use tokio::sync::watch;

/// The known leaders and places. The loop and all routing code share them.
#[derive(Debug)]
pub(crate) struct Routes {
    me: NodeId,
    /// The node that leads each group, 0 if unknown.
    leaders: Box<[AtomicU64]>,
    /// When each group's leader last changed.
    changed_at: Mutex<BTreeMap<u64, Instant>>,
    /// The number of leaders that have come so far.
    leaders_found: AtomicU64,
    /// Whether this node stops, and must not lead any more.
    stopping: AtomicBool,
    /// Whether this node is low on disk, so that others should lead.
    disk_low: AtomicBool,
    /// Whether this node's messages reach others too slowly, so that others should lead.
    slow: AtomicBool,
    /// Whether this node takes part, as a `Gate`.
    gate: AtomicU8,
    /// Whether the map is as new as this node's log.
    replayed: AtomicBool,
    /// Why this node does not take part yet.
    kept_out: RwLock<Option<String>>,
    /// By group: why this node's replica was stopped.
    stopped: RwLock<BTreeMap<u64, String>>,
    control: RwLock<Arc<Control>>,
    /// Whether this node is the only one in the control state.
    is_alone: AtomicBool,
    /// Whether the control state has queues that are spread.
    has_spreads: AtomicBool,
    /// Counts all changes.
    changed: watch::Sender<u64>,
}

impl Routes {
    pub(crate) fn new(me: NodeId, shards: u16) -> Routes {
        Routes {
            me,
            leaders: (0..=shards).map(|_| AtomicU64::new(0)).collect(),
            changed_at: Mutex::default(),
            leaders_found: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            disk_low: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            gate: AtomicU8::new(Gate::Open as u8),
            replayed: AtomicBool::new(false),
            kept_out: RwLock::default(),
            stopped: RwLock::default(),
            control: RwLock::default(),
            is_alone: AtomicBool::new(false),
            has_spreads: AtomicBool::new(false),
            changed: watch::Sender::new(0),
        }
    }

    pub(crate) fn me(&self) -> NodeId {
        self.me
    }

    /// The node that leads a shard, as far as is known.
    pub(crate) fn leader(&self, shard: ShardId) -> Option<NodeId> {
        self.leader_of(u64::from(shard.0) + 1)
    }

    /// The node that leads the control group, as far as is known.
    pub(crate) fn control_leader(&self) -> Option<NodeId> {
        self.leader_of(CONTROL_GROUP)
    }

    /// The node that leads a group, as far as is known.
    pub(crate) fn leader_of(&self, group: u64) -> Option<NodeId> {
        let leader = self.leaders.get(usize::try_from(group).ok()?)?;
        Some(leader.load(Ordering::Acquire)).filter(|node| *node != 0)
    }

    /// Records the leader of a group, or that it is unknown.
    pub(crate) fn set_leader(&self, group: u64, node: Option<NodeId>) {
        let slot = usize::try_from(group).ok().and_then(|group| self.leaders.get(group));
        let node = node.unwrap_or(0);
        if slot.is_some_and(|slot| slot.swap(node, Ordering::AcqRel) != node) {
            self.changes_of_leaders().insert(group, real_now());
            self.leaders_found.fetch_add(u64::from(node != 0), Ordering::Relaxed);
            self.notify();
        }
    }

    /// The number of times that any group got a leader since this node started.
    pub(crate) fn leader_changes(&self) -> u64 {
        self.leaders_found.load(Ordering::Relaxed)
    }

    /// When the leader of a group last changed; `None` if it was never known.
    pub(crate) fn changed_at(&self, group: u64) -> Option<Instant> {
        self.changes_of_leaders().get(&group).copied()
    }

    /// When a group lost its leader, while it has none.
    pub(crate) fn without_leader_since(&self, group: u64) -> Option<Instant> {
        self.changed_at(group).filter(|_| self.leader_of(group).is_none())
    }

    fn changes_of_leaders(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.changed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks this node as stopping, so that it must not lead any more.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Records whether this node is low on disk.
    pub(crate) fn set_disk_low(&self, is_low: bool) {
        self.disk_low.store(is_low, Ordering::Release);
    }

    pub(crate) fn is_disk_low(&self) -> bool {
        self.disk_low.load(Ordering::Acquire)
    }

    /// Records whether this node's messages reach others too slowly.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.slow.store(is_slow, Ordering::Release);
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Acquire)
    }

    /// What is wrong with this node, for people.
    pub(crate) fn problem(&self) -> Option<String> {
        let stopped = self.stopped.read().unwrap_or_else(PoisonError::into_inner);
        let slow =
            "what this node sends reaches the other nodes too slowly: they lead in its place";
        let slow = || self.is_slow().then(|| slow.to_owned());
        stopped.values().next().cloned().or_else(|| self.kept_out()).or_else(slow)
    }

    pub(crate) fn set_gate(&self, gate: Gate) {
        self.gate.store(gate as u8, Ordering::Release);
    }

    pub(crate) fn gate(&self) -> Gate {
        match self.gate.load(Ordering::Acquire) {
            gate if gate == Gate::Hears as u8 => Gate::Hears,
            gate if gate == Gate::Copied as u8 => Gate::Copied,
            _ => Gate::Open,
        }
    }

    /// Records that the map has all that is committed in this node's log.
    pub(crate) fn set_replayed(&self) {
        self.replayed.store(true, Ordering::Release);
    }

    pub(crate) fn has_replayed(&self) -> bool {
        self.replayed.load(Ordering::Acquire)
    }

    /// Sets why this node does not take part yet.
    pub(crate) fn set_kept_out(&self, words: Option<String>) {
        *self.kept_out.write().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// Why this node does not take part, once the wait takes long.
    pub(crate) fn kept_out(&self) -> Option<String> {
        self.kept_out.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records why this node's replica of a group was stopped; the replica no longer hears of a
    /// leader.
    pub(crate) fn set_stopped(&self, group: u64, words: String) {
        self.stopped.write().unwrap_or_else(PoisonError::into_inner).insert(group, words);
        self.notify();
    }

    /// The stopped replica was removed.
    pub(crate) fn clear_stopped(&self, group: u64) {
        self.stopped.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    /// Why this node's replica of a group was stopped; `None` if it runs.
    pub(crate) fn stopped(&self, group: u64) -> Option<String> {
        self.stopped.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Whether this node has a running replica of a group, which hears of its leader as soon as
    /// others.
    pub(crate) fn has_replica(&self, group: u64) -> bool {
        let is_stopped =
            || self.stopped.read().unwrap_or_else(PoisonError::into_inner).contains_key(&group);
        let hears = self.gate() != Gate::Copied;
        hears && self.control().replica_on(group, self.me).is_some() && !is_stopped()
    }

    /// The control state as this node has applied it; not founded in a node that has just joined.
    pub(crate) fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a newer control state.
    pub(crate) fn set_control(&self, control: Arc<Control>) {
        let is_alone = control.nodes().keys().eq([&self.me]);
        self.is_alone.store(is_alone, Ordering::Release);
        let has_spreads = control.spread_queues() > 0;
        *self.control.write().unwrap_or_else(PoisonError::into_inner) = control;
        self.has_spreads.store(has_spreads, Ordering::Release);
        self.notify();
    }

    /// The spread of a queue; `None` if the queue is on its home shard alone. Cheap while no queue
    /// is spread.
    pub(crate) fn spread(&self, queue: &str) -> Option<Spread> {
        match self.has_spreads.load(Ordering::Acquire) {
            true => self.control().spread(queue).cloned(),
            false => None,
        }
    }

    /// Whether this node is the whole cluster; false before the control state is known.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Acquire)
    }

    /// Signals that a peer is heard again or no longer, so that waiting calls look for a leader
    /// again.
    pub(crate) fn note_hearing(&self) {
        self.notify();
    }

    /// Signals that the count of this node's start was raised, so that it is announced.
    pub(crate) fn note_start(&self) {
        self.notify();
    }

    /// Signals every change of a leader, of the control state, or of the peers that are heard.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}
