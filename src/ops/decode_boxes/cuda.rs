use candle_core::{DType, Tensor};

use super::{DecodeBoxesParams, DecodedBoxes, OP};
use crate::error::Result;
use crate::ops::support::box_coding::BoxCoding;
use crate::ops::support::cuda::{
    DECODE_BOXES, Grid, ImageSizes, Output, Table, fits, launch, of, point, pointer,
};

pub(super) fn run(
    anchors: &Tensor,
    regression: &[&Tensor],
    index: &Tensor,
    valid: &Tensor,
    params: &DecodeBoxesParams,
) -> Result<DecodedBoxes> {
    let device = anchors.device();
    let gpu = of(OP, device)?;
    let [n, slots] = [index.dims()[0], index.dims()[1]];
    fits(OP, "regression", regression.len(), Table::CAPACITY)?;
    if n * slots == 0 {
        return Ok(DecodedBoxes {
            boxes: Tensor::zeros((n, slots, 4), DType::F32, device)?,
            valid: Tensor::zeros((n, slots), DType::U8, device)?,
        });
    }
    let regression: Vec<Tensor> =
        regression.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?;
    let entries: Vec<(u64, usize)> = regression
        .iter()
        .map(|level| Ok((pointer::<f32>(level)?, level.dims()[1])))
        .collect::<Result<_>>()?;
    let levels = Table::new(entries);
    let (distances, weights) = match params.coding {
        BoxCoding::Deltas { weights } => (0u32, weights),
        BoxCoding::Distances => (1, [1.0; 4]),
    };
    point!(anchors: f32, index: u32, valid: u8);
    let boxes = Output::<f32>::new(gpu, n * slots * 4)?;
    let usable = Output::<u8>::new(gpu, n * slots)?;
    let sizes = params.image_sizes.iter().map(|size| (size.0 as f32, size.1 as f32));
    for (first, images, sizes) in ImageSizes::parts(sizes) {
        let threads = images * slots;
        launch!(
            gpu,
            DECODE_BOXES,
            "decode_boxes",
            Grid::over(threads),
            levels,
            regression.len() as u32,
            sizes,
            first as u32,
            slots as u32,
            threads as u32,
            anchors,
            index,
            valid,
            distances,
            weights[0],
            weights[1],
            weights[2],
            weights[3],
            boxes.pointer(),
            usable.pointer(),
        );
    }
    Ok(DecodedBoxes {
        boxes: boxes.into_tensor((n, slots, 4)),
        valid: usable.into_tensor((n, slots)),
    })
}
