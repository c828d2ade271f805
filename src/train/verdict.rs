//! Whether an update is made, decided where its gradients are.

use candle_core::{Device, Tensor};

use super::gradients::{Gradients, shortening};
use super::losses::{LossNames, Losses};
use crate::error::Result;
#[cfg(feature = "cuda")]
use crate::ops::support::cuda::{self, Condition};

/// Places in a verdict; losses follow.
const GOES_ON: usize = 0;
const FACTOR: usize = 1;
const NORM: usize = 2;
const LOSSES: usize = 3;

/// Whether an update is made, and how much its gradients are shortened.
///
/// It stays on the device of the gradients, where the update is made or not: nothing waits for it. A loss or gradient that
/// is not finite stops its own update and all that are judged after it, so that what was started before anyone
/// [read](Self::read) a verdict changes nothing.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// `[3 + losses]` f64: 1 or 0, the factor, the norm, the losses.
    values: Tensor,
}

/// What a verdict says.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The losses of the update.
    pub losses: Losses,
    /// Length of all its gradients together, before they were shortened.
    pub gradient_norm: f64,
    /// Whether it was made.
    pub goes_on: bool,
}

impl Verdict {
    /// Judges an update by its losses, as [`Evaluated::values`](super::Evaluated::values) has them, and its gradients,
    /// which are shortened to at most `limit`, as [`Gradients::clip_norm`] shortens them. `before` is the verdict on the
    /// update before, unless that was read and went on.
    ///
    /// # Devices
    /// On CUDA two launches for each gradient and one more; no copy, no wait.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(
        losses: &Tensor,
        gradients: &Gradients,
        limit: Option<f64>,
        before: Option<&Self>,
    ) -> Result<Self> {
        let limit = limit.unwrap_or(f64::INFINITY);
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = losses.device() {
            let (tensors, factor) = gradients.parts();
            let squares = cuda::squares(device, tensors)?;
            let before = before.map(|verdict| &verdict.values);
            let values = cuda::judge(&squares, losses, factor, limit, before)?;
            return Ok(Self { values });
        }
        let norm = gradients.norm()?;
        let losses = losses.to_vec1::<f32>()?;
        let before = before.map(Self::consent).transpose()?;
        let stopped = before.is_some_and(|consent| !consent.goes_on);
        let is_finite = norm.is_finite() && losses.iter().all(|loss| loss.is_finite());
        let goes_on = if is_finite && !stopped { 1.0 } else { 0.0 };
        let factor = gradients.parts().1 * shortening(norm, limit).unwrap_or(1.0);
        let mut values = vec![goes_on, factor, norm];
        values.extend(losses.into_iter().map(f64::from));
        let count = values.len();
        Ok(Self { values: Tensor::from_vec(values, count, &Device::Cpu)? })
    }

    /// What some verdicts on updates of one network, whose losses have these names, say in their order; from a GPU in one download.
    ///
    /// # Errors
    /// Those of candle.
    pub fn read(names: &LossNames, verdicts: &[&Self]) -> Result<Vec<Judgement>> {
        let Some(first) = verdicts.first() else { return Ok(Vec::new()) };
        let rows: Vec<&Tensor> = verdicts.iter().map(|verdict| &verdict.values).collect();
        let all = Tensor::cat(&rows, 0)?;
        #[cfg(feature = "cuda")]
        crate::ops::count_download(&all);
        let all = all.to_vec1::<f64>()?;
        let each = all.chunks_exact(first.values.elem_count());
        Ok(each.map(|values| Judgement::of(names, values)).collect())
    }

    /// For those who wait for a verdict that lies in the host's memory.
    pub(super) fn consent(&self) -> Result<Consent> {
        let values = self.values.to_vec1::<f64>()?;
        Ok(Consent { goes_on: values[GOES_ON] > 0.0, factor: values[FACTOR] })
    }
}

impl Judgement {
    fn of(names: &LossNames, values: &[f64]) -> Self {
        let losses: Vec<f32> = values[LOSSES..].iter().map(|loss| *loss as f32).collect();
        Self {
            losses: Losses::new(names, &losses),
            gradient_norm: values[NORM],
            goes_on: values[GOES_ON] > 0.0,
        }
    }
}

