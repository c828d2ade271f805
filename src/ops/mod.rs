//! Operations on tensors, one folder each. Images and features are channels last: `[N, H, W, C]`.
//!
//! An op's `mod.rs` is its contract: documentation, checks, capacities, tie rules. `cpu.rs` only computes. Ops don't
//! call ops; where one needs another's result, the room above composes them.
//!
//! | op | computes |
//! | --- | --- |
//! | [`resize_normalize`] | images of any size → one normalised, resized, padded batch |
//! | [`conv2d`] | convolution, bias, residual and activation |
//! | [`scale_filters`] | filters times a number each: a fixed norm after them, folded in |
//! | [`global_avg_pool`] | mean of each channel over an image |
//! | [`scale_channels`] | features times a number for each image and channel |
//! | [`batch_norm`] | channels normalised by the statistics of the batch |
//! | [`group_norm`] | groups of channels normalised by the statistics of each image |
//! | [`l2_normalize`] | cells of one length, times a weight per channel |
//! | [`conv_transpose2d`] | transposed convolution with a 2×2 or 4×4 window and stride 2, bias and activation |
//! | [`linear`] | matrix product with weights, bias and activation |
//! | [`max_pool2d`] | largest value of each window |
//! | [`upsample_bilinear`] | features twice as high and wide, mixed in between |
//! | [`upsample_add`] | a coarse map enlarged to a fine one's size, plus the fine one |
//! | [`anchor_grid`] | anchors of all levels from shape scalars |
//! | [`default_boxes`] | default boxes of all levels from shape scalars |
//! | [`append_slots`] | the slots of one list after those of another |
//! | [`assign`] | which object each box has found |
//! | [`assign_points`] | which object each point of a pyramid has found |
//! | [`random_bits`] | random numbers from a seed |
//! | [`sample_boxes`] | boxes that a step of training learns from |
//! | [`box_targets`] | labels and deltas of sampled boxes |
//! | [`mask_targets`] | what the masks of sampled boxes should have been |
//! | [`losses`](classifier_loss) | what predictions cost: of objectness, classes, boxes and masks |
//! | [`dense_losses`](focal_loss) | what predictions at every place of a pyramid cost: classes, boxes, centerness |
//! | [`keypoint_targets`] | the cells that the keypoints of sampled boxes lie in |
//! | [`keypoint_loss`] | what heatmaps of keypoints cost |
//! | [`upload_arrays`] | small arrays of the host, in one copy |
//! | [`top_k`] | best entries of every level |
//! | [`decode_proposals`] | boxes and scores of chosen anchors |
//! | [`top_pairs`] | best (anchor, class) pairs of every level above a score |
//! | [`top_per_class`] | best anchors of every class above a score |
//! | [`decode_boxes`] | boxes of chosen (anchor, class) pairs |
//! | [`nms`] | boxes that no better one of their group overlaps |
//! | [`gather_rows`] | rows by index, of several tables at once |
//! | [`gather_slots`] | rows by index, zero above the count |
//! | [`roi_align`] | features of each box from the level that suits its size |
//! | [`select_candidates`] | (proposal, class) pairs above the score threshold, decoded |
//! | [`class_masks`] | mask probabilities of each row's own class |
//! | [`paste_masks`] | masks as large as their image |
//! | [`heatmaps_to_keypoints`] | the keypoints of boxes, in pixels of another image size |
//! | [`scale_boxes`] | boxes in pixels of another image size |
//! | [`pack_results`] | several results in one buffer |

