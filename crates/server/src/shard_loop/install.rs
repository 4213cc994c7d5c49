//! Install: a replica takes a snapshot that has come whole, in place of its state and its log.
//!
//! The order matters: the store is switched first, then raft sees its message, the log is reset,
//! and only then may raft count on either. The switch waits for the disk, so that another thread
//! does it while the replica goes on as it was; while a checkpoint is being made of the old state
//! it is not even ordered, since both write the shard's cut. From the order on, the log takes no
//! entry: a crash after the switch leaves a mark in the store, by which recovery knows that the log
//! is void. Votes may be given meanwhile; recovery keeps them.
//!
//! Invariant: what the store switches to, raft takes. It was ahead of what is committed, and the
//! log did not lead there, when the switch was ordered; without new entries both stay so, and the
//! replica can't lead.

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

/// A snapshot that has come.
pub(crate) enum Install {
    /// It waits for the checkpoint under way.
    Waits(Box<Fetched>),
    /// The store is to switch to it.
    Switches(Box<Fetched>),
    /// The store has switched to it. Raft takes it as soon as it knows a leader.
    Switched(Box<Fetched>),
    /// Raft has taken it; its next ready asks for it.
    Taken(Box<Fetched>),
}

impl LocalShard {
    /// Takes a message of a peer, unless it would add to a log that a snapshot makes void.
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

    /// Whether a message adds entries to the log: not if they are there already, come from a leader
    /// of the past, or would be void.
    pub(crate) fn adds(&self, message: &Message) -> bool {
        let is_new = message.entries.last().is_some_and(|last| {
            last.index > self.replica.last_index() && message.term >= self.replica.term()
        });
        is_new && !self.voids_log()
    }

    /// Takes a message of the kind `MsgSnapshot`. What is to be fetched before raft may see it;
    /// `None` if raft has it already, which tells the leader where this replica stands, or if one
    /// is being installed: then the leader offers another one later.
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
            |why| tracing::warn!("the offer of a snapshot of shard {shard} is unfit: {why}");
        SnapshotOrder::read(shard, message).map_err(unread).ok()
    }

    /// A snapshot is in the store, whole; unless another one has taken its place meanwhile. What is
    /// to be done about it.
    pub(crate) fn fetched(&mut self, fetched: Box<Fetched>) -> Option<Job> {
        if self.install.is_some() {
            return Some(Job::Drop(fetched));
        }
        self.checkpoint.hold();
        self.install = Some(Install::Waits(fetched));
        self.order_switch()
    }

    /// Has the store switch to a snapshot that has come, unless a checkpoint is under way: then
    /// again when that is written. One that raft does not want any more is given up, and raft
    /// answers the leader.
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
        // The log has come so far by itself meanwhile.
        self.replica.step(of_this_term(fetched.order.message.clone(), &self.replica));
        self.checkpoint.release();
        Some(Job::Discard(shard, id))
    }

    /// The store has switched to a snapshot, or did not have it any more. The shard has work
    /// afterwards.
    pub(crate) fn switched(&mut self, id: SnapshotId, is_switched: bool) -> Option<Job> {
        let is_meant = |install: &mut Install| matches!(install, Install::Switches(fetched) if fetched.order.id() == id);
        let Install::Switches(fetched) = self.install.take_if(is_meant)? else { return None };
        if !is_switched {
            self.checkpoint.release();
            return Some(Job::Drop(fetched));
        }
        self.install = Some(Install::Switched(fetched));
        self.take_switched();
        None
    }

    /// Whether raft is yet to take what the store has switched to.
    pub(crate) fn has_switched(&self) -> bool {
        matches!(self.install, Some(Install::Switched(_)))
    }

    /// Hands raft the message of the snapshot that the store has switched to; without a leader of
    /// its term raft would not take it, and hears of it again later.
    ///
    /// # Panics
    /// If raft does not want it any more: its log is not what it was when the switch was ordered.
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

    /// Installs the snapshot of a ready, if it has one: before its entries are added to the batch,
    /// and before it is reported persisted. What was waiting to be written of the old log is void.
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
        let hard_state = hard_state.expect("a snapshot raises the commit index, so it is told");
        batch.reset(self.group, self.replica.id(), cut.index, hard_state);
        self.hard_state = None;
        self.log_cut = None;
        self.checkpoint.installed(cut.index);
        self.replica.install(State::new(machine));
        tracing::info!("shard {shard} was brought to {} by a snapshot", cut.index);
    }
}

/// The message as the leader of the current term would send it. What is committed stays so, whoever
/// leads; a transfer that outlived its leader is not thrown away.
fn of_this_term(mut message: Message, replica: &Replica<State>) -> Message {
    if let Role::Follower { term, leader: Some(leader) } = replica.role()
        && message.term < term
    {
        (message.term, message.from) = (term, leader);
    }
    message
}

#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;
