//! Keypoints of detections (He et al., arXiv:1703.06870, section 5).

use candle_core::{D, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{InstanceHead, MultiScaleRoiAlign};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, ConvTranspose2d, ConvTransposeShape, Initial};
use crate::ops::{
    Activation, FilledRows, heatmaps_to_keypoints, keypoint_loss, keypoint_targets,
    upsample_bilinear,
};
use crate::section::Checks;
use crate::structures::{
    BatchGeometry, FeatureLevel, FeatureMaps, ImageGeometry, Instances, SlotRows, TargetNeeds,
    trim_samples,
};
use crate::targets::{ObjectBatch, Sampled};

/// The section `keypoint_head` of the architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeypointHeadConfig {
    /// Cells per side of the pooled features; a heatmap has four times as many.
    pub roi_output: usize,
    /// Samples per side of a cell.
    pub roi_sampling: usize,
    /// Output channels of the 3×3 convolutions.
    pub conv_channels: Vec<usize>,
    /// Keypoints of an object.
    pub keypoints: usize,
}

impl KeypointHeadConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let narrowest = self.conv_channels.iter().copied().min().unwrap_or(0);
        checks.at_least_one(&[
            ("roi_output", self.roi_output),
            ("roi_sampling", self.roi_sampling),
            ("conv_channels", narrowest),
            ("keypoints", self.keypoints),
        ])
    }
}

/// Convolutions, and two enlargements to a heatmap for each keypoint, whose largest value is where the keypoint is.
pub struct KeypointHead {
    roi_pool: MultiScaleRoiAlign,
    convs: Vec<Conv2d>,
    enlarge: ConvTranspose2d,
    keypoints: usize,
}

impl KeypointHead {
    /// Name of the output in `DetectionBatch::extras`.
    pub const NAME: &'static str = "keypoints";

    /// Loads the head from `keypoint_head.N`, every second number being a ReLU's, and
    /// `keypoint_predictor.kps_score_lowres`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        levels: &[FeatureLevel],
        config: &KeypointHeadConfig,
    ) -> Result<Self> {
        let mut channels = levels.first().map_or(0, |level| level.channels);
        let mut convs = Vec::with_capacity(config.conv_channels.len());
        for (index, out_channels) in config.conv_channels.iter().copied().enumerate() {
            let shape = ConvShape::new((channels, out_channels), 3, Initial::BeforeRelu);
            let weights = weights.pp("keypoint_head").pp(2 * index);
            convs.push(Conv2d::load(&weights, shape, Activation::Relu)?);
            channels = out_channels;
        }
        let shape = ConvTransposeShape {
            in_channels: channels,
            out_channels: config.keypoints,
            kernel: 4,
            initial_bias: Initial::BeforeRelu,
        };
        let weights = weights.pp("keypoint_predictor").pp("kps_score_lowres");
        let enlarge = ConvTranspose2d::load(&weights, shape, Activation::None)?.with_f32_output();
        let roi_pool = MultiScaleRoiAlign::new(levels, config.roi_output, config.roi_sampling);
        Ok(Self { roi_pool, convs, enlarge, keypoints: config.keypoints })
    }

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

    /// Heatmaps `[R, M, M, P]`, logits, of pooled features `[R, side, side, C]`; those of rows that are not `filled` mean
    /// nothing.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, pooled: &Tensor, filled: FilledRows) -> Result<Tensor> {
        let mut hidden = pooled.clone();
        for conv in &self.convs {
            hidden = conv.forward_filled(&hidden, filled)?;
        }
        upsample_bilinear(&self.enlarge.forward(&hidden)?)
    }
}

impl InstanceHead for KeypointHead {
    fn name(&self) -> &str {
        Self::NAME
    }

    /// `[N, D, P, 3]`: x, y in pixels of the original images, and the logit there; zero above the count.
    fn forward(
        &self,
        features: &FeatureMaps,
        instances: &Instances,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let Instances { boxes, counts, .. } = instances;
        let pooled = self.pool(features, boxes, counts, geometry)?;
        let heatmaps = self.predict(&pooled, FilledRows::All)?;
        let factors: Vec<_> = geometry.images.iter().map(ImageGeometry::enlargement).collect();
        heatmaps_to_keypoints(&heatmaps, boxes, counts, &factors)
    }

    fn loss_name(&self) -> Option<&str> {
        Some("loss_keypoint")
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
        let logits = self.predict(&rows.of(&pooled)?, rows.filled())?;
        let side = logits.dim(D::Minus2)?;
        let cells = keypoint_targets(
            &objects.keypoints,
            &targets.boxes,
            &targets.objects,
            &samples.counts,
            side,
        )?;
        keypoint_loss(&logits, &rows.of(&cells.flatten_to(1)?)?)
    }

    fn target_needs(&self) -> TargetNeeds {
        TargetNeeds::keypoints(self.keypoints)
    }
}
