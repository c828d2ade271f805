//! Samples drawn at random.

use candle_core::{Device, Tensor};

use super::random::Random;
use crate::error::Result;
use crate::ops::random_bits;
use crate::targets::{Sampler, Stage};

/// Every choice of the wanted numbers is as probable as the others.
///
/// What is chosen depends on the seed, the step, the stage and the places of the image in its batch and of the box in the
/// image alone, whatever the device.
///
/// Reference: torchvision `models/detection/_utils.py`, `BalancedPositiveNegativeSampler`.
#[derive(Debug, Clone)]
pub struct RandomSampler {
    random: Random,
}

impl RandomSampler {
    /// The choices of a step of a run. Ranks that train together take different seeds.
    pub fn new(seed: u64, step: u64) -> Self {
        Self { random: Random::new(seed).part(step) }
    }
}

impl Sampler for RandomSampler {
    fn priorities(
        &mut self,
        stage: Stage,
        dims: (usize, usize),
        device: &Device,
    ) -> Result<Tensor> {
        random_bits(self.random.part(stage as u64).bits(), dims, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_repeat_for_a_step_and_differ_between_steps_and_stages() {
        let draw = |seed, step, stage| {
            let priorities =
                RandomSampler::new(seed, step).priorities(stage, (2, 400), &Device::Cpu).unwrap();
            priorities.to_vec2::<u32>().unwrap()
        };
        let first = draw(7, 3, Stage::Rpn);
        assert_eq!(first, draw(7, 3, Stage::Rpn));
        for other in [draw(8, 3, Stage::Rpn), draw(7, 4, Stage::Rpn), draw(7, 3, Stage::Roi)] {
            assert_ne!(first, other);
        }
        assert_ne!(first[0], first[1], "images");
    }
}
