use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Device, Tensor};

use super::{OP, TopPairsParams};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, TOP_PAIRS, Table, fits, launch, of, pointer};
use crate::ops::support::pairs::Pairs;

const THREADS: u32 = 256;
const BINS: usize = 1 << 11;
/// 64-bit words of a row's state in kernel.cu.
const ROW: usize = 3;
/// Lowest bit of each pass: 11 bits at a time, 9 in the last.
const SHIFTS: [u32; 6] = [53, 42, 31, 20, 9, 0];
/// Pairs of a thread, where there are many.
const PER_THREAD: usize = 8;
/// Blocks of a level and image, at most.
const BLOCKS: usize = 1024;

/// What the kernels know of the slots; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Slots {
    first_slot: [u32; Table::CAPACITY],
    first_anchor: [u32; Table::CAPACITY],
    slots: u32,
    n_levels: u32,
    n_classes: u32,
    k: u32,
    threshold: f32,
}

// SAFETY: plain 32-bit numbers in C's order.
unsafe impl DeviceRepr for Slots {}

pub(super) fn run(
    logits: &[&Tensor],
    quality: Option<&[&Tensor]>,
    params: &TopPairsParams,
    device: &Device,
) -> Result<Pairs> {
    let gpu = of(OP, device)?;
    fits(OP, "logits", logits.len(), Table::CAPACITY)?;
    let (n, classes) = (logits[0].dims()[0], logits[0].dims()[2]);
    let contiguous = |levels: &[&Tensor]| -> Result<Vec<Tensor>> {
        Ok(levels.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?)
    };
    let logits = contiguous(logits)?;
    let quality = contiguous(quality.unwrap_or_default())?;
    let mut slots = Slots {
        n_levels: logits.len() as u32,
        n_classes: classes as u32,
        k: u32::try_from(params.per_level).unwrap_or(u32::MAX),
        threshold: params.score_threshold,
        ..Slots::default()
    };
    let mut entries = Vec::with_capacity(logits.len());
    let (mut first_anchor, mut longest, mut widest) = (0, 0, 0);
    for (place, level) in logits.iter().enumerate() {
        let anchors = level.dims()[1];
        let length = anchors * classes;
        let taken = length.min(params.per_level);
        entries.push((pointer::<f32>(level)?, length));
        slots.first_slot[place] = slots.slots;
        slots.first_anchor[place] = first_anchor;
        slots.slots += taken as u32;
        first_anchor += anchors as u32;
        longest = longest.max(length);
        widest = widest.max(taken);
    }
    let per_image = slots.slots as usize;
    let shape = (n, per_image);
    if n * per_image == 0 {
        return Ok(Pairs {
            index: Tensor::zeros(shape, DType::U32, device)?,
            labels: Tensor::zeros(shape, DType::U32, device)?,
            scores: Tensor::zeros(shape, DType::F32, device)?,
            valid: Tensor::zeros(shape, DType::U8, device)?,
        });
    }
    let beside: Vec<(u64, usize)> = quality
        .iter()
        .map(|level| Ok((pointer::<f32>(level)?, level.dims()[1])))
        .collect::<Result<_>>()?;
    let (table, beside) = (Table::new(entries), Table::new(beside));
    let n_rows = n * logits.len();
    let histograms = Output::<u32>::new(gpu, n_rows * BINS)?;
    let rows = Output::<i64>::new(gpu, n_rows * ROW)?;
    let chosen = Output::<i64>::new(gpu, n * per_image)?;
    let index = Output::<u32>::new(gpu, n * per_image)?;
    let labels = Output::<u32>::new(gpu, n * per_image)?;
    let scores = Output::<f32>::new(gpu, n * per_image)?;
    let valid = Output::<u8>::new(gpu, n * per_image)?;
    let (histograms, rows) = (histograms.pointer(), rows.pointer());
    let per_block = THREADS as usize * PER_THREAD;
    let many = Grid::blocks((longest.div_ceil(per_block).min(BLOCKS), n_rows), THREADS);
    let one = Grid::blocks((1, n_rows), THREADS);
    let begin = Grid::over_rows(BINS, n_rows);
    launch!(gpu, TOP_PAIRS, "top_pairs_begin", begin, slots, histograms, rows);
    for shift in SHIFTS {
        launch!(
            gpu,
            TOP_PAIRS,
            "top_pairs_count",
            many,
            table,
            beside,
            slots,
            shift,
            histograms,
            rows
        );
        launch!(gpu, TOP_PAIRS, "top_pairs_narrow", one, shift, histograms, rows);
    }
    launch!(
        gpu,
        TOP_PAIRS,
        "top_pairs_collect",
        many,
        table,
        beside,
        slots,
        rows,
        chosen.pointer()
    );
    launch!(
        gpu,
        TOP_PAIRS,
        "top_pairs_rank",
        Grid::over_rows(widest, n_rows),
        table,
        slots,
        rows,
        chosen.pointer(),
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
