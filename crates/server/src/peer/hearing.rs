//! Hearing: whether a peer was heard lately, on whichever connection.
//!
//! Silence is counted in looks, not in time: a process that stood still has not listened, and must not
//! take its peers for silent. A peer that has been silent for a few looks is not counted on any more, long
//! before its connection is given up. One that was never heard is silent.

use std::sync::atomic::{AtomicU32, Ordering};

/// After so many looks without a word a peer is silent. The first may come right after its last word.
pub(super) const LOOKS_MAX: u32 = 4;

/// What is heard of one peer.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Looks since its last word, up to [`LOOKS_MAX`].
    looks: AtomicU32,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It was heard since the last one.
    Heard,
    /// It was not, and should be asked for a sign of life.
    Waits,
    /// It has just become silent.
    FellSilent,
    /// It was silent before.
    Silent,
}

impl Hearing {
    pub(super) fn new() -> Hearing {
        Hearing { looks: AtomicU32::new(LOOKS_MAX) }
    }

    /// The peer has sent something. Says whether it was silent before.
    pub(super) fn heard(&self) -> bool {
        // Most words come soon after another: they need not take the line from who looks.
        self.looks.load(Ordering::Acquire) > 0 && self.looks.swap(0, Ordering::AcqRel) >= LOOKS_MAX
    }

    /// Whether the peer is counted on.
    pub(super) fn is_heard(&self) -> bool {
        self.looks.load(Ordering::Acquire) < LOOKS_MAX
    }

    /// One more look.
    pub(super) fn look(&self) -> Look {
        let next = |looks: u32| Some((looks + 1).min(LOOKS_MAX));
        let before = self.looks.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        match before.unwrap_or_else(|looks| looks) {
            0 => Look::Heard,
            LOOKS_MAX => Look::Silent,
            looks if looks + 1 == LOOKS_MAX => Look::FellSilent,
            _ => Look::Waits,
        }
    }

    /// The peer counts as silent, as if it had been for long.
    #[cfg(test)]
    pub(super) fn silence(&self) {
        self.looks.store(LOOKS_MAX, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_counted_on_until_a_few_looks_in_a_row_found_nothing() {
        let hearing = Hearing::new();
        assert!(!hearing.is_heard(), "nothing was heard yet");
        assert_eq!(hearing.look(), Look::Silent);
        assert!(hearing.heard(), "it was silent until now");
        assert!(!hearing.heard());
        for looks in [Look::Heard, Look::Waits, Look::Waits] {
            assert_eq!(hearing.look(), looks);
            assert!(hearing.is_heard());
        }
        assert!(!hearing.heard(), "in time");
        for looks in [Look::Heard, Look::Waits, Look::Waits] {
            assert_eq!(hearing.look(), looks);
        }
        assert_eq!(hearing.look(), Look::FellSilent);
        assert!(!hearing.is_heard());
        assert_eq!(hearing.look(), Look::Silent);
        assert!(hearing.heard() && hearing.is_heard());
    }
}
