use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{OP, RoiAlignParams};
use crate::error::Result;
use crate::ops::support::cuda::{
    ROI_ALIGN, Rows, address, fits, for_dtype, launch, of, output, point,
};

const LEVELS: usize = 8;

/// The levels of a pyramid, as kernels know them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Levels {
    features: [u64; LEVELS],
    height: [u32; LEVELS],
    width: [u32; LEVELS],
    scale: [f32; LEVELS],
    area: [f32; LEVELS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RoiAlign {
    cells: Rows,
    boxes: u64,
    counts: u64,
    out: u64,
    levels: Levels,
    n_levels: u32,
    n_slots: u32,
    output: u32,
    sampling: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for RoiAlign {}

impl Levels {
    /// A table of levels `[N, H_l, W_l, C]`, without addresses.
    pub fn new(dims: &[[usize; 4]], params: &RoiAlignParams) -> Result<Self> {
        fits(OP, "levels", dims.len(), LEVELS)?;
        let mut table = Self::default();
        for (i, [_, height, width, _]) in dims.iter().enumerate() {
            table.height[i] = *height as u32;
            table.width[i] = *width as u32;
            table.scale[i] = params.spatial_scales[i];
            table.area[i] = least_area(params, i);
        }
        Ok(table)
    }
}

/// Pools `boxes` `[N, K, 4]` of `levels` to `[N·K, output, output, C]`.
pub(super) fn run(
    levels: &[&Tensor],
    channels: usize,
    boxes: &Tensor,
    counts: &Tensor,
    params: &RoiAlignParams,
) -> Result<Tensor> {
    let device = of(OP, boxes.device())?;
    let (n_images, n_slots, _) = boxes.dims3()?;
    let dtype = levels[0].dtype();
    let side = params.output;
    let (tensor, out) = output(device, dtype, (n_images * n_slots, side, side, channels))?;
    let held = levels.iter().map(|level| level.contiguous()).collect::<Result<Vec<_>, _>>()?;
    let mut addresses = vec![out];
    let dims = held.iter().map(|level| Ok(level.dims4()?.into())).collect::<Result<Vec<_>>>()?;
    let mut table = Levels::new(&dims, params)?;
    for (i, level) in held.iter().enumerate() {
        table.features[i] = address(level)?;
        addresses.push(table.features[i]);
    }
    point!(boxes: f32, counts: u32);
    let argument = RoiAlign {
        cells: Rows::new(n_images * n_slots * side * side, channels, &addresses),
        boxes,
        counts,
        out,
        levels: table,
        n_levels: levels.len() as u32,
        n_slots: n_slots as u32,
        output: side as u32,
        sampling: params.sampling as u32,
    };
    launch!(device, ROI_ALIGN, for_dtype!("roi_align", dtype), argument.cells.grid(), argument);
    Ok(tensor)
}

/// The least area that a level, or a coarser one, serves; NaN, which no area reaches, if there is none.
///
/// Found by halving among all floats from 0 to infinity, whose bits ascend as they do; so does the level.
fn least_area(params: &RoiAlignParams, level: usize) -> f32 {
    let serves = |bits: u32| params.level_index(f32::from_bits(bits)) >= Some(level);
    let (mut low, mut high) = (0, f32::INFINITY.to_bits() + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if serves(middle) { high = middle } else { low = middle + 1 }
    }
    f32::from_bits(low)
}
