use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, HEATMAPS_TO_KEYPOINTS, ImageSizes, launch, of, output, point,
};

/// Threads of a block; the kernel counts on it.
const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Heatmaps {
    maps: u64,
    boxes: u64,
    counts: u64,
    found: u64,
    slots_per_image: u32,
    height: u32,
    width: u32,
    keypoints: u32,
    factors: ImageSizes,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Heatmaps {}

/// Finds the keypoints `[N, K, P, 3]` of heatmaps `[N · K, M, M', P]`.
pub(super) fn run(
    heatmaps: &Tensor,
    boxes: &Tensor,
    counts: &Tensor,
    factors: &[(f32, f32)],
) -> Result<Tensor> {
    let device = of(OP, boxes.device())?;
    let (images, slots, _) = boxes.dims3()?;
    let (_, height, width, keypoints) = heatmaps.dims4()?;
    let (tensor, out) = output(device, DType::F32, (images, slots, keypoints, 3))?;
    point!(heatmaps: f32, boxes: f32, counts: u32);
    let map = height * width * keypoints;
    for (first, images, factors) in ImageSizes::parts(factors.iter().copied()) {
        let behind = |start: u64, values: usize| start + (values * size_of::<f32>()) as u64;
        let argument = Heatmaps {
            maps: behind(heatmaps, first * slots * map),
            boxes: behind(boxes, first * slots * 4),
            counts: behind(counts, first),
            found: behind(out, first * slots * keypoints * 3),
            slots_per_image: slots as u32,
            height: height as u32,
            width: width as u32,
            keypoints: keypoints as u32,
            factors,
        };
        let grid = Grid::blocks((images * slots * keypoints, 1), THREADS);
        launch!(device, HEATMAPS_TO_KEYPOINTS, "heatmaps_to_keypoints", grid, argument);
    }
    Ok(tensor)
}
