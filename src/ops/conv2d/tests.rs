use candle_core::{DType, Device, Tensor};

use super::cpu::Algorithm;
use super::*;
use crate::ops::support::testing::{Random, assert_close_relative, values};

/// Tolerance relative to the largest output: sums of up to 4608 terms.
const TOLERANCE: f32 = 2e-5;

struct Case {
    input: [usize; 4],
    outputs: usize,
    window: [usize; 2],
    params: Conv2dParams,
}

fn case(input: [usize; 4], outputs: usize, window: usize, stride: usize, padding: usize) -> Case {
    Case { input, outputs, window: [window; 2], params: Conv2dParams { stride, padding } }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case([1, 23, 17, 3], 16, 7, 2, 3),
        case([2, 15, 22, 64], 64, 1, 1, 0),
        case([1, 9, 14, 96], 40, 1, 2, 0),
        case([2, 13, 10, 32], 48, 3, 1, 1),
        case([3, 14, 14, 64], 33, 3, 1, 1),
        case([1, 25, 9, 72], 65, 3, 2, 1),
        case([1, 1, 1, 64], 64, 3, 1, 1),
        case([1, 1, 2, 35], 91, 3, 1, 1),
        case([1, 5, 7, 12], 8, 3, 1, 1),
        case([1, 6, 11, 5], 3, 1, 1, 0),
        case([1, 8, 19, 64], 32, 3, 1, 0),
        case([1, 8, 9, 34], 32, 3, 1, 2),
        case([1, 4, 5, 600], 70, 1, 1, 0),
        case([0, 4, 5, 8], 7, 3, 1, 1),
        case([1, 3, 5, 4], 6, 1, 1, 1),
    ];
    cases.push(Case {
        input: [1, 9, 11, 20],
        outputs: 24,
        window: [3, 5],
        params: Conv2dParams { stride: 1, padding: 1 },
    });
    cases
}

fn check(case: &Case, isa: Isa, algorithm: Algorithm, activation: Activation, with_residual: bool) {
    let Case { input: dims, outputs, window, params } = *case;
    let mut random = Random::new(7);
    let input = random.tensor(&dims);
    let weight_dims = [outputs, dims[3], window[0], window[1]];
    let weight = random.tensor(&weight_dims);
    let bias = random.tensor(&[outputs]);
    let positions =
        |size: usize, window: usize| (size + 2 * params.padding - window) / params.stride + 1;
    let out_dims = [dims[0], positions(dims[1], window[0]), positions(dims[2], window[1]), outputs];
    let residual = with_residual.then(|| random.tensor(&out_dims));
    let residual_values = residual.as_ref().map(values);
    let expected = reference::conv2d(
        &values(&input),
        dims,
        &values(&weight),
        weight_dims,
        &values(&bias),
        params,
        Epilogue { residual: residual_values.as_deref(), activation },
    );
    let expected = Tensor::from_vec(expected, &out_dims, &Device::Cpu).unwrap();
    let prepared =
        PreparedConv2d::with_choice(isa, |_, _| algorithm, &weight, &bias, params).unwrap();
    let found = conv2d(&input, &prepared, residual.as_ref(), activation).unwrap();
    println!("{dims:?} {outputs} {params:?} {} {algorithm:?}", isa.name());
    assert_close_relative(&found, &expected, TOLERANCE);
}

#[test]
fn agrees_with_the_definition() {
    for case in cases() {
        for isa in Isa::available() {
            for algorithm in [Algorithm::Direct, Algorithm::Winograd4, Algorithm::Winograd6] {
                let fits = Algorithm::can_transform(case.window, case.params);
                if fits || algorithm == Algorithm::Direct {
                    check(&case, isa, algorithm, Activation::None, false);
                    check(&case, isa, algorithm, Activation::Relu, true);
                }
            }
        }
    }
}

#[test]
fn nan_passes_through_the_activation() {
    let weight = Random::new(1).tensor(&[4, 4, 1, 1]);
    let bias = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
    let prepared =
        PreparedConv2d::new(&weight, &bias, Conv2dParams { stride: 1, padding: 0 }).unwrap();
    let input = Tensor::full(f32::NAN, (1, 2, 3, 4), &Device::Cpu).unwrap();
    let found = conv2d(&input, &prepared, None, Activation::Relu).unwrap();
    assert!(values(&found).iter().all(|v| v.is_nan()));
}

#[test]
fn a_strided_input_is_read_as_it_looks() {
    let mut random = Random::new(3);
    let planes = random.tensor(&[1, 5, 6, 7]);
    let weight = random.tensor(&[9, 5, 3, 3]);
    let bias = random.tensor(&[9]);
    let prepared =
        PreparedConv2d::new(&weight, &bias, Conv2dParams { stride: 1, padding: 1 }).unwrap();
    let view = planes.permute((0, 2, 3, 1)).unwrap();
    let copy = view.force_contiguous().unwrap();
    let a = conv2d(&view, &prepared, None, Activation::None).unwrap();
    let b = conv2d(&copy, &prepared, None, Activation::None).unwrap();
    assert_eq!(values(&a), values(&b));
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let (weight, bias) = (random.tensor(&[6, 4, 3, 3]), random.tensor(&[6]));
    let params = Conv2dParams { stride: 1, padding: 0 };
    let prepared = PreparedConv2d::new(&weight, &bias, params).unwrap();
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    let run = |input: &Tensor, residual: Option<&Tensor>| {
        message(conv2d(input, &prepared, residual, Activation::None))
    };
    assert!(run(&random.clone().tensor(&[1, 5, 5, 3]), None).contains("[N, H, W, 4]"));
    assert!(run(&random.clone().tensor(&[5, 5, 4]), None).contains("[N, H, W, 4]"));
    assert!(run(&random.clone().tensor(&[1, 2, 5, 4]), None).contains("3×3"));
    let input = random.tensor(&[1, 5, 6, 4]);
    assert!(run(&input, Some(&random.tensor(&[1, 3, 3, 6]))).contains("residual"));
    assert!(run(&input.to_dtype(DType::F64).unwrap(), None).contains("F64"));
    assert!(PreparedConv2d::new(&weight, &random.tensor(&[5]), params).is_err());
    assert!(PreparedConv2d::new(&bias, &bias, params).is_err());
    let still = Conv2dParams { stride: 0, padding: 0 };
    assert!(PreparedConv2d::new(&weight, &bias, still).is_err());
}
