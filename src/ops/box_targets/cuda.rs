use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{BoxTargets, OP, Objects, Plan};
use crate::error::Result;
use crate::ops::support::box_set::BoxSet;
use crate::ops::support::cuda::{BOX_TARGETS, Grid, Output, launch, of, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct Targets {
    index: u64,
    counts: u64,
    matches: u64,
    corners: u64,
    object_corners: u64,
    object_labels: u64,
    boxes: u64,
    labels: u64,
    objects: u64,
    deltas: u64,
    box_stride: u64,
    n_slots: u32,
    n_boxes: u32,
    n_objects: u32,
    unused: u32,
    weights: [f32; 4],
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Targets {}

pub(super) fn run(
    (index, counts): (&Tensor, &Tensor),
    matches: &Tensor,
    boxes: BoxSet<'_>,
    objects: Objects<'_>,
    weights: [f32; 4],
    plan: Plan,
) -> Result<BoxTargets> {
    let device = of(OP, index.device())?;
    let slots = plan.images * plan.slots;
    let (found, deltas) =
        (Output::<f32>::new(device, 4 * slots)?, Output::<f32>::new(device, 4 * slots)?);
    let (labels, owners) = (Output::<u32>::new(device, slots)?, Output::<u32>::new(device, slots)?);
    let (corners, object_corners, object_labels) = (boxes.boxes(), objects.boxes, objects.labels);
    point!(corners: f32, object_corners: f32);
    point!(object_labels: u32);
    point!(index: u32, counts: u32);
    point!(matches: u32);
    let argument = Targets {
        index,
        counts,
        matches,
        corners,
        object_corners,
        object_labels,
        boxes: found.pointer(),
        labels: labels.pointer(),
        objects: owners.pointer(),
        deltas: deltas.pointer(),
        box_stride: boxes.image_stride(plan.boxes) as u64,
        n_slots: plan.slots as u32,
        n_boxes: plan.boxes as u32,
        n_objects: plan.objects as u32,
        unused: 0,
        weights,
    };
    let grid = Grid::over_rows(plan.slots, plan.images);
    launch!(device, BOX_TARGETS, "box_targets", grid, argument);
    let (two, three) = ((plan.images, plan.slots), (plan.images, plan.slots, 4));
    Ok(BoxTargets {
        boxes: found.into_tensor(three),
        labels: labels.into_tensor(two),
        objects: owners.into_tensor(two),
        deltas: deltas.into_tensor(three),
    })
}