mod anchor_grid;
mod append_slots;
mod assign;
mod assign_points;
mod batch_norm;
mod box_targets;
mod class_masks;
mod conv2d;
mod conv_transpose2d;
mod decode_boxes;
mod decode_proposals;
mod default_boxes;
mod dense_losses;
mod gather_rows;
mod gather_slots;
mod global_avg_pool;
mod group_norm;
mod heatmaps_to_keypoints;
mod keypoint_loss;
mod keypoint_targets;
mod l2_normalize;
mod linear;
mod losses;
mod mask_targets;
mod max_pool2d;
mod nms;
mod pack_results;
mod paste_masks;
mod random_bits;
mod resize_normalize;
mod roi_align;
mod sample_boxes;
mod scale_boxes;
mod scale_channels;
mod select_candidates;
pub(crate) mod support;
mod top_k;
mod top_pairs;
mod top_per_class;
mod upload_arrays;
mod upsample_add;
mod upsample_bilinear;

pub use anchor_grid::{AnchorGridParams, AnchorLevel, anchor_grid};
pub use append_slots::append_slots;
pub use assign::{AssignParams, Unfound, assign};
pub use assign_points::{AssignPointsParams, assign_points};
pub use batch_norm::{BatchNormOutput, batch_norm};
pub use box_targets::{BoxTargets, box_targets};
pub use class_masks::{class_mask_logits, class_masks};
pub use conv_transpose2d::{
    PreparedConvTranspose2d, TrainableConvTranspose2d, conv_transpose2d, conv_transpose2d_trainable,
};
pub use conv2d::{
    Conv2dParams, PreparedConv2d, TrainableConv2d, conv2d, conv2d_trainable, scale_filters,
};
pub use decode_boxes::{DecodeBoxesParams, DecodedBoxes, decode_boxes};
pub use decode_proposals::{DecodeProposalsParams, DecodedProposals, decode_proposals};
pub use default_boxes::{DefaultBoxLevel, DefaultBoxesParams, default_boxes};
pub use dense_losses::{
    BoxCost, DENSE_SMOOTH_L1_BETA, DenseBoxLossParams, DenseTruth, FOCAL_ALPHA, Normalization,
    centerness_loss, dense_box_loss, focal_loss, hard_negative_loss,
};
pub use gather_rows::gather_rows;
pub use gather_slots::gather_slots;
pub use global_avg_pool::global_avg_pool;
pub use group_norm::group_norm;
pub use heatmaps_to_keypoints::heatmaps_to_keypoints;
pub use keypoint_loss::keypoint_loss;
pub use keypoint_targets::keypoint_targets;
pub use l2_normalize::l2_normalize;
pub use linear::{PreparedLinear, TrainableLinear, linear, linear_trainable};
pub use losses::{SMOOTH_L1_BETA, box_loss, classifier_loss, mask_loss, objectness_loss};
pub use mask_targets::{ObjectMasks, mask_targets};
pub use max_pool2d::{MaxPool2dParams, Rounding, max_pool2d};
pub use nms::{Kept, NmsParams, nms};
pub use pack_results::pack_results;
#[cfg(feature = "cuda")]
pub(crate) use pack_results::{count_download, pack_results_into};
pub use paste_masks::{PasteMasksParams, paste_masks};
pub use random_bits::random_bits;
pub use resize_normalize::{PixelSource, ResizeNormalizeParams, resize_normalize};
pub use roi_align::{RoiAlignParams, infer_spatial_scales, roi_align};
pub use sample_boxes::{Chosen, SampleParams, Samples, sample_boxes};
pub use scale_boxes::scale_boxes;
pub use scale_channels::scale_channels;
pub use select_candidates::{Candidates, SelectCandidatesParams, select_candidates};
pub use support::activation::Activation;
pub use support::box_coding::BoxCoding;
pub use support::box_set::BoxSet;
pub use support::filled_rows::FilledRows;
pub use support::isa::instruction_set;
pub use support::matches::{IGNORED_LABEL, Match};
pub use support::objects::Objects;
pub use support::pairs::Pairs;
pub use top_k::{TopK, top_k};
pub use top_pairs::{TopPairsParams, top_pairs};
pub use top_per_class::{TopPerClassParams, top_per_class};
pub use upload_arrays::{HostArray, upload_arrays};
pub use upsample_add::upsample_add;
pub use upsample_bilinear::upsample_bilinear;
