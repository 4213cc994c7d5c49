//! When a shard is checkpointed, and how long its log is kept, by what was written to the node's log.

use super::*;
use crate::{checkpoint::Report, limits::LOG_KEPT_BYTES_MAX};

impl ByHand {
    /// Enqueues a task, which the first peer has and so is committed.
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

    /// One look at what is due, once so much log was written.
    fn step(&mut self, log: u64) {
        let at = At { now: self.inner.reading.monotonic, log };
        let ShardLoop { checkpoints, shards, checkpointer, .. } = &mut self.inner;
        checkpoints.step(shards, checkpointer, at);
    }

    /// The report that the checkpoint which has begun is synced.
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

/// raft-engine asks again with each purge, also while the checkpoint that it has asked for is made.
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

#[test]
fn the_log_is_kept_for_a_replica_that_is_down_until_all_shards_have_written_so_much() {
    let mut node = ByHand::new();
    node.enqueue();
    let first = node.replica().first_index();
    let due = LOG_KEPT_BYTES_MAX / 2;
    node.step(due);
    assert!(!node.checkpoint().is_idle(), "it is due by what the log has grown");
    let written = node.until_written(due);
    let stored = node.replica().applied();
    node.take(written);
    node.enqueue();
    node.step(LOG_KEPT_BYTES_MAX - 1);
    assert_eq!(node.replica().first_index(), first, "the second peer may come back");
    node.step(2 * LOG_KEPT_BYTES_MAX);
    assert_eq!(node.replica().first_index(), stored + 1);
}
