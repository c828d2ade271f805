use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{Candidates, OP, SelectCandidatesParams};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, ImageSizes, Output, SELECT_CANDIDATES, launch, of, point};

const WARP: usize = 32;

/// Divisors of dx, dy, dw, dh: CUDA's `float4`.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Float4([f32; 4]);

// SAFETY: four 32-bit numbers with the alignment of the kernel's parameter.
unsafe impl DeviceRepr for Float4 {}

pub(super) fn run(
    class_logits: &Tensor,
    box_regression: &Tensor,
    proposals: &Tensor,
    counts: &Tensor,
    per_proposal: usize,
    params: &SelectCandidatesParams,
) -> Result<Candidates> {
    let device = proposals.device();
    let gpu = of(OP, device)?;
    let [n, k] = [proposals.dims()[0], proposals.dims()[1]];
    let classes = class_logits.dims()[1];
    let slots = k * per_proposal;
    let shape = (n, slots);
    if n * slots == 0 {
        return Ok(Candidates {
            boxes: Tensor::zeros((n, slots, 4), DType::F32, device)?,
            scores: Tensor::zeros(shape, DType::F32, device)?,
            labels: Tensor::zeros(shape, DType::U32, device)?,
            valid: Tensor::zeros(shape, DType::U8, device)?,
        });
    }
    point!(class_logits: f32, box_regression: f32, proposals: f32, counts: u32);
    let boxes = Output::<f32>::new(gpu, n * slots * 4)?;
    let scores = Output::<f32>::new(gpu, n * slots)?;
    let labels = Output::<u32>::new(gpu, n * slots)?;
    let valid = Output::<u8>::new(gpu, n * slots)?;
    let sizes = params.image_sizes.iter().map(|size| (size.0 as f32, size.1 as f32));
    for (first, images, sizes) in ImageSizes::parts(sizes) {
        let rows = images * k;
        launch!(
            gpu,
            SELECT_CANDIDATES,
            "select_candidates",
            Grid::over(rows * WARP),
            class_logits,
            box_regression,
            proposals,
            counts,
            sizes,
            first as u32,
            k as u32,
            rows as u32,
            classes as u32,
            per_proposal as u32,
            Float4(params.box_weights),
            params.score_threshold,
            params.min_side,
            boxes.pointer(),
            scores.pointer(),
            labels.pointer(),
            valid.pointer(),
        );
    }
    Ok(Candidates {
        boxes: boxes.into_tensor((n, slots, 4)),
        scores: scores.into_tensor(shape),
        labels: labels.into_tensor(shape),
        valid: valid.into_tensor(shape),
    })
}
