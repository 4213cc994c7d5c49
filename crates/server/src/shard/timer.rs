//! Timer: a leader proposes `ExpireDue` when something of its shard is due.
//!
//! At most one is in flight. Its work is bounded, and the next one follows at once while more is
//! due.

use taskyard_machine::{Machine, Timestamp};

/// The pause after an expiry that did nothing, so that a deadline that stays due does not spin the
/// loop.
const PAUSE_MS: u64 = 20;

#[derive(Debug, Default)]
pub(crate) struct Timer {
    in_flight: bool,
    not_before: Timestamp,
}

impl Timer {
    /// When to propose next.
    pub(crate) fn next(&self, machine: &Machine) -> Option<Timestamp> {
        if self.in_flight {
            return None;
        }
        machine.next_due().map(|due| due.max(self.not_before))
    }

    /// Whether to propose now. If so, the expiry counts as in flight.
    pub(crate) fn fires(&mut self, machine: &Machine, now: Timestamp) -> bool {
        let fires = self.next(machine).is_some_and(|due| due <= now);
        self.in_flight |= fires;
        fires
    }

    /// The expiry did this many things, or was lost (0).
    pub(crate) fn done(&mut self, count: u32, now: Timestamp) {
        self.in_flight = false;
        self.not_before = if count == 0 { now.plus_ms(PAUSE_MS) } else { Timestamp(0) };
    }
}
