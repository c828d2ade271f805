//! Operations on tensors, one folder each. Images and features are channels last: `[N, H, W, C]`.

pub mod class_masks;
pub mod resize_normalize;
pub mod roi_align;
pub(crate) mod support;
