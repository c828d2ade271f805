//! Random numbers that can be entered anywhere, so that a run can go on where it was interrupted.

use crate::ops::support::random::{advance, mix};

/// A sequence of random numbers: SplitMix64.
///
/// A sequence is named by what it serves (seed, step, image …) instead of being handed on from use to use: nothing of it
/// has to be saved, and the order in which images are looked at plays no part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(advance(seed, 1)) }
    }

    /// The sequence of a part of what this one serves, such as a step or an image; unrelated to that of another part,
    /// and independent of how many numbers were drawn from this one's other parts.
    pub fn part(&self, index: u64) -> Self {
        Self { state: mix(self.state ^ mix(advance(index, 1))) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = advance(self.state, 1);
        mix(self.state)
    }

    /// A number in `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number in `0..n`, each as probable as the others; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        // The largest multiple of n that fits: bits beyond it would favor small numbers.
        let limit = u64::MAX - (u64::MAX % n.max(1));
        loop {
            let bits = self.bits();
            if bits < limit || n == 0 {
                return bits.checked_rem(n).unwrap_or(0) as usize;
            }
        }
    }

    /// Moves `count` entries, each choice as probable as the others, to the front of a list; fewer where it is shorter.
    pub fn choose<'a, T>(&mut self, entries: &'a mut [T], count: usize) -> &'a mut [T] {
        let count = count.min(entries.len());
        for place in 0..count {
            entries.swap(place, place + self.below(entries.len() - place));
        }
        &mut entries[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_as_probable_as_the_others() {
        let mut random = Random::new(3);
        let mut counts = [0u32; 7];
        for _ in 0..7000 {
            let mut entries: Vec<usize> = (0..7).collect();
            for entry in random.choose(&mut entries, 3) {
                counts[*entry] += 1;
            }
        }
        // 3000 expected of each, with a standard deviation of about 41.
        assert!(counts.iter().all(|n| (2800..3200).contains(n)), "{counts:?}");
        assert_eq!(counts.iter().sum::<u32>(), 21_000);
    }

    #[test]
    fn parts_are_unrelated_and_repeatable() {
        let random = Random::new(1);
        let draw = |mut r: Random| (0..4).map(|_| r.bits()).collect::<Vec<_>>();
        assert_eq!(draw(random.part(5)), draw(Random::new(1).part(5)));
        assert_ne!(draw(random.part(5)), draw(random.part(6)));
        assert_ne!(draw(random.part(5).part(1)), draw(random.part(1).part(5)));
        assert_ne!(draw(random), draw(Random::new(2)));
    }

    #[test]
    fn there_is_always_an_answer() {
        let mut random = Random::new(0);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        assert!(random.choose(&mut Vec::<u8>::new(), 3).is_empty());
        assert_eq!(random.choose(&mut [1, 2], 5).len(), 2);
    }
}
