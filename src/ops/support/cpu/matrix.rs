//! Weights in the order in which the kernel reads them.

use rayon::prelude::*;

use super::kernel::panel_columns;
use super::memory::AlignedBuffer;
use super::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Where the entries of a weight matrix lie: that of term `(tap, input)` and column `output` at
/// `tap · tap_stride + input · input_stride + output · output_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub values: &'a [f32],
    pub taps: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub tap_stride: usize,
    pub input_stride: usize,
    pub output_stride: usize,
}

/// A weight matrix `[terms, columns]` in panels: `[columns / panel width, terms, panel width]`, the last one filled up
/// with zeros, and a bias per column. The panel width belongs to an instruction set.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    isa: Isa,
    terms: usize,
    columns: usize,
    panel_columns: usize,
    tile_rows: usize,
    panels: AlignedBuffer,
    bias: Vec<f32>,
}

impl PackedMatrix {
    /// Packs a matrix. Term `tap · inputs + input` comes first by tap, then by input.
    pub fn new(isa: Isa, source: Source<'_>, bias: &[f32]) -> Self {
        let (terms, columns) = (source.taps * source.inputs, source.outputs);
        let TileSize { rows: tile_rows, columns: width } = isa.run(TileSizeOf);
        let mut panels = AlignedBuffer::zeros(columns.div_ceil(width) * terms * width);
        panels.values_mut().par_chunks_exact_mut(terms * width).enumerate().for_each(
            |(panel, values)| {
                let outputs = panel * width..columns.min((panel + 1) * width);
                for (tap, values) in values.chunks_exact_mut(source.inputs * width).enumerate() {
                    for (lane, output) in outputs.clone().enumerate() {
                        let start = tap * source.tap_stride + output * source.output_stride;
                        let column = source.values[start..].iter().step_by(source.input_stride);
                        let places = values[lane..].iter_mut().step_by(width);
                        places.zip(column).for_each(|(place, value)| *place = *value);
                    }
                }
            },
        );
        Self { isa, terms, columns, panel_columns: width, tile_rows, panels, bias: bias.to_vec() }
    }

    /// The entries as `[columns, terms]`.
    pub fn unpack(&self) -> Vec<f32> {
        let (terms, width) = (self.terms, self.panel_columns);
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
        self.panel_columns
    }

    /// Rows of the kernel's tile.
    pub fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// Values from a panel to the next.
    pub fn panel_stride(&self) -> usize {
        self.terms * self.panel_columns
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
