use candle_core::{DType, Tensor};

use super::{DecodeProposalsParams, DecodedProposals, OP};
use crate::error::{Error, Result};
use crate::ops::support::cuda::{
    DECODE_PROPOSALS, Grid, ImageSizes, Output, Table, launch, of, point, pointer,
};

pub(super) fn run(
    anchors: &Tensor,
    deltas: &[&Tensor],
    index: &Tensor,
    logits: &Tensor,
    params: &DecodeProposalsParams,
) -> Result<DecodedProposals> {
    let device = anchors.device();
    let gpu = of(OP, device)?;
    let [n, slots] = [index.dims()[0], index.dims()[1]];
    if deltas.len() > Table::CAPACITY {
        return Err(Error::Config {
            origin: OP.to_owned(),
            field: "deltas".to_owned(),
            found: format!("{} levels", deltas.len()),
            expected: format!("at most {} on a GPU", Table::CAPACITY),
        });
    }
    if n * slots == 0 {
        return Ok(DecodedProposals {
            boxes: Tensor::zeros((n, slots, 4), DType::F32, device)?,
            scores: Tensor::zeros((n, slots), DType::F32, device)?,
            valid: Tensor::zeros((n, slots), DType::U8, device)?,
        });
    }
    let deltas: Vec<Tensor> =
        deltas.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?;
    let entries: Vec<(u64, usize)> = deltas
        .iter()
        .map(|level| Ok((pointer::<f32>(level)?, level.dims()[1])))
        .collect::<Result<_>>()?;
    let n_levels = entries.len() as u32;
    let levels = Table::new(entries);
    point!(anchors: f32, index: u32, logits: f32);
    let boxes = Output::<f32>::new(gpu, n * slots * 4)?;
    let scores = Output::<f32>::new(gpu, n * slots)?;
    let valid = Output::<u8>::new(gpu, n * slots)?;
    let sizes = params.image_sizes.iter().map(|size| (size.0 as f32, size.1 as f32));
    for (first, images, sizes) in ImageSizes::parts(sizes) {
        let threads = images * slots;
        launch!(
            gpu,
            DECODE_PROPOSALS,
            "decode_proposals",
            Grid::over(threads),
            levels,
            n_levels,
            sizes,
            first as u32,
            slots as u32,
            threads as u32,
            anchors,
            index,
            logits,
            params.score_threshold,
            params.min_side,
            boxes.pointer(),
            scores.pointer(),
            valid.pointer(),
        );
    }
    Ok(DecodedProposals {
        boxes: boxes.into_tensor((n, slots, 4)),
        scores: scores.into_tensor((n, slots)),
        valid: valid.into_tensor((n, slots)),
    })
}
