//! Value and gradients, on whichever device.

use candle_core::{Device, Tensor};

use super::compared::Compared;
use super::cpu;
#[cfg(feature = "cuda")]
use super::cuda;
use crate::error::Result;
use crate::ops::support::autograd::{Backward, record};
use crate::ops::support::check::unsupported;

impl Compared {
    /// The loss, as a function of the levels in their graph.
    pub fn cost(self, levels: &[&Tensor]) -> Result<Tensor> {
        let op = self.loss.op();
        match self.matches.device() {
            Device::Cpu => {
                let learns = levels.iter().any(|level| level.track_op());
                let (value, slopes) = cpu::evaluate(&self, learns)?;
                let value = Tensor::new(value, &Device::Cpu)?;
                record(op, levels, value, || {
                    let dims = self.levels.iter().map(Tensor::shape);
                    let slopes = dims
                        .zip(slopes)
                        .map(|(dims, slopes)| Ok(Tensor::from_vec(slopes, dims, &Device::Cpu)?));
                    Ok(CpuBackward { slopes: slopes.collect::<Result<_>>()? })
                })
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let (value, state) = cuda::cost(&self)?;
                record(op, levels, value, || Ok(CudaBackward { compared: self, state }))
            }
            other => Err(unsupported(op, other)),
        }
    }
}

/// Gradients that were computed with the value.
struct CpuBackward {
    /// Of the levels.
    slopes: Vec<Tensor>,
}

impl Backward for CpuBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let factor = f64::from(gradient.to_scalar::<f32>()?);
        let scaled = |(slopes, wanted): (&Tensor, &bool)| {
            Ok(match (wanted, factor == 1.0) {
                (false, _) => None,
                (true, true) => Some(slopes.clone()),
                (true, false) => Some((slopes * factor)?),
            })
        };
        self.slopes.iter().zip(wanted).map(scaled).collect()
    }
}

#[cfg(feature = "cuda")]
struct CudaBackward {
    compared: Compared,
    state: cuda::State,
}

#[cfg(feature = "cuda")]
impl Backward for CudaBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        cuda::slopes(&self.compared, &self.state, gradient)
    }
}
