use candle_core::Tensor;

use super::{OP, Plan};
use crate::error::Result;
use crate::ops::support::cuda::{APPEND_SLOTS, Grid, Output, launch, of, point};

pub(super) fn run(
    (first, first_counts): (&Tensor, &Tensor),
    (second, second_counts): (&Tensor, &Tensor),
    plan: Plan,
) -> Result<(Tensor, Tensor)> {
    let device = of(OP, first.device())?;
    let slots = plan.first + plan.second;
    let joined = Output::<f32>::new(device, plan.n * slots * plan.row)?;
    let counts = Output::<u32>::new(device, plan.n)?;
    point!(first: f32, second: f32);
    point!(first_counts: u32, second_counts: u32);
    // At least one thread, which writes the count.
    let grid = Grid::over_rows((slots * plan.row).max(1), plan.n);
    launch!(
        device,
        APPEND_SLOTS,
        "append_slots",
        grid,
        first,
        first_counts,
        second,
        second_counts,
        plan.first as u32,
        plan.second as u32,
        plan.row as u32,
        joined.pointer(),
        counts.pointer(),
    );
    Ok((joined.into_tensor((plan.n, slots, plan.row)), counts.into_tensor(plan.n)))
}
