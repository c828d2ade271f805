use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{Device, Tensor};

use super::{AnchorGridParams, OP};
use crate::error::Result;
use crate::ops::support::cuda::{ANCHOR_GRID, Grid, Output, fits, launch, of};

const LEVELS: usize = 8;
const SIZES: usize = 16;
const RATIOS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Level {
    first: u32,
    width: u32,
    stride_y: u32,
    stride_x: u32,
    n_sizes: u32,
    n_ratios: u32,
    sizes: [f32; SIZES],
    ratios: [f32; RATIOS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct GridArgument {
    n_levels: u32,
    levels: [Level; LEVELS],
}

// SAFETY: plain 32-bit numbers in C's order; the twin is in kernel.cu.
unsafe impl DeviceRepr for GridArgument {}

pub(super) fn run(params: &AnchorGridParams, device: &Device) -> Result<Tensor> {
    let device = of(OP, device)?;
    let (grid, n) = argument(params)?;
    let anchors = Output::<f32>::new(device, n * 4)?;
    launch!(device, ANCHOR_GRID, "anchor_grid", Grid::over(n), grid, n as u32, anchors.pointer());
    Ok(anchors.into_tensor((n, 4)))
}

/// The argument, and the number of anchors.
fn argument(params: &AnchorGridParams) -> Result<(GridArgument, usize)> {
    fits(OP, "levels", params.levels.len(), LEVELS)?;
    let mut grid = GridArgument { n_levels: params.levels.len() as u32, ..GridArgument::default() };
    let mut n = 0;
    for (level, entry) in params.levels.iter().zip(&mut grid.levels) {
        fits(OP, "sizes", level.sizes.len(), SIZES)?;
        fits(OP, "aspect_ratios", level.aspect_ratios.len(), RATIOS)?;
        *entry = Level {
            first: n as u32,
            width: level.width as u32,
            stride_y: level.stride_y as u32,
            stride_x: level.stride_x as u32,
            n_sizes: level.sizes.len() as u32,
            n_ratios: level.aspect_ratios.len() as u32,
            sizes: [0.0; SIZES],
            ratios: [0.0; RATIOS],
        };
        entry.ratios[..level.aspect_ratios.len()].copy_from_slice(&level.aspect_ratios);
        entry.sizes[..level.sizes.len()].copy_from_slice(&level.sizes);
        n += level.height * level.width * level.sizes.len() * level.aspect_ratios.len();
    }
    Ok((grid, n))
}
