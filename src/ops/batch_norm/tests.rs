use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, SMALL_STEP, assert_close_relative, assert_gradients, exact, rounded,
    values,
};

const EPS: f64 = 1e-3;

/// The norm of input, weight, bias and residual.
fn normed(t: &[Tensor], filled: FilledRows, activation: Activation) -> BatchNormOutput {
    batch_norm(&t[0], filled, &t[1], &t[2], Some(&t[3]), activation, EPS).unwrap()
}

fn through(activation: Activation, values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|v| activation.exact(v)).collect()
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(101);
    for dims in [vec![2, 1], vec![2, 3, 5, 7], vec![1, 41, 37, 19], vec![200, 64]] {
        let channels = *dims.last().unwrap();
        let input = random.tensor(&dims).affine(3.0, 5.0).unwrap();
        let (weight, bias) = (random.tensor(&[channels]), random.tensor(&[channels]));
        let residual = random.tensor(&dims);
        let [x, w, b, r] = [&input, &weight, &bias, &residual].map(|t| exact(&values(t)));
        let (out, mean, variance) = reference::batch_norm(&x, &w, &b, &r, EPS);
        for activation in Activation::ALL {
            let found = batch_norm(
                &input,
                FilledRows::All,
                &weight,
                &bias,
                Some(&residual),
                activation,
                EPS,
            )
            .unwrap();
            let expected = rounded(&through(activation, out.clone()));
            let expected = Tensor::from_vec(expected, dims.clone(), &Device::Cpu).unwrap();
            assert_close_relative(&found.output, &expected, PRODUCT_TOLERANCE);
            for (found, expected) in [(&found.mean, &mean), (&found.variance, &variance)] {
                let expected = Tensor::from_vec(rounded(expected), channels, &Device::Cpu).unwrap();
                assert_close_relative(found, &expected, PRODUCT_TOLERANCE);
            }
        }
    }
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(103);
    for dims in [vec![2, 1], vec![2, 3, 2, 4], vec![70, 3]] {
        let channels = *dims.last().unwrap();
        let inputs = [
            random.tensor(&dims),
            random.tensor(&[channels]),
            random.tensor(&[channels]),
            random.tensor(&dims),
        ];
        for activation in Activation::ALL {
            assert_gradients(
                &inputs,
                SMALL_STEP,
                |t| normed(t, FilledRows::All, activation).output,
                |t| {
                    let (out, ..) = reference::batch_norm(&t[0], &t[1], &t[2], &t[3], EPS);
                    through(activation, out)
                },
            );
        }
    }
}

#[test]
fn a_single_value_has_no_variance() {
    let mut random = Random::new(107);
    let (weight, bias) = (random.tensor(&[3]), random.tensor(&[3]));
    let norm = |dims: &[usize]| {
        let input = Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        batch_norm(&input, FilledRows::All, &weight, &bias, None, Activation::None, EPS)
    };
    let message = norm(&[1, 1, 1, 3]).unwrap_err().to_string();
    assert!(message.contains("at least 2 per channel"), "{message}");
    assert_eq!(norm(&[0, 7, 7, 3]).unwrap().output.dims(), [0, 7, 7, 3]);
    assert!(norm(&[2, 4]).is_err());
}

/// Counts of images with [`reference::SLOTS`] slots: some empty, all full, one filled slot in all, more than there are.
const COUNTS: [&[u32]; 5] = [&[2, 0, 3], &[4], &[0, 1], &[4, 4], &[9, 1]];

/// Input, weight, bias and residual, for these counts.
fn of_slots(random: &mut Random, images: usize, plane: &[usize], channels: usize) -> [Tensor; 4] {
    let dims = [&[images * reference::SLOTS], plane, &[channels]].concat();
    [
        random.tensor(&dims).affine(3.0, 5.0).unwrap(),
        random.tensor(&[channels]),
        random.tensor(&[channels]),
        random.tensor(&dims),
    ]
}

fn clamped(counts: &[u32]) -> Vec<u32> {
    counts.iter().map(|count| (*count).min(reference::SLOTS as u32)).collect()
}

/// A tensor whose values outside of filled rows are NaN.
fn poisoned(tensor: &Tensor, counts: &[u32]) -> Tensor {
    let filled = reference::filled(tensor.elem_count(), counts);
    let mut poisoned = vec![f32::NAN; tensor.elem_count()];
    let values = values(tensor);
    filled.into_iter().for_each(|place| poisoned[place] = values[place]);
    Tensor::from_vec(poisoned, tensor.dims(), &Device::Cpu).unwrap()
}

