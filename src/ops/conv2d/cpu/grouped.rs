//! Convolutions in groups, as convolutions of blocks of groups.
//!
//! A group of few channels would leave most of the product kernel's columns idle. So as many groups as its panel has room
//! for are computed together, by a weight with zeros between the groups: what these add costs nothing, as the kernel
//! would have computed the idle columns anyway.

use rayon::prelude::*;

use super::super::sizes::Sizes;
use super::{Conv2dParams, backward};
use crate::ops::support::cpu::element::Element;
use crate::ops::support::isa::Isa;

/// Channels of the blocks of gradients: enough for the dense kernels, Winograd's among them.
const GRADIENT_CHANNELS: usize = 32;

/// Groups that are computed together.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops::conv2d) struct Blocks {
    /// Number of blocks.
    pub count: usize,
    /// Groups of a block.
    groups: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    taps: usize,
}

impl Blocks {
    /// Blocks of at most `columns` channels of the output, at least a group each, for a weight `[O, I/groups, kh, kw]`.
    pub fn new(
        [outputs, inputs, height, width]: [usize; 4],
        groups: usize,
        columns: usize,
    ) -> Self {
        let outputs = outputs / groups;
        let fits = |n: &usize| groups.is_multiple_of(*n) && n * outputs <= columns;
        let together = (1..=groups).rev().find(fits).unwrap_or(1);
        let count = groups / together;
        Self { count, groups: together, inputs, outputs, taps: height * width }
    }

    /// Channels of a block's input.
    pub fn inputs(&self) -> usize {
        self.groups * self.inputs
    }

    /// Channels of a block's output.
    pub fn outputs(&self) -> usize {
        self.groups * self.outputs
    }

    /// Values of a block in the weight of all groups.
    fn len(&self) -> usize {
        self.groups * self.outputs * self.inputs * self.taps
    }

    /// The block's weight `[outputs, inputs, taps]`, with zeros between the groups, of that of all groups.
    pub fn spread<E: Element>(&self, weight: &[E], block: usize) -> Vec<E> {
        let weight = &weight[block * self.len()..][..self.len()];
        let filter = self.inputs * self.taps;
        let mut spread = vec![E::default(); self.outputs() * self.groups * filter];
        let filters = spread.chunks_exact_mut(self.groups * filter);
        for (output, (to, from)) in filters.zip(weight.chunks_exact(filter)).enumerate() {
            to[output / self.outputs * filter..][..filter].copy_from_slice(from);
        }
        spread
    }

    /// The groups' own parts of a block's weight.
    pub fn gather(&self, spread: &[f32]) -> Vec<f32> {
        let filter = self.inputs * self.taps;
        let filters = spread.chunks_exact(self.groups * filter).enumerate();
        filters
            .flat_map(|(output, from)| &from[output / self.outputs * filter..][..filter])
            .copied()
            .collect()
    }

    /// Sizes of a block.
    fn sizes(&self, sizes: &Sizes) -> Sizes {
        let [_, _, height, width] = sizes.weight;
        let with_channels = |[n, h, w, _]: [usize; 4], channels| [n, h, w, channels];
        Sizes {
            weight: [self.outputs(), self.inputs(), height, width],
            input: with_channels(sizes.input, self.inputs()),
            output: with_channels(sizes.output, self.outputs()),
            params: Conv2dParams { groups: 1, ..sizes.params },
        }
    }
}

/// Channels `first..first + n` of `[.., channels]`.
fn channels_of(values: &[f32], channels: usize, first: usize, n: usize) -> Vec<f32> {
    let mut out = vec![0.0; values.len() / channels * n];
    out.par_chunks_exact_mut(n)
        .zip(values.par_chunks_exact(channels))
        .for_each(|(out, values)| out.copy_from_slice(&values[first..first + n]));
    out
}

/// Gradient `[N, H, W, I]` of the input from that of the output.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
) -> Vec<f32> {
    let blocks = Blocks::new(sizes.weight, sizes.params.groups, GRADIENT_CHANNELS);
    let part = blocks.sizes(sizes);
    let (channels, n) = (sizes.input[3], blocks.inputs());
    let mut out = vec![0.0; sizes.input.iter().product()];
    for block in 0..blocks.count {
        let weight = blocks.spread(weight, block);
        let first = block * blocks.outputs();
        let gradient = channels_of(gradient, sizes.output[3], first, blocks.outputs());
        let values = backward::input_gradient(isa, &weight, &gradient, &part);
        out.par_chunks_exact_mut(channels)
            .zip(values.par_chunks_exact(n))
            .for_each(|(out, values)| out[block * n..][..n].copy_from_slice(values));
    }
    out
}

/// Gradient `[O, I/groups, kh, kw]` of the weight, times `scale[o]`.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    let blocks = Blocks::new(sizes.weight, sizes.params.groups, GRADIENT_CHANNELS);
    let part = blocks.sizes(sizes);
    let mut out = Vec::with_capacity(sizes.weight.iter().product());
    for block in 0..blocks.count {
        let first = block * blocks.outputs();
        let scale = scale.map(|scale| &scale[first..first + blocks.outputs()]);
        let gradient = channels_of(gradient, sizes.output[3], first, blocks.outputs());
        let first = block * blocks.inputs();
        let input = channels_of(input, sizes.input[3], first, blocks.inputs());
        let values = backward::weight_gradient(isa, &input, &gradient, &part, scale);
        out.extend(blocks.gather(&values));
    }
    out
}
