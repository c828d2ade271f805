//! Functions applied to each output of a product.

use super::cpu::simd::Simd;

/// What is applied to each output of a convolution, linear layer or norm, after bias and residual. NaN stays NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The output as it is.
    None,
    /// Negative outputs become zero.
    Relu,
    /// Negative outputs become zero, those above 6 become 6.
    Relu6,
    /// `relu6(x + 3) / 6`, from 0 at -3 to 1 at 3. Reference: torch `nn.Hardsigmoid`.
    HardSigmoid,
    /// `x · relu6(x + 3) / 6`. Its gradient needs `x`, which is kept where gradients are tracked. Reference: torch
    /// `nn.Hardswish`; Howard et al. 2019, "Searching for MobileNetV3".
    HardSwish,
}

/// What the gradient in front of an activation depends on, besides that behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GradientReads {
    Nothing,
    Output,
    Input,
}

impl Activation {
    /// What its gradient depends on.
    pub(crate) fn gradient_reads(self) -> GradientReads {
        match self {
            Self::None => GradientReads::Nothing,
            Self::Relu | Self::Relu6 | Self::HardSigmoid => GradientReads::Output,
            Self::HardSwish => GradientReads::Input,
        }
    }

    /// Of one number.
    #[inline(always)]
    pub(crate) fn apply(self, x: f32) -> f32 {
        match self {
            Self::None => x,
            Self::Relu => relu(x),
            Self::Relu6 => relu6(x),
            Self::HardSigmoid => relu6(x + 3.0) * SIXTH,
            Self::HardSwish => x * (relu6(x + 3.0) * SIXTH),
        }
    }

    /// Of many numbers, in place: a simple loop for each activation, which the compiler makes vectors of.
    pub(crate) fn apply_to_all(self, values: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Relu => values.iter_mut().for_each(|x| *x = Self::Relu.apply(*x)),
            Self::Relu6 => values.iter_mut().for_each(|x| *x = Self::Relu6.apply(*x)),
            Self::HardSigmoid => values.iter_mut().for_each(|x| *x = Self::HardSigmoid.apply(*x)),
            Self::HardSwish => values.iter_mut().for_each(|x| *x = Self::HardSwish.apply(*x)),
        }
    }

    /// Of a vector.
    #[inline(always)]
    pub(crate) fn apply_to<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        match self {
            Self::None => x,
            Self::Relu => simd.relu(x),
            Self::Relu6 => simd.at_most(simd.relu(x), 6.0),
            Self::HardSigmoid => hard_sigmoid(simd, x),
            Self::HardSwish => simd.mul(x, hard_sigmoid(simd, x)),
        }
    }

    /// The gradient in front of it, from that behind it, where `at` is what [`Self::gradient_reads`] says. At the corners
    /// the slope is that of the flat side, as torch has it; where it is 0, so is the gradient, whatever is behind.
    #[inline(always)]
    pub(crate) fn back(self, at: f32, gradient: f32) -> f32 {
        let where_it_rises = |rises: bool, gradient: f32| if rises { gradient } else { 0.0 };
        match self {
            Self::None => gradient,
            Self::Relu => where_it_rises(at > 0.0, gradient),
            Self::Relu6 => where_it_rises(at > 0.0 && at < 6.0, gradient),
            Self::HardSigmoid => where_it_rises(at > 0.0 && at < 1.0, gradient * SIXTH),
            Self::HardSwish if at <= -3.0 => 0.0,
            Self::HardSwish if at < 3.0 => gradient * (at / 3.0 + 0.5),
            Self::HardSwish => gradient,
        }
    }

    /// Its number in CUDA kernels; the twin is in `activation.cuh`.
    #[cfg(feature = "cuda")]
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Relu => 1,
            Self::Relu6 => 2,
            Self::HardSigmoid => 3,
            Self::HardSwish => 4,
        }
    }

    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] =
        [Self::None, Self::Relu, Self::Relu6, Self::HardSigmoid, Self::HardSwish];

    /// Of one number, by its definition.
    #[cfg(test)]
    pub(crate) fn exact(self, x: f64) -> f64 {
        match self {
            Self::None => x,
            Self::Relu => x.max(0.0),
            Self::Relu6 => x.clamp(0.0, 6.0),
            Self::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
            Self::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        }
    }
}

const SIXTH: f32 = 1.0 / 6.0;

// Comparisons with NaN are false.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn relu6(x: f32) -> f32 {
    if x > 6.0 { 6.0 } else { relu(x) }
}

#[inline(always)]
fn hard_sigmoid<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    let raised = simd.relu(simd.add(x, simd.splat(3.0)));
    simd.mul(simd.at_most(raised, 6.0), simd.splat(SIXTH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::cpu::simd::Job;
    use crate::ops::support::isa::Isa;

    struct Apply<'a>(Activation, &'a mut [f32]);

    impl Job for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for values in self.1.chunks_exact_mut(S::LANES) {
                // SAFETY: the chunk is as long as a vector.
                unsafe {
                    let vector = simd.load(values.as_ptr());
                    simd.store(values.as_mut_ptr(), self.0.apply_to(simd, vector));
                }
            }
        }
    }

    #[test]
    fn all_forms_are_the_definition() {
        let mut values: Vec<f32> = (-500..500).map(|i| i as f32 / 50.0).collect();
        values.extend([f32::INFINITY, -0.0, 1e-30, 3e38, -3e38, 6.0000005, -3.0000002, 2.9999998]);
        values.extend([f32::NAN; 8]);
        for activation in Activation::ALL {
            let close = |found: f32, at: f32| {
                let expected = activation.exact(f64::from(at)) as f32;
                let tolerance = 3e-7 * expected.abs().max(1.0);
                let same = found == expected || (found - expected).abs() <= tolerance;
                assert!(same || at.is_nan() && found.is_nan(), "{activation:?}({at}) = {found}");
            };
            values.iter().for_each(|at| close(activation.apply(*at), *at));
            let mut all = values.clone();
            activation.apply_to_all(&mut all);
            values.iter().zip(all).for_each(|(at, found)| close(found, *at));
            for isa in Isa::available() {
                let mut all = values.clone();
                isa.run(Apply(activation, &mut all));
                values.iter().zip(all).for_each(|(at, found)| close(found, *at));
            }
        }
    }

    /// As torch's autograd has it, corners included.
    #[test]
    fn slopes_are_those_of_the_definition() {
        for activation in Activation::ALL {
            for at in (-50..50).map(|i| f64::from(i) / 5.0 + 0.01) {
                let slope = (activation.exact(at + 1e-6) - activation.exact(at - 1e-6)) / 2e-6;
                let known = match activation.gradient_reads() {
                    GradientReads::Input => at as f32,
                    _ => activation.apply(at as f32),
                };
                let found = activation.back(known, 2.0);
                assert!((f64::from(found) - 2.0 * slope).abs() < 1e-5, "{activation:?} {at}");
            }
        }
        assert_eq!([0.0, 6.0].map(|y| Activation::Relu6.back(y, 1.0)), [0.0, 0.0]);
        assert_eq!([0.0, 1.0].map(|y| Activation::HardSigmoid.back(y, 1.0)), [0.0, 0.0]);
        assert_eq!([-3.0, 3.0].map(|x| Activation::HardSwish.back(x, 1.0)), [0.0, 1.0]);
    }
}
