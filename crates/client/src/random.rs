//! Random numbers for identities and jitter.
//!
//! The standard library seeds each `RandomState` from the system, and its hash (SipHash) mixes that
//! seed well: enough for ids that must not collide and for spreading reconnects, without a crate.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// 16 random bytes for an id.
pub(crate) fn identity() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number().to_be_bytes());
    bytes[8..].copy_from_slice(&number().to_be_bytes());
    bytes
}

/// A random duration between half of `duration` and all of it, so that clients that lost a server
/// together do not return together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    let half = duration / 2;
    half + half.mul_f64((number() % 1_000) as f64 / 1_000.0)
}

fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn identities_differ() {
        let drawn: HashSet<[u8; 16]> = (0..10_000).map(|_| identity()).collect();
        assert_eq!(drawn.len(), 10_000);
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        let whole = Duration::from_secs(1);
        for _ in 0..1_000 {
            let drawn = jittered(whole);
            assert!(drawn >= whole / 2 && drawn <= whole, "{drawn:?}");
        }
    }
}
