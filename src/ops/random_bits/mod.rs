//! Random numbers that are computed where they are needed.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use super::support::check::unsupported;
use super::support::random;
use crate::error::Result;

const OP: &str = "random_bits";

/// Fills a tensor with random bits: entry `i` has the upper half of the `i`-th number of the sequence SplitMix64 that
/// starts at `seed`.
///
/// Every entry follows from the seed and its place alone, so all devices have the same, and nothing is copied.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | returns | `[rows, columns]` | u32 |
///
/// # Devices
/// CPU; CUDA in one launch.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// Reference: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
pub fn random_bits(seed: u64, (rows, columns): (usize, usize), device: &Device) -> Result<Tensor> {
    match device {
        Device::Cpu => {
            let bits = (0..(rows * columns) as u64).map(|place| random::at(seed, place));
            let upper = bits.map(|bits| (bits >> 32) as u32).collect();
            Ok(Tensor::from_vec(upper, (rows, columns), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(seed, (rows, columns), device),
        other => Err(unsupported(OP, other)),
    }
}
