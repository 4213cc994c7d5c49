//! What a node does when replicas move to it and away from it.

use super::{Node, REPLICAS_PER_GENERATION};
use crate::invariants::Violation;
use taskyard_replica::{Change, Members};

impl Node {
    /// Starts a replica that will join a group; its id. One that waits to be let in is kept.
    pub(crate) fn join(&mut self, shard: u16, now: u64) -> Result<Option<u64>, Violation> {
        if !self.is_up() || self.disk.replica(shard).is_some() {
            return Ok(self.replica_id(shard));
        }
        self.generation += 1;
        let id = self.generation * REPLICAS_PER_GENERATION + self.config.id as u64 + 1;
        self.disk.assign(shard, id);
        let host = self.open(shard, now)?;
        self.process.as_mut().map(|process| process.hosts.insert(shard, host));
        Ok(Some(id))
    }

    /// A replica that its group has let go is removed with all it has.
    pub(crate) fn forget(&mut self, shard: u16) {
        self.disk.forget(shard);
        self.before_crash.remove(&shard);
        if let Some(process) = &mut self.process {
            process.hosts.remove(&shard);
            for (_, readies) in &mut process.in_flight {
                readies.retain(|(of, _)| *of != shard);
            }
        }
    }

    pub(crate) fn replica_id(&self, shard: u16) -> Option<u64> {
        self.host(shard).map(|host| host.replica.id())
    }

    pub(crate) fn members(&self, shard: u16) -> Option<Members> {
        self.host(shard).map(|host| host.replica.members())
    }

    pub(crate) fn change_members(&mut self, shard: u16, changes: &[Change]) -> bool {
        let host = self.host_mut(shard);
        host.is_some_and(|host| host.replica.propose_conf_change(changes).is_ok())
    }

    /// Whether a member lacks little, as the leader here sees it.
    pub(crate) fn has_caught_up(&self, shard: u16, member: u64) -> bool {
        let peers = self.host(shard).map(|host| host.replica.peers()).unwrap_or_default();
        peers.iter().any(|peer| peer.id == member && peer.matched > 0 && peer.lag < 20)
    }
}
