use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{Device, Tensor};

use super::{DefaultBoxesParams, OP};
use crate::error::Result;
use crate::ops::support::cuda::{DEFAULT_BOXES, Grid, Output, fits, launch, of};

const LEVELS: usize = 8;
const SIDES: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Level {
    first: u32,
    width: u32,
    cells_y: f32,
    cells_x: f32,
    n_sides: u32,
    sides: [[f32; 2]; SIDES],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct GridArgument {
    n_levels: u32,
    image_height: f32,
    image_width: f32,
    levels: [Level; LEVELS],
}

// SAFETY: plain 32-bit numbers in C's order; the twin is in kernel.cu.
unsafe impl DeviceRepr for GridArgument {}

pub(super) fn run(params: &DefaultBoxesParams, device: &Device) -> Result<Tensor> {
    let device = of(OP, device)?;
    fits(OP, "levels", params.levels.len(), LEVELS)?;
    let mut grid = GridArgument {
        n_levels: params.levels.len() as u32,
        image_height: params.image_size.0 as f32,
        image_width: params.image_size.1 as f32,
        ..GridArgument::default()
    };
    let mut n = 0;
    for (level, entry) in params.levels.iter().zip(&mut grid.levels) {
        fits(OP, "sides", level.sides.len(), SIDES)?;
        *entry = Level {
            first: n as u32,
            width: level.width as u32,
            cells_y: level.cells_y,
            cells_x: level.cells_x,
            n_sides: level.sides.len() as u32,
            sides: Default::default(),
        };
        entry.sides[..level.sides.len()].copy_from_slice(&level.sides);
        n += level.height * level.width * level.sides.len();
    }
    let boxes = Output::<f32>::new(device, n * 4)?;
    launch!(device, DEFAULT_BOXES, "default_boxes", Grid::over(n), grid, n as u32, boxes.pointer());
    Ok(boxes.into_tensor((n, 4)))
}
