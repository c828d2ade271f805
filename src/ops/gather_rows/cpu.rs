use candle_core::{Device, Tensor};

use super::{OP, Plan};
use crate::error::{Error, Result};
use crate::ops::support::check::{lend, with_slice};

impl Plan {
    /// First row of each table within an image, and the number of all rows.
    fn starts(&self) -> Vec<usize> {
        let mut end = 0;
        let ends = self.lengths.iter().map(|length| {
            end += length;
            end
        });
        [0].into_iter().chain(ends).collect()
    }

    /// Which picked row is which row of a table.
    fn picks(
        &self,
        table: usize,
        start: usize,
        rows: &[u32],
    ) -> impl Iterator<Item = (usize, usize)> {
        let (length, per_image) = (self.lengths[table], rows.len() / self.images.max(1));
        rows.iter().enumerate().filter_map(move |(picked, row)| {
            let place = (*row as usize).wrapping_sub(start);
            (place < length).then(|| (picked, picked / per_image * length + place))
        })
    }
}

pub(super) fn run(tables: &[&Tensor], plan: &Plan, rows: &Tensor) -> Result<Tensor> {
    let (starts, width) = (plan.starts(), plan.width);
    let end = starts.last().copied().unwrap_or(0);
    lend!(rows: u32);
    if let Some(row) = rows.iter().find(|row| **row as usize >= end) {
        return Err(Error::Shape {
            op: OP,
            argument: "rows",
            expected: format!("values below {end}, the number of rows"),
            found: vec![*row as usize],
        });
    }
    let mut out = vec![0f32; rows.len() * width];
    for (index, table) in tables.iter().enumerate() {
        with_slice::<f32, _>(table, |table| {
            for (picked, place) in plan.picks(index, starts[index], rows) {
                out[picked * width..][..width].copy_from_slice(&table[place * width..][..width]);
            }
        })?;
    }
    Ok(Tensor::from_vec(out, (rows.len(), width), &Device::Cpu)?)
}

/// Gradients of the tables that are wanted.
pub(super) fn scatter(
    gradient: &Tensor,
    rows: &Tensor,
    plan: &Plan,
    shapes: &[Vec<usize>],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let (starts, width) = (plan.starts(), plan.width);
    lend!(gradient: f32, rows: u32);
    shapes
        .iter()
        .zip(wanted)
        .enumerate()
        .map(|(index, (shape, wanted))| {
            if !wanted {
                return Ok(None);
            }
            let mut out = vec![0f32; shape.iter().product()];
            for (picked, place) in plan.picks(index, starts[index], rows) {
                let gradient = &gradient[picked * width..][..width];
                let out = &mut out[place * width..][..width];
                out.iter_mut().zip(gradient).for_each(|(out, gradient)| *out += gradient);
            }
            Ok(Some(Tensor::from_vec(out, shape.as_slice(), &Device::Cpu)?))
        })
        .collect()
}
