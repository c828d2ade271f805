//! Random numbers that depend on a seed and an index alone, so that scenes may be drawn in any order.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The sequence of one scene of a seed.
    pub fn new(seed: u64, index: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(STEP)) ^ index.wrapping_add(STEP)))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1u32 << 24) as f32)
    }

    /// Between two positive numbers, each doubling as likely as any other.
    pub fn between_log(&mut self, low: f32, high: f32) -> f32 {
        self.between(low.ln(), high.ln()).exp()
    }

    pub fn chance(&mut self, probability: f32) -> bool {
        self.between(0.0, 1.0) < probability
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Close to a standard normal: twelve uniforms.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.between(0.0, 1.0)).sum::<f32>() - 6.0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
