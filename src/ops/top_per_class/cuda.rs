use candle_core::{DType, Device, Tensor};

use super::{OP, Sizes, TopPerClassParams};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, Output, SELECT_THREADS, TOP_PER_CLASS, Table, fits, launch, of, pointer,
};
use crate::ops::support::pairs::Pairs;

const WARP: usize = 32;

pub(super) fn run(
    logits: &[&Tensor],
    sizes: Sizes,
    params: &TopPerClassParams,
    device: &Device,
) -> Result<Pairs> {
    let gpu = of(OP, device)?;
    fits(OP, "logits", logits.len(), Table::CAPACITY)?;
    let (foreground, taken) = (sizes.foreground(), sizes.taken(params));
    let n_rows = sizes.images * foreground;
    let shape = (sizes.images, foreground * taken);
    if n_rows * taken == 0 {
        return Ok(Pairs {
            index: Tensor::zeros(shape, DType::U32, device)?,
            labels: Tensor::zeros(shape, DType::U32, device)?,
            scores: Tensor::zeros(shape, DType::F32, device)?,
            valid: Tensor::zeros(shape, DType::U8, device)?,
        });
    }
    let logits: Vec<Tensor> =
        logits.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?;
    let entries: Vec<(u64, usize)> = logits
        .iter()
        .map(|level| Ok((pointer::<f32>(level)?, level.dims()[1])))
        .collect::<Result<_>>()?;
    let all = Output::<f32>::new(gpu, n_rows * sizes.anchors)?;
    let chosen = Output::<i64>::new(gpu, n_rows * taken)?;
    let counts = Output::<u32>::new(gpu, n_rows)?;
    let index = Output::<u32>::new(gpu, n_rows * taken)?;
    let labels = Output::<u32>::new(gpu, n_rows * taken)?;
    let scores = Output::<f32>::new(gpu, n_rows * taken)?;
    let valid = Output::<u8>::new(gpu, n_rows * taken)?;
    launch!(
        gpu,
        TOP_PER_CLASS,
        "top_per_class_score",
        Grid::over_rows(sizes.anchors * WARP, sizes.images),
        Table::new(entries),
        logits.len() as u32,
        sizes.anchors as u32,
        sizes.classes as u32,
        params.score_threshold,
        all.pointer(),
    );
    launch!(
        gpu,
        TOP_PER_CLASS,
        "top_per_class_select",
        Grid::blocks((foreground, sizes.images), SELECT_THREADS),
        all.pointer(),
        sizes.anchors as u32,
        taken as u32,
        chosen.pointer(),
        counts.pointer(),
    );
    launch!(
        gpu,
        TOP_PER_CLASS,
        "top_per_class_rank",
        Grid::over_rows(taken, n_rows),
        chosen.pointer(),
        counts.pointer(),
        taken as u32,
        foreground as u32,
        index.pointer(),
        labels.pointer(),
        scores.pointer(),
        valid.pointer(),
    );
    Ok(Pairs {
        index: index.into_tensor(shape),
        labels: labels.into_tensor(shape),
        scores: scores.into_tensor(shape),
        valid: valid.into_tensor(shape),
    })
}
