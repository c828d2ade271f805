//! Kernels by name: compiled by `build.rs`, loaded on first use, kept per GPU.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{self, CudaFunction, CudaModule};

use crate::error::{Error, Result};

/// The kernels of one op, as PTX.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    op: &'static str,
    ptx: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// What is loaded. All devices of one number share their context, whichever of candle's handles is used.
#[derive(Default)]
struct Loaded {
    modules: HashMap<(usize, &'static str), Arc<CudaModule>>,
    functions: HashMap<(usize, &'static str), CudaFunction>,
}

static LOADED: LazyLock<RwLock<Loaded>> = LazyLock::new(RwLock::default);

impl Module {
    /// A kernel of the op by its name, which begins with the op's.
    pub fn function(self, device: &CudaDevice, name: &'static str) -> Result<CudaFunction> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let key = (context.ordinal(), name);
        let loaded = LOADED.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.functions.get(&key) {
            return Ok(function.clone());
        }
        drop(loaded);
        let mut loaded = LOADED.write().unwrap_or_else(PoisonError::into_inner);
        let module = match loaded.modules.get(&(context.ordinal(), self.op)) {
            Some(module) => module.clone(),
            None => {
                let module =
                    context.load_module(self.ptx.into()).map_err(|error| self.failure(&error))?;
                loaded.modules.insert((context.ordinal(), self.op), module.clone());
                module
            }
        };
        let function = module.load_function(name).map_err(|error| self.failure(&error))?;
        loaded.functions.insert(key, function.clone());
        Ok(function)
    }

    fn failure(self, error: &driver::DriverError) -> Error {
        Error::KernelLoad {
            op: self.op,
            target: self.line(".target"),
            version: self.line(".version"),
            problem: error.to_string(),
        }
    }

    /// The rest of the PTX's line that begins with a word.
    fn line(self, word: &str) -> String {
        let line = self.ptx.lines().find_map(|line| line.strip_prefix(word));
        line.unwrap_or("unknown").trim().to_owned()
    }
}