/// A verdict on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consent {
    pub goes_on: bool,
    pub factor: f64,
}

/// On whom it depends that a tensor is changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Approval<'a> {
    /// On nobody.
    NotNeeded,
    /// It is changed if the update goes on.
    Needed(&'a Verdict),
    /// Likewise, by a gradient that the verdict has a factor for.
    Scaling(&'a Verdict),
}

impl Approval<'_> {
    /// The answer, on the host; from another device a download.
    pub fn consent(self) -> Result<Consent> {
        match self {
            Self::NotNeeded => Ok(Consent { goes_on: true, factor: 1.0 }),
            Self::Needed(verdict) => Ok(Consent { factor: 1.0, ..verdict.consent()? }),
            Self::Scaling(verdict) => verdict.consent(),
        }
    }

    /// Where the answer will be, on a GPU.
    #[cfg(feature = "cuda")]
    pub fn condition(self) -> Result<Condition> {
        let at = |verdict: &Verdict, place: usize| -> Result<u64> {
            Ok(cuda::pointer::<f64>(&verdict.values)? + (place * size_of::<f64>()) as u64)
        };
        Ok(match self {
            Self::NotNeeded => Condition::default(),
            Self::Needed(verdict) => Condition { goes_on: at(verdict, GOES_ON)?, factor: 0 },
            Self::Scaling(verdict) => {
                Condition { goes_on: at(verdict, GOES_ON)?, factor: at(verdict, FACTOR)? }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> LossNames {
        ["a", "b", "c", "d"].map(str::to_owned).into()
    }

    fn verdict(losses: [f32; 4], gradient: &[f32], before: Option<&Verdict>) -> Verdict {
        let losses = Tensor::new(&losses, &Device::Cpu).unwrap();
        let gradient = Tensor::new(gradient, &Device::Cpu).unwrap();
        let mut gradients = Gradients::from_tensors([("a".to_owned(), gradient)]).unwrap();
        gradients.scale(0.5);
        Verdict::new(&losses, &gradients, Some(2.0), before).unwrap()
    }

    #[test]
    fn gradients_are_shortened_to_the_limit() {
        let long = verdict([1.0; 4], &[6.0, 8.0], None);
        let short = verdict([1.0; 4], &[1.0, 2.0], None);
        let factor = |verdict: &Verdict| verdict.consent().unwrap().factor;
        assert_eq!(factor(&long), 0.5 * (2.0 / (5.0 + 1e-6)));
        assert_eq!(factor(&short), 0.5);
        let read = Verdict::read(&names(), &[&long, &short]).unwrap();
        assert_eq!(read[0].gradient_norm, 5.0);
        assert_eq!(read[1].losses.total(), 4.0);
        assert!(read[0].goes_on && read[1].goes_on);
        assert!(Verdict::read(&names(), &[]).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_finite_stops_all_that_follows() {
        let gradient = [1.0, 2.0];
        for (losses, bad) in [
            ([1.0, f32::NAN, 1.0, 1.0], gradient),
            ([1.0, 1.0, 1.0, f32::INFINITY], gradient),
            ([1.0; 4], [f32::NAN, 0.0]),
            ([1.0; 4], [f32::INFINITY, 0.0]),
        ] {
            let first = verdict([1.0; 4], &gradient, None);
            let second = verdict(losses, &bad, Some(&first));
            let third = verdict([1.0; 4], &gradient, Some(&second));
            let fourth = verdict([1.0; 4], &gradient, Some(&third));
            let read = Verdict::read(&names(), &[&first, &second, &third, &fourth]).unwrap();
            let goes_on: Vec<bool> = read.iter().map(|judgement| judgement.goes_on).collect();
            assert_eq!(goes_on, [true, false, false, false]);
            let is_bad = !read[1].losses.are_finite() || !read[1].gradient_norm.is_finite();
            assert!(is_bad && read[2].gradient_norm.is_finite());
        }
    }
}
