//! Statistics over many batches, which inference uses.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::plan::Blend;
use super::{BatchNormOutput, OP};
use crate::error::Result;
use crate::ops::support::check::{argument, unsupported};

impl BatchNormOutput {
    /// Moves a running mean and variance towards those of this batch, in place.
    ///
    /// `running ← (1 − momentum) · running + momentum · batch's`, with the unbiased variance: divided by one less than the
    /// number of values. A batch of one value or none leaves the running ones as they are.
    ///
    /// # Shapes
    /// | argument | shape | dtype |
    /// | --- | --- | --- |
    /// | `running` | `[C]` each, contiguous: mean, variance | f32 |
    ///
    /// # Devices
    /// CPU; CUDA in one launch.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
    /// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
    pub fn move_running(&self, running: [&Tensor; 2], momentum: f64) -> Result<()> {
        for (name, tensor) in [("running mean", running[0]), ("running variance", running[1])] {
            let expected = "[C], contiguous";
            let checked = argument(OP, name, tensor)
                .dtype(DType::F32)?
                .same_device(&self.mean)?
                .shape(self.mean.dims(), expected)?;
            if !tensor.is_contiguous() {
                return Err(checked.shape_error(expected));
            }
        }
        let blend = Blend { keep: (1.0 - momentum) as f32, share: momentum as f32 };
        match self.mean.device() {
            Device::Cpu => self.move_on_cpu(running, blend),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                cuda::move_running(running, [&self.mean, &self.variance], &self.plan, blend)
            }
            other => Err(unsupported(OP, other)),
        }
    }

    fn move_on_cpu(&self, [mean, variance]: [&Tensor; 2], blend: Blend) -> Result<()> {
        let values: usize = self.plan.filled()?.iter().map(ExactSizeIterator::len).sum();
        if values > 1 {
            let unbiased = (values as f64 / (values - 1) as f64) as f32;
            mean.inplace_op2(&self.mean, &Move { blend, factor: 1.0 })?;
            variance.inplace_op2(&self.variance, &Move { blend, factor: unbiased })?;
        }
        Ok(())
    }
}

/// `keep · running + share · (factor · batch)`.
struct Move {
    blend: Blend,
    factor: f32,
}

impl InplaceOp2 for Move {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        running: &mut CpuStorage,
        running_layout: &Layout,
        batch: &CpuStorage,
        batch_layout: &Layout,
    ) -> candle_core::Result<()> {
        let CpuStorage::F32(running) = running else {
            return Err(candle_core::Error::Msg("running statistics are not f32".to_owned()));
        };
        let part = |layout: &Layout| {
            layout.start_offset()..layout.start_offset() + layout.shape().elem_count()
        };
        let running = &mut running[part(running_layout)];
        let batch = &batch.as_slice::<f32>()?[part(batch_layout)];
        let Blend { keep, share } = self.blend;
        for (running, batch) in running.iter_mut().zip(batch) {
            *running = *running * keep + batch * self.factor * share;
        }
        Ok(())
    }
}
