//! Starting kernels.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{LaunchArgs, LaunchConfig};

use super::traffic::{Event, count};
use crate::error::Result;

/// Threads of a block where nothing speaks for another number.
const THREADS: u32 = 256;

/// Threads of a block that selects by radix; the twin is in order.cuh.
pub(crate) const SELECT_THREADS: u32 = 1024;

/// Blocks and threads of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    blocks: (u32, u32, u32),
    threads: u32,
}

impl Grid {
    /// At least `n` threads in a row.
    pub fn over(n: usize) -> Self {
        Self::over_rows(n, 1)
    }

    /// At least `n` threads in a row (`x`) for each of `rows` (`y`).
    pub fn over_rows(n: usize, rows: usize) -> Self {
        Self { blocks: (n.div_ceil(THREADS as usize) as u32, rows as u32, 1), threads: THREADS }
    }

    /// A block of `threads` for each of `blocks` (x, y).
    pub fn blocks(blocks: (usize, usize), threads: u32) -> Self {
        Self { blocks: (blocks.0 as u32, blocks.1 as u32, 1), threads }
    }
}

/// Starts a kernel with its arguments in order; a grid without blocks starts nothing.
///
/// ```text
/// launch!(device, NMS, "nms_rank", Grid::over(n), boxes, n as u32);
/// ```
macro_rules! launch {
    ($device:expr, $module:expr, $name:expr, $grid:expr, $($argument:expr),+ $(,)?) => {{
        use candle_core::cuda_backend::cudarc::driver::PushKernelArg as _;
        let function = $module.function($device, $name)?;
        let stream = $device.cuda_stream();
        let mut arguments = stream.launch_builder(&function);
        $crate::ops::support::cuda::launch!(@push arguments, $($argument),+);
        $crate::ops::support::cuda::start(arguments, $grid)?;
    }};
    // Each argument is bound in a scope of its own that encloses the launch of the rest.
    (@push $arguments:ident, $($argument:expr),+) => {
        $(let argument = $argument; $arguments.arg(&argument);)+
    };
}
pub(crate) use launch;

/// The name of a kernel that exists for every compute dtype: `for_dtype!("linear", DType::F16)` is `"linear_f16"`.
macro_rules! for_dtype {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            candle_core::DType::F16 => concat!($name, "_f16"),
            candle_core::DType::BF16 => concat!($name, "_bf16"),
            _ => concat!($name, "_f32"),
        }
    };
}
pub(crate) use for_dtype;

/// Starts what [`launch!`] put together.
pub(crate) fn start(mut arguments: LaunchArgs, grid: Grid) -> Result<()> {
    let Grid { blocks, threads } = grid;
    if blocks.0 == 0 || blocks.1 == 0 {
        return Ok(());
    }
    count(Event::Launch);
    let config = LaunchConfig { grid_dim: blocks, block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel by number and size, as each `cuda.rs` stands next to its
    // `kernel.cu`; addresses come from live tensors of sizes that the op's `mod.rs` has checked.
    unsafe { arguments.launch(config) }.w()?;
    Ok(())
}
