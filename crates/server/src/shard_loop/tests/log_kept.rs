//! When a shard is checkpointed, and for how long its log is kept, as the node's log grows.

use super::*;
use crate::{
    checkpoint::Report,
    limits::{LOG_KEPT_BYTES_MAX, LOG_PINNED_BYTES_MAX},
};

impl ByHand {
    /// Enqueues a task, which the first peer acknowledges and which is so committed.
    fn enqueue(&mut self) {
        let shards = self.shards.clone();
        let mut call = async move { shards.local().propose(SHARD, enqueue(), true).await }.boxed();
        assert!((&mut call).now_or_never().is_none());
        self.turn();
        self.has_all(PEERS[0]);
        assert!(call.now_or_never().expect("it is committed").is_ok());
    }

    fn checkpoint(&self) -> &checkpoints::Checkpoint {
        &self.inner.shards[0].checkpoint
    }

    /// Lets checkpoints take a step, once the log has reached position `log`.
    fn step(&mut self, log: u64) {
        let at = At { now: self.inner.reading.monotonic, log };
        let ShardLoop { checkpoints, shards, checkpointer, snapshots, .. } = &mut self.inner;
        checkpoints.step(shards, checkpointer, snapshots, at).unwrap();
    }

    /// Waits for the report that the begun checkpoint is synced.
    fn until_written(&mut self, log: u64) -> Input {
        let mut inputs = Taken::default();
        let deadline = clock::real_now() + WAIT;
        loop {
            assert!(clock::real_now() < deadline, "it is written");
            self.step(log);
            let pause = Some(Duration::from_millis(5));
            self.inner.inbox.take(&mut inputs, pause, TURN_LOG_BYTES_MAX);
            if let Some(input) = inputs.next() {
                return input;
            }
        }
    }
}

/// raft-engine asks again at each purge, also while the checkpoint is being made.
#[test]
fn a_checkpoint_under_way_is_not_asked_for_again_and_a_purge_waits_for_its_cut() {
    let mut node = ByHand::new();
    node.enqueue();
    let holding = || Input::Report(Report::Holding(vec![GROUP]));
    node.inner.accept(holding()).unwrap();
    assert!(node.checkpoint().is_wanted());
    node.step(0);
    assert!(!node.checkpoint().is_idle() && !node.checkpoint().is_wanted());
    node.inner.accept(holding()).unwrap();
    let written = node.until_written(0);
    node.inner.accept(holding()).unwrap();
    node.inner.accept(written).unwrap();
    assert!(node.checkpoint().is_idle() && !node.checkpoint().is_wanted(), "it has just been made");
    assert!(node.inner.is_untidy, "its cut is not in the log yet");
    node.turn();
    assert!(!node.inner.is_untidy);
}

/// A leader whose first checkpoint was made at log position `log`, and one entry after it. Also the
/// log's first index, and the checkpoint's.
fn checkpointed(log: u64) -> (ByHand, u64, u64) {
    let mut node = ByHand::new();
    node.has_room();
    node.enqueue();
    let first = node.replica().first_index();
    node.checkpoints(log);
    let stored = node.replica().applied();
    node.enqueue();
    (node, first, stored)
}

impl ByHand {
    fn has_room(&mut self) {
        self.inner.look_at_disk();
    }

    /// Makes the checkpoint that is due because the log has grown.
    fn checkpoints(&mut self, log: u64) {
        self.step(log);
        assert!(!self.checkpoint().is_idle(), "it is due");
        let written = self.until_written(log);
        self.take(written);
    }

    /// One peer is silent for long, and the other answers.
    fn loses(&mut self, silent: u64) {
        let other = 5 - silent;
        for _ in 0..4 {
            (0..8).for_each(|_| self.replica().tick());
            let term = self.replica().term();
            self.hear(other, MessageType::MsgHeartbeatResponse, term, |_| ());
        }
        assert!(self.leads());
        let peers = self.replica().peers();
        assert!(peers.iter().all(|peer| peer.active == (peer.id != silent)), "{peers:?}");
    }
}

#[test]
fn the_log_is_kept_for_a_replica_that_is_down_up_to_a_bound() {
    let (mut node, first, stored) = checkpointed(LOG_KEPT_BYTES_MAX / 2);
    node.loses(PEERS[1]);
    node.step(LOG_KEPT_BYTES_MAX - 1);
    assert_eq!(node.replica().first_index(), first, "it may come back");
    node.step(2 * LOG_KEPT_BYTES_MAX);
    assert_eq!(node.replica().first_index(), stored + 1);
}

/// Under load, such a replica was left behind again and again, and had to fetch a snapshot each
/// time.
#[test]
fn the_log_is_kept_for_longer_for_a_replica_that_gets_on_while_there_is_room() {
    let (mut node, _, stored) = checkpointed(LOG_KEPT_BYTES_MAX / 2);
    let peers = node.replica().peers().into_iter();
    let matched = peers.filter(|peer| peer.id == PEERS[1]).map(|peer| peer.matched).sum::<u64>();
    assert!(matched < stored);
    node.step(2 * LOG_KEPT_BYTES_MAX);
    assert_eq!(node.replica().first_index(), matched + 1, "the second peer follows, if late");
    node.step(LOG_PINNED_BYTES_MAX - 1);
    assert_eq!(node.replica().first_index(), matched + 1);
    node.step(LOG_PINNED_BYTES_MAX + (1 << 20));
    assert_eq!(node.replica().first_index(), stored + 1);
}

#[test]
fn the_log_after_a_snapshot_that_is_fetched_is_kept_within_its_bound() {
    let (mut node, _, stored) = checkpointed(LOG_KEPT_BYTES_MAX / 2);
    node.loses(PEERS[1]);
    node.step(2 * LOG_KEPT_BYTES_MAX);
    assert_eq!(node.replica().first_index(), stored + 1);
    // The peer comes back, and fetches the checkpoint.
    let snapshots = Arc::clone(&node.inner.snapshots);
    let offered = snapshots.source(SHARD).snapshot(stored, PEERS[1]).expect("it is new enough");
    assert_eq!(offered.index, stored);
    assert_eq!(snapshots.begin(SHARD, stored, PEERS[1]).map(|cut| cut.index), Some(stored));

    node.checkpoints(3 * LOG_KEPT_BYTES_MAX);
    let newer = node.replica().applied();
    assert!(newer > stored);
    node.step(4 * LOG_KEPT_BYTES_MAX);
    assert_eq!(node.replica().first_index(), stored + 1, "the snapshot would be of no use");
    assert_eq!(snapshots.pinned(SHARD), Some(stored));
    node.step(LOG_KEPT_BYTES_MAX / 2 + LOG_PINNED_BYTES_MAX);
    assert_eq!(node.replica().first_index(), newer + 1);
    assert_eq!(snapshots.pinned(SHARD), None, "it begins anew");
}
