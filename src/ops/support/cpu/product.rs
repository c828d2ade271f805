//! Products of activations with weights that were laid out for it once.

use rayon::prelude::*;

use crate::ops::support::activation::Activation;

/// Rows of a product that one task computes.
const ROWS_PER_TASK: usize = 128;

/// A weight matrix `[inputs, outputs]` and its bias.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    inputs: usize,
    outputs: usize,
    /// `[inputs, outputs]`, row by row.
    values: Vec<f32>,
    bias: Vec<f32>,
}

impl PackedMatrix {
    /// Lays out a matrix whose entries `weight(input, output)` gives.
    pub fn new(
        inputs: usize,
        outputs: usize,
        bias: &[f32],
        weight: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Self {
        let mut values = vec![0.0; inputs * outputs];
        values.par_chunks_mut(outputs.max(1)).enumerate().for_each(|(i, row)| {
            for (o, value) in row.iter_mut().enumerate() {
                *value = weight(i, o);
            }
        });
        Self { inputs, outputs, values, bias: bias.to_vec() }
    }

    /// Number of terms in each output.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of outputs per row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }
}

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// Added before the activation, as many values as the output has.
    pub residual: Option<&'a [f32]>,
    pub activation: Activation,
}

/// Multiplies rows, which `fill(first_row, rows)` writes as `[n, inputs]`, with the weights: `[rows, outputs]`.
pub(crate) fn product_of_filled(
    rows: usize,
    weights: &PackedMatrix,
    epilogue: Epilogue<'_>,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    let mut out = vec![0.0; rows * outputs];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_mut(ROWS_PER_TASK * outputs).enumerate().for_each_init(
        || vec![0.0; ROWS_PER_TASK * inputs],
        |scratch, (task, out)| {
            let n = out.len() / outputs;
            let first = task * ROWS_PER_TASK;
            let lhs = &mut scratch[..n * inputs];
            fill(first, lhs);
            block(lhs, weights, epilogue, first, out);
        },
    );
    out
}

/// Multiplies rows `[rows, inputs]` with the weights: `[rows, outputs]`.
pub(crate) fn product(lhs: &[f32], weights: &PackedMatrix, epilogue: Epilogue<'_>) -> Vec<f32> {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    let rows = lhs.len() / inputs.max(1);
    let mut out = vec![0.0; rows * outputs];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_mut(ROWS_PER_TASK * outputs)
        .zip(lhs.par_chunks(ROWS_PER_TASK * inputs))
        .enumerate()
        .for_each(|(task, (out, lhs))| {
            block(lhs, weights, epilogue, task * ROWS_PER_TASK, out);
        });
    out
}

/// The product of some rows, and what follows it.
fn block(
    lhs: &[f32],
    weights: &PackedMatrix,
    epilogue: Epilogue<'_>,
    first_row: usize,
    out: &mut [f32],
) {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    let rows = out.len() / outputs;
    assert!(lhs.len() == rows * inputs && weights.values.len() == inputs * outputs);
    // SAFETY: the three matrices are row by row, of the sizes asserted above, and `out` is not aliased.
    unsafe {
        gemm::gemm(
            rows,
            outputs,
            inputs,
            out.as_mut_ptr(),
            1,
            outputs as isize,
            false,
            lhs.as_ptr(),
            1,
            inputs as isize,
            weights.values.as_ptr(),
            1,
            outputs as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    for (row, out) in out.chunks_exact_mut(outputs).enumerate() {
        let start = (first_row + row) * outputs;
        for (o, value) in out.iter_mut().enumerate() {
            let mut sum = *value + weights.bias[o];
            if let Some(residual) = epilogue.residual {
                sum += residual[start + o];
            }
            if epilogue.activation == Activation::Relu && sum < 0.0 {
                sum = 0.0;
            }
            *value = sum;
        }
    }
}
