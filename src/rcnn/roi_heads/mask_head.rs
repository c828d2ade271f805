//! Masks of detections (He et al., arXiv:1703.06870).

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::box_head::normed_conv;
use super::{InstanceHead, MultiScaleRoiAlign};
use crate::error::Result;
use crate::layers::{
    Conv2d, ConvShape, ConvTranspose2d, ConvTransposeShape, Fans, Initial, Norm, get_f32,
};
use crate::ops::{Activation, FilledRows, class_mask_logits, class_masks, mask_loss, mask_targets};
use crate::section::Checks;
use crate::structures::{
    BatchGeometry, FeatureLevel, FeatureMaps, Instances, SlotRows, TargetNeeds, trim_samples,
};
use crate::targets::{ObjectBatch, Sampled};

/// The section `mask_head` of the architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskHeadConfig {
    /// Cells per side of the pooled features; the mask has twice as many.
    pub roi_output: usize,
    /// Samples per side of a cell.
    pub roi_sampling: usize,
    /// Output channels of the 3×3 convolutions.
    pub conv_channels: Vec<usize>,
    /// Normalisation of the 3×3 convolutions.
    pub norm: Norm,
    /// Channels of the transposed convolution.
    pub predictor_channels: usize,
}

impl MaskHeadConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[
            ("roi_output", self.roi_output),
            ("roi_sampling", self.roi_sampling),
            ("conv_channels", self.conv_channels.len()),
            ("predictor_channels", self.predictor_channels),
        ])
    }
}

/// Convolutions, an enlargement, and one filter per class, of which only the detected class's is applied.
pub struct MaskHead {
    roi_pool: MultiScaleRoiAlign,
    convs: Vec<Conv2d>,
    enlarge: ConvTranspose2d,
    class_filters: Tensor,
    class_biases: Tensor,
}

impl MaskHead {
    /// Name of the output in `DetectionBatch::extras`.
    pub const NAME: &'static str = "masks";

    /// Loads the head from `mask_head.N.0`, `mask_predictor.conv5_mask` and `mask_predictor.mask_fcn_logits`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        levels: &[FeatureLevel],
        num_classes: usize,
        config: &MaskHeadConfig,
    ) -> Result<Self> {
        let mut channels = levels.first().map_or(0, |level| level.channels);
        let mut convs = Vec::with_capacity(config.conv_channels.len());
        for (index, out_channels) in config.conv_channels.iter().copied().enumerate() {
            let weights = weights.pp("mask_head").pp(index);
            let shape = ConvShape::new((channels, out_channels), 3, Initial::BeforeRelu);
            convs.push(match config.norm {
                Norm::None => Conv2d::load(&weights.pp(0), shape, Activation::Relu)?,
                Norm::FrozenBatchNorm | Norm::BatchNorm => {
                    normed_conv(&weights, channels, out_channels)?
                }
            });
            channels = out_channels;
        }
        let predictor = weights.pp("mask_predictor");
        let enlarged = config.predictor_channels;
        let filters = predictor.pp("mask_fcn_logits");
        let shape = ConvTransposeShape {
            in_channels: channels,
            out_channels: enlarged,
            kernel: 2,
            initial_bias: Initial::Default,
        };
        Ok(Self {
            roi_pool: MultiScaleRoiAlign::new(levels, config.roi_output, config.roi_sampling),
            convs,
            enlarge: ConvTranspose2d::load(&predictor.pp("conv5_mask"), shape, Activation::Relu)?,
            class_filters: get_f32(
                &filters,
                (num_classes, enlarged, 1, 1),
                "weight",
                Initial::BeforeRelu.weight(Fans { inputs: enlarged, outputs: num_classes }),
            )?,
            class_biases: get_f32(&filters, num_classes, "bias", Initial::Default.bias(enlarged))?,
        })
    }
}

impl MaskHead {
    /// Pools the features of `boxes` `[N, K, 4]`, xyxy in pixels of the resized images: `[N·K, side, side, C]`, zero
    /// above `counts` `[N]`.
    ///
    /// # Errors
    /// Those of [`crate::ops::roi_align`].
    pub fn pool(
        &self,
        features: &FeatureMaps,
        boxes: &Tensor,
        counts: &Tensor,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        self.roi_pool.forward(features, boxes, counts, geometry)
    }

    /// Mask logits `[R, M, M]` of pooled features `[R, side, side, C]`, each row for its class of `labels` `[R]` u32;
    /// those of rows that are not `filled` mean nothing.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, pooled: &Tensor, labels: &Tensor, filled: FilledRows) -> Result<Tensor> {
        let enlarged = self.enlarge(pooled, filled)?;
        class_mask_logits(&enlarged, &self.class_filters, &self.class_biases, labels)
    }

    /// Mask logits `[N, K, M, M]` of `boxes` `[N, K, 4]`, xyxy in pixels of the resized images, for the classes
    /// `labels` `[N, K]` u32; zero above `counts` `[N]`.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn logits(
        &self,
        features: &FeatureMaps,
        boxes: &Tensor,
        labels: &Tensor,
        counts: &Tensor,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let pooled = self.pool(features, boxes, counts, geometry)?;
        let rows = labels.flatten_all()?;
        per_slot(&self.predict(&pooled, &rows, FilledRows::UpTo(counts))?, labels)
    }

    fn enlarge(&self, pooled: &Tensor, filled: FilledRows) -> Result<Tensor> {
        let mut hidden = pooled.clone();
        for conv in &self.convs {
            hidden = conv.forward_filled(&hidden, filled)?;
        }
        self.enlarge.forward(&hidden)
    }
}

/// `[N·K, M, M]` → `[N, K, M, M]`.
fn per_slot(masks: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (n, k) = labels.dims2()?;
    let (_, height, width) = masks.dims3()?;
    Ok(masks.reshape((n, k, height, width))?)
}

impl InstanceHead for MaskHead {
    fn name(&self) -> &str {
        Self::NAME
    }

    /// `[N, D, M, M]` probabilities, zero above the count.
    fn forward(
        &self,
        features: &FeatureMaps,
        instances: &Instances,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let Instances { boxes, labels, counts, .. } = instances;
        let pooled = self.pool(features, boxes, counts, geometry)?;
        let enlarged = self.enlarge(&pooled, FilledRows::All)?;
        let rows = labels.flatten_all()?;
        per_slot(&class_masks(&enlarged, &self.class_filters, &self.class_biases, &rows)?, labels)
    }

    fn loss_name(&self) -> Option<&str> {
        Some("loss_mask")
    }

    fn loss(
        &self,
        features: &FeatureMaps,
        sampled: &Sampled<'_>,
        objects: &ObjectBatch,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let samples = trim_samples(sampled.samples.positives.clone())?;
        let targets = sampled.targets(&samples)?;
        let rows = SlotRows::new(&samples.counts, samples.index.dim(1)?)?;
        let pooled = self.pool(features, &targets.boxes, &samples.counts, geometry)?;
        let labels = rows.of(&targets.labels.flatten_all()?)?;
        let logits = self.predict(&rows.of(&pooled)?, &labels, rows.filled())?;
        let side = logits.dim(2)?;
        let shares =
            mask_targets(&objects.masks, &targets.boxes, &targets.objects, &samples.counts, side)?;
        mask_loss(&logits, &labels, &rows.of(&shares.flatten_to(1)?)?)
    }

    fn target_needs(&self) -> TargetNeeds {
        TargetNeeds::MASKS
    }
}
