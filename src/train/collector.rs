//! Gradients as backward passes hand them over, on their way to an update.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;

use super::gradients::Gradients;
use super::parallel::Exchange;
use super::parameters::Parameter;
use crate::error::{Error, Result};
use crate::ops::support::cpu::elementwise;

/// Adds up the gradients of some batches, and sums them over ranks while the last backward pass goes on. A clone is the
/// same collector.
#[derive(Clone)]
pub(super) struct Collector {
    parameters: Arc<[Parameter]>,
    shared: Arc<Mutex<Collected>>,
}

#[derive(Default)]
struct Collected {
    /// By parameter.
    sums: Vec<Option<Tensor>>,
    exchange: Option<Exchange>,
    /// Whether what is complete in this pass is complete.
    is_last: bool,
}

impl Collector {
    /// For gradients of `parameters`, which `exchange`, if any, has a plan for.
    pub fn new(parameters: Arc<[Parameter]>, exchange: Option<Exchange>) -> Self {
        let sums = vec![None; parameters.len()];
        let collected = Collected { sums, exchange, is_last: false };
        Self { parameters, shared: Arc::new(Mutex::new(collected)) }
    }

    /// Says that the next pass is the last: its gradients may travel as soon as they are there.
    pub fn begin_last_pass(&self) {
        self.with(|collected| collected.is_last = true);
    }

    /// Takes what a pass has found for the parameter at a place.
    pub fn add(&self, place: usize, gradient: Tensor) -> Result<()> {
        self.with(|Collected { sums, exchange, is_last }| {
            if exchange.as_ref().is_some_and(|exchange| exchange.has_sent(place)) {
                return Err(Error::TrainingState {
                    what: format!("the gradient of `{}`", self.parameters[place].name),
                    found: "a part of it after the rest was sent to other ranks".to_owned(),
                    expected: "all of it by ops of this crate; use no other op on a parameter"
                        .to_owned(),
                });
            }
            sums[place] = Some(match sums[place].take() {
                None => gradient,
                Some(sum) => elementwise::add(&sum, &gradient)?,
            });
            match exchange {
                Some(exchange) if *is_last => exchange.complete(place, sums),
                _ => Ok(()),
            }
        })
    }

    /// The sums over batches and ranks, zeros where no pass has found anything.
    pub fn finish(self) -> Result<Gradients> {
        let Collected { sums, exchange, .. } = self.with(std::mem::take);
        let has_sent =
            |place| exchange.as_ref().is_some_and(|exchange: &Exchange| exchange.has_sent(place));
        let complete = |(place, (sum, parameter)): (usize, (Option<Tensor>, &Parameter))| {
            if sum.is_some() || has_sent(place) {
                return Ok(sum);
            }
            Ok(Some(parameter.var.zeros_like()?))
        };
        let sums = sums.into_iter().zip(self.parameters.iter()).enumerate();
        let sums: Vec<Option<Tensor>> = sums.map(complete).collect::<Result<_>>()?;
        let tensors = match exchange {
            None => sums.into_iter().flatten().collect(),
            Some(exchange) => {
                let like: Vec<&Tensor> =
                    self.parameters.iter().map(|parameter| parameter.var.as_tensor()).collect();
                exchange.finish(sums, &like)?
            }
        };
        let names = self.parameters.iter().map(|parameter| parameter.name.clone());
        Ok(Gradients::new(names.collect(), tensors))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Collected) -> T) -> T {
        work(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::support::testing::values;
    use crate::train::parallel::{Alone, Collective, Communicator, Plan};
    use crate::train::parameters::ParameterKind;

    fn parameters(sizes: &[usize]) -> Arc<[Parameter]> {
        let parameter = |(place, size): (usize, &usize)| {
            let var = Var::zeros(*size, candle_core::DType::F32, &Device::Cpu).unwrap();
            let (name, kind) = (format!("p{place}"), ParameterKind::Weight);
            Parameter { name, var, kind, trainable: true }
        };
        sizes.iter().enumerate().map(parameter).collect()
    }

    fn full(value: f32, size: usize) -> Tensor {
        Tensor::full(value, size, &Device::Cpu).unwrap()
    }

    fn found(gradients: &Gradients) -> Vec<Vec<f32>> {
        gradients.parts().0.iter().map(values).collect()
    }

    #[test]
    fn passes_add_up_and_what_no_loss_depends_on_has_zeros() {
        let collector = Collector::new(parameters(&[2, 1, 3]), None);
        collector.add(0, full(1.0, 2)).unwrap();
        collector.begin_last_pass();
        collector.add(2, full(5.0, 3)).unwrap();
        collector.add(0, full(2.0, 2)).unwrap();
        let gradients = collector.finish().unwrap();
        assert_eq!(found(&gradients), [vec![3.0; 2], vec![0.0], vec![5.0; 3]]);
        assert!(gradients.get("p3").unwrap().is_none());
    }

    /// A part that would be lost is an error, which names the parameter.
    #[test]
    fn nothing_is_added_to_what_has_left() {
        let plan = Arc::new(Plan::new(&[2, 2], [1, 0], 2));
        let alone: Arc<dyn Communicator> = Arc::new(Alone);
        let exchange = Exchange::new(alone, Collective::AllReduceSum, plan);
        let collector = Collector::new(parameters(&[2, 2]), Some(exchange));
        // Before the last pass nothing leaves.
        collector.add(1, full(1.0, 2)).unwrap();
        collector.begin_last_pass();
        collector.add(1, full(1.0, 2)).unwrap();
        let error = collector.add(1, full(1.0, 2)).unwrap_err().to_string();
        assert!(error.contains("`p1`") && error.contains("sent"), "{error}");
        collector.add(0, full(4.0, 2)).unwrap();
        assert_eq!(found(&collector.finish().unwrap()), [[4.0; 2], [2.0; 2]]);
    }
}
