use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{Grid, KEYPOINT_TARGETS, Output, launch, of, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct KeypointTargets {
    keypoints: u64,
    boxes: u64,
    objects: u64,
    counts: u64,
    targets: u64,
    n: u32,
    n_objects: u32,
    points: u32,
    slots: u32,
    side: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for KeypointTargets {}

/// Cells `[N, S, P]` of the keypoints `[N, G, P, 3]` of `objects` `[N, S]` in `boxes` `[N, S, 4]`.
pub(super) fn run(
    keypoints: &Tensor,
    boxes: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    side: usize,
) -> Result<Tensor> {
    let device = of(OP, boxes.device())?;
    let (images, slots) = objects.dims2()?;
    let (_, n_objects, points, _) = keypoints.dims4()?;
    let n = images * slots * points;
    let targets = Output::<u32>::new(device, n)?;
    point!(keypoints: f32, boxes: f32, objects: u32, counts: u32);
    let argument = KeypointTargets {
        keypoints,
        boxes,
        objects,
        counts,
        targets: targets.pointer(),
        n: n as u32,
        n_objects: n_objects as u32,
        points: points as u32,
        slots: slots as u32,
        side: side as u32,
        unused: 0,
    };
    launch!(device, KEYPOINT_TARGETS, "keypoint_targets", Grid::over(n), argument);
    Ok(targets.into_tensor((images, slots, points)))
}
