use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{AssignPointsParams, OP, Plan};
use crate::error::Result;
use crate::ops::support::cuda::{ASSIGN_POINTS, Grid, Output, launch, of, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct Points {
    squares: u64,
    objects: u64,
    counts: u64,
    codes: u64,
    points: u32,
    n_objects: u32,
    first: u32,
    before_last: u32,
    radius: f32,
    lower: f32,
    upper: f32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Points {}

pub(super) fn run(
    squares: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignPointsParams,
    plan: Plan,
) -> Result<Tensor> {
    let device = of(OP, objects.device())?;
    let codes = Output::<u32>::new(device, plan.images * plan.points)?;
    point!(squares: f32, objects: f32, counts: u32);
    let argument = Points {
        squares,
        objects,
        counts,
        codes: codes.pointer(),
        points: plan.points as u32,
        n_objects: plan.objects as u32,
        first: plan.first as u32,
        before_last: plan.before_last as u32,
        radius: params.center_radius,
        lower: params.side_range.0,
        upper: params.side_range.1,
        unused: 0,
    };
    let grid = Grid::over_rows(plan.points, plan.images);
    launch!(device, ASSIGN_POINTS, "assign_points", grid, argument);
    Ok(codes.into_tensor((plan.images, plan.points)))
}
