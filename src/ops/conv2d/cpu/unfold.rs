//! The windows of a convolution as rows of a matrix.

use std::ops::Range;

use super::Conv2dParams;
use crate::ops::support::cpu::element::{Element, Term};
use crate::ops::support::cpu::product::Rows;
use crate::ops::support::cpu::simd::Simd;

/// One row per output pixel, with the values of its window in the order `(dy, dx, channel)`; zeros outside of the input.
#[derive(Debug)]
pub(super) struct Windows<'a, E> {
    pub input: &'a [E],
    /// `[N, H, W, C]` of the input.
    pub dims: [usize; 4],
    /// `[Ho, Wo]`.
    pub out_size: [usize; 2],
    pub window: [usize; 2],
    /// Input pixels from one window to the next.
    pub stride: usize,
    /// Input pixels from one tap to the next.
    pub dilation: usize,
    /// Row and column of the first window's first pixel, negative in the padding.
    pub start: [isize; 2],
    /// Those of a window, of the input's.
    pub channels: Range<usize>,
}

impl<'a, E> Windows<'a, E> {
    /// The windows of a convolution of `[N, H, W, C]` to `[N, Ho, Wo, _]`.
    pub fn new(
        input: &'a [E],
        dims: [usize; 4],
        out_dims: [usize; 4],
        window: [usize; 2],
        params: Conv2dParams,
    ) -> Self {
        let start = [-(params.padding as isize); 2];
        let out_size = [out_dims[1], out_dims[2]];
        let Conv2dParams { stride, dilation, .. } = params;
        Self { input, dims, out_size, window, stride, dilation, start, channels: 0..dims[3] }
    }

    /// The same windows of some channels.
    pub fn of_channels(&self, channels: Range<usize>) -> Self {
        Self { channels, ..*self }
    }
}

impl<E: Element> Rows for Windows<'_, E> {
    type Element = E;

    fn numbers(&self) -> usize {
        self.window[0] * self.window[1] * self.channels.len()
    }

    #[inline(always)]
    fn gather<S: Simd, T: Term<E>>(
        &self,
        simd: S,
        row: usize,
        first: usize,
        n: usize,
        left: &mut [T],
    ) {
        let [_, height, width, pixel] = self.dims;
        let channels = self.channels.len();
        let [out_height, out_width] = self.out_size;
        let [first_y, first_x] = self.start;
        let (x, y, image) =
            (row % out_width, row / out_width % out_height, row / out_width / out_height);
        let top = (y * self.stride) as isize + first_y;
        let left_edge = (x * self.stride) as isize + first_x;
        let line = self.window[1] * channels;
        // Values of one line of the window lie side by side.
        let side_by_side = channels == pixel && self.dilation == 1;
        let inside = side_by_side && left_edge >= 0 && left_edge as usize + self.window[1] <= width;
        let mut at = first;
        let end = first + n;
        let mut rest = left;
        while at < end {
            let (dy, in_line) = (at / line, at % line);
            let source_y = top + (dy * self.dilation) as isize;
            let n = if source_y < 0 || source_y as usize >= height {
                let n = (line - in_line).min(end - at);
                rest[..n].fill(T::default());
                n
            } else {
                let line_start = (image * height + source_y as usize) * width;
                if inside {
                    let n = (line - in_line).min(end - at);
                    let start = (line_start + left_edge as usize) * pixel + in_line;
                    T::copy(simd, &self.input[start..start + n], rest);
                    n
                } else {
                    let (dx, channel) = (in_line / channels, in_line % channels);
                    let n = (channels - channel).min(end - at);
                    let source_x = left_edge + (dx * self.dilation) as isize;
                    if source_x < 0 || source_x as usize >= width {
                        rest[..n].fill(T::default());
                    } else {
                        let first = self.channels.start + channel;
                        let start = (line_start + source_x as usize) * pixel + first;
                        T::copy(simd, &self.input[start..start + n], rest);
                    }
                    n
                }
            };
            rest = &mut rest[n..];
            at += n;
        }
    }
}
