//! Telemetry: counts of what happens on this node, fed by events. The only file that knows metrics.

use taskyard_machine::Event;

/// The node's counters.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {}

impl Telemetry {
    /// Counts what happened.
    pub(crate) fn observe(&self, _events: &[Event]) {}

    /// Counts a write of the log.
    pub(crate) fn note_write(&self, _written: &crate::log::Written) {}

    /// All metrics, in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        String::new()
    }
}
