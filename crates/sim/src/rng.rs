//! Rng: the run's own randomness. Every random number of a run comes from its seed through here.

/// A small generator (splitmix64): one number of state, equal sequences for equal seeds.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A generator of its own for one part of the run, so that parts do not disturb each other.
    pub(crate) fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to just under `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A number of the range, ends included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `per_mille` of a thousand draws.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Spreads one number over all bits.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A hash of bytes, for comparing what two replicas did.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(mix(bytes.len() as u64 + 1), |hash, word| mix(hash ^ word).wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_stay_in_range() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.between(3, 7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((3..=7).all(|number| draw(1).contains(&number)));
        assert!(draw(1).iter().all(|number| (3..=7).contains(number)));
    }

    #[test]
    fn a_hash_sees_every_byte_and_the_length() {
        let texts: [&[u8]; 5] = [b"", b"\0", b"abcdefgh", b"abcdefgi", b"abcdefgh\0"];
        for (position, text) in texts.iter().enumerate() {
            assert!(texts[..position].iter().all(|other| hash(other) != hash(text)), "{text:?}");
        }
    }
}
