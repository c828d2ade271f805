//! Gradients of a network's parameters, from the graph to the optimiser.

#[cfg(feature = "cuda")]
use candle_core::Device;
use candle_core::{DType, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::ops::support::check::with_slice;

/// Added to the length of gradients that are shortened, as in torch.
const EPS: f64 = 1e-6;

/// Elements per task when norms are summed. Sums don't depend on the number of threads.
const CHUNK: usize = 1 << 14;

/// A gradient for every parameter that is trained, in the order of the parameters.
///
/// A parameter that no loss depends on, such as the mask head's when an image shows nothing, has a gradient of zeros: it
/// still decays, and keeps its momentum, as in torch. So every rank of a parallel run has the same set of gradients.
#[derive(Debug, Clone)]
pub struct Gradients {
    names: Vec<String>,
    tensors: Vec<Tensor>,
    /// Still to be multiplied with, to save passes over memory.
    factor: f64,
}

impl Gradients {
    /// Gradients of parameters with these names, contiguous and without a graph.
    pub(super) fn new(names: Vec<String>, tensors: Vec<Tensor>) -> Self {
        Self { names, tensors, factor: 1.0 }
    }

    /// Gradients by name, from elsewhere.
    ///
    /// # Errors
    /// [`Error::DType`] unless all are f32; those of candle.
    pub fn from_tensors(gradients: impl IntoIterator<Item = (String, Tensor)>) -> Result<Self> {
        let (names, tensors): (Vec<String>, Vec<Tensor>) = gradients.into_iter().unzip();
        let tensors = tensors
            .into_iter()
            .map(|tensor| match tensor.dtype() {
                DType::F32 => Ok(tensor.detach().contiguous()?),
                found => Err(Error::DType {
                    op: "gradients",
                    argument: "gradient",
                    expected: DType::F32,
                    found,
                }),
            })
            .collect::<Result<_>>()?;
        Ok(Self::new(names, tensors))
    }

    /// Names of the parameters.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The gradient of a parameter.
    ///
    /// # Errors
    /// Those of candle.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let place = self.names.iter().position(|known| known == name);
        place.map(|place| Ok((&self.tensors[place] * self.factor)?)).transpose()
    }

    /// The gradients without the factor, and the factor.
    pub(super) fn parts(&self) -> (&[Tensor], f64) {
        (&self.tensors, self.factor)
    }

    /// Replaces the gradients by others of the same shapes; the factor stays.
    pub(super) fn replace(&mut self, tensors: Vec<Tensor>) {
        self.tensors = tensors;
    }

    /// Multiplies all by a number.
    pub fn scale(&mut self, factor: f64) {
        self.factor *= factor;
    }

    /// Adds those of another part of a batch.
    ///
    /// # Errors
    /// [`Error::TrainingState`] when they belong to other parameters; those of candle.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        if self.names != other.names {
            return Err(Error::TrainingState {
                what: "gradients".to_owned(),
                found: format!("those of {} other parameters", other.names.len()),
                expected: "the same parameters in every part of a batch".to_owned(),
            });
        }
        let ratio = other.factor / self.factor;
        for (sum, part) in self.tensors.iter_mut().zip(&other.tensors) {
            *sum = if ratio == 1.0 { (&*sum + part)? } else { (&*sum + (part * ratio)?)? };
        }
        Ok(())
    }

    /// The length of all gradients together, as one vector. Infinite or NaN if one of them is. From a GPU it is a download,
    /// which waits; a [`Verdict`](super::Verdict) does not.
    ///
    /// # Errors
    /// Those of candle.
    pub fn norm(&self) -> Result<f64> {
        let sum = sum_of_squares(&self.tensors)?;
        Ok(sum.sqrt() * self.factor.abs())
    }

    /// Shortens all gradients together to at most `length`, and returns the length that they had.
    ///
    /// The factor is `length / (norm + 1e-6)`, where that is below 1. A norm that is not finite changes nothing. From a GPU
    /// it is a download, as with [`Self::norm`].
    ///
    /// # Errors
    /// Those of candle.
    ///
    /// Reference: torch `nn/utils/clip_grad.py`, `clip_grad_norm_`.
    pub fn clip_norm(&mut self, length: f64) -> Result<f64> {
        let norm = self.norm()?;
        if let Some(factor) = shortening(norm, length) {
            self.scale(factor);
        }
        Ok(norm)
    }
}

/// The sum of the squares of all values; from a GPU in one download.
fn sum_of_squares(tensors: &[Tensor]) -> Result<f64> {
    #[cfg(feature = "cuda")]
    if let Some(Device::Cuda(device)) = tensors.first().map(Tensor::device) {
        let sums = crate::ops::support::cuda::squares(device, tensors)?;
        return Ok(sums.to_vec1::<f64>()?.iter().sum());
    }
    tensors.iter().map(squares).sum()
}

/// The sum of all squares, in f64.
fn squares(tensor: &Tensor) -> Result<f64> {
    let host = tensor.to_device(&candle_core::Device::Cpu)?;
    with_slice(&host, |values: &[f32]| {
        let parts: Vec<f64> = values
            .par_chunks(CHUNK)
            .map(|chunk| chunk.iter().map(|value| f64::from(*value).powi(2)).sum())
            .collect();
        parts.into_iter().sum()
    })
}

/// What gradients of a length are multiplied by so that they don't exceed a limit; `None` where they stay as they are.
///
/// Reference: torch `nn/utils/clip_grad.py`, `clip_grad_norm_`.
pub(super) fn shortening(norm: f64, limit: f64) -> Option<f64> {
    let factor = limit / (norm + EPS);
    (factor < 1.0 && norm.is_finite()).then_some(factor)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::support::testing::values;

    #[test]
    fn parts_add_up_whatever_their_factors() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let named = |values| Gradients::from_tensors([("a".to_owned(), tensor(values))]).unwrap();
        let mut sum = named(&[1.0, 10.0]);
        sum.scale(0.5);
        sum.add(&named(&[4.0, 4.0])).unwrap();
        assert_eq!(values(&sum.get("a").unwrap().unwrap()), [4.5, 9.0]);
        assert!((sum.norm().unwrap() - 4.5f64.hypot(9.0)).abs() < 1e-9);
        let other = Gradients::from_tensors([("b".to_owned(), tensor(&[1.0]))]).unwrap();
        assert!(sum.add(&other).unwrap_err().to_string().contains("parameters"));
    }

    #[test]
    fn lengths_are_cut_to_the_limit() {
        let tensor = Tensor::new(&[3f32, 4.0], &Device::Cpu).unwrap();
        let named = || Gradients::from_tensors([("a".to_owned(), tensor.clone())]).unwrap();
        let mut gradients = named();
        assert_eq!(gradients.clip_norm(1.0).unwrap(), 5.0);
        assert!((gradients.norm().unwrap() - 1.0).abs() < 1e-6);
        let mut gradients = named();
        assert_eq!(gradients.clip_norm(9.0).unwrap(), 5.0);
        assert_eq!(gradients.norm().unwrap(), 5.0);
        let infinite = (&tensor * f64::INFINITY).unwrap();
        let mut gradients = Gradients::from_tensors([("a".to_owned(), infinite)]).unwrap();
        assert_eq!(gradients.clip_norm(1.0).unwrap(), f64::INFINITY);
        assert!(!gradients.norm().unwrap().is_finite());
    }
}
