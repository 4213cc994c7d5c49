//! Stopped: shards that this node took out of service, because their rules failed on an entry, on
//! the records of their checkpoint at a start, or while a checkpoint was made.
//!
//! Every replica that applies such an entry fails in the same way, again after each start. So the
//! failure ends that one replica, and the node serves its other shards. A failure in the control
//! group still ends the node, because a node can't work without its map.
//!
//! Invariant: a stopped replica gives no vote, answers nothing and writes nothing. Its log and its
//! checkpoint stay as they were, so that a corrected version can go on from them.

use super::{ShardLoop, panic_message};
use crate::{
    Error,
    checkpoint::{Failure, Job},
    log::group_of,
};
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
};
use taskyard_machine::ShardId;

/// The stopped replicas of this node, by shard.
#[derive(Default)]
pub(super) struct Stopped(BTreeMap<ShardId, StoppedReplica>);

/// A replica whose state could not be built from its checkpoint at the start.
pub(crate) struct Unloaded {
    pub shard: ShardId,
    pub replica: u64,
    /// The last entry in the checkpoint.
    pub checkpoint: u64,
    pub term: u64,
    /// The last entry in the log.
    pub last: u64,
    /// What the panic said.
    pub words: String,
}

struct StoppedReplica {
    replica: u64,
    /// A checkpoint of the shard was being written when it stopped, and is not reported yet.
    is_writing: bool,
}

impl Stopped {
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn replica(&self, shard: ShardId) -> Option<u64> {
        self.0.get(&shard).map(|stopped| stopped.replica)
    }

    /// Takes the stopped replicas that are to be removed and have no checkpoint being written.
    pub(super) fn take_idle(
        &mut self,
        is_doomed: impl Fn(ShardId, u64) -> bool,
    ) -> Vec<(ShardId, u64)> {
        let is_idle = |(shard, stopped): &(&ShardId, &StoppedReplica)| {
            !stopped.is_writing && is_doomed(**shard, stopped.replica)
        };
        let idle = self.0.iter().filter(is_idle);
        let idle: Vec<_> = idle.map(|(shard, stopped)| (*shard, stopped.replica)).collect();
        self.0.retain(|shard, _| !idle.iter().any(|(gone, _)| gone == shard));
        idle
    }
}

/// The panic for an entry that a newer version wrote. Every shard may have such entries, so the
/// whole node waits for that version.
struct Unreadable(String);

/// Ends the step under way, and with it the node: see [`Unreadable`].
pub(super) fn unreadable(words: String) -> ! {
    panic_any(Unreadable(words))
}

/// Runs a step of one shard; a panic becomes an error.
pub(super) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(step))
}

impl ShardLoop {
    /// Takes a shard out of service after a panic in `doing`. Callers learn that the outcome is
    /// unknown, and the other replicas elect a leader.
    pub(super) fn stop_shard(
        &mut self,
        number: usize,
        doing: &str,
        panic: &(dyn Any + Send),
    ) -> Result<(), Failure> {
        if let Some(Unreadable(words)) = panic.downcast_ref() {
            return Err(Failure(words.clone()));
        }
        let Some(shard) = self.shards.get(number) else { return Ok(()) };
        let (id, replica) = (shard.id, &shard.replica);
        let words = self.stop_words(id, doing, &panic_message(panic));
        tracing::error!(
            replica = replica.id(),
            term = replica.term(),
            entry = replica.applied(),
            entry_term = replica.applied_term(),
            committed = replica.commit(),
            last = replica.last_index(),
            checkpoint = shard.checkpoint.stored(),
            shard_time_ms = replica.machine().machine.now().0,
            tasks = replica.machine().machine.task_count(),
            "{words}; all other shards of this node go on"
        );
        let (group, replica) = (shard.group, replica.id());
        self.routes.set_stopped(group, words);
        self.end_calls(number);
        let Some(mut shard) = self.shards.remove(number) else { return Ok(()) };
        let error = self.not_leader(group);
        drop(shard.end_all(&error));
        let is_writing = self.checkpoints.abandon(&shard);
        self.stopped.0.insert(id, StoppedReplica { replica, is_writing });
        self.sessions.forget(id);
        self.memory.forget(&shard);
        self.active.retain(|other| *other != number);
        self.doomed.remove(&number);
        self.routes.set_leader(group, None);
        // Bites of it that have no checkpoint yet will never get one.
        self.order(Some(Job::Abandon(id)));
        self.order(Some(Job::Drop(shard)));
        if let Some(error) = self.stopped_alone() {
            self.checkpoints.refuse_backups(&error);
        }
        Ok(())
    }

    /// Takes a shard out of service whose load panicked.
    pub(super) fn stop_unloaded(&mut self, unloaded: Unloaded) {
        let Unloaded { shard, replica, checkpoint, term, last, words } = unloaded;
        let doing = format!("the load of its checkpoint at entry {checkpoint}");
        let words = self.stop_words(shard, &doing, &words);
        tracing::error!(
            replica,
            entry = checkpoint,
            entry_term = term,
            last,
            "{words}; all other shards of this node go on"
        );
        self.routes.set_stopped(group_of(shard), words);
        self.stopped.0.insert(shard, StoppedReplica { replica, is_writing: false });
    }

    fn stop_words(&self, shard: ShardId, doing: &str, why: &str) -> String {
        let node = self.format.node;
        format!(
            "shard {shard} is stopped on node {node}, because {doing} failed: {why}; keep the data \
             directory for a report, and start a version in which this is mended"
        )
    }

    /// Why this node can't be backed up: it has no peers, and only an old checkpoint of a stopped
    /// shard can be read. In a cluster, other nodes have copies.
    pub(super) fn stopped_alone(&self) -> Option<Error> {
        let (shard, _) = self.stopped.0.first_key_value()?;
        let words = self.routes.stopped(group_of(*shard)).filter(|_| self.routes.is_alone())?;
        Some(Error::Unavailable(format!("a backup would lack the newest data: {words}")))
    }

    /// The checkpoint of a stopped shard is written.
    pub(super) fn written_of_stopped(&mut self, shard: ShardId) {
        if let Some(stopped) = self.stopped.0.get_mut(&shard)
            && std::mem::take(&mut stopped.is_writing)
        {
            self.checkpoints.abandoned();
        }
    }

    /// Removes the stored state of stopped replicas that the map no longer places here.
    pub(super) fn remove_stopped(&mut self) -> Result<(), Failure> {
        let (map, me) = (self.routes.control(), self.format.node);
        let is_doomed = |shard: ShardId, replica: u64| {
            let group = group_of(shard);
            map.replica_on(group, me) != Some(replica) && replica < map.replica_next(group)
        };
        let doomed = self.stopped.take_idle(is_doomed);
        for &(shard, replica) in &doomed {
            tracing::info!(
                "replica {replica} of shard {shard}, which was stopped, is gone from this node"
            );
            self.batch.forget(group_of(shard), replica);
            self.gone.insert(group_of(shard), replica);
            self.routes.clear_stopped(group_of(shard));
        }
        self.removed(doomed.into_iter().map(|(shard, _)| shard).collect())
    }
}
