//! The last layer of the mask head without its sigmoid, for training.

use candle_core::{DType, Device, Tensor};

use super::{cpu, cpu_backward};
use crate::error::Result;
use crate::ops::support::autograd::{Backward, record};
use crate::ops::support::check::{argument, lend, unsupported};

const OP: &str = "class_mask_logits";

/// Computes the mask logits of each row's own class: [`class_masks`](super::class_masks) without the sigmoid.
///
/// A loss on logits is exact where one on probabilities has lost all digits. Rows with label 0 give zeros and get no
/// gradient; so do labels from the number of classes on.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `features` | `[R, M, M, C]` | f32 | after the transposed convolution and its ReLU |
/// | `weight` | `[num_classes, C]` or `[num_classes, C, 1, 1]` | f32 | filters of the convolution |
/// | `bias` | `[num_classes]` | f32 | |
/// | `labels` | `[R]` | u32 | category id; 0 for an empty slot |
/// | returns | `[R, M, M]` | f32 | logits |
///
/// # Devices
/// CPU; CUDA in one launch, and three for the gradients. O(R·M²·C) time.
///
/// # Gradients
/// Of `features`, `weight` and `bias`.
///
/// # Errors
/// As for [`class_masks`](super::class_masks).
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::class_mask_logits;
///
/// let features = Tensor::new(&[[[[0f32, 2.0], [1.0, 0.0]]]], &Device::Cpu)?; // one row, 1×2 cells, two channels
/// let weight = Tensor::new(&[[9f32, 9.0], [1.0, 0.5]], &Device::Cpu)?;
/// let bias = Tensor::new(&[9f32, -1.0], &Device::Cpu)?;
/// let labels = Tensor::new(&[1u32], &Device::Cpu)?;
/// let logits = class_mask_logits(&features, &weight, &bias, &labels)?;
/// assert_eq!(logits.to_vec3::<f32>()?, [[[0.0, 0.0]]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `maskrcnn_loss`, which picks the label's channel of all.
pub fn class_mask_logits(
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    argument(OP, "features", features).dtype(DType::F32)?;
    let filters = super::as_matrix(weight)?;
    let [n_rows, height, width, channels] = super::check(OP, features, &filters, bias, labels)?;
    let output = match features.device() {
        Device::Cpu => {
            let device = features.device();
            lend!(features: f32, filters: f32, bias: f32, labels: u32);
            let filters = cpu::Filters { weight: filters, bias, channels };
            let logits = cpu::run(features, &filters, labels, height * width, |logit| logit);
            Tensor::from_vec(logits, (n_rows, height, width), device)?
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => super::cuda::logits(features, &filters, bias, labels)?,
        other => return Err(unsupported(OP, other)),
    };
    record(OP, &[features, weight, bias], output, || {
        Ok(LogitsBackward { features: features.detach(), weight: filters, labels: labels.clone() })
    })
}

struct LogitsBackward {
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
}

impl Backward for LogitsBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let device = gradient.device();
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            return self.backward_on_cuda(gradient, wanted);
        }
        if !matches!(device, Device::Cpu) {
            return Err(unsupported("gradients of class_mask_logits", device));
        }
        let Self { features, weight, labels } = self;
        let (classes, channels) = weight.dims2()?;
        let (features_shape, weight_shape) = (features.shape(), weight.shape());
        debug_assert_eq!(gradient.dtype(), DType::F32);
        lend!(features: f32, weight: f32, labels: u32, gradient: f32);
        let rows = cpu_backward::Rows { labels, gradient, classes, channels };
        let of_features = wanted[0]
            .then(|| Tensor::from_vec(rows.of_features(weight), features_shape, device))
            .transpose()?;
        let of_weight = wanted[1]
            .then(|| Tensor::from_vec(rows.of_weight(features), weight_shape, device))
            .transpose()?;
        let of_bias =
            wanted[2].then(|| Tensor::from_vec(rows.of_bias(), classes, device)).transpose()?;
        Ok(vec![of_features, of_weight, of_bias])
    }
}

#[cfg(feature = "cuda")]
impl LogitsBackward {
    fn backward_on_cuda(&self, gradient: &Tensor, wanted: &[bool]) -> Result<Vec<Option<Tensor>>> {
        use super::cuda_backward::{of_features, of_filters};
        let Self { features, weight, labels } = self;
        let of_features = wanted[0].then(|| of_features(gradient, weight, labels)).transpose()?;
        let (of_weight, of_bias) = if wanted[1] || wanted[2] {
            let (of_weight, of_bias) = of_filters(gradient, features, labels, weight.dim(0)?)?;
            (Some(of_weight), Some(of_bias))
        } else {
            (None, None)
        };
        Ok(vec![of_features, of_weight, of_bias])
    }
}
