//! Where a model runs.

use candle_core::Device;

use crate::error::{Error, Result};

/// The device that a name stands for: `cpu`. Names of GPUs, `cuda` and `cuda:N`, are understood and refused.
///
/// # Errors
/// [`Error::DeviceName`] for a GPU, as the ops have no CUDA kernels yet, and for any other name. There is no silent
/// fallback to the CPU.
pub fn parse(name: &str) -> Result<Device> {
    let fault = |problem: &str| Error::DeviceName {
        name: name.to_owned(),
        problem: problem.to_owned(),
    };
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", "0") => Ok(Device::Cpu),
        ("cuda", number) if number.parse::<usize>().is_ok() => {
            Err(fault("this version runs on the CPU only; use cpu"))
        }
        ("cuda", _) => Err(fault("expected cuda:N with a number N")),
        _ => Err(fault("expected cpu, cuda or cuda:N")),
    }
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
        assert!(problem("cuda:1").contains("CPU only"));
    }
}
