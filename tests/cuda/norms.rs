//! Norms by the statistics of the batch, and heads with them, on slots of which some are empty: on CUDA against the CPU's.

use candle_core::{DType, Device, Tensor, Var};
use candle_detection::config::ModelConfig;
use candle_detection::ops::{Activation, BatchNormOutput, FilledRows, batch_norm};
use candle_detection::roi_heads::BoxHead;
use candle_nn::VarBuilder;

use super::counters::alone;
use super::gradients::{ACTIVATIONS, assert_near, assert_quiet, compare_within};
use super::support::{Random, assert_equal, assert_launches, cuda, upload, values};

/// Of each image.
const SLOTS: usize = 4;
/// Filled ones: of some images none, of all all, of all images one, more than there are, none.
const COUNTS: [&[u32]; 6] = [&[2, 0, 3], &[4], &[0, 1], &[4, 4], &[9, 1], &[0, 0]];

#[test]
fn batch_norms_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(6);
    for dims in [vec![2, 5, 3, 8], vec![3, 7], vec![1, 40, 37, 5], vec![2, 1]] {
        let channels = *dims.last().unwrap();
        let shifted = (random.tensor(&dims) * 3.0).unwrap().affine(1.0, 5.0).unwrap();
        let inputs = [shifted, random.tensor(&[channels]), random.tensor(&[channels])];
        let with_residual = [&inputs[..], &[random.tensor(&dims)]].concat();
        for activation in ACTIVATIONS {
            compare_within(1e-4, &inputs, |v, _| {
                batch_norm(&v[0], FilledRows::All, &v[1], &v[2], None, activation, 1e-3)
                    .unwrap()
                    .output
            });
            compare_within(1e-4, &with_residual, |v, _| {
                let normed =
                    batch_norm(&v[0], FilledRows::All, &v[1], &v[2], Some(&v[3]), activation, 1e-3);
                normed.unwrap().output
            });
        }
        let norm = |device: &Device| {
            let on = |tensor: &Tensor| tensor.to_device(device).unwrap();
            let [x, weight, bias] = [on(&inputs[0]), on(&inputs[1]), on(&inputs[2])];
            batch_norm(&x, FilledRows::All, &weight, &bias, None, Activation::None, 1e-3).unwrap()
        };
        let (found, expected) = (norm(&cuda()), norm(&Device::Cpu));
        assert_near(&found.mean, &expected.mean, 1e-5);
        assert_near(&found.variance, &expected.variance, 1e-5);
    }
}

fn counts_on(counts: &[u32], device: &Device) -> Tensor {
    Tensor::new(counts, &Device::Cpu).unwrap().to_device(device).unwrap()
}

/// Random values in filled slots, and NaN in the others.
fn slots(random: &mut Random, counts: &[u32], of_slot: &[usize]) -> Tensor {
    let dims = [&[counts.len() * SLOTS], of_slot].concat();
    let width: usize = of_slot.iter().product();
    let mut raw = values(&random.tensor(&dims).affine(3.0, 5.0).unwrap());
    for (slot, raw) in raw.chunks_exact_mut(width).enumerate() {
        if slot % SLOTS >= counts[slot / SLOTS] as usize {
            raw.fill(f32::NAN);
        }
    }
    Tensor::from_vec(raw, dims, &Device::Cpu).unwrap()
}

/// The norm of input, weight, bias and residual.
fn normed(v: &[Tensor], filled: FilledRows, activation: Activation) -> BatchNormOutput {
    batch_norm(&v[0], filled, &v[1], &v[2], Some(&v[3]), activation, 1e-3).unwrap()
}

fn assert_no_nan(tensor: &Tensor) {
    assert!(values(tensor).iter().all(|value| !value.is_nan()));
}

