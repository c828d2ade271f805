use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{Grid, ImageSizes, Output, SCALE_BOXES, launch, of, point};

pub(super) fn run(boxes: &Tensor, factors: &[(f32, f32)]) -> Result<Tensor> {
    let device = boxes.device();
    let gpu = of(OP, device)?;
    let [n, k] = [boxes.dims()[0], boxes.dims()[1]];
    if n * k == 0 {
        return Ok(Tensor::zeros((n, k, 4), DType::F32, device)?);
    }
    point!(boxes: f32);
    let scaled = Output::<f32>::new(gpu, n * k * 4)?;
    for (first, images, factors) in ImageSizes::parts(factors.iter().copied()) {
        let threads = images * k;
        launch!(
            gpu,
            SCALE_BOXES,
            "scale_boxes",
            Grid::over(threads),
            boxes,
            factors,
            first as u32,
            k as u32,
            threads as u32,
            scaled.pointer(),
        );
    }
    Ok(scaled.into_tensor((n, k, 4)))
}
