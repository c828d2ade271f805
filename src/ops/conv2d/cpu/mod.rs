//! Convolution on the CPU: slices in, slices out.

pub(super) mod backward;
mod tiling;
mod unfold;
mod winograd;
mod winograd_gradient;

use super::Conv2dParams;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, multiply};
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
}

/// With fewer channels, the transforms cost more than the products they save.
const MIN_WINOGRAD_CHANNELS: usize = 32;
/// Products `inputs · outputs` up to which a tile of 6×6 outputs is used: 16.8 MB of weights.
const MAX_WINOGRAD6_WEIGHTS: usize = 256 * 256;

impl Algorithm {
    /// The fastest for a weight `[O, I, kh, kw]`.
    pub fn choose([outputs, inputs, height, width]: [usize; 4], params: Conv2dParams) -> Self {
        if !Self::can_transform([height, width], params)
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
        window == [3, 3] && params.stride == 1
    }
}

/// Weights as the CPU kernels want them.
#[derive(Debug)]
pub(in crate::ops::conv2d) enum Weights {
    Direct { matrix: PackedMatrix, window: [usize; 2], params: Conv2dParams },
    Winograd4 { weights: winograd::Weights, padding: usize },
    Winograd6 { weights: winograd::Weights, padding: usize },
}

impl Weights {
    /// Lays out a weight `[O, I, kh, kw]`.
    pub fn new<E: Element>(
        isa: Isa,
        algorithm: Algorithm,
        weight: &[E],
        dims: [usize; 4],
        bias: &[f32],
        params: Conv2dParams,
    ) -> Self {
        let [outputs, inputs, height, width] = dims;
        let padding = params.padding;
        match algorithm {
            Algorithm::Direct => {
                let source = Source {
                    values: weight,
                    taps: height * width,
                    inputs,
                    outputs,
                    tap_stride: 1,
                    input_stride: height * width,
                    output_stride: inputs * height * width,
                };
                let matrix = PackedMatrix::new(isa, source, bias);
                Self::Direct { matrix, window: [height, width], params }
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
    /// The weight `[O, I, kh, kw]` that these were made from, up to rounding.
    pub fn restore(&self) -> Vec<f32> {
        match self {
            Self::Direct { matrix, window: [height, width], .. } => {
                let taps = height * width;
                backward::taps_last(&matrix.unpack(), matrix.terms() / taps, taps, None)
            }
            Self::Winograd4 { weights, .. } => weights.restore(tiling::Tiles4),
            Self::Winograd6 { weights, .. } => weights.restore(tiling::Tiles6),
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
            let side_by_side = Conv2dParams { stride: 1, padding: 0 };
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
    }
}
