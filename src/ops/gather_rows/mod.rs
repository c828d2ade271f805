//! Rows picked by index from several tables at once.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported};
use crate::error::Result;

const OP: &str = "gather_rows";

/// Picks rows of tables that are thought one below the other.
///
/// A table is a tensor of any shape, read as rows of `width` values; row `r` of the second table has the index of the rows
/// of the first plus `r`. So predictions of all levels of a pyramid are picked at once.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `tables` | any, a multiple of `width` values each | f32 |
/// | `rows` | `[R]`, below the number of rows of all tables | u32 |
/// | returns | `[R, width]` | f32 |
///
/// # Devices
/// CPU; CUDA in one launch, for at most 8 tables. An index that is too large is an error on the CPU, and gives NaN on CUDA,
/// where the host does not know it.
///
/// # Gradients
/// Of `tables`; a row that is picked several times has the sum. On CUDA the order of such a sum is not fixed.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table;
/// [`Error::Config`](crate::Error::Config) for too many tables on CUDA.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::gather_rows;
///
/// let fine = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let coarse = Tensor::new(&[[5f32, 6.0]], &Device::Cpu)?;
/// let rows = Tensor::new(&[2u32, 0], &Device::Cpu)?;
/// let picked = gather_rows(&[&fine, &coarse], 2, &rows)?;
/// assert_eq!(picked.to_vec2::<f32>()?, [[5.0, 6.0], [1.0, 2.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather_rows(tables: &[&Tensor], width: usize, rows: &Tensor) -> Result<Tensor> {
    let [_] = argument(OP, "rows", rows).dtype(DType::U32)?.dims("[R]")?;
    let expected = format!("a multiple of {width} values");
    for table in tables {
        let checked = argument(OP, "tables", table).dtype(DType::F32)?.same_device(rows)?;
        if width == 0 || !table.elem_count().is_multiple_of(width) {
            return Err(checked.shape_error(&expected));
        }
    }
    let output = match rows.device() {
        Device::Cpu => cpu::run(tables, width, rows),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(tables, width, rows),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, tables, output, || {
        let shapes = tables.iter().map(|table| table.dims().to_vec()).collect();
        Ok(GatherRowsBackward { shapes, rows: rows.clone() })
    })
}

struct GatherRowsBackward {
    /// Of the tables.
    shapes: Vec<Vec<usize>>,
    rows: Tensor,
}

impl Backward for GatherRowsBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        match gradient.device() {
            Device::Cpu => cpu::scatter(gradient, &self.rows, &self.shapes, wanted),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::scatter(gradient, &self.rows, &self.shapes, wanted),
            other => Err(unsupported("the gradient of gather_rows", other)),
        }
    }
}
