//! Numbers that look random and are the same for the same seed.
//!
//! Nothing is drawn from one stream for everybody: what happens to a call is a function of the seed, of whose call it is
//! and of how many such calls there were. So the order in which tasks are woken within one instant, which tokio does not
//! promise (`watch` wakes its receivers in a random order), does not change a schedule.

use std::time::Duration;

/// A stream of numbers.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream that belongs to one thing.
    pub(crate) fn keyed(seed: u64, key: &str, n: u64) -> Self {
        // FNV-1a: spread is the business of `next`.
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let mut rng = Self(seed ^ hash.rotate_left(17) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rng.next();
        rng
    }

    /// splitmix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// True that often in a thousand.
    pub(crate) fn chance(&mut self, in_a_thousand: u64) -> bool {
        self.below(1000) < in_a_thousand
    }

    /// Milliseconds between two bounds, the second not included.
    pub(crate) fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    /// Milliseconds up to one of some bounds.
    pub(crate) fn up_to(&mut self, bounds: &[u64]) -> Duration {
        let bound = *self.pick(bounds);
        self.ms(1, bound + 1)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap_or(0)]
    }
}
