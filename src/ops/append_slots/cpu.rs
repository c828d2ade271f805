use candle_core::{Device, Tensor};

use super::Plan;
use crate::error::Result;
use crate::ops::support::check::lend;

pub(super) fn run(
    (first, first_counts): (&Tensor, &Tensor),
    (second, second_counts): (&Tensor, &Tensor),
    plan: Plan,
) -> Result<(Tensor, Tensor)> {
    lend!(first: f32, second: f32, first_counts: u32, second_counts: u32);
    let slots = plan.first + plan.second;
    let mut joined = vec![0f32; plan.n * slots * plan.row];
    let mut counts = Vec::with_capacity(plan.n);
    for image in 0..plan.n {
        let of_first = (first_counts[image] as usize).min(plan.first);
        let of_second = (second_counts[image] as usize).min(plan.second);
        let from_first = &first[image * plan.first * plan.row..][..of_first * plan.row];
        let from_second = &second[image * plan.second * plan.row..][..of_second * plan.row];
        let out = &mut joined[image * slots * plan.row..];
        out[..from_first.len()].copy_from_slice(from_first);
        out[from_first.len()..][..from_second.len()].copy_from_slice(from_second);
        counts.push((of_first + of_second) as u32);
    }
    Ok((
        Tensor::from_vec(joined, (plan.n, slots, plan.row), &Device::Cpu)?,
        Tensor::from_vec(counts, plan.n, &Device::Cpu)?,
    ))
}
