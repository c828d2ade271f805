//! Convolution of each channel by itself, and its gradients.
//!
//! ```text
//! for each output line, for each vector of channels, for some neighboring pixels at a time:
//!     for each tap (dy, dx) inside of the input:
//!         sums[pixel] += weight[dy, dx, :] · input[y·s + dy·d − p, x·s + dx·d − p, :]
//!     out = activation(sums + bias + residual)
//! ```
//! Channels are the innermost axis, so that all vectors are as they lie in memory. Neighboring pixels share the vector of
//! weights. The last vector of channels overlaps the one before it, where they are no multiple of its lanes: what both
//! have is computed twice.

use rayon::prelude::*;

use super::super::sizes::Sizes;
use super::Conv2dParams;
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::{Element, MAX_LANES, Pointer};
use crate::ops::support::cpu::memory::Output;
use crate::ops::support::cpu::product::Epilogue;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Neighboring pixels that are computed at a time.
const PIXELS: usize = 4;
/// Parts of the output lines whose gradients of the weight are added up in the end.
const PARTS: usize = 64;

/// Filters `[kh, kw, C]` and a bias per channel.
#[derive(Debug)]
pub(in crate::ops::conv2d) struct Weights {
    isa: Isa,
    taps: Vec<f32>,
    bias: Vec<f32>,
    window: [usize; 2],
    params: Conv2dParams,
}

impl Weights {
    /// Lays out a weight `[C, 1, kh, kw]`.
    pub fn new<E: Element>(
        isa: Isa,
        weight: &[E],
        [channels, _, height, width]: [usize; 4],
        bias: &[f32],
        params: Conv2dParams,
    ) -> Self {
        let n = height * width;
        let tap = |tap: usize| weight[tap..].iter().step_by(n).map(|value| value.widen());
        let taps = (0..n).flat_map(|index| tap(index).take(channels)).collect();
        Self { isa, taps, bias: bias.to_vec(), window: [height, width], params }
    }

    /// The weight `[C, 1, kh, kw]`.
    pub fn restore(&self) -> Vec<f32> {
        channels_first(&self.taps, self.bias.len(), None)
    }
}

/// `[taps, C]` → `[C, taps]`, times `scale[c]`.
fn channels_first(values: &[f32], channels: usize, scale: Option<&[f32]>) -> Vec<f32> {
    let filter = |channel: usize| {
        let scale = scale.map_or(1.0, |scale| scale[channel]);
        values[channel..].iter().step_by(channels).map(move |value| scale * value)
    };
    (0..channels).flat_map(filter).collect()
}

/// Convolves an input `[N, H, W, C]` to `[N, Ho, Wo, C]`.
pub(super) fn run<E: Element, O: Element>(
    input: &[E],
    dims: [usize; 4],
    out_dims: [usize; 4],
    weights: &Weights,
    epilogue: Epilogue<'_>,
) -> Vec<O> {
    let [batch, out_height, ..] = out_dims;
    let len = out_dims.iter().product();
    assert_eq!(input.len(), dims.iter().product::<usize>(), "values of the input");
    assert!(dims[3] == out_dims[3] && weights.bias.len() == dims[3], "channels");
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len, len, "values of the residual");
    }
    let mut out = Output::<O>::new(len);
    if len > 0 {
        let pointer = out.pointer();
        (0..batch * out_height).into_par_iter().for_each(|line| {
            let line = Line { input, dims, out_dims, weights, epilogue, line, out: pointer };
            weights.isa.run(line);
        });
    }
    // SAFETY: each line writes all of its pixels and channels, and the lines are the output.
    unsafe { out.finish() }
}

/// A line of the output.
#[derive(Clone, Copy)]
struct Line<'a, E> {
    input: &'a [E],
    dims: [usize; 4],
    out_dims: [usize; 4],
    weights: &'a Weights,
    epilogue: Epilogue<'a>,
    /// Among the lines of all images.
    line: usize,
    out: Pointer,
}

impl<E: Element> Job for Line<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [_, _, width, channels] = self.dims;
        let out_width = self.out_dims[2];
        let Conv2dParams { stride, padding, .. } = self.weights.params;
        let reach = self.weights.params.reach(self.weights.window[1]);
        // Pixels whose windows are inside of the line.
        let first_inside = padding.div_ceil(stride);
        let end_inside = (width + padding).checked_sub(reach).map_or(0, |free| free / stride + 1);
        for channel in (0..channels).step_by(S::LANES) {
            let n = channels.min(S::LANES);
            let channel = channel.min(channels - n);
            let mut x = 0;
            while x < out_width {
                if n == S::LANES && x >= first_inside && x + PIXELS <= end_inside.min(out_width) {
                    self.pixels::<S, PIXELS>(simd, x, channel, n);
                    x += PIXELS;
                } else {
                    self.pixels::<S, 1>(simd, x, channel, n);
                    x += 1;
                }
            }
        }
    }
}

