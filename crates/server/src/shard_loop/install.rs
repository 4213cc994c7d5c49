//! Install: a replica takes a fetched snapshot in place of its state and its log.
//!
//! The order matters: the store switches first, then raft gets the snapshot's message, then the log
//! is reset, and only then may raft rely on either. Another thread does the switch, because it
//! waits for the disk; the replica serves on meanwhile. While a checkpoint of the old state is
//! being made, the switch is not even ordered, because both write the shard's cut. From the order
//! on, the log takes no entry: after a crash, a mark in the store tells recovery that the log is
//! void. Votes may be given meanwhile, and recovery keeps them.
//!
//! Invariant: raft takes what the store has switched to. When the switch was ordered, the snapshot
//! was ahead of the commit index and the log did not contain it. Without new entries both stay
//! true, and the replica can't become leader.

use super::local::{LocalShard, State};
use crate::{
    checkpoint::{Job, SnapshotId},
    cluster::{Fetched, SnapshotOrder},
    log::Batch,
};
use taskyard_replica::{
    Ready, Replica, Role,
    eraftpb::{Message, MessageType},
};

/// A fetched snapshot, by how far its installation is.
pub(crate) enum Install {
    /// Waits for the checkpoint under way.
    Waits(Box<Fetched>),
    /// The store was told to switch to it.
    Switches(Box<Fetched>),
    /// The store has switched to it. Raft takes it once raft knows a leader.
    Switched(Box<Fetched>),
    /// Raft has taken it, and installs it with its next ready.
    Taken(Box<Fetched>),
}

impl LocalShard {
    /// Steps a peer's message, unless it would append to a log that a snapshot makes void.
    pub(crate) fn hear(&mut self, message: Message) {
        if self.voids_log() && message.get_msg_type() == MessageType::MsgAppend {
            return;
        }
        self.replica.step(message);
    }

    /// Whether a snapshot makes the log void.
    fn voids_log(&self) -> bool {
        matches!(self.install, Some(Install::Switches(_) | Install::Switched(_)))
    }

    /// Whether a message adds entries to the log. Entries that are there already, come from an
    /// earlier leader, or would be void, add nothing.
    pub(crate) fn adds(&self, message: &Message) -> bool {
        let is_new = message.entries.last().is_some_and(|last| {
            last.index > self.replica.last_index() && message.term >= self.replica.term()
        });
        is_new && !self.voids_log()
    }

    /// Steps a message of the kind `MsgSnapshot`. Returns the snapshot to fetch before raft may see
    /// the message.
    ///
    /// Returns `None` if raft does not need it: raft then tells the leader its position. Also if
    /// another one is being installed: the leader offers one again later.
    pub(crate) fn offered(&mut self, message: Message) -> Option<SnapshotOrder> {
        if self.install.is_some() {
            return None;
        }
        let metadata = message.get_snapshot().get_metadata();
        if !self.replica.wants_snapshot(metadata.index, metadata.term) {
            self.replica.step(message);
            return None;
        }
        let shard = self.id;
        let unread =
            |why| tracing::warn!("the offered snapshot of shard {shard} can't be used: {why}");
        SnapshotOrder::read(shard, message).map_err(unread).ok()
    }

    /// Handles a snapshot that is complete in the store, unless another one is being installed.
    /// Returns the job for the store's thread.
    pub(crate) fn fetched(&mut self, fetched: Box<Fetched>) -> Option<Job> {
        if self.install.is_some() {
            return Some(Job::Drop(fetched));
        }
        self.checkpoint.block();
        self.install = Some(Install::Waits(fetched));
        self.order_switch()
    }

