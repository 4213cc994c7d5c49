//! Hearing: whether a peer was heard lately, on whichever connection.
//!
//! Silence is counted in looks, not in time: a process that stood still has not listened, and must
//! not take its peers for silent. A peer that has been silent for a few looks is not counted on any
//! more, long before its connection is given up. One that was just named counts as heard until the
//! first attempt to reach it has ended, and the looks begin there: a node that starts should not
//! refuse what it would know in a moment, and on a busy machine that moment may be long.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// After so many looks without a word a peer is silent. The first may come right after its last
/// word.
pub(super) const LOOKS_MAX: u32 = 4;

/// What is heard of one peer.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Looks since its last word, up to [`LOOKS_MAX`].
    looks: AtomicU32,
    /// An attempt to reach it has ended, well or not: from here on it is looked for.
    was_tried: AtomicBool,
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
        Hearing { looks: AtomicU32::new(0), was_tried: AtomicBool::new(false) }
    }

    /// An attempt to reach the peer has ended.
    pub(super) fn tried(&self) {
        self.was_tried.store(true, Ordering::Release);
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

    /// One more look. Those before the first attempt to reach it count for nothing.
    pub(super) fn look(&self) -> Look {
        if !self.was_tried.load(Ordering::Acquire) {
            return Look::Heard;
        }
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
        for _ in 0..=LOOKS_MAX {
            assert_eq!(hearing.look(), Look::Heard);
        }
        assert!(hearing.is_heard(), "it may be heard yet");
        hearing.tried();
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
