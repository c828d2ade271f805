//! A running average of the parameters, which often detects better than the parameters themselves.

use candle_core::Tensor;

use super::optimizer::kernels;
use super::parameters::Parameter;
use super::verdict::{Approval, Verdict};
use crate::error::Result;

/// Exponential moving average of all tensors of a network, statistics of norms included.
pub struct Average {
    decay: f64,
    updates: u64,
    entries: Vec<(Parameter, Tensor)>,
}

impl Average {
    /// An average that keeps `decay` of itself at each update, such as 0.9998; at first less, as then the parameters
    /// are poor: `(1 + updates) / (10 + updates)` where that is smaller. The first value is that of `parameters`.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(parameters: &[Parameter], decay: f64) -> Result<Self> {
        let copy = |parameter: &Parameter| {
            Ok((parameter.clone(), kernels::copy_of(parameter.var.as_tensor())?))
        };
        Ok(Self { decay, updates: 0, entries: parameters.iter().map(copy).collect::<Result<_>>()? })
    }

    /// Takes in the values that the parameters have.
    ///
    /// # Errors
    /// Those of candle.
    pub fn update(&mut self) -> Result<()> {
        self.blend(Approval::NotNeeded)
    }

    /// Takes in the values that the parameters have, if a verdict goes on; else nothing changes but the number of updates,
    /// which [`Self::rewind`] sets right. Who waits for the verdict is the device.
    ///
    /// # Errors
    /// Those of candle.
    pub fn update_if(&mut self, verdict: &Verdict) -> Result<()> {
        self.blend(Approval::Needed(verdict))
    }

    /// Takes back the count of updates that were not made.
    pub fn rewind(&mut self, updates: u64) {
        self.updates = updates;
    }

    fn blend(&mut self, approval: Approval<'_>) -> Result<()> {
        let early = (1 + self.updates) as f64 / (10 + self.updates) as f64;
        let keep = self.decay.min(early);
        for (parameter, average) in &self.entries {
            let value = parameter.var.as_tensor();
            kernels::blend(average, keep, (value, 1.0 - keep), approval)?;
        }
        self.updates += 1;
        Ok(())
    }

    /// Updates made.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The averages under the names of the parameters.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        let named =
            |(parameter, average): &(Parameter, Tensor)| (parameter.name.clone(), average.clone());
        self.entries.iter().map(named).collect()
    }

    /// Goes on from saved averages, which `find` yields by name.
    ///
    /// # Errors
    /// Those of `find`; [`Error::Shape`](crate::Error::Shape) for a tensor of another shape.
    pub fn restore(
        &mut self,
        updates: u64,
        mut find: impl FnMut(&str) -> Result<Tensor>,
    ) -> Result<()> {
        for (parameter, average) in &self.entries {
            kernels::overwrite(average, &find(&parameter.name)?)?;
        }
        self.updates = updates;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::support::testing::values;
    use crate::train::parameters::ParameterKind;

    #[test]
    fn an_average_starts_quickly_and_then_keeps_its_share() {
        let var = Var::new(&[1f32, -8.0], &Device::Cpu).unwrap();
        let kind = ParameterKind::Weight;
        let parameter = Parameter { name: "a".to_owned(), var, kind, trainable: true };
        let mut average = Average::new(std::slice::from_ref(&parameter), 0.5).unwrap();
        let mut expected = 1f64;
        for update in 0..20 {
            parameter
                .var
                .set(&Tensor::new(&[f32::from(update as u8), 0.0], &Device::Cpu).unwrap())
                .unwrap();
            average.update().unwrap();
            let keep = ((1 + update) as f64 / (10 + update) as f64).min(0.5);
            expected = keep * expected + (1.0 - keep) * update as f64;
            let found = values(&average.tensors()[0].1)[0];
            assert!((f64::from(found) - expected).abs() < 1e-5, "{update}: {found} {expected}");
        }
        assert_eq!(average.updates(), 20);
        let mut other = Average::new(&[parameter], 0.5).unwrap();
        other
            .restore(20, |name| Ok(average.tensors().into_iter().find(|t| t.0 == name).unwrap().1))
            .unwrap();
        assert_eq!(values(&other.tensors()[0].1), values(&average.tensors()[0].1));
    }
}
