//! Value and gradients, on whichever device.

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{DenseTruth, Loss, Normalization, check, cpu};
use crate::error::Result;
use crate::ops::support::autograd::{Backward, record};
use crate::ops::support::check::unsupported;
use crate::ops::support::levels::Levels;

/// Predictions and what they should be, cut off from any graph.
pub(super) struct Compared {
    pub loss: Loss,
    pub normalization: Normalization,
    pub plan: Levels,
    /// Objects of an image, valid or not.
    pub n_objects: usize,
    /// Predictions.
    pub levels: Vec<Tensor>,
    pub anchors: Option<Tensor>,
    pub matches: Tensor,
    pub boxes: Tensor,
    pub labels: Tensor,
}

impl Compared {
    pub fn new(
        loss: Loss,
        levels: &[&Tensor],
        width: usize,
        anchors: Option<&Tensor>,
        truth: DenseTruth<'_>,
        normalization: Normalization,
    ) -> Result<Self> {
        let (plan, n_objects) = check(loss, levels, width, anchors, truth)?;
        let levels = levels.iter().map(|level| level.detach().contiguous());
        Ok(Self {
            loss,
            normalization,
            plan,
            n_objects,
            levels: levels.collect::<Result<_, _>>()?,
            anchors: anchors.map(|anchors| anchors.detach().contiguous()).transpose()?,
            matches: truth.matches.contiguous()?,
            boxes: truth.objects.boxes.detach().contiguous()?,
            labels: truth.objects.labels.contiguous()?,
        })
    }

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
