use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{Tensor, WithDType};

use super::{OP, Plan};
use crate::error::Result;
use crate::ops::support::cuda::{GATHER_SLOTS, Grid, Output, launch, of, point};

pub(super) fn run<T: CudaDType + DeviceRepr + WithDType>(
    source: &Tensor,
    index: &Tensor,
    counts: &Tensor,
    plan: Plan,
    shape: &[usize],
) -> Result<Tensor> {
    const { assert!(size_of::<T>() == 4, "the kernel moves words of four bytes") };
    let device = source.device();
    let gpu = of(OP, device)?;
    let n = plan.n * plan.k * plan.row;
    if n == 0 || plan.slots == 0 {
        return Ok(Tensor::zeros(shape, T::DTYPE, device)?);
    }
    point!(source: T, index: u32, counts: u32);
    let gathered = Output::<T>::new(gpu, n)?;
    launch!(
        gpu,
        GATHER_SLOTS,
        "gather_slots",
        Grid::over(n),
        source,
        index,
        counts,
        plan.k as u32,
        plan.slots as u32,
        plan.row as u32,
        n as u32,
        gathered.pointer(),
    );
    Ok(gathered.into_tensor(shape))
}
