use candle_core::{Device, Tensor};

use super::OP;
use crate::error::{Error, Result};
use crate::ops::support::check::{lend, with_slice};

/// First row of each table, and the number of all rows.
fn starts(rows_of_tables: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut starts = vec![0];
    let mut end = 0;
    starts.extend(rows_of_tables.map(|rows| {
        end += rows;
        end
    }));
    starts
}

pub(super) fn run(tables: &[&Tensor], width: usize, rows: &Tensor) -> Result<Tensor> {
    let starts = starts(tables.iter().map(|table| table.elem_count() / width));
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
    for (table, start) in tables.iter().zip(&starts) {
        with_slice::<f32, _>(table, |table| {
            for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                let place = (*row as usize).wrapping_sub(*start);
                if place < table.len() / width {
                    out.copy_from_slice(&table[place * width..][..width]);
                }
            }
        })?;
    }
    Ok(Tensor::from_vec(out, (rows.len(), width), &Device::Cpu)?)
}

/// Gradients of the tables that are wanted.
pub(super) fn scatter(
    gradient: &Tensor,
    rows: &Tensor,
    shapes: &[Vec<usize>],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let width = gradient.dim(1)?;
    let values = |shape: &Vec<usize>| shape.iter().product::<usize>();
    let starts = starts(shapes.iter().map(|shape| values(shape) / width));
    lend!(gradient: f32, rows: u32);
    shapes
        .iter()
        .zip(wanted)
        .zip(&starts)
        .map(|((shape, wanted), start)| {
            if !wanted {
                return Ok(None);
            }
            let mut out = vec![0f32; values(shape)];
            for (gradient, row) in gradient.chunks_exact(width).zip(rows) {
                let place = (*row as usize).wrapping_sub(*start);
                if place < out.len() / width {
                    let out = &mut out[place * width..][..width];
                    out.iter_mut().zip(gradient).for_each(|(out, gradient)| *out += gradient);
                }
            }
            Ok(Some(Tensor::from_vec(out, shape.as_slice(), &Device::Cpu)?))
        })
        .collect()
}