impl<E: Element> Line<'_, E> {
    /// Computes `n` channels of `N` pixels from `x` on. Several pixels must have their windows inside of the line.
    #[inline(always)]
    fn pixels<S: Simd, const N: usize>(self, simd: S, x: usize, channel: usize, n: usize) {
        let [_, height, width, channels] = self.dims;
        let [_, out_height, out_width, _] = self.out_dims;
        let Weights { taps, bias, window: [window_height, window_width], params, .. } =
            self.weights;
        let Conv2dParams { stride, padding, dilation, .. } = *params;
        let (image, y) = (self.line / out_height, self.line % out_height);
        let step = stride * channels;
        let mut sums = [simd.splat(0.0); N];
        for dy in 0..*window_height {
            // Wraps around to something larger than the input when it is negative.
            let row = (y * stride + dy * dilation).wrapping_sub(padding);
            if row >= height {
                continue;
            }
            for dx in 0..*window_width {
                let column = (x * stride + dx * dilation).wrapping_sub(padding);
                if column >= width {
                    continue;
                }
                let tap = &taps[(dy * window_width + dx) * channels + channel..][..n];
                let start = ((image * height + row) * width + column) * channels + channel;
                let from = &self.input[start..start + (N - 1) * step + n];
                // SAFETY: `n` values follow `tap`, and each of `N` places in `from`.
                unsafe {
                    let weight = simd.load_up_to(tap.as_ptr(), n);
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let from = from.as_ptr().add(i * step);
                        let value = if n == S::LANES {
                            E::load(simd, from)
                        } else {
                            E::load_first(simd, from, n)
                        };
                        *sum = simd.mul_add(value, weight, *sum);
                    }
                }
            }
        }
        let bias = &bias[channel..channel + n];
        assert!(x + N <= out_width);
        for (i, sum) in sums.into_iter().enumerate() {
            let place = (self.line * out_width + x + i) * channels + channel;
            // SAFETY: line, pixel and channels are inside of the output, and so of the residual, which has equally many
            // values; no other task has this line.
            unsafe { self.finish(simd, sum, bias, place) };
        }
    }

    /// Writes the sums of as many channels as there are values of bias.
    ///
    /// # Safety
    /// As many values can be read after the residual's `place`, and written after the output's.
    #[inline(always)]
    unsafe fn finish<S: Simd>(self, simd: S, sum: S::Vector, bias: &[f32], place: usize) {
        let Epilogue { residual, activation } = self.epilogue;
        // SAFETY: by the caller's promises; an array of `MAX_LANES` has room for a vector.
        unsafe {
            if bias.len() < S::LANES {
                let mut values = [0f32; MAX_LANES];
                simd.store(values.as_mut_ptr(), sum);
                for (i, bias) in bias.iter().enumerate() {
                    let added = residual.map_or(0.0, |values| values.pointer.add(place + i).read());
                    let value = activation.apply(values[i] + bias + added);
                    self.out.add(place + i).write(value);
                }
                return;
            }
            let mut value = simd.add(sum, simd.load(bias.as_ptr()));
            match residual.map(|values| values.pointer.add(place)) {
                None => {}
                Some(Pointer::F32(from)) => value = simd.add(value, simd.load(from)),
                Some(Pointer::Bf16(from)) => value = simd.add(value, simd.load_bf16(from)),
            }
            value = activation.apply_to(simd, value);
            match self.out.add(place) {
                Pointer::F32(to) => simd.store(to, value),
                Pointer::Bf16(to) => simd.store_bf16(to, value),
            }
        }
    }
}

/// Gradient `[N, H, W, C]` of the input from that of the output.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
) -> Vec<f32> {
    let [channels, _, height, width] = sizes.weight;
    let Conv2dParams { stride, padding, dilation, .. } = sizes.params;
    let around = dilation * (height - 1);
    if stride == 1 && height == width && padding <= around {
        // It is a convolution itself, with taps in reverse order.
        let params = Conv2dParams { padding: around - padding, ..sizes.params };
        let mut weights = Weights::new(isa, weight, sizes.weight, &vec![0.0; channels], params);
        let taps = weights.taps.chunks_exact(channels).rev().flatten().copied().collect();
        weights.taps = taps;
        let plain = Epilogue { residual: None, activation: Activation::None };
        return run(gradient, sizes.output, sizes.input, &weights, plain);
    }
    let weights = Weights::new(isa, weight, sizes.weight, &[], sizes.params);
    let mut out = vec![0.0; sizes.input.iter().product()];
    let line = (sizes.input[2] * channels).max(1);
    out.par_chunks_exact_mut(line).enumerate().for_each(|(line, out)| {
        isa.run(InputLine { taps: &weights.taps, gradient, sizes, line, out });
    });
    out
}

