use candle_core::{Tensor, WithDType};

use super::Plan;
use crate::error::Result;
use crate::ops::support::check::lend;

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
