//! Snapshots of shards on their way to and from other nodes.

use super::{ShardLoop, local::LocalShard};
use taskyard_machine::ShardId;
use taskyard_replica::{NodeId, eraftpb::Message};

impl ShardLoop {
    pub(super) fn order_snapshot(&mut self, _number: usize, _from: NodeId, _message: Message) {}

    pub(super) fn note_snapshot(&mut self, group: u64, to: u64, is_sent: bool) {
        if group == 0
            && let Some(control) = &mut self.control
        {
            control.replica.snapshot_sent(to, is_sent);
        }
    }

    pub(super) fn look_at_snapshots(&mut self) {}

    pub(super) fn offer_snapshots(&self, _shard: &mut LocalShard) {}

    pub(super) fn remove_stored(&self, _shard: ShardId) {}

    pub(super) fn installing(&self, _shard: ShardId) -> Option<u64> {
        None
    }
}
