//! Batch norms after convolutions.

use candle_core::{Tensor, Var};
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use super::get_f32;
use crate::error::Result;
use crate::ops::{Activation, FilledRows, batch_norm};

/// Share of a batch's statistics in the running ones: torch's default.
const MOMENTUM: f64 = 0.1;
/// Added to the variance by norms that are trained: torch's default.
const LEARNED_EPS: f64 = 1e-5;

/// Normalisation after a convolution, as model files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// The convolution has a bias instead.
    None,
    /// Fixed statistics and fixed affine parameters.
    FrozenBatchNorm,
    /// Batch norm that training may update; the same as frozen in inference.
    BatchNorm,
}

impl Norm {
    /// A fixed norm becomes one that is trained; without the weights that its statistics came with, it would norm nothing.
    pub(crate) fn learn(&mut self, eps: &mut f64) {
        if *self == Self::FrozenBatchNorm {
            (*self, *eps) = (Self::BatchNorm, LEARNED_EPS);
        }
    }

    /// The prefixes whose norms are never trained, where these are the norms under `prefix`.
    pub(crate) fn fixed_at(self, prefix: &str) -> Vec<String> {
        match self {
            Self::FrozenBatchNorm => vec![prefix.to_owned()],
            Self::None | Self::BatchNorm => Vec::new(),
        }
    }
}

/// The batch norm after a convolution.
#[derive(Clone)]
pub struct NormAt<'a> {
    /// Where its `weight`, `bias`, `running_mean` and `running_var` are.
    pub weights: VarBuilder<'a>,
    /// Added to the variance.
    pub eps: f64,
    /// Share of a batch's statistics in the running ones, where the norm uses those of the batch.
    pub momentum: f64,
}

impl<'a> NormAt<'a> {
    /// The norm there, with torch's momentum of 0.1.
    pub fn new(weights: VarBuilder<'a>, eps: f64) -> Self {
        Self { weights, eps, momentum: MOMENTUM }
    }

    /// The same with another momentum.
    pub fn with_momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }
}

/// The two forms of a batch norm.
pub(super) enum LoadedNorm {
    /// All constants: `x · scale + bias`.
    Fixed { scale: Tensor, bias: Tensor },
    /// Some variables.
    Live(BatchNorm),
}

impl NormAt<'_> {
    pub(super) fn load(&self, channels: usize) -> Result<LoadedNorm> {
        let get =
            |name: &str, first: f64| get_f32(&self.weights, channels, name, Init::Const(first));
        // Statistics first: they tell the source of the tensors that this is a norm.
        let (mean, variance) = (get("running_mean", 0.0)?, get("running_var", 1.0)?);
        let (weight, bias) = (get("weight", 1.0)?, get("bias", 0.0)?);
        if [&mean, &variance, &weight, &bias].iter().any(|tensor| tensor.track_op()) {
            let statistics = [Var::from_tensor(&mean)?, Var::from_tensor(&variance)?];
            let (eps, momentum) = (self.eps, self.momentum);
            return Ok(LoadedNorm::Live(BatchNorm { weight, bias, statistics, eps, momentum }));
        }
        // In the order of operations that the reference has.
        let scale = weight.mul(&(variance + self.eps)?.sqrt()?.recip()?)?;
        let bias = (bias - (mean * &scale)?)?;
        Ok(LoadedNorm::Fixed { scale, bias })
    }
}

/// A batch norm that uses the statistics of the batch, and keeps running ones for inference.
#[derive(Debug, Clone)]
pub(super) struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    /// Mean and variance.
    statistics: [Var; 2],
    eps: f64,
    momentum: f64,
}

impl BatchNorm {
    /// Normalises `[N, H, W, C]`, and moves the running statistics; only `filled` rows count.
    pub fn apply(
        &self,
        input: &Tensor,
        filled: FilledRows,
        residual: Option<&Tensor>,
        activation: Activation,
    ) -> Result<Tensor> {
        let Self { weight, bias, statistics: [mean, variance], eps, momentum } = self;
        let normed = batch_norm(input, filled, weight, bias, residual, activation, *eps)?;
        normed.move_running([mean, variance], *momentum)?;
        Ok(normed.output)
    }
}
