use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{Chosen, OP, SampleParams, Samples};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, SAMPLE_BOXES, SELECT_THREADS, launch, of, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct Sample {
    matches: u64,
    priorities: u64,
    chosen: u64,
    index: u64,
    counts: u64,
    positive_index: u64,
    positive_counts: u64,
    n_boxes: u32,
    samples: u32,
    most_positives: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Sample {}

pub(super) fn run(
    matches: &Tensor,
    priorities: &Tensor,
    (n, boxes): (usize, usize),
    params: &SampleParams,
) -> Result<Samples> {
    let device = of(OP, matches.device())?;
    let (samples, most_positives) = (params.samples, params.most_positives());
    let chosen = Output::<i64>::new(device, n * samples)?;
    let (index, counts) =
        (Output::<u32>::new(device, n * samples)?, Output::<u32>::new(device, n)?);
    let (positive_index, positive_counts) =
        (Output::<u32>::new(device, n * most_positives)?, Output::<u32>::new(device, n)?);
    point!(matches: u32, priorities: u32);
    let argument = Sample {
        matches,
        priorities,
        chosen: chosen.pointer(),
        index: index.pointer(),
        counts: counts.pointer(),
        positive_index: positive_index.pointer(),
        positive_counts: positive_counts.pointer(),
        n_boxes: boxes as u32,
        samples: samples as u32,
        most_positives: most_positives as u32,
        unused: 0,
    };
    let select = Grid::blocks((n, 1), SELECT_THREADS);
    launch!(device, SAMPLE_BOXES, "sample_boxes_select", select, argument);
    let rank = Grid::over_rows(samples, n);
    launch!(device, SAMPLE_BOXES, "sample_boxes_rank", rank, argument);
    Ok(Samples {
        all: Chosen { index: index.into_tensor((n, samples)), counts: counts.into_tensor(n) },
        positives: Chosen {
            index: positive_index.into_tensor((n, most_positives)),
            counts: positive_counts.into_tensor(n),
        },
    })
}
