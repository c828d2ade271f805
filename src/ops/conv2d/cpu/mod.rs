//! Convolution on the CPU: slices in, slices out.

mod backward;
mod depthwise;
mod grouped;
mod tiling;
mod unfold;
mod winograd;
mod winograd_gradient;

use self::grouped::Blocks;
use super::sizes::Sizes;
use super::{Conv2dParams, is_depthwise};
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::matrix::{PackedMatrix, Source, TileSizeOf};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, multiply, multiply_side_by_side};
use crate::ops::support::isa::Isa;

/// How a convolution is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// One product; the windows' values are gathered block by block.
    Direct,
    /// Products of transformed tiles with 4×4 outputs each: 4 times fewer multiplications.
    Winograd4,
    /// Products of transformed tiles with 6×6 outputs each: 5.06 times fewer multiplications, weights 1.8 times larger
    /// than with 4×4.
    Winograd6,
    /// A product for some groups at a time.
    Grouped,
    /// Each channel by itself, without a product.
    Depthwise,
}

/// With fewer channels, the transforms cost more than the products they save.
const MIN_WINOGRAD_CHANNELS: usize = 32;
/// Products `inputs · outputs` up to which a tile of 6×6 outputs is used: 16.8 MB of weights.
const MAX_WINOGRAD6_WEIGHTS: usize = 256 * 256;

impl Algorithm {
    /// The fastest for a weight `[O, I, kh, kw]`.
    pub fn choose(dims: [usize; 4], params: Conv2dParams) -> Self {
        let [outputs, inputs, height, width] = dims;
        if is_depthwise(dims, params) {
            Self::Depthwise
        } else if params.groups > 1 {
            Self::Grouped
        } else if !Self::can_transform([height, width], params)
            || inputs.min(outputs) < MIN_WINOGRAD_CHANNELS
        {
            Self::Direct
        } else if inputs * outputs <= MAX_WINOGRAD6_WEIGHTS {
            Self::Winograd6
        } else {
            Self::Winograd4
        }
    }

    /// Whether Winograd's algorithm fits the geometry.
    pub fn can_transform(window: [usize; 2], params: Conv2dParams) -> bool {
        window == [3, 3] && params == Conv2dParams::new(1, params.padding)
    }
}

/// Weights as the CPU kernels want them.
#[derive(Debug)]
pub(super) enum Weights {
    Direct {
        matrix: PackedMatrix,
        window: [usize; 2],
        params: Conv2dParams,
    },
    Winograd4 {
        weights: winograd::Weights,
        padding: usize,
    },
    Winograd6 {
        weights: winograd::Weights,
        padding: usize,
    },
    /// A matrix for each block.
    Grouped {
        matrices: Vec<PackedMatrix>,
        blocks: Blocks,
        window: [usize; 2],
        params: Conv2dParams,
    },
    Depthwise(depthwise::Weights),
}

/// A weight `[O, I, kh, kw]` of one group as a matrix.
fn pack<E: Element>(
    isa: Isa,
    values: &[E],
    [outputs, inputs, height, width]: [usize; 4],
    bias: &[f32],
) -> PackedMatrix {
    let taps = height * width;
    let source = Source {
        values,
        taps,
        inputs,
        outputs,
        tap_stride: 1,
        input_stride: taps,
        output_stride: inputs * taps,
    };
    PackedMatrix::new(isa, source, bias)
}

impl Weights {
    /// Lays out a weight `[O, I/groups, kh, kw]`.
    pub fn new<E: Element>(
        isa: Isa,
        algorithm: Algorithm,
        weight: &[E],
        dims: [usize; 4],
        bias: &[f32],
        params: Conv2dParams,
    ) -> Self {
        let [_, _, height, width] = dims;
        let (padding, window) = (params.padding, [height, width]);
        match algorithm {
            Algorithm::Direct => {
                Self::Direct { matrix: pack(isa, weight, dims, bias), window, params }
            }
            Algorithm::Grouped => {
                let blocks = Blocks::new(dims, params.groups, isa.run(TileSizeOf).columns);
                let dims = [blocks.outputs(), blocks.inputs(), height, width];
                let matrices = bias.chunks_exact(blocks.outputs()).enumerate();
                let matrices = matrices
                    .map(|(block, bias)| pack(isa, &blocks.spread(weight, block), dims, bias))
                    .collect();
                Self::Grouped { matrices, blocks, window, params }
            }
            Algorithm::Depthwise => {
                Self::Depthwise(depthwise::Weights::new(isa, weight, dims, bias, params))
            }
            Algorithm::Winograd4 => {
                let weights = winograd::Weights::new(isa, tiling::Tiles4, weight, dims, bias);
                Self::Winograd4 { weights, padding }
            }
            Algorithm::Winograd6 => {
                let weights = winograd::Weights::new(isa, tiling::Tiles6, weight, dims, bias);
                Self::Winograd6 { weights, padding }
            }
        }
    }
}

