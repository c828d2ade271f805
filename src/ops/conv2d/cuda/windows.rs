//! Sums of a convolution as products of laid-out windows with the filters; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType};

use super::Job;
use crate::error::Result;
use crate::ops::conv2d::Conv2dParams;
use crate::ops::support::cuda::{CONV2D, Columns, Output, Product, Rows, address, launch};

/// Bytes of windows that are laid out at a time: enough for products that fill a GPU, little beside its memory.
const WINDOW_BYTES: usize = 64 << 20;
/// Windows of all parts but the last come in multiples of this, as products are made of tiles.
const WINDOW_TILE: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct Windows {
    places: Rows,
    input: u64,
    lines: u64,
    first_pixel: u32,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    window_height: u32,
    window_width: u32,
    stride: u32,
    padding: u32,
    dilation: u32,
    pixel_columns: u32,
    first_column: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Windows {}

/// Sizes of the windows of an input.
pub(super) struct Layout<'a> {
    pub device: &'a CudaDevice,
    /// `[N, H, W, I]`.
    pub dims: [usize; 4],
    /// `[N, Ho, Wo, O]`.
    pub out_dims: [usize; 4],
    /// Height and width.
    pub window: [usize; 2],
    pub params: Conv2dParams,
    pub dtype: DType,
}

impl Job<'_> {
    fn layout(&self) -> Layout<'_> {
        let Self { device, dims, out_dims, window, params, dtype, .. } = *self;
        Layout { device, dims, out_dims, window, params, dtype }
    }

    /// Computes the sums of products, without bias and residual.
    pub fn multiply_windows(&self) -> Result<()> {
        let layout = self.layout();
        let (terms, groups) = (layout.line(), self.params.groups);
        let (line, columns) = (self.out_dims[3], self.out_dims[3] / groups);
        let filters = address(&self.weights.filters)?;
        let multiply = |group: usize, first: usize, rows, lines| {
            let product = Product { rows, terms, columns, dtype: self.dtype, output: self.output };
            let filters = filters + (group * columns * terms * self.dtype.size_in_bytes()) as u64;
            let offset = (first * line + group * columns) * self.output.size_in_bytes();
            let out = Columns { address: self.out + offset as u64, line };
            product.run_into(self.device, lines, filters, out)
        };
        if layout.is_the_input() {
            return multiply(0, 0, self.pixels(), self.input);
        }
        let part = layout.part();
        // From the pool, in the order of the stream: layers and threads share the memory without knowing of each other.
        let lines = Output::<u8>::new(self.device, part * terms * self.dtype.size_in_bytes())?;
        for first in (0..self.pixels()).step_by(part) {
            let rows = part.min(self.pixels() - first);
            for group in 0..groups {
                layout.lay_out(self.input, group, (first, rows), lines.pointer())?;
                multiply(group, first, rows, lines.pointer())?;
            }
        }
        Ok(())
    }
}

impl Layout<'_> {
    /// Pixels of the output.
    pub fn pixels(&self) -> usize {
        self.out_dims[..3].iter().product()
    }

    /// Channels of a group's input.
    pub fn channels(&self) -> usize {
        self.dims[3] / self.params.groups
    }

    /// Values of a window of a group.
    pub fn line(&self) -> usize {
        self.window[0] * self.window[1] * self.channels()
    }

    /// Whether each window is a pixel of the input, in the input's order.
    pub fn is_the_input(&self) -> bool {
        self.window == [1, 1] && self.params == Conv2dParams::new(1, 0)
    }

    /// Windows that are laid out at a time.
    pub fn part(&self) -> usize {
        part_of(self.pixels(), WINDOW_BYTES / (self.line() * self.dtype.size_in_bytes()))
    }

    /// Writes a group's windows of `n` output pixels from `first` on.
    pub fn lay_out(
        &self,
        input: u64,
        group: usize,
        (first, n): (usize, usize),
        lines: u64,
    ) -> Result<()> {
        let [_, height, width, _] = self.dims;
        let [_, out_height, out_width, _] = self.out_dims;
        let [window_height, window_width] = self.window;
        let bytes = self.channels() * self.dtype.size_in_bytes();
        let divides =
            |access: &usize| bytes.is_multiple_of(*access) && input.is_multiple_of(*access as u64);
        let access = [16, 8, 4].into_iter().find(divides).unwrap_or(2);
        let windows = Windows {
            places: Rows::one_by_one(n * window_height * window_width, bytes / access),
            input,
            lines,
            first_pixel: first as u32,
            height: height as u32,
            width: width as u32,
            out_height: out_height as u32,
            out_width: out_width as u32,
            window_height: window_height as u32,
            window_width: window_width as u32,
            stride: self.params.stride as u32,
            padding: self.params.padding as u32,
            dilation: self.params.dilation as u32,
            pixel_columns: (self.params.groups * bytes / access) as u32,
            first_column: (group * bytes / access) as u32,
        };
        let kernel = match access {
            16 => "conv2d_windows_16",
            8 => "conv2d_windows_8",
            4 => "conv2d_windows_4",
            _ => "conv2d_windows_2",
        };
        launch!(self.device, CONV2D, kernel, windows.places.grid(), windows);
        Ok(())
    }
}

/// Equal parts of `n` of at most about `limit`, in whole tiles where there are several.
fn part_of(n: usize, limit: usize) -> usize {
    match n.div_ceil(limit.max(1)) {
        0 | 1 => n.max(1),
        parts => n.div_ceil(parts).next_multiple_of(WINDOW_TILE),
    }
}