#[test]
fn only_filled_rows_count() {
    let mut random = Random::new(109);
    for counts in COUNTS {
        let tensor = Tensor::new(counts, &Device::Cpu).unwrap();
        let counts = clamped(counts);
        for (plane, channels) in [(&[3, 5][..], 7), (&[], 2), (&[11, 9], 3)] {
            let inputs = of_slots(&mut random, counts.len(), plane, channels);
            let [x, w, b, r] = inputs.each_ref().map(|t| exact(&values(t)));
            let (out, mean, variance) = reference::filled_batch_norm(&x, &counts, &w, &b, &r, EPS);
            let [input, weight, bias, residual] = inputs;
            let inputs = [poisoned(&input, &counts), weight, bias, poisoned(&residual, &counts)];
            for activation in Activation::ALL {
                let found = normed(&inputs, FilledRows::UpTo(&tensor), activation);
                let activated = through(activation, out.clone());
                // Where nothing is filled, there is nothing to apply it to.
                let mut out = vec![0.0; activated.len()];
                let filled = reference::filled(activated.len(), &counts);
                filled.into_iter().for_each(|place| out[place] = activated[place]);
                let out = Tensor::from_vec(rounded(&out), input.dims(), &Device::Cpu).unwrap();
                assert_close_relative(&found.output, &out, PRODUCT_TOLERANCE);
                for (found, expected) in [(&found.mean, &mean), (&found.variance, &variance)] {
                    let expected =
                        Tensor::from_vec(rounded(expected), channels, &Device::Cpu).unwrap();
                    assert_close_relative(found, &expected, PRODUCT_TOLERANCE);
                }
            }
        }
    }
}

#[test]
fn gradients_of_filled_rows_are_those_of_the_definition() {
    let mut random = Random::new(113);
    for counts in COUNTS {
        let tensor = Tensor::new(counts, &Device::Cpu).unwrap();
        let counts = clamped(counts);
        let inputs = of_slots(&mut random, counts.len(), &[3, 2], 3);
        for activation in Activation::ALL {
            assert_gradients(
                &inputs,
                SMALL_STEP,
                |t| normed(t, FilledRows::UpTo(&tensor), activation).output,
                |t| {
                    let (out, ..) =
                        reference::filled_batch_norm(&t[0], &counts, &t[1], &t[2], &t[3], EPS);
                    through(activation, out)
                },
            );
        }
    }
}

/// Statistics and all gradients are zero, whatever lies in the slots.
#[test]
fn nothing_comes_of_empty_slots() {
    let mut random = Random::new(127);
    let counts = Tensor::new(&[0u32, 0], &Device::Cpu).unwrap();
    let [input, weight, bias, residual] = of_slots(&mut random, 2, &[2, 2], 3);
    let inputs = [poisoned(&input, &[0, 0]), weight, bias, poisoned(&residual, &[0, 0])];
    let variables = inputs.map(|input| Var::from_tensor(&input).unwrap());
    let tensors = variables.each_ref().map(|variable| variable.as_tensor().clone());
    for activation in Activation::ALL {
        let found = normed(&tensors, FilledRows::UpTo(&counts), activation);
        let gradients = found.output.sum_all().unwrap().backward().unwrap();
        let all = tensors.iter().map(|tensor| gradients.get(tensor).unwrap());
        for tensor in all.chain([&found.output, &found.mean, &found.variance]) {
            assert!(values(tensor).iter().all(|value| *value == 0.0), "{tensor}");
        }
    }
}

#[test]
fn running_statistics_move_in_place() {
    let mut random = Random::new(131);
    let inputs = of_slots(&mut random, 2, &[], 3);
    let momentum = 0.25;
    for (counts, values_per_channel) in [([3u32, 2], 5.0), ([1, 0], 1.0), ([0, 0], 0.0)] {
        let counts = Tensor::new(&counts, &Device::Cpu).unwrap();
        let found = normed(&inputs, FilledRows::UpTo(&counts), Activation::None);
        let running = [random.tensor(&[3]), random.tensor(&[3])].map(|tensor| {
            let before = exact(&values(&tensor));
            (Var::from_tensor(&tensor).unwrap(), before)
        });
        let [mean, variance] = running.each_ref().map(|(variable, _)| variable.as_tensor());
        found.move_running([mean, variance], momentum).unwrap();
        let unbiased = values_per_channel / (values_per_channel - 1.0);
        for ((variable, before), (batch, factor)) in
            running.iter().zip([(&found.mean, 1.0), (&found.variance, unbiased)])
        {
            let expected: Vec<f64> = if values_per_channel > 1.0 {
                let batch = exact(&values(batch));
                let pairs = before.iter().zip(batch);
                pairs.map(|(before, b)| before * (1.0 - momentum) + factor * b * momentum).collect()
            } else {
                before.clone()
            };
            let expected = Tensor::from_vec(rounded(&expected), 3, &Device::Cpu).unwrap();
            assert_close_relative(variable, &expected, 1e-6);
        }
    }
}

#[test]
fn counts_that_do_not_fit_are_named() {
    let mut random = Random::new(137);
    let inputs = of_slots(&mut random, 3, &[2, 2], 3);
    let norm = |counts: &Tensor| {
        let filled = FilledRows::UpTo(counts);
        batch_norm(&inputs[0], filled, &inputs[1], &inputs[2], None, Activation::None, EPS)
            .unwrap_err()
            .to_string()
    };
    let message = norm(&Tensor::new(&[1u32; 5], &Device::Cpu).unwrap());
    assert!(message.contains("counts") && message.contains("12 rows"), "{message}");
    let message = norm(&Tensor::new(&[1f32; 3], &Device::Cpu).unwrap());
    assert!(message.contains("counts") && message.contains("U32"), "{message}");
    assert!(norm(&Tensor::zeros((3, 1), DType::U32, &Device::Cpu).unwrap()).contains("counts"));
    assert!(norm(&Tensor::zeros(0, DType::U32, &Device::Cpu).unwrap()).contains("counts"));
}
