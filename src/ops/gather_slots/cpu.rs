use candle_core::{Tensor, WithDType};

use crate::error::Result;
use crate::ops::support::check::lend;

/// Lengths of the axes.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub n: usize,
    pub k: usize,
    pub slots: usize,
    pub row: usize,
}

pub(super) fn run<T: WithDType>(
    source: &Tensor,
    index: &Tensor,
    counts: &Tensor,
    Plan { n, k, slots, row }: Plan,
) -> Result<Vec<T>> {
    lend!(source: T, index: u32, counts: u32);
    let mut gathered = vec![T::zero(); n * k * row];
    for image in 0..n {
        for place in 0..k.min(counts[image] as usize) {
            let from = (image * slots + index[image * k + place] as usize) * row;
            let to = (image * k + place) * row;
            gathered[to..to + row].copy_from_slice(&source[from..from + row]);
        }
    }
    Ok(gathered)
}
