//! First values of weights that no file provides, as torchvision draws them.

use candle_nn::Init;
use candle_nn::init::{FanInOut, NonLinearity, NormalOrUniform};

/// A distribution of first weights. `fan in` is inputs · window, `fan out` is outputs · window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initial {
    /// Normal with variance 2 / fan out, which keeps gradients in front of ReLUs (He et al., arXiv:1502.01852).
    BeforeRelu,
    /// Uniform with variance 1 / fan in, which keeps activations where nothing cuts them off: the pyramid.
    Linear,
    /// Normal with deviation 0.01: the region proposal network's head.
    Small,
    /// As [`Self::Small`], and biases for which a sigmoid says 0.01: classifiers of places that rarely show anything (Lin et
    /// al., arXiv:1708.02002, section 3.3).
    Rare,
    /// Normal with deviation 0.03: SSDLite.
    Lite,
    /// Uniform with variance 2 / (fan in + fan out): SSD (Glorot and Bengio 2010).
    Xavier,
    /// Uniform within ±1/√(fan in), biases too: torch's default.
    Default,
}

/// Numbers of weights that an output sums up, and that an input is multiplied by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fans {
    pub inputs: usize,
    pub outputs: usize,
}

impl Initial {
    /// Of weights.
    pub(crate) fn weight(self, Fans { inputs, outputs }: Fans) -> Init {
        match self {
            Self::BeforeRelu => Init::Kaiming {
                dist: NormalOrUniform::Normal,
                fan: FanInOut::FanOut,
                non_linearity: NonLinearity::ReLU,
            },
            Self::Linear => Init::Kaiming {
                dist: NormalOrUniform::Uniform,
                fan: FanInOut::FanIn,
                non_linearity: NonLinearity::Linear,
            },
            Self::Small | Self::Rare => Init::Randn { mean: 0.0, stdev: 0.01 },
            Self::Lite => Init::Randn { mean: 0.0, stdev: 0.03 },
            Self::Xavier => {
                let bound = (6.0 / (inputs + outputs) as f64).sqrt();
                Init::Uniform { lo: -bound, up: bound }
            }
            Self::Default => Init::Kaiming {
                dist: NormalOrUniform::Uniform,
                fan: FanInOut::FanIn,
                // A bound of √3 deviations is 1/√(fan in).
                non_linearity: NonLinearity::ExplicitGain(1.0 / 3f64.sqrt()),
            },
        }
    }

    /// Of biases.
    pub(crate) fn bias(self, fan_in: usize) -> Init {
        match self {
            Self::BeforeRelu | Self::Linear | Self::Small | Self::Lite | Self::Xavier => {
                Init::Const(0.0)
            }
            Self::Rare => Init::Const(-(0.99f64 / 0.01).ln()),
            Self::Default => {
                let bound = 1.0 / (fan_in as f64).sqrt();
                Init::Uniform { lo: -bound, up: bound }
            }
        }
    }
}
