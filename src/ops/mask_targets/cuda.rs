use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{OP, ObjectMasks};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, MASK_TARGETS, Output, launch, of, point};

/// Threads of a block; the kernel counts on it.
const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct MaskTargets {
    pixels: u64,
    places: u64,
    boxes: u64,
    objects: u64,
    counts: u64,
    targets: u64,
    n_pixels: u64,
    n_objects: u32,
    n_slots: u32,
    side: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for MaskTargets {}

/// Pools the masks of `objects` `[N, P]` in `boxes` `[N, P, 4]` to `[N, P, side, side]`.
pub(super) fn run(
    masks: &ObjectMasks,
    boxes: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    side: usize,
) -> Result<Tensor> {
    let device = of(OP, boxes.device())?;
    let (n_images, n_slots) = objects.dims2()?;
    let ObjectMasks { pixels, places } = masks;
    let (n_pixels, n_objects) = (pixels.elem_count(), places.dim(1)?);
    let rows = n_images * n_slots * side;
    let targets = Output::<f32>::new(device, rows * side)?;
    point!(pixels: u8, places: u32, boxes: f32, objects: u32, counts: u32);
    let argument = MaskTargets {
        pixels,
        places,
        boxes,
        objects,
        counts,
        targets: targets.pointer(),
        n_pixels: n_pixels as u64,
        n_objects: n_objects as u32,
        n_slots: n_slots as u32,
        side: side as u32,
        unused: 0,
    };
    launch!(device, MASK_TARGETS, "mask_targets", Grid::blocks((rows, 1), THREADS), argument);
    Ok(targets.into_tensor((n_images, n_slots, side, side)))
}
