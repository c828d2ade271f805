//! Where a model runs.

use candle_core::Device;

use crate::error::{Error, Result};

/// The device that a name stands for: `cpu`, `cuda` for the first GPU, or `cuda:N`.
///
/// A GPU is set up here: one stream for all threads, memory that stays with the process between forward passes, and
/// no events per tensor. All tensors of one model must be on the same returned device or its clones.
///
/// # Errors
/// [`Error::DeviceName`] for a GPU that is not there, or in a program built without the feature `cuda`, and for any
/// other name. There is no silent fallback to the CPU.
pub fn parse(name: &str) -> Result<Device> {
    let fault = |problem: String| Error::DeviceName { name: name.to_owned(), problem };
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", "0") => Ok(Device::Cpu),
        ("cuda", number) => match number.parse() {
            Ok(ordinal) => open_gpu(ordinal).map_err(fault),
            Err(_) => Err(fault("expected cuda:N with a number N".to_owned())),
        },
        _ => Err(fault("expected cpu, cuda or cuda:N".to_owned())),
    }
}

#[cfg(feature = "cuda")]
use crate::ops::support::cuda::open as open_gpu;

#[cfg(not(feature = "cuda"))]
fn open_gpu(_ordinal: usize) -> std::result::Result<Device, String> {
    Err("this program was built without GPU support; build it with `--features cuda`, or use cpu"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn names_are_read_or_refused_with_the_reason() {
        assert!(parse("cpu").unwrap().is_cpu());
        let problem = |name: &str| parse(name).unwrap_err().to_string();
        assert!(problem("gpu").contains("`gpu`: expected cpu, cuda or cuda:N"));
        assert!(problem("cuda:first").contains("a number N"));
        assert!(problem("cuda:1000").contains("use cpu"));
    }
}
