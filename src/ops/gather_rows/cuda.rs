use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{OP, Plan};
use crate::error::Result;
use crate::ops::support::cuda::{
    GATHER_ROWS, Grid, Table, check_f32, fits, launch, of, output, point, pointer,
};

/// What a launch picks; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    rows: u64,
    values: u64,
    per_image: u32,
    width: u32,
    n: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Rows {}

impl Rows {
    fn new(plan: &Plan, picked: usize, rows: u64, values: u64) -> Self {
        Self {
            rows,
            values,
            per_image: (picked / plan.images.max(1)) as u32,
            width: plan.width as u32,
            n: (picked * plan.width) as u32,
            unused: 0,
        }
    }
}

pub(super) fn run(tables: &[&Tensor], plan: &Plan, rows: &Tensor) -> Result<Tensor> {
    fits(OP, "tables", tables.len(), Table::CAPACITY)?;
    let device = of(OP, rows.device())?;
    let picked = rows.elem_count();
    let (tensor, out) = output(device, DType::F32, (picked, plan.width))?;
    let held = tables.iter().map(|table| table.contiguous()).collect::<Result<Vec<_>, _>>()?;
    let entries = held
        .iter()
        .zip(&plan.lengths)
        .map(|(table, length)| Ok((pointer::<f32>(table)?, *length)))
        .collect::<Result<Vec<_>>>()?;
    let table = Table::new(entries);
    point!(rows: u32);
    let argument = Rows::new(plan, picked, rows, out);
    let grid = Grid::over(picked * plan.width);
    launch!(device, GATHER_ROWS, "gather_rows", grid, table, argument);
    Ok(tensor)
}

/// Gradients of the tables that are wanted.
pub(super) fn scatter(
    gradient: &Tensor,
    rows: &Tensor,
    plan: &Plan,
    shapes: &[Vec<usize>],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let gradients = shapes
        .iter()
        .zip(wanted)
        .map(|(shape, wanted)| {
            let zeros = || Tensor::zeros(shape.as_slice(), DType::F32, gradient.device());
            Ok(wanted.then(zeros).transpose()?)
        })
        .collect::<Result<Vec<_>>>()?;
    let entries = gradients
        .iter()
        .zip(&plan.lengths)
        .map(|(gradient, length)| {
            // A table that nobody wants the gradient of has no address.
            let address = gradient.as_ref().map(pointer::<f32>).transpose()?.unwrap_or(0);
            Ok((address, *length))
        })
        .collect::<Result<Vec<_>>>()?;
    let table = Table::new(entries);
    let picked = rows.elem_count();
    point!(rows: u32, gradient: f32);
    let argument = Rows::new(plan, picked, rows, gradient);
    let grid = Grid::over(picked * plan.width);
    launch!(device, GATHER_ROWS, "gather_rows_scatter", grid, table, argument);
    Ok(gradients)
}