impl Weights {
    /// The weight `[O, I/groups, kh, kw]` that these were made from, up to rounding.
    pub fn restore(&self) -> Vec<f32> {
        match self {
            Self::Direct { matrix, window: [height, width], .. } => {
                let taps = height * width;
                backward::taps_last(&matrix.unpack(), matrix.terms() / taps, taps, None)
            }
            Self::Winograd4 { weights, .. } => weights.restore(tiling::Tiles4),
            Self::Winograd6 { weights, .. } => weights.restore(tiling::Tiles6),
            Self::Grouped { matrices, blocks, window: [height, width], .. } => {
                let (taps, inputs) = (height * width, blocks.inputs());
                let block = |matrix: &PackedMatrix| {
                    blocks.gather(&backward::taps_last(&matrix.unpack(), inputs, taps, None))
                };
                matrices.iter().flat_map(block).collect()
            }
            Self::Depthwise(weights) => weights.restore(),
        }
    }
}

/// Convolves an input `[N, H, W, I]` to `[N, Ho, Wo, O]`.
pub(super) fn run<E: Element, O: Element>(
    input: &[E],
    dims: [usize; 4],
    out_dims: [usize; 4],
    weights: &Weights,
    epilogue: Epilogue<'_>,
) -> Vec<O> {
    match weights {
        Weights::Direct { matrix, window, params } => {
            let rows = out_dims[..3].iter().product();
            let side_by_side = Conv2dParams::new(1, 0);
            if *window == [1, 1] && *params == side_by_side {
                let left = PlainRows { values: input, numbers: dims[3] };
                return multiply(&left, rows, matrix, epilogue);
            }
            let windows = unfold::Windows::new(input, dims, out_dims, *window, *params);
            multiply(&windows, rows, matrix, epilogue)
        }
        Weights::Winograd4 { weights, padding } => {
            winograd::run(tiling::Tiles4, input, dims, out_dims, *padding, weights, epilogue)
        }
        Weights::Winograd6 { weights, padding } => {
            winograd::run(tiling::Tiles6, input, dims, out_dims, *padding, weights, epilogue)
        }
        Weights::Grouped { matrices, blocks, window, params } => {
            let rows = out_dims[..3].iter().product();
            let windows = unfold::Windows::new(input, dims, out_dims, *window, *params);
            let n = blocks.inputs();
            let of_block = |block| windows.of_channels(block * n..(block + 1) * n);
            let blocks: Vec<_> = (0..blocks.count).map(of_block).collect();
            multiply_side_by_side(&blocks, rows, matrices, epilogue)
        }
        Weights::Depthwise(weights) => depthwise::run(input, dims, out_dims, weights, epilogue),
    }
}

/// Gradient `[N, H, W, I]` of the input from that of the output.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
) -> Vec<f32> {
    if is_depthwise(sizes.weight, sizes.params) {
        depthwise::input_gradient(isa, weight, gradient, sizes)
    } else if sizes.params.groups > 1 {
        grouped::input_gradient(isa, weight, gradient, sizes)
    } else {
        backward::input_gradient(isa, weight, gradient, sizes)
    }
}

/// Gradient `[O, I/groups, kh, kw]` of the weight, times `scale[o]`.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    if is_depthwise(sizes.weight, sizes.params) {
        depthwise::weight_gradient(isa, input, gradient, sizes, scale)
    } else if sizes.params.groups > 1 {
        grouped::weight_gradient(isa, input, gradient, sizes, scale)
    } else {
        backward::weight_gradient(isa, input, gradient, sizes, scale)
    }
}
