//! Install: a replica takes a snapshot that has come whole, in place of its state and its log.
//!
//! Raft sees its message only now, so that whatever it wants installed is there. The order matters: the
//! store is switched first, then the log is reset, and only then may raft count on either. A crash between
//! the two leaves a mark in the store, by which recovery knows that the log is void. While a checkpoint
//! is being made of the old state the snapshot waits: both write the shard's cut.

use super::local::{LocalShard, State};
use crate::{
    checkpoint::{Failure, Store},
    cluster::{Fetched, SnapshotOrder},
    log::Batch,
};
use taskyard_replica::{Ready, Replica, Role, eraftpb::Message};

/// A snapshot that has come.
pub(crate) enum Install {
    /// It waits for the checkpoint under way.
    Waits(Box<Fetched>),
    /// Raft has taken it; its next ready asks for it.
    Taken(Box<Fetched>),
}

impl LocalShard {
    /// Takes a message of the kind `MsgSnapshot`. What is to be fetched before raft may see it; `None` if
    /// raft has it already, which tells the leader where this replica stands, or if one is being installed:
    /// then the leader offers another one later.
    pub(crate) fn offered(&mut self, message: Message) -> Option<SnapshotOrder> {
        let metadata = message.get_snapshot().get_metadata();
        if !self.replica.wants_snapshot(metadata.index, metadata.term) {
            self.replica.step(message);
            return None;
        }
        if self.install.is_some() {
            return None;
        }
        let shard = self.id;
        let unread =
            |why| tracing::warn!("the offer of a snapshot of shard {shard} is unfit: {why}");
        SnapshotOrder::read(shard, message).map_err(unread).ok()
    }

    /// A snapshot is in the store, whole; unless another one has taken its place meanwhile.
    pub(crate) fn fetched(&mut self, fetched: Box<Fetched>, store: &Store) {
        if store.claim_install(self.id, fetched.order.id()) {
            self.checkpoint.hold();
            self.install = Some(Install::Waits(fetched));
            self.take_snapshot(store);
        }
    }

    /// Hands raft the message of a snapshot that has come, unless a checkpoint is under way: then again
    /// when that is written. The shard has work afterwards: a snapshot to install, or an answer to send.
    pub(crate) fn take_snapshot(&mut self, store: &Store) {
        if !self.checkpoint.is_idle() {
            return;
        }
        let Some(Install::Waits(fetched)) =
            self.install.take_if(|install| matches!(install, Install::Waits(_)))
        else {
            return;
        };
        let order = &fetched.order;
        self.replica.step(of_this_term(order.message.clone(), &self.replica));
        if self.replica.pending_snapshot() == Some(order.index()) {
            self.install = Some(Install::Taken(fetched));
        } else {
            // The log has come so far by itself meanwhile, or the replica is no member any more.
            store.discard_install(self.id);
            self.checkpoint.release();
        }
    }

    /// Installs the snapshot of a ready, if it has one: before its entries are added to the batch, and
    /// before it is reported persisted. What was waiting to be written of the old log is void.
    ///
    /// # Panics
    /// If raft wants another snapshot than the one that was fetched.
    pub(crate) fn install(
        &mut self,
        ready: &Ready,
        store: &Store,
        batch: &mut Batch,
    ) -> Result<(), Failure> {
        let Some(snapshot) = &ready.snapshot else { return Ok(()) };
        let (shard, wanted) = (self.id, snapshot.get_metadata().index);
        let (cut, machine) = match self.install.take() {
            Some(Install::Taken(fetched)) if fetched.order.index() == wanted => {
                (fetched.order.cut(), fetched.machine)
            }
            _ => panic!("shard {shard} is to install a snapshot at {wanted} that never came"),
        };
        let failed = |error| Failure(format!("{error}; check the disk, then start again"));
        store.switch(shard, &cut).map_err(failed)?;
        let hard_state = ready.hard_state.as_ref();
        let hard_state = hard_state.expect("a snapshot raises the commit index, so it is told");
        batch.reset(self.group, self.replica.id(), cut.index, hard_state);
        self.hard_state = None;
        self.log_cut = None;
        self.checkpoint.installed(cut.index);
        self.replica.install(State::new(machine));
        tracing::info!("shard {shard} was brought to {} by a snapshot", cut.index);
        Ok(())
    }
}

/// The message as the leader of the current term would send it. What is committed stays so, whoever leads;
/// a transfer that outlived its leader is not thrown away.
fn of_this_term(mut message: Message, replica: &Replica<State>) -> Message {
    if let Role::Follower { term, leader: Some(leader) } = replica.role()
        && message.term < term
    {
        (message.term, message.from) = (term, leader);
    }
    message
}

#[cfg(test)]
mod tests;
