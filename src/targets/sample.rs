//! Which of the boxes a step learns from.

use candle_core::{Device, Tensor};

use super::object_batch::ObjectBatch;
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxSet, BoxTargets, Chosen, SampleParams, Samples, assign, box_targets,
    sample_boxes,
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
/// `train::RandomSampler` is the one to train with. Another one is for comparisons with an implementation that draws other
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

/// How boxes of a stage are compared with objects, and how many are sampled.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Whose boxes they are.
    pub stage: Stage,
    /// Which objects boxes have found.
    pub assign: AssignParams,
    /// How many are sampled.
    pub sample: SampleParams,
    /// Deltas are multiplied by these.
    pub box_weights: [f32; 4],
}

/// The boxes of a batch that a step learns from.
pub struct Sampled<'a> {
    boxes: BoxSet<'a>,
    objects: &'a ObjectBatch,
    box_weights: [f32; 4],
    matches: Tensor,
    /// By index.
    pub samples: Samples,
}

impl<'a> Sampled<'a> {
    /// Compares boxes with the objects of their images, and samples.
    ///
    /// # Errors
    /// Those of the sampler and of the ops.
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
    ///
    /// # Errors
    /// Those of [`box_targets`].
    pub fn targets(&self, Chosen { index, counts }: &Chosen) -> Result<BoxTargets> {
        let objects = self.objects.by_ref();
        box_targets((index, counts), &self.matches, self.boxes, objects, self.box_weights)
    }
}
