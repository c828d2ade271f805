//! The sections of a model file, in its order.

use serde::{Deserialize, Serialize};

/// Which parts a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Boxes and classes (Ren et al., arXiv:1506.01497).
    FasterRcnn,
    /// Boxes, classes and masks (He et al., arXiv:1703.06870).
    MaskRcnn,
}

/// From an image to the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// Mean of red, green, blue, of values in `0..=1`.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, of values in `0..=1`.
    pub std: [f32; 3],
    /// Pixels of the shorter side after resizing.
    pub min_size: usize,
    /// Cap on the pixels of the longer side after resizing.
    pub max_size: usize,
    /// Height and width of the padded batch are multiples of this.
    pub size_divisor: usize,
}

/// The feature extractor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneConfig {
    /// The network under the pyramid.
    pub kind: BackboneKind,
    /// Channels of the stem; the stages have 1, 2, 4 and 8 times as many (4 times that in a bottleneck's output).
    pub width: usize,
    /// Normalisation of the network under the pyramid.
    pub norm: Norm,
    /// Added to the variance by every norm of the backbone. The published V1 COCO weights need exactly 0.
    pub norm_eps: f64,
    /// Channels of every pyramid level.
    pub fpn_channels: usize,
    /// Normalisation in the pyramid.
    pub fpn_norm: Norm,
    /// The coarsest level, used by the region proposal network only.
    pub extra_level: ExtraLevel,
}

/// The network under the pyramid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackboneKind {
    /// ResNet-18: two basic blocks per stage.
    ResNet18,
    /// ResNet-34: 3, 4, 6, 3 basic blocks.
    ResNet34,
    /// ResNet-50: 3, 4, 6, 3 bottlenecks.
    ResNet50,
    /// ResNet-101: 3, 4, 23, 3 bottlenecks.
    ResNet101,
    /// ResNet-152: 3, 8, 36, 3 bottlenecks.
    ResNet152,
}

/// Normalisation after a convolution.
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

/// How the pyramid gets its coarsest level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtraLevel {
    /// Every second row and column of the coarsest output.
    MaxPool,
}

/// Reference boxes of the region proposal network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorsConfig {
    /// Pixels, one list per level, finest first: level `i` has `sizes[i]` × `aspect_ratios`, not a product over levels.
    pub sizes: Vec<Vec<f32>>,
    /// Height / width, the same on every level.
    pub aspect_ratios: Vec<f32>,
}

/// The region proposal network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpnConfig {
    /// 3×3 convolutions before the two predictors.
    pub conv_depth: usize,
    /// Best anchors kept per level and image, by logit.
    pub pre_nms_top_n: usize,
    /// Proposals kept per image: the capacity K of `Proposals`.
    pub post_nms_top_n: usize,
    /// A proposal is dropped when its IoU with a better one of its level is greater.
    pub nms_threshold: f64,
    /// A proposal stays when its score is at least this.
    pub score_threshold: f32,
    /// Pixels; a proposal stays when both sides are at least this.
    pub min_box_side: f32,
}

/// Classification and box regression of proposals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxHeadConfig {
    /// Layers between the pooled features and the predictor.
    pub kind: BoxHeadKind,
    /// Cells per side of the pooled features.
    pub roi_output: usize,
    /// Samples per side of a cell.
    pub roi_sampling: usize,
    /// Units of the fully connected layers.
    pub hidden: usize,
    /// Divisors of dx, dy, dw, dh.
    pub box_weights: [f32; 4],
}

/// Layers between the pooled features and the predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxHeadKind {
    /// Two fully connected layers.
    TwoMlp,
    /// Four 3×3 convolutions with batch norm, then one fully connected layer.
    FourConvOneFc,
}

/// Which candidates become detections. May be changed from call to call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectionsConfig {
    /// A candidate stays when its score is strictly greater.
    pub score_threshold: f32,
    /// A candidate is dropped when its IoU with a better one of its class is greater.
    pub nms_threshold: f64,
    /// Pixels of the resized image; a candidate stays when both sides are at least this.
    pub min_box_side: f32,
    /// Best detections kept per image: the capacity D of `Instances`.
    pub per_image: usize,
}

/// Masks of the detections.
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

/// A published weight file, and what is claimed of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedWeights {
    /// Name of the version, such as `coco_v1`.
    pub version: String,
    /// File name in the cache folder.
    pub file: String,
    /// Where it is served.
    pub url: String,
    /// The whole SHA-256, 64 hexadecimal digits; preferred to the prefix.
    pub sha256: Option<String>,
    /// The start of the SHA-256, at least 8 digits, where the whole is not known.
    pub sha256_prefix: Option<String>,
    /// Numbers in all tensors, buffers of norms not counted.
    pub parameters: u64,
    /// Percent, AP@[.50:.95] of the boxes.
    pub box_ap: Option<f64>,
    /// Percent, AP@[.50:.95] of the masks.
    pub mask_ap: Option<f64>,
    /// The data set of these figures.
    pub evaluated_on: Option<String>,
    /// Licence of the file.
    pub license: String,
}
