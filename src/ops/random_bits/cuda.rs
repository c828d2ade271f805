use candle_core::{Device, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, RANDOM_BITS, launch, of};

pub(super) fn run(seed: u64, (rows, columns): (usize, usize), device: &Device) -> Result<Tensor> {
    let device = of(OP, device)?;
    let n = rows * columns;
    let bits = Output::<u32>::new(device, n)?;
    launch!(device, RANDOM_BITS, "random_bits", Grid::over(n), seed, bits.pointer(), n as u64);
    Ok(bits.into_tensor((rows, columns)))
}
