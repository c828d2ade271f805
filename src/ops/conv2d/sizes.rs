//! Sizes of a convolution of which gradients are asked for.

use super::Conv2dParams;

/// Shapes and geometry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// `[O, I/groups, kh, kw]`.
    pub weight: [usize; 4],
    /// `[N, H, W, I]`.
    pub input: [usize; 4],
    /// `[N, Ho, Wo, O]`.
    pub output: [usize; 4],
    pub params: Conv2dParams,
}

impl Sizes {
    /// Whether there is one window, which is the input.
    pub fn window_covers_input(&self) -> bool {
        let [_, _, height, width] = self.weight;
        self.params.padding == 0 && self.params.dilation == 1 && self.input[1..3] == [height, width]
    }
}