    /// Orders the store to switch to the fetched snapshot, unless a checkpoint is under way: then
    /// this is called again once it is written. A snapshot that raft no longer needs is discarded,
    /// and raft answers the leader.
    pub(crate) fn order_switch(&mut self) -> Option<Job> {
        if !self.checkpoint.is_idle() {
            return None;
        }
        let Install::Waits(fetched) =
            self.install.take_if(|install| matches!(install, Install::Waits(_)))?
        else {
            return None;
        };
        let (shard, id, cut) = (self.id, fetched.order.id(), fetched.order.cut());
        if self.replica.wants_snapshot(id.index, id.term) {
            self.install = Some(Install::Switches(fetched));
            return Some(Job::Switch(shard, id, cut));
        }
        // The log has caught up by itself meanwhile.
        self.replica.step(of_this_term(fetched.order.message.clone(), &self.replica));
        self.checkpoint.unblock();
        Some(Job::Discard(shard, id))
    }

    /// The store has switched to a snapshot, or no longer had it. Activate the shard afterwards.
    pub(crate) fn switched(&mut self, id: SnapshotId, is_switched: bool) -> Option<Job> {
        let is_meant = |install: &mut Install| matches!(install, Install::Switches(fetched) if fetched.order.id() == id);
        let Install::Switches(fetched) = self.install.take_if(is_meant)? else { return None };
        if !is_switched {
            self.checkpoint.unblock();
            return Some(Job::Drop(fetched));
        }
        self.install = Some(Install::Switched(fetched));
        self.take_switched();
        None
    }

    /// Whether the store has switched and raft is yet to follow.
    pub(crate) fn has_switched(&self) -> bool {
        matches!(self.install, Some(Install::Switched(_)))
    }

    /// Steps the message of the snapshot that the store has switched to. Without a leader of its
    /// term raft ignores the message, and gets it again later.
    ///
    /// # Panics
    /// If raft no longer needs the snapshot, because its log has changed since the switch was
    /// ordered.
    pub(crate) fn take_switched(&mut self) {
        let Some(Install::Switched(fetched)) =
            self.install.take_if(|install| matches!(install, Install::Switched(_)))
        else {
            return;
        };
        let (shard, id) = (self.id, fetched.order.id());
        assert!(
            self.replica.wants_snapshot(id.index, id.term),
            "shard {shard} has switched to a snapshot at {} that its log, committed to {}, has overtaken",
            id.index,
            self.replica.commit()
        );
        let message = of_this_term(fetched.order.message.clone(), &self.replica);
        if message.term >= self.replica.term() {
            self.replica.step(message);
        }
        let is_taken = self.replica.pending_snapshot() == Some(id.index);
        self.install =
            Some(if is_taken { Install::Taken(fetched) } else { Install::Switched(fetched) });
    }

    /// Installs the snapshot of a ready, if it has one. Call it before the ready's entries are
    /// added to the batch and before the ready is reported as persisted. Pending writes of the old
    /// log are void.
    ///
    /// # Panics
    /// If raft wants another snapshot than the one that the store has switched to.
    pub(crate) fn install(&mut self, ready: &Ready, batch: &mut Batch) {
        let Some(snapshot) = &ready.snapshot else { return };
        let (shard, wanted) = (self.id, snapshot.get_metadata().index);
        let (cut, machine) = match self.install.take() {
            Some(Install::Taken(fetched)) if fetched.order.index() == wanted => {
                (fetched.order.cut(), fetched.machine)
            }
            _ => panic!("shard {shard} is to install a snapshot at {wanted} that never came"),
        };
        let hard_state = ready.hard_state.as_ref();
        let hard_state = hard_state.expect("a snapshot raises the commit index, so it is reported");
        batch.reset(self.group, self.replica.id(), cut.index, hard_state);
        self.hard_state = None;
        self.log_cut = None;
        self.checkpoint.installed(cut.index);
        self.replica.install(State::new(machine));
        tracing::info!("a snapshot brought shard {shard} to entry {}", cut.index);
    }
}

/// The snapshot's message as the leader of the current term would send it. Committed entries stay
/// committed under every leader, so a transfer that outlived its leader is still good.
fn of_this_term(mut message: Message, replica: &Replica<State>) -> Message {
    if let Role::Follower { term, leader: Some(leader) } = replica.role()
        && message.term < term
    {
        (message.term, message.from) = (term, leader);
    }
    message
}

#[cfg(test)]
mod blocked_tests;
#[cfg(test)]
mod tests;