#[test]
fn norms_of_filled_slots_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(41);
    for counts in COUNTS {
        for of_slot in [&[3, 5, 7][..], &[2], &[11, 9, 3]] {
            let channels = *of_slot.last().unwrap();
            let inputs = [
                slots(&mut random, counts, of_slot),
                random.tensor(&[channels]),
                random.tensor(&[channels]),
                slots(&mut random, counts, of_slot),
            ];
            let on = |device: &Device| {
                let inputs = inputs.each_ref().map(|tensor| tensor.to_device(device).unwrap());
                let counts = counts_on(counts, device);
                normed(&inputs, FilledRows::UpTo(&counts), Activation::None)
            };
            let (found, expected) = (on(&cuda()), on(&Device::Cpu));
            assert_near(&found.mean, &expected.mean, 1e-5);
            assert_near(&found.variance, &expected.variance, 1e-5);
            assert_no_nan(&found.output);
            for activation in ACTIVATIONS {
                compare_within(1e-4, &inputs, |v, device| {
                    let counts = counts_on(counts, device);
                    normed(v, FilledRows::UpTo(&counts), activation).output
                });
            }
        }
    }
}

/// Bit for bit, as sums have the same order.
#[test]
fn full_slots_are_normed_like_rows_without_counts() {
    let _alone = alone();
    let mut random = Random::new(43);
    let inputs = [&[8, 5, 3, 6][..], &[6], &[6], &[8, 5, 3, 6]];
    let inputs = inputs.map(|dims| upload(&random.tensor(dims)));
    let counts = counts_on(&[4, 4], &cuda());
    let all = normed(&inputs, FilledRows::All, Activation::Relu);
    let found = normed(&inputs, FilledRows::UpTo(&counts), Activation::Relu);
    assert_equal(&found.output, &all.output);
    assert_equal(&found.variance, &all.variance);
}

#[test]
fn running_statistics_move_in_place() {
    let _alone = alone();
    let mut random = Random::new(47);
    for counts in COUNTS.map(Some).into_iter().chain([None, Some([1, 0].as_slice())]) {
        let inputs = [&[counts.map_or(2, <[u32]>::len) * SLOTS, 5][..], &[5], &[5]];
        let inputs = inputs.map(|dims| random.tensor(dims));
        let running = [random.tensor(&[5]), random.tensor(&[5])];
        let on = |device: &Device| {
            let on_device = |tensor: &Tensor| tensor.to_device(device).unwrap().copy().unwrap();
            let [x, weight, bias] = inputs.each_ref().map(on_device);
            let running = running.each_ref().map(|r| Var::from_tensor(&on_device(r)).unwrap());
            let counts = counts.map(|counts| counts_on(counts, device));
            let filled = counts.as_ref().map_or(FilledRows::All, FilledRows::UpTo);
            let batch = batch_norm(&x, filled, &weight, &bias, None, Activation::None, 1e-3);
            let batch = batch.unwrap();
            for _ in 0..2 {
                batch.move_running([&running[0], &running[1]], 0.1).unwrap();
            }
            running
        };
        let (found, expected) = (on(&cuda()), on(&Device::Cpu));
        for ((found, expected), before) in found.iter().zip(&expected).zip(&running) {
            assert_near(found, expected, 1e-5);
            let counted: u32 = counts.map_or(8, |counts| counts.iter().sum());
            assert_eq!(values(found) == values(before), counted <= 1);
        }
    }
}

#[test]
fn norms_of_slots_make_few_launches_and_no_copies() {
    let _alone = alone();
    let mut random = Random::new(53);
    let inputs = [&[8, 5, 3, 6][..], &[6], &[6], &[8, 5, 3, 6]].map(|dims| random.tensor(dims));
    let counts = counts_on(&[3, 1], &cuda());
    let on_gpu = inputs.each_ref().map(upload);
    let running = [upload(&random.tensor(&[6])), upload(&random.tensor(&[6]))];
    for filled in [FilledRows::All, FilledRows::UpTo(&counts)] {
        let batch = assert_launches(5, || normed(&on_gpu, filled, Activation::Relu));
        assert_launches(1, || batch.move_running([&running[0], &running[1]], 0.1).unwrap());
        assert_quiet(&inputs, |v| normed(v, filled, Activation::Relu).output);
    }
}

