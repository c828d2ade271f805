//! Weights as Winograd's method multiplies them.

use rayon::prelude::*;

use super::super::tiling::Tiling;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::matrix::{TileSize, TileSizeOf};
use crate::ops::support::cpu::memory::AlignedBuffer;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Transformed weights: for each point, panels as in a
/// [`PackedMatrix`](crate::ops::support::cpu::matrix::PackedMatrix).
#[derive(Debug)]
pub(in crate::ops::conv2d) struct Weights {
    pub(super) isa: Isa,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) tile: TileSize,
    /// `[panel, point, input, panel column]`.
    pub(super) values: AlignedBuffer,
    pub(super) bias: Vec<f32>,
}

impl Weights {
    /// Transforms a weight `[O, I, 3, 3]`.
    pub(in crate::ops::conv2d::cpu) fn new<E: Element, const N: usize, const M: usize>(
        isa: Isa,
        tiling: impl Tiling<N, M>,
        weight: &[E],
        [outputs, inputs, ..]: [usize; 4],
        bias: &[f32],
    ) -> Self {
        let tile = isa.run(TileSizeOf);
        let panel_values = N * N * inputs * tile.columns;
        let matrix = tiling.weight_transform();
        let panels = outputs.div_ceil(tile.columns);
        let values = AlignedBuffer::filled(panels, panel_values, |panel, out| {
            let first = panel * tile.columns;
            let last = (first + tile.columns).min(outputs);
            let weight = &weight[first * inputs * 9..last * inputs * 9];
            let (matrix, columns) = (matrix.as_slice(), tile.columns);
            isa.run(PanelTransform { matrix, weight, inputs, columns, out });
        });
        Self { isa, inputs, outputs, tile, values, bias: bias.to_vec() }
    }

    /// The weight `[O, I, 3, 3]` that these were made from, up to rounding.
    pub(in crate::ops::conv2d::cpu) fn restore<const N: usize, const M: usize>(
        &self,
        tiling: impl Tiling<N, M>,
    ) -> Vec<f32> {
        let inverse = tiling.weight_restoration();
        let Self { inputs, tile: TileSize { columns, .. }, .. } = *self;
        let mut out = vec![0.0; self.outputs * inputs * 9];
        out.par_chunks_exact_mut(inputs * 9).enumerate().for_each(|(output, out)| {
            let panel = output / columns * N * N * inputs * columns;
            for (input, out) in out.chunks_exact_mut(9).enumerate() {
                let value = |point: usize| {
                    let place = panel + (point * inputs + input) * columns + output % columns;
                    f64::from(self.values.values()[place])
                };
                for (tap, out) in out.iter_mut().enumerate() {
                    let (rows, columns) = (inverse[tap / 3], inverse[tap % 3]);
                    let mut sum = 0.0;
                    for (i, row) in rows.iter().enumerate().filter(|(_, row)| **row != 0.0) {
                        for (j, column) in columns.iter().enumerate() {
                            if *column != 0.0 {
                                sum += row * column * value(i * N + j);
                            }
                        }
                    }
                    *out = sum as f32;
                }
            }
        });
        out
    }
}

/// The transform of a panel's weights, in f64 because it is done only once.
struct PanelTransform<'a, E> {
    /// `G`.
    matrix: &'a [[f64; 3]],
    /// `[output, input, 3, 3]` of the panel's outputs.
    weight: &'a [E],
    inputs: usize,
    columns: usize,
    /// `[point, input, panel column]`.
    out: &'a mut [f32],
}

impl<E: Element> Job for PanelTransform<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Outputs side by side, so that the compiler makes vectors of them; a whole cache line of them where a panel has
        // that many columns.
        if S::LANES >= 8 { self.transform::<16>() } else { self.transform::<8>() }
    }
}

impl<E: Element> PanelTransform<'_, E> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over several arrays at once
    fn transform<const LANES: usize>(self) {
        let Self { matrix, weight, inputs, columns, out } = self;
        let windows: &[[E; 9]] = weight.as_chunks().0;
        for (group, windows) in windows.chunks(LANES * inputs).enumerate() {
            for input in 0..inputs {
                let mut window = [[0.0; LANES]; 9];
                for (lane, windows) in windows.chunks_exact(inputs).enumerate() {
                    for (tap, value) in windows[input].iter().enumerate() {
                        window[tap][lane] = f64::from(value.widen());
                    }
                }
                for (i, row) in matrix.iter().enumerate() {
                    let mut line = [[0.0; LANES]; 3];
                    for dx in 0..3 {
                        for lane in 0..LANES {
                            line[dx][lane] = row[0] * window[dx][lane]
                                + row[1] * window[3 + dx][lane]
                                + row[2] * window[6 + dx][lane];
                        }
                    }
                    for (j, column) in matrix.iter().enumerate() {
                        let point = i * matrix.len() + j;
                        let place = (point * inputs + input) * columns + group * LANES;
                        let out = &mut out[place..place + LANES];
                        for lane in 0..LANES {
                            out[lane] = (column[0] * line[0][lane]
                                + column[1] * line[1][lane]
                                + column[2] * line[2][lane])
                                as f32;
                        }
                    }
                }
            }
        }
    }
}
