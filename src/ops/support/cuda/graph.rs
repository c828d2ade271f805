//! Work recorded once and started again by a single call.

use std::sync::{Mutex, PoisonError};

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, sys};

use super::traffic::{Event, count};
use crate::error::{Error, Result};

/// A CUDA graph: kernels with their arguments, and the memory between them, at fixed addresses.
pub(crate) struct Recording {
    graph: Mutex<Graph>,
}

struct Graph(CudaGraph);

// SAFETY: a graph may be used by any thread, by one at a time, which the mutex sees to.
unsafe impl Send for Graph {}

impl Recording {
    /// Records what `work` starts on a device, without running it. Whatever `work` allocates it must give back, except
    /// through tensors that existed before: those are where results can be found. Nothing else may use the device
    /// meanwhile, and `work` may not wait for it.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Graph`] when something in it can't be recorded.
    pub fn new(device: &CudaDevice, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let stream = device.cuda_stream();
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|error| refused(&error))?;
        let worked = work();
        // The stream must leave its recording state whatever happened.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags);
        worked?;
        let graph = graph.map_err(|error| refused(&error))?;
        let graph = graph.ok_or_else(|| refused(&"nothing was recorded"))?;
        Ok(Self { graph: Mutex::new(Graph(graph)) })
    }

    /// Starts the recorded work.
    pub fn replay(&self) -> Result<()> {
        count(Event::Replay);
        let graph = self.graph.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(graph.0.launch().w()?)
    }
}

fn refused(problem: &dyn std::fmt::Display) -> Error {
    Error::Graph { problem: problem.to_string() }
}
