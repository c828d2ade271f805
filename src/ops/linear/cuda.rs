use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    Finish, LINEAR, Product, address, for_dtype, launch, of, output, point,
};

/// `weight` as it came, `[O, I]`, and `bias` `[O]`.
#[derive(Debug)]
pub(super) struct Weights {
    weight: Tensor,
    bias: Tensor,
}

impl Weights {
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let copy = |tensor: &Tensor| tensor.detach().force_contiguous();
        Ok(Self { weight: copy(weight)?, bias: copy(bias)? })
    }

    /// Of variables: for one call, without a copy.
    pub fn as_they_are(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let lent = |tensor: &Tensor| tensor.detach().contiguous();
        Ok(Self { weight: lent(weight)?, bias: lent(bias)? })
    }

    /// `[O, I]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

/// Multiplies `[R, I]` to `[R, O]`.
pub(super) fn run(
    input: &Tensor,
    weights: &Weights,
    activation: Activation,
    dtype: DType,
) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let (rows, terms) = input.dims2()?;
    let columns = weights.bias.elem_count();
    let product = Product { rows, terms, columns, dtype: input.dtype(), output: dtype };
    let (tensor, out) = output(device, dtype, (rows, columns))?;
    point!(input);
    product.run(device, input, address(&weights.weight)?, out)?;
    let finish = Finish::new((rows, columns), out, address(&weights.bias)?, None, activation);
    launch!(device, LINEAR, for_dtype!("linear", dtype), finish.rows.grid(), finish);
    Ok(tensor)
}