/// A line of the input's gradient, zeros at first.
struct InputLine<'a> {
    taps: &'a [f32],
    gradient: &'a [f32],
    sizes: &'a Sizes,
    line: usize,
    out: &'a mut [f32],
}

impl Job for InputLine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let [channels, _, window_height, window_width] = self.sizes.weight;
        let [_, height, ..] = self.sizes.input;
        let [_, out_height, out_width, _] = self.sizes.output;
        let Conv2dParams { stride, padding, dilation, .. } = self.sizes.params;
        // Output line or column under a tap, if there is one.
        let under = |at: usize, tap: usize, size: usize| {
            let from_first = (at + padding).checked_sub(tap * dilation)?;
            let out = from_first / stride;
            (from_first.is_multiple_of(stride) && out < size).then_some(out)
        };
        let (image, y) = (self.line / height, self.line % height);
        for dy in 0..window_height {
            let Some(row) = under(y, dy, out_height) else { continue };
            for (x, out) in self.out.chunks_exact_mut(channels).enumerate() {
                for dx in 0..window_width {
                    let Some(column) = under(x, dx, out_width) else { continue };
                    let pixel = (image * out_height + row) * out_width + column;
                    let gradient = &self.gradient[pixel * channels..][..channels];
                    let tap = &self.taps[(dy * window_width + dx) * channels..][..channels];
                    for ((out, gradient), tap) in out.iter_mut().zip(gradient).zip(tap) {
                        *out += gradient * tap;
                    }
                }
            }
        }
    }
}

/// Gradient `[C, 1, kh, kw]` of the weight, times `scale[c]`.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    let [channels, _, height, width] = sizes.weight;
    let lines = sizes.output[0] * sizes.output[1];
    assert_eq!(input.len(), sizes.input.iter().product::<usize>(), "values of the input");
    assert_eq!(gradient.len(), sizes.output.iter().product::<usize>(), "values of the gradient");
    let per_part = lines.div_ceil(PARTS).max(1);
    let parts: Vec<Vec<f32>> = (0..lines.div_ceil(per_part))
        .into_par_iter()
        .map(|part| {
            let mut sums = vec![0f32; height * width * channels];
            for line in part * per_part..lines.min((part + 1) * per_part) {
                isa.run(GradientLine { input, gradient, sizes, line, sums: &mut sums });
            }
            sums
        })
        .collect();
    let mut total = vec![0f64; height * width * channels];
    for part in parts {
        total.iter_mut().zip(part).for_each(|(total, sum)| *total += f64::from(sum));
    }
    let total: Vec<f32> = total.into_iter().map(|sum| sum as f32).collect();
    channels_first(&total, channels, scale)
}

/// What a line of the output adds to the weight's gradient `[kh, kw, C]`.
struct GradientLine<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
    sizes: &'a Sizes,
    line: usize,
    sums: &'a mut [f32],
}

impl Job for GradientLine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [_, _, window_height, window_width] = self.sizes.weight;
        let [_, height, width, channels] = self.sizes.input;
        let [_, out_height, out_width, _] = self.sizes.output;
        let Conv2dParams { stride, padding, dilation, .. } = self.sizes.params;
        let (image, y) = (self.line / out_height, self.line % out_height);
        for tap in 0..window_height * window_width {
            let (dy, dx) = (tap / window_width, tap % window_width);
            let row = (y * stride + dy * dilation).wrapping_sub(padding);
            if row >= height {
                continue;
            }
            // Output pixels whose tap is inside of the input.
            let first = padding.saturating_sub(dx * dilation).div_ceil(stride);
            let end = (width + padding)
                .checked_sub(dx * dilation + 1)
                .map_or(0, |last| (last / stride + 1).min(out_width));
            if first >= end {
                continue;
            }
            let column = first * stride + dx * dilation - padding;
            let input = &self.input[((image * height + row) * width + column) * channels..]
                [..((end - first - 1) * stride + 1) * channels];
            let gradient = &self.gradient[(self.line * out_width + first) * channels..]
                [..(end - first) * channels];
            let sums = &mut self.sums[tap * channels..][..channels];
            for channel in (0..channels).step_by(S::LANES) {
                let n = (channels - channel).min(S::LANES);
                let mut sum = simd.splat(0.0);
                // SAFETY: pixels are below their number, and `n` channels follow; there is room for a vector in an array
                // of `MAX_LANES`.
                unsafe {
                    for pixel in 0..end - first {
                        let value = input.as_ptr().add(pixel * stride * channels + channel);
                        let value = simd.load_up_to(value, n);
                        let gradient = gradient.as_ptr().add(pixel * channels + channel);
                        sum = simd.mul_add(value, simd.load_up_to(gradient, n), sum);
                    }
                    let mut values = [0f32; MAX_LANES];
                    simd.store(values.as_mut_ptr(), sum);
                    for (sum, value) in sums[channel..channel + n].iter_mut().zip(values) {
                        *sum += value;
                    }
                }
            }
        }
    }
}
