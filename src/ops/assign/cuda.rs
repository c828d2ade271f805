use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, Tensor};

use super::{AssignParams, OP, Plan, Unfound};
use crate::error::Result;
use crate::ops::support::box_set::BoxSet;
use crate::ops::support::cuda::{ASSIGN, Grid, Output, launch, of, point, pointer};

/// Threads that look for the best box of an object.
const BEST_THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Assign {
    boxes: u64,
    box_counts: u64,
    objects: u64,
    object_counts: u64,
    best: u64,
    codes: u64,
    box_stride: u64,
    n_boxes: u32,
    n_objects: u32,
    positive_iou: f32,
    negative_iou: f32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Assign {}

pub(super) fn run(
    boxes: BoxSet<'_>,
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignParams,
    plan: Plan,
) -> Result<Tensor> {
    let device = of(OP, objects.device())?;
    let codes = Output::<u32>::new(device, plan.images * plan.boxes)?;
    let corners = boxes.boxes();
    let box_counts = boxes.counts().map(Tensor::contiguous).transpose()?;
    point!(corners: f32, objects: f32);
    point!(counts: u32);
    let argument = Assign {
        boxes: corners,
        box_counts: box_counts.as_ref().map(pointer::<u32>).transpose()?.unwrap_or(0),
        objects,
        object_counts: counts,
        best: 0,
        codes: codes.pointer(),
        box_stride: boxes.image_stride(plan.boxes) as u64,
        n_boxes: plan.boxes as u32,
        n_objects: plan.objects as u32,
        positive_iou: params.positive_iou,
        negative_iou: params.negative_iou,
    };
    let best = match params.unfound {
        Unfound::Dropped | Unfound::EachToItsBestBox => None,
        Unfound::GivenToBestBoxes => Some(best_of_objects(device, argument, plan)?),
    };
    let argument = Assign { best: best.as_ref().map_or(0, Output::pointer), ..argument };
    launch!(device, ASSIGN, "assign", Grid::over_rows(plan.boxes, plan.images), argument);
    if params.unfound == Unfound::EachToItsBestBox {
        let owned = Output::<u32>::new(device, plan.images * plan.objects)?;
        let argument = Assign { best: owned.pointer(), ..argument };
        let grid = Grid::blocks((plan.objects, plan.images), BEST_THREADS);
        launch!(device, ASSIGN, "assign_best_box", grid, argument);
        launch!(
            device,
            ASSIGN,
            "assign_give",
            Grid::over(plan.images),
            argument,
            plan.images as u32
        );
    }
    Ok(codes.into_tensor((plan.images, plan.boxes)))
}

/// The largest IoU that each object has with any box.
fn best_of_objects(device: &CudaDevice, argument: Assign, plan: Plan) -> Result<Output<f32>> {
    let best = Output::<f32>::new(device, plan.images * plan.objects)?;
    let argument = Assign { best: best.pointer(), ..argument };
    let grid = Grid::blocks((plan.objects, plan.images), BEST_THREADS);
    launch!(device, ASSIGN, "assign_best", grid, argument);
    Ok(best)
}
