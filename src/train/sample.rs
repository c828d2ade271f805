//! Which of the boxes a step learns from.

use candle_core::{Device, Tensor};

use super::objects::ObjectBatch;
use super::random::Random;
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxSet, BoxTargets, Chosen, SampleParams, Samples, assign, box_targets,
    random_bits, sample_boxes,
};

/// The part of the network that boxes are sampled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Anchors of the region proposal network.
    Rpn,
    /// Proposals, and the objects among them, of the heads.
    Roi,
}

/// Decides which boxes a step learns from, of those that it may choose from.
///
/// [`RandomSampler`] is the one to train with. Another one is for comparisons with an implementation that draws other
/// random numbers.
pub trait Sampler {
    /// The priorities of boxes, `[images, boxes]` u32 on `device`: of the boxes of an image that may be chosen those with the
    /// lowest are, of equal ones the lower index. Boxes are anchors of all levels, or proposals and then objects.
    ///
    /// # Errors
    /// Those of the implementation.
    fn priorities(&mut self, stage: Stage, dims: (usize, usize), device: &Device)
    -> Result<Tensor>;
}

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

/// How boxes of a stage are compared with objects, and how many are sampled.
pub(super) struct Rules {
    pub stage: Stage,
    pub assign: AssignParams,
    pub sample: SampleParams,
    /// Deltas are multiplied by these.
    pub box_weights: [f32; 4],
}

/// The boxes of a batch that a step learns from.
pub(super) struct Sampled<'a> {
    boxes: BoxSet<'a>,
    objects: &'a ObjectBatch,
    box_weights: [f32; 4],
    matches: Tensor,
    /// By index.
    pub samples: Samples,
}

impl<'a> Sampled<'a> {
    /// Compares boxes with the objects of their images, and samples.
    pub fn new(
        boxes: BoxSet<'a>,
        objects: &'a ObjectBatch,
        rules: &Rules,
        sampler: &mut dyn Sampler,
    ) -> Result<Self> {
        let matches = assign(boxes, &objects.boxes, &objects.counts, &rules.assign)?;
        let priorities = sampler.priorities(rules.stage, matches.dims2()?, matches.device())?;
        let samples = sample_boxes(&matches, &priorities, &rules.sample)?;
        Ok(Self { boxes, objects, box_weights: rules.box_weights, matches, samples })
    }

    /// What chosen ones of the boxes are to learn.
    pub fn targets(&self, Chosen { index, counts }: &Chosen) -> Result<BoxTargets> {
        let objects = self.objects.by_ref();
        box_targets((index, counts), &self.matches, self.boxes, objects, self.box_weights)
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