/// The box head of the V2 models, with variables from a seed.
fn box_head(device: &Device) -> (BoxHead, Vec<(String, Var)>) {
    let text = include_str!("../fixtures/tiny_r50_v2.toml");
    let config = ModelConfig::parse(text, "tests/fixtures/tiny_r50_v2.toml").unwrap();
    let mut random = Random::new(59);
    let mut variables = Vec::new();
    let mut add = |name: String, dims: &[usize]| {
        let tensor = random.tensor(dims);
        // Variances are positive.
        let tensor = if name.ends_with("var") { tensor.abs().unwrap() } else { tensor };
        variables.push((name, Var::from_tensor(&tensor.to_device(device).unwrap()).unwrap()));
    };
    for conv in 0..4 {
        add(format!("{conv}.0.weight"), &[8, 8, 3, 3]);
        for name in ["weight", "bias", "running_mean", "running_var"] {
            add(format!("{conv}.1.{name}"), &[8]);
        }
    }
    add("5.weight".to_owned(), &[32, 8 * 7 * 7]);
    add("5.bias".to_owned(), &[32]);
    let tensors = variables.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone()));
    let weights = VarBuilder::from_tensors(tensors.collect(), DType::F32, device);
    (
        BoxHead::load(&weights, 8, &config.architecture.as_rcnn().unwrap().box_head).unwrap(),
        variables,
    )
}

/// Pooled features of two images, zero in empty slots as pooling leaves them, and their counts.
fn pooled() -> (Tensor, [u32; 2]) {
    let counts = [3u32, 1];
    let raw = values(&slots(&mut Random::new(61), &counts, &[7, 7, 8]));
    let raw = raw.into_iter().map(|value| if value.is_nan() { 0.0 } else { value }).collect();
    (Tensor::from_vec(raw, (2 * SLOTS, 7, 7, 8), &Device::Cpu).unwrap(), counts)
}

#[test]
fn heads_learn_from_filled_slots_as_on_the_cpu() {
    let _alone = alone();
    let (pooled, counts) = pooled();
    let on = |device: &Device| {
        let (head, variables) = box_head(device);
        let counts = counts_on(&counts, device);
        let pooled = pooled.to_device(device).unwrap();
        let output = head.forward(&pooled, FilledRows::UpTo(&counts)).unwrap();
        // Of filled slots.
        let output =
            Tensor::cat(&[output.narrow(0, 0, 3).unwrap(), output.narrow(0, 4, 1).unwrap()], 0)
                .unwrap();
        let weights = Random::new(67).tensor(output.dims()).to_device(device).unwrap();
        let loss = (&output * weights).unwrap().sum_all().unwrap();
        (output, loss.backward().unwrap(), variables)
    };
    let (found, gradients, variables) = on(&cuda());
    let (expected, expected_gradients, expected_variables) = on(&Device::Cpu);
    assert_near(&found, &expected, 1e-4);
    for ((name, found), (_, expected)) in variables.iter().zip(&expected_variables) {
        assert_near(found, expected, 1e-5);
        match (gradients.get(found), expected_gradients.get(expected)) {
            (Some(found), Some(expected)) => assert_near(found, expected, 1e-3),
            (found, expected) => {
                assert!(found.is_none() && expected.is_none() && name.contains("running"));
            }
        }
    }
}

#[test]
fn heads_on_slots_make_no_copies() {
    let _alone = alone();
    let (pooled, counts) = pooled();
    let (head, _) = box_head(&cuda());
    let counts = counts_on(&counts, &cuda());
    assert_quiet(&[pooled], |v| head.forward(&v[0], FilledRows::UpTo(&counts)).unwrap());
}
