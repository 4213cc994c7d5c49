//! The gate, as the shards see it: what a node leaves undone before its peers have let it in.
//!
//! Invariant: a node on a copied data directory shows nothing of it and proposes nothing, not even
//! where it leads alone: it may be older than what the node has promised since.

use super::{ShardLoop, peers};
use crate::{Error, cluster::Gate};

impl ShardLoop {
    /// Takes part once the gate is open: from then on time passes for replicas, and messages are
    /// taken.
    pub(super) fn look_at_gate(&mut self) {
        if !self.waits_at_gate {
            return;
        }
        if self.control.as_ref().is_none_or(|control| control.replica.has_replayed()) {
            self.routes.set_replayed();
        }
        if self.routes.gate() == Gate::Open {
            self.waits_at_gate = false;
            self.next_tick = self.real + peers::TICK;
            for number in self.shards.numbers() {
                if self.shards[number].leading.is_some() {
                    self.note_sessions(number);
                }
                self.activate(number);
            }
        }
    }

    /// Gives the sessions that hold claims on a shard their time to be heard.
    pub(super) fn note_sessions(&mut self, number: usize) {
        let (shard, now) = (&self.shards[number], self.reading.monotonic);
        for session in shard.machine().sessions() {
            self.sessions.note_claims(session, shard.id, now);
        }
    }

    /// Whether this node's data may be old, so that nothing of it is shown and nothing is added to
    /// it, not even to groups that it leads alone.
    pub(super) fn is_kept_out(&self) -> bool {
        self.waits_at_gate && self.routes.gate() == Gate::Copied
    }

    pub(super) fn kept_out_error(&self) -> Error {
        let words =
            "this node's data directory was copied, and it asks its peers whether it is the newest";
        Error::Unavailable(self.routes.kept_out().unwrap_or_else(|| words.to_owned()))
    }
}
