//! Hearing: whether a peer was heard lately, on any connection.
//!
//! Silence is counted in checks, not in time, because a process that stood still could not hear its
//! peers. A peer that was silent for a few checks is no longer counted on, long before its
//! connection is given up.
//!
//! A peer that was just named counts as heard until the first attempt to reach it has ended, and
//! checks count only from there. So a node that starts does not refuse calls because of peers that
//! it is about to reach, even on a busy machine.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A peer is silent after so many checks without a sign of life. The first check may come right
/// after the last sign.
pub(super) const LOOKS_MAX: u32 = 4;

/// The hearing of one peer.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Checks since the last sign of life, up to [`LOOKS_MAX`].
    looks: AtomicU32,
    /// An attempt to reach the peer has ended, in success or not, so that checks count.
    was_tried: AtomicBool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The peer was heard since the last check.
    Heard,
    /// The peer was not heard; ping it.
    Waits,
    /// The peer has just become silent.
    FellSilent,
    /// The peer was silent before.
    Silent,
}

impl Hearing {
    pub(super) fn new() -> Hearing {
        Hearing { looks: AtomicU32::new(0), was_tried: AtomicBool::new(false) }
    }

    pub(super) fn tried(&self) {
        self.was_tried.store(true, Ordering::Release);
    }

    /// The peer has sent something. Returns whether it was silent before.
    pub(super) fn heard(&self) -> bool {
        // Most signs follow each other closely, and need no write to the shared counter.
        self.looks.load(Ordering::Acquire) > 0 && self.looks.swap(0, Ordering::AcqRel) >= LOOKS_MAX
    }

    pub(super) fn is_heard(&self) -> bool {
        self.looks.load(Ordering::Acquire) < LOOKS_MAX
    }

    /// Makes one check. Checks before the first attempt to reach the peer do not count.
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

    /// Marks the peer as silent.
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
