//! Where a model runs.

use candle_core::Device;

use crate::error::{Error, Result};

/// The device that a name stands for: `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// # Errors
/// [`Error::DeviceName`] for another name, for a GPU that is not there, and for `cuda` in a build without it. There is
/// no silent fallback to the CPU.
pub fn parse(name: &str) -> Result<Device> {
    let fault = |problem: String| Error::DeviceName { name: name.to_owned(), problem };
    let ordinal = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        None if name == "cuda" => 0,
        Some(("cuda", number)) => number
            .parse()
            .map_err(|_| fault("expected cpu, cuda or cuda:N with a number N".to_owned()))?,
        _ => return Err(fault("expected cpu, cuda or cuda:N".to_owned())),
    };
    if !cfg!(feature = "cuda") {
        return Err(fault("this build has no CUDA; build it with `--features cuda`".to_owned()));
    }
    Device::new_cuda(ordinal).map_err(|error| fault(format!("no such GPU can be used: {error}")))
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
        #[cfg(not(feature = "cuda"))]
        assert!(problem("cuda").contains("--features cuda"));
    }
}
