use candle_core::{DType, Tensor};

use super::{Kept, NmsParams, OP};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, NMS, Output, launch, of, point};

const THREADS: u32 = 1024;

pub(super) fn run(
    boxes: &Tensor,
    scores: &Tensor,
    groups: &Tensor,
    valid: &Tensor,
    params: &NmsParams,
) -> Result<Kept> {
    let device = scores.device();
    let gpu = of(OP, device)?;
    let [n, slots] = [scores.dims()[0], scores.dims()[1]];
    let capacity = params.capacity;
    if n * slots * capacity == 0 {
        return Ok(Kept {
            index: Tensor::zeros((n, capacity), DType::U32, device)?,
            counts: Tensor::zeros(n, DType::U32, device)?,
        });
    }
    point!(boxes: f32, scores: f32, groups: u32, valid: u8);
    let keys = Output::<i64>::new(gpu, n * slots)?;
    let order = Output::<u32>::new(gpu, n * slots)?;
    let n_keys = Output::<u32>::new(gpu, n)?;
    let index = Output::<u32>::new(gpu, n * capacity)?;
    let counts = Output::<u32>::new(gpu, n)?;
    let per_image = Grid::blocks((n, 1), THREADS);
    let (keys, order, n_keys) = (keys.pointer(), order.pointer(), n_keys.pointer());
    let slots_u32 = slots as u32;
    launch!(gpu, NMS, "nms_compact", per_image, boxes, scores, valid, slots_u32, keys, n_keys);
    launch!(gpu, NMS, "nms_rank", Grid::over_rows(slots, n), keys, n_keys, slots_u32, order);
    launch!(
        gpu,
        NMS,
        "nms_scan",
        per_image,
        boxes,
        groups,
        order,
        n_keys,
        slots_u32,
        params.threshold_f32(),
        capacity as u32,
        index.pointer(),
        counts.pointer(),
    );
    Ok(Kept { index: index.into_tensor((n, capacity)), counts: counts.into_tensor(n) })
}
