//! Snapshots of shards: offers them to members behind the log, orders those that a leader offers,
//! and takes fetched ones. Their parts never pass the loop.

use super::{Checkpoints, ShardLoop, local::LocalShard};
use crate::{
    checkpoint::{Job, SnapshotId},
    cluster::Fetched,
};
use taskyard_machine::ShardId;
use taskyard_replica::{CONTROL_GROUP, NodeId, eraftpb::Message};

impl ShardLoop {
    /// Lets members behind the log fetch checkpoints of this shard.
    pub(super) fn offer_snapshots(&self, shard: &mut LocalShard) {
        shard.replica.set_snapshot_source(self.snapshots.source(shard.id));
    }

    /// Orders the snapshot that a leader offers. Raft sees the message once the snapshot is
    /// complete.
    pub(super) fn order_snapshot(&mut self, number: usize, message: Message) {
        match self.shards[number].offered(message) {
            Some(order) => self.fetcher.fetch(order),
            None => self.activate(number),
        }
    }

    /// Takes a snapshot that is complete in the store.
    pub(super) fn accept_fetched(&mut self, fetched: Box<Fetched>) {
        let (shard, id) = (fetched.order.shard, fetched.order.id());
        let number = usize::from(shard.0);
        self.fetcher.taken(shard, id);
        match self.shards.get_mut(number) {
            Some(local) if local.replica.id() == fetched.order.message.to => {
                let job = local.fetched(fetched);
                self.order(job);
                self.activate(number);
            }
            _ => {
                self.order(Some(Job::Discard(shard, id)));
                self.order(Some(Job::Drop(fetched)));
            }
        }
    }

    /// The store has switched to a snapshot, or no longer had it.
    pub(super) fn accept_switched(&mut self, shard: ShardId, id: SnapshotId, is_switched: bool) {
        self.checkpoints.done();
        let number = usize::from(shard.0);
        if let Some(local) = self.shards.get_mut(number) {
            let job = local.switched(id, is_switched);
            self.order(job);
            self.activate(number);
        }
    }

    /// Hands a job to the thread that writes checkpoints.
    pub(super) fn order(&mut self, job: Option<Job>) {
        let Some(job) = job else { return };
        if matches!(job, Job::Switch(..) | Job::Remove(_)) {
            self.checkpoints.ordered();
        }
        self.checkpointer.job(job);
    }

    /// Tells raft whether a snapshot's message was sent. A shard's message is only an offer: its
    /// result is known once the member answers, or has asked for no part in a long time.
    pub(super) fn note_snapshot(&mut self, group: u64, to: u64, is_sent: bool) {
        if group == CONTROL_GROUP {
            if let Some(control) = &mut self.control {
                control.replica.snapshot_sent(to, is_sent);
            }
        } else if !is_sent {
            let number = usize::try_from(group - 1).unwrap_or(usize::MAX);
            if let Some(shard) = self.shards.get_mut(number) {
                shard.replica.snapshot_sent(to, false);
            }
        }
    }

    /// Takes checkpoints for members that need one, and offers again what no member has fetched.
    pub(super) fn look_at_snapshots(&mut self) {
        for shard in self.snapshots.take_wanted() {
            if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
                Checkpoints::want(shard);
            }
        }
        for number in self.shards.numbers() {
            if self.shards[number].has_switched() {
                self.shards[number].take_switched();
                self.activate(number);
            }
        }
        for (shard, to) in self.snapshots.take_unused(self.real) {
            if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
                // Raft asks the member for its position before it offers the snapshot again.
                shard.replica.snapshot_sent(to, true);
            }
        }
    }

    /// A peer is reachable again: raft asks for its position, because the last offer may be lost.
    pub(super) fn peer_up(&mut self, node: NodeId) {
        let map = self.routes.control();
        for shard in self.shards.iter_mut().filter(|shard| shard.leading.is_some()) {
            if let Some(replica) = map.replica_on(shard.group, node) {
                shard.replica.snapshot_sent(replica, true);
            }
        }
    }

    /// Removes the stored state of a shard that has no replica here and none in the log.
    pub(super) fn remove_stored(&mut self, shard: ShardId) {
        self.fetcher.forget(shard);
        self.order(Some(Job::Remove(shard)));
    }

    /// Bytes fetched so far of a snapshot that is under way.
    pub(super) fn installing(&self, shard: ShardId) -> Option<u64> {
        self.fetcher.installing(shard)
    }
}
