use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    GATHER_ROWS, Grid, Table, check_f32, fits, launch, of, output, point, pointer,
};

pub(super) fn run(tables: &[&Tensor], width: usize, rows: &Tensor) -> Result<Tensor> {
    fits(OP, "tables", tables.len(), Table::CAPACITY)?;
    let device = of(OP, rows.device())?;
    let n = rows.elem_count() * width;
    let (tensor, out) = output(device, DType::F32, (rows.elem_count(), width))?;
    let held = tables.iter().map(|table| table.contiguous()).collect::<Result<Vec<_>, _>>()?;
    let entries = held
        .iter()
        .map(|table| Ok((pointer::<f32>(table)?, table.elem_count() / width)))
        .collect::<Result<Vec<_>>>()?;
    let table = Table::new(entries);
    point!(rows: u32);
    let (grid, width, n) = (Grid::over(n), width as u32, n as u32);
    launch!(device, GATHER_ROWS, "gather_rows", grid, table, rows, width, n, out);
    Ok(tensor)
}

/// Gradients of the tables that are wanted.
pub(super) fn scatter(
    gradient: &Tensor,
    rows: &Tensor,
    shapes: &[Vec<usize>],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (n, width) = (gradient.elem_count(), gradient.dim(1)?);
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
        .zip(shapes)
        .map(|(gradient, shape)| {
            // A table that nobody wants the gradient of has no address.
            let address = gradient.as_ref().map(pointer::<f32>).transpose()?.unwrap_or(0);
            Ok((address, shape.iter().product::<usize>() / width))
        })
        .collect::<Result<Vec<_>>>()?;
    let table = Table::new(entries);
    point!(rows: u32, gradient: f32);
    let (grid, width, n) = (Grid::over(n), width as u32, n as u32);
    launch!(device, GATHER_ROWS, "gather_rows_scatter", grid, table, rows, width, n, gradient);
    Ok(gradients)
}
