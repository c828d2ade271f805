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

/// Picks rows of tables that are thought one below the other, image by image.
///
/// A table is a tensor of any shape whose first axis are the images, read as rows of `width` values for each of them; row `r`
/// of the second table has the index of the rows of the first plus `r`. So predictions of all levels of a pyramid are
/// picked at once.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `tables` | `[N, …]`, a multiple of `width` values per image each | f32 |
/// | `rows` | `[N, R]`, below the number of rows of all tables; or `[R]`, where whole tables are one image's | u32 |
/// | returns | `[N·R, width]` | f32 |
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
/// let fine = Tensor::new(&[[[1f32, 2.0], [3.0, 4.0]]], &Device::Cpu)?; // one image
/// let coarse = Tensor::new(&[[[5f32, 6.0]]], &Device::Cpu)?;
/// let rows = Tensor::new(&[[2u32, 0]], &Device::Cpu)?;
/// let picked = gather_rows(&[&fine, &coarse], 2, &rows)?;
/// assert_eq!(picked.to_vec2::<f32>()?, [[5.0, 6.0], [1.0, 2.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather_rows(tables: &[&Tensor], width: usize, rows: &Tensor) -> Result<Tensor> {
    let checked = argument(OP, "rows", rows).dtype(DType::U32)?;
    let images = match *rows.dims() {
        [_] => 1,
        [images, _] => images,
        _ => return Err(checked.shape_error("[N, R] or [R]")),
    };
    let expected = format!("{images} images, each with a multiple of {width} values");
    let mut plan = Plan { images, width, lengths: Vec::with_capacity(tables.len()) };
    for table in tables {
        let checked = argument(OP, "tables", table).dtype(DType::F32)?.same_device(rows)?;
        let of_images = rows.rank() == 1 || table.dims().first() == Some(&images);
        let per_image = table.elem_count() / images.max(1);
        if width == 0 || !of_images || !per_image.is_multiple_of(width) {
            return Err(checked.shape_error(&expected));
        }
        plan.lengths.push(per_image / width);
    }
    let output = match rows.device() {
        Device::Cpu => cpu::run(tables, &plan, rows),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(tables, &plan, rows),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, tables, output, || {
        let shapes = tables.iter().map(|table| table.dims().to_vec()).collect();
        Ok(GatherRowsBackward { shapes, plan, rows: rows.clone() })
    })
}

/// How tables are read.
struct Plan {
    images: usize,
    width: usize,
    /// Rows of each table for an image.
    lengths: Vec<usize>,
}

struct GatherRowsBackward {
    /// Of the tables.
    shapes: Vec<Vec<usize>>,
    plan: Plan,
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
            Device::Cpu => cpu::scatter(gradient, &self.rows, &self.plan, &self.shapes, wanted),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                cuda::scatter(gradient, &self.rows, &self.plan, &self.shapes, wanted)
            }
            other => Err(unsupported("the gradient of gather_rows", other)),
        }
    }
}
