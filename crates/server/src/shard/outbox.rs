//! Outbox: what a leader has sent of what its machine owes other shards.
//!
//! Messages are delivered in order, once per target and number: the target dedups. So whatever is
//! forgotten here (a restart, a change of leader) is simply sent again.

use std::collections::BTreeMap;
use taskyard_machine::{Machine, Outgoing, ShardId};

/// Messages on their way at once, per shard.
const IN_FLIGHT_MAX: usize = 256;

/// Bytes sent at once, about. The rest follows when the machine is told what was taken.
const BYTES_AT_ONCE_MAX: usize = 4 << 20;

/// What is on its way from one shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Something may have to be sent.
    stirred: bool,
    /// Sent up to this number, by target.
    sent: BTreeMap<ShardId, u64>,
    /// Taken up to this number, by target, and not yet told to the machine.
    taken: BTreeMap<ShardId, u64>,
}

impl Outbox {
    /// The machine owes something.
    pub(crate) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether there is something to send or to tell.
    pub(crate) fn is_stirred(&self) -> bool {
        self.stirred || !self.taken.is_empty()
    }

    /// What to deliver next.
    pub(crate) fn take_unsent(&mut self, machine: &Machine) -> Vec<Outgoing> {
        if !std::mem::take(&mut self.stirred) {
            return Vec::new();
        }
        let mut unsent = machine.outgoing(IN_FLIGHT_MAX);
        let mut bytes = 0;
        unsent.retain(|outgoing| {
            let sent = self.sent.entry(outgoing.to).or_default();
            let is_new = outgoing.sequence > *sent && bytes < BYTES_AT_ONCE_MAX;
            if is_new {
                bytes += outgoing.command.len();
                *sent = outgoing.sequence;
            }
            is_new
        });
        unsent
    }

    /// The target has taken this one.
    pub(crate) fn taken(&mut self, to: ShardId, sequence: u64) {
        let taken = self.taken.entry(to).or_default();
        *taken = sequence.max(*taken);
    }

    /// The target has not taken it: all that it did not take is sent again.
    pub(crate) fn refused(&mut self, to: ShardId) {
        self.sent.remove(&to);
        self.stirred = true;
    }

    /// What the machine may drop: per target, all up to this number.
    pub(crate) fn take_delivered(&mut self) -> BTreeMap<ShardId, u64> {
        std::mem::take(&mut self.taken)
    }
}
