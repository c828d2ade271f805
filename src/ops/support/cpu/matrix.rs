//! Weights in the order in which the kernel reads them.

#[cfg(target_arch = "x86_64")]
use candle_core::DType;
#[cfg(target_arch = "x86_64")]
use half::bf16;

use rayon::prelude::*;

use super::element::Element;
use super::kernel::{Kernel, panel_columns};
use super::memory::AlignedBuffer;
#[cfg(target_arch = "x86_64")]
use super::memory::as_terms;
use super::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Where the entries of a weight matrix lie: that of term `(tap, input)` and column `output` at
/// `tap · tap_stride + input · input_stride + output · output_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a, E> {
    pub values: &'a [E],
    pub taps: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub tap_stride: usize,
    pub input_stride: usize,
    pub output_stride: usize,
}

/// A weight matrix `[terms, columns]` in panels: `[columns / panel width, terms, panel width]`, the last one filled up
/// with zeros, and a bias per column. The panel width belongs to an instruction set. Where there is a kernel for pairs of
/// bf16, a pair is one term; elsewhere, bf16 are widened.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    isa: Isa,
    kernel: Kernel,
    terms: usize,
    columns: usize,
    tile: TileSize,
    panels: AlignedBuffer,
    bias: Vec<f32>,
}

impl PackedMatrix {
    /// Packs a matrix. Number `tap · inputs + input` of a row comes first by tap, then by input.
    pub fn new<E: Element>(isa: Isa, source: Source<'_, E>, bias: &[f32]) -> Self {
        let kernel = kernel::<E>(isa);
        let (terms, columns) =
            ((source.taps * source.inputs).div_ceil(kernel.numbers()), source.outputs);
        let tile = isa.run(TileSizeOf);
        let (count, width) = (columns.div_ceil(tile.columns), tile.columns);
        let panels = AlignedBuffer::filled(count, terms * width, |panel, values| match kernel {
            Kernel::Values => pack(source, panel, width, 1, values, Element::widen),
            #[cfg(target_arch = "x86_64")]
            Kernel::Pairs(_) => {
                let values = as_terms::<bf16, bf16>(values);
                pack(source, panel, width, 2, values, |value| bf16::narrow(value.widen()));
            }
        });
        Self { isa, kernel, terms, columns, tile, panels, bias: bias.to_vec() }
    }

    /// What a term is.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The entries as `[columns, terms]`, of a matrix packed from f32.
    pub fn unpack(&self) -> Vec<f32> {
        let (terms, width) = (self.terms, self.panel_columns());
        let mut out = vec![0.0; self.columns * terms];
        out.par_chunks_exact_mut(terms.max(1)).enumerate().for_each(|(column, out)| {
            let panel = &self.panels()[column / width * terms * width..][..terms * width];
            let entries = panel[column % width..].iter().step_by(width);
            out.iter_mut().zip(entries).for_each(|(out, entry)| *out = *entry);
        });
        out
    }

    /// The instruction set whose kernel reads this matrix.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Terms of each sum.
    pub fn terms(&self) -> usize {
        self.terms
    }

    /// Number of sums per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Columns of a panel.
    pub fn panel_columns(&self) -> usize {
        self.tile.columns
    }

    /// Rows of the kernel's tile.
    pub fn tile_rows(&self) -> usize {
        self.tile.rows
    }

    /// Values from a panel to the next.
    pub fn panel_stride(&self) -> usize {
        self.terms * self.tile.columns
    }

    /// All panels.
    pub fn panels(&self) -> &[f32] {
        self.panels.values()
    }

    /// One value per column.
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }
}

/// The kernel for weights of a type.
fn kernel<E: Element>(isa: Isa) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if let (DType::BF16, Some(proof)) = (E::DTYPE, isa.bf16_pairs()) {
        return Kernel::Pairs(proof);
    }
    let _ = isa;
    Kernel::Values
}

/// Writes a panel of terms with `numbers` numbers each; the numbers of a term lie side by side.
fn pack<E: Element, T>(
    source: Source<'_, E>,
    panel: usize,
    width: usize,
    numbers: usize,
    values: &mut [T],
    convert: impl Fn(E) -> T,
) {
    let Source { taps, inputs, outputs, .. } = source;
    for (lane, output) in (panel * width..outputs.min((panel + 1) * width)).enumerate() {
        for tap in 0..taps {
            let start = tap * source.tap_stride + output * source.output_stride;
            let column = source.values[start..].iter().step_by(source.input_stride);
            for (input, value) in column.take(inputs).enumerate() {
                let number = tap * inputs + input;
                let place = number / numbers * width + lane;
                values[place * numbers + number % numbers] = convert(*value);
            }
        }
    }
}

/// The tile of sums that the kernel of an instruction set computes at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileSize {
    pub rows: usize,
    pub columns: usize,
}

/// Tells the [`TileSize`] of an instruction set.
#[derive(Debug)]
pub(crate) struct TileSizeOf;

impl Job for TileSizeOf {
    type Output = TileSize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> TileSize {
        TileSize { rows: S::TILE_ROWS, columns: panel_columns::<S>() }
    }
}
