//! Operations on tensors, one folder each. Images and features are channels last: `[N, H, W, C]`.

pub(crate) mod support;
