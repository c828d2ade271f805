use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::{Chosen, SampleParams, Samples};
use crate::error::Result;
use crate::ops::support::check::lend;
use crate::ops::support::matches::Match;

pub(super) fn run(
    matches: &Tensor,
    priorities: &Tensor,
    (n, boxes): (usize, usize),
    params: &SampleParams,
) -> Result<Samples> {
    lend!(matches: u32, priorities: u32);
    let images: Vec<[Vec<u32>; 2]> = (0..n)
        .into_par_iter()
        .map(|image| {
            let range = image * boxes..(image + 1) * boxes;
            sample(&matches[range.clone()], &priorities[range], params)
        })
        .collect();
    let positives: Vec<&[u32]> = images.iter().map(|[positives, _]| positives.as_slice()).collect();
    let all: Vec<Vec<u32>> = images.iter().map(|both| both.concat()).collect();
    let all: Vec<&[u32]> = all.iter().map(Vec::as_slice).collect();
    Ok(Samples {
        all: slots(&all, params.samples)?,
        positives: slots(&positives, params.most_positives())?,
    })
}

/// Positives and negatives of an image.
fn sample(matches: &[u32], priorities: &[u32], params: &SampleParams) -> [Vec<u32>; 2] {
    let candidates = |wanted: fn(Match) -> bool| -> Vec<u64> {
        let keys = (0u64..).zip(matches).zip(priorities);
        keys.filter(|((_, code), _)| wanted(Match::from_code(**code)))
            .map(|((index, _), priority)| u64::from(*priority) << 32 | index)
            .collect()
    };
    let is_positive: fn(Match) -> bool = |found| matches!(found, Match::Object(_));
    let positives = lowest(candidates(is_positive), params.most_positives());
    let left = params.samples - positives.len();
    let negatives = lowest(candidates(|found| found == Match::Background), left);
    [positives, negatives]
}

/// The indices of the `count` lowest keys, ascending.
fn lowest(mut keys: Vec<u64>, count: usize) -> Vec<u32> {
    if count < keys.len() {
        keys.select_nth_unstable(count);
        keys.truncate(count);
    }
    let mut indices: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
    indices.sort_unstable();
    indices
}

fn slots(images: &[&[u32]], capacity: usize) -> Result<Chosen> {
    let mut index = vec![0; images.len() * capacity];
    for (image, chosen) in images.iter().enumerate() {
        index[image * capacity..][..chosen.len()].copy_from_slice(chosen);
    }
    let counts = images.iter().map(|chosen| chosen.len() as u32).collect();
    Ok(Chosen {
        index: Tensor::from_vec(index, (images.len(), capacity), &Device::Cpu)?,
        counts: Tensor::from_vec(counts, images.len(), &Device::Cpu)?,
    })
}
