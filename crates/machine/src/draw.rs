//! Draw: pseudo-random numbers that are the same on every replica.
//!
//! The generator is SplitMix64, seeded from the command or the state. Never for secrets.

use crate::TaskId;

/// A stream of draws.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// The stream for one attempt of one task.
    pub(crate) fn for_attempt(task: TaskId, attempt: u32) -> Draw {
        let id = task.to_u128();
        let mut draw = Draw((id >> 64) as u64 ^ u64::from(attempt) << 32);
        Draw(draw.next() ^ id as u64)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `max`, both included.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        // The high half of a 128-bit product is even enough and avoids a division.
        let range = u128::from(max) + 1;
        ((u128::from(self.next()) * range) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_cover_their_range_and_repeat_from_the_seed() {
        let mut counts = [0u32; 4];
        let mut draw = Draw::new(9);
        for _ in 0..4_000 {
            counts[draw.up_to(3) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (900..1_100).contains(&count)), "{counts:?}");
        assert_eq!(Draw::new(9).up_to(u64::MAX), Draw::new(9).up_to(u64::MAX));
        assert_eq!(Draw::new(9).up_to(0), 0);
    }
}
