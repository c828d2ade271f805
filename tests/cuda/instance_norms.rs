//! Norms within each image and within each cell: on CUDA against the CPU's.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{Activation, group_norm, l2_normalize};

use super::counters::alone;
use super::gradients::{ACTIVATIONS, assert_quiet, compare_within};
use super::support::{DTYPES, Random, assert_agrees, assert_launches, tolerance, upload, values};

const EPS: f64 = 1e-5;

/// Dimensions and groups: whole packs of channels and not, groups of more channels than a block has threads, one value.
const CASES: [(&[usize], usize); 7] = [
    (&[2, 9, 7, 8], 2),
    (&[1, 40, 37, 64], 32),
    (&[2, 3, 5, 6], 3),
    (&[3, 7], 7),
    (&[1, 5, 3, 600], 2),
    (&[0, 5, 3, 4], 2),
    (&[2, 1, 1, 4], 4),
];

fn inputs(random: &mut Random, dims: &[usize]) -> [Tensor; 3] {
    let channels = *dims.last().unwrap();
    let shifted = (random.tensor(dims) * 3.0).unwrap().affine(1.0, 5.0).unwrap();
    [shifted, random.tensor(&[channels]), random.tensor(&[channels])]
}

#[test]
fn group_norms_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(201);
    for (dims, groups) in CASES {
        let inputs = inputs(&mut random, dims);
        for activation in ACTIVATIONS {
            // A single value is its own mean: what is left of its gradient is nothing but roundings.
            let eps = if dims[1..].iter().product::<usize>() == groups { 1.0 } else { EPS };
            compare_within(1e-4, &inputs, |v, _| {
                group_norm(&v[0], groups, &v[1], &v[2], activation, eps).unwrap()
            });
        }
    }
}

#[test]
fn group_norms_of_all_dtypes_agree() {
    let _alone = alone();
    let mut random = Random::new(203);
    for (dims, groups) in CASES {
        let [input, weight, bias] = inputs(&mut random, dims);
        for dtype in DTYPES {
            let narrow = input.to_dtype(dtype).unwrap();
            let wide = narrow.to_dtype(DType::F32).unwrap();
            let relu = Activation::Relu;
            let expected = group_norm(&wide, groups, &weight, &bias, relu, EPS).unwrap();
            let [input, weight, bias] = [&narrow, &weight, &bias].map(upload);
            let found = group_norm(&input, groups, &weight, &bias, relu, EPS).unwrap();
            assert_agrees(&found, &expected, tolerance(dtype));
        }
    }
}

#[test]
fn lengths_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(205);
    for dims in [vec![2, 9, 7, 8], vec![5, 600], vec![1, 1], vec![0, 3, 3, 4], vec![40, 33]] {
        let (input, weight) = (random.tensor(&dims), random.tensor(&dims[dims.len() - 1..]));
        compare_within(1e-5, &[input.clone(), weight.clone()], |v, _| {
            l2_normalize(&v[0], &v[1]).unwrap()
        });
        for dtype in DTYPES {
            let narrow = input.to_dtype(dtype).unwrap();
            let wide = narrow.to_dtype(DType::F32).unwrap();
            let expected = l2_normalize(&wide, &weight).unwrap();
            let found = l2_normalize(&upload(&narrow), &upload(&weight)).unwrap();
            assert_agrees(&found, &expected, tolerance(dtype));
        }
    }
}

#[test]
fn cells_of_zeros_agree() {
    let _alone = alone();
    let mut raw = values(&Random::new(207).tensor(&[4, 9]));
    raw[9..18].fill(0.0);
    raw[18..27].iter_mut().for_each(|value| *value *= 1e-14);
    let input = Tensor::from_vec(raw, (4, 9), &Device::Cpu).unwrap();
    let weight = Random::new(209).tensor(&[9]);
    compare_within(1e-5, &[input, weight], |v, _| l2_normalize(&v[0], &v[1]).unwrap());
}

#[test]
fn norms_within_images_make_few_launches_and_no_copies() {
    let _alone = alone();
    let inputs = inputs(&mut Random::new(211), &[2, 5, 3, 8]);
    let on_gpu = inputs.each_ref().map(upload);
    let norm = |v: &[Tensor]| group_norm(&v[0], 4, &v[1], &v[2], Activation::Relu, EPS).unwrap();
    assert_launches(2, || norm(&on_gpu));
    assert_quiet(&inputs, norm);
    assert_launches(1, || l2_normalize(&on_gpu[0], &on_gpu[1]).unwrap());
    assert_quiet(&inputs[..2], |v| l2_normalize(&v[0], &v[1]).unwrap());
}
