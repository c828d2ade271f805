//! Gradients of a linear layer on CUDA: products of cuBLAS.

use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{Product, check_f32, column_sums, of, output, pointer};

/// `[R, I]`, of a gradient `[R, O]` and a weight `[O, I]`.
pub(super) fn of_input(weight: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    check_f32(weight)?;
    let device = of(OP, gradient.device())?;
    let weight = weight.contiguous()?;
    let ((rows, terms), (_, columns)) = (gradient.dims2()?, weight.dims2()?);
    let (tensor, out) = output(device, DType::F32, (rows, columns))?;
    let product = Product { rows, terms, columns, dtype: DType::F32, output: DType::F32 };
    product.run_plain(device, pointer::<f32>(gradient)?, pointer::<f32>(&weight)?, out)?;
    Ok(tensor)
}

/// `[O, I]`, of a gradient `[R, O]` and an input `[R, I]`.
pub(super) fn of_weight(input: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let device = of(OP, gradient.device())?;
    let input = input.contiguous()?;
    let ((terms, rows), (_, columns)) = (gradient.dims2()?, input.dims2()?);
    let (tensor, out) = output(device, DType::F32, (rows, columns))?;
    let product = Product { rows, terms, columns, dtype: DType::F32, output: DType::F32 };
    product.run_outer(device, pointer::<f32>(gradient)?, pointer::<f32>(&input)?, out, 0.0)?;
    Ok(tensor)
}

/// `[O]`, of a gradient `[R, O]`.
pub(super) fn of_bias(gradient: &Tensor) -> Result<Tensor> {
    let device = of(OP, gradient.device())?;
    let (rows, columns) = gradient.dims2()?;
    Ok(column_sums(device, pointer::<f32>(gradient)?, rows, columns)?.into_tensor(columns))
}
