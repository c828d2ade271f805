mod gradients;
mod torch;

use candle_core::{DType, Device, Tensor};

use super::cpu::Algorithm;
use super::*;
use crate::ops::support::testing::{Random, assert_close, assert_close_relative, values};

/// Tolerance relative to the largest output: sums of up to 4608 terms.
const TOLERANCE: f32 = 2e-5;

#[derive(Clone, Copy)]
struct Case {
    input: [usize; 4],
    outputs: usize,
    window: [usize; 2],
    params: Conv2dParams,
}

impl Case {
    fn weight(&self) -> [usize; 4] {
        let Self { input, outputs, window, params } = *self;
        [outputs, input[3] / params.groups, window[0], window[1]]
    }

    fn output(&self) -> [usize; 4] {
        let Self { input: [batch, height, width, _], outputs, window, params } = *self;
        let positions = |size: usize, window: usize| {
            (size + 2 * params.padding - params.reach(window)) / params.stride + 1
        };
        [batch, positions(height, window[0]), positions(width, window[1]), outputs]
    }

    fn grouped(self, groups: usize) -> Self {
        Self { params: self.params.with_groups(groups), ..self }
    }

    fn dilated(self, dilation: usize) -> Self {
        Self { params: self.params.with_dilation(dilation), ..self }
    }

    /// The algorithms that can compute it.
    fn algorithms(&self) -> Vec<Algorithm> {
        if is_depthwise(self.weight(), self.params) {
            vec![Algorithm::Depthwise, Algorithm::Grouped]
        } else if self.params.groups > 1 {
            vec![Algorithm::Grouped]
        } else if Algorithm::can_transform(self.window, self.params) {
            vec![Algorithm::Direct, Algorithm::Winograd4, Algorithm::Winograd6]
        } else {
            vec![Algorithm::Direct]
        }
    }
}

fn case(input: [usize; 4], outputs: usize, window: usize, stride: usize, padding: usize) -> Case {
    Case { input, outputs, window: [window; 2], params: Conv2dParams::new(stride, padding) }
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
        params: Conv2dParams::new(1, 1),
    });
    cases.extend(cases_in_parts());
    cases
}

/// Groups, channels by themselves, and taps apart.
fn cases_in_parts() -> Vec<Case> {
    let oblong = |window| Case { window, ..case([2, 9, 12, 34], 34, 3, 1, 1) };
    vec![
        case([2, 11, 17, 40], 40, 3, 1, 1).grouped(40),
        case([1, 13, 10, 72], 72, 3, 2, 1).grouped(72),
        case([2, 12, 19, 16], 16, 5, 1, 2).grouped(16),
        case([1, 14, 15, 120], 120, 5, 2, 2).grouped(120),
        case([1, 5, 6, 3], 3, 3, 1, 1).grouped(3),
        case([1, 1, 2, 24], 24, 5, 2, 2).grouped(24),
        case([1, 9, 23, 33], 33, 3, 1, 0).grouped(33),
        case([1, 10, 9, 20], 20, 3, 1, 2).grouped(20).dilated(2),
        case([1, 7, 8, 5], 5, 2, 3, 0).grouped(5),
        oblong([3, 5]).grouped(34),
        case([0, 4, 5, 8], 8, 3, 1, 1).grouped(8),
        case([2, 9, 14, 128], 128, 3, 1, 1).grouped(32),
        case([1, 11, 8, 64], 96, 3, 2, 1).grouped(8),
        case([1, 6, 7, 24], 12, 1, 1, 0).grouped(3),
        case([1, 8, 9, 10], 30, 3, 1, 1).grouped(10),
        case([1, 7, 9, 600], 4, 3, 1, 1).grouped(2),
        oblong([5, 3]).grouped(17),
        case([1, 8, 11, 36], 60, 3, 2, 2).grouped(6).dilated(3),
        case([0, 4, 5, 8], 6, 3, 1, 1).grouped(2),
        case([1, 19, 17, 40], 33, 3, 1, 6).dilated(6),
        case([2, 9, 12, 7], 10, 3, 2, 1).dilated(2),
        oblong([3, 5]).dilated(2),
        case([1, 13, 13, 32], 32, 3, 1, 0).dilated(6),
    ]
}

/// The dtypes of inputs and results, and the tolerance of results: that of the sums, and of their rounding.
const DTYPES: [(DType, DType, f32); 3] = [
    (DType::F32, DType::F32, TOLERANCE),
    (DType::BF16, DType::F32, TOLERANCE),
    (DType::BF16, DType::BF16, TOLERANCE + 1.0 / 256.0),
];

/// Compares a convolution with the sum that defines it, of the same numbers: bf16 input is rounded for both.
fn check(case: &Case, isa: Isa, algorithm: Algorithm, activation: Activation, with_residual: bool) {
    let Case { input: dims, outputs, params, .. } = *case;
    for (dtype, output, tolerance) in DTYPES {
        let mut random = Random::new(7);
        let mut tensor = |dims: &[usize]| random.tensor(dims).to_dtype(dtype).unwrap();
        let input = tensor(&dims);
        let (weight_dims, out_dims) = (case.weight(), case.output());
        let weight = tensor(&weight_dims);
        let bias = tensor(&[outputs]).to_dtype(DType::F32).unwrap();
        let residual = with_residual.then(|| tensor(&out_dims));
        let residual_values = residual.as_ref().map(values);
        let by_definition = |activation| {
            let values = reference::conv2d(
                &values(&input),
                dims,
                &values(&weight),
                weight_dims,
                &values(&bias),
                params,
                residual_values.as_deref(),
                activation,
            );
            Tensor::from_vec(values, &out_dims, &Device::Cpu).unwrap()
        };
        let expected = by_definition(activation);
        let prepared = PreparedConv2d::with_choice(isa, |_, _| algorithm, &weight, &bias, params)
            .unwrap()
            .with_output(output);
        let found = conv2d(&input, &prepared, residual.as_ref(), activation).unwrap();
        assert_eq!(found.dtype(), output);
        if matches!(activation, Activation::None | Activation::Relu) {
            assert_close_relative(&found, &expected, tolerance);
            continue;
        }
        // The sums have errors relative to the largest of them, which these activations cut off.
        let sums = values(&by_definition(Activation::None));
        let largest = sums.iter().fold(0f32, |largest, sum| largest.max(sum.abs()));
        assert_close(&found, &expected, tolerance * largest);
    }
}

#[test]
fn agrees_with_the_definition() {
    for case in cases() {
        for isa in Isa::available() {
            for algorithm in case.algorithms() {
                check(&case, isa, algorithm, Activation::None, false);
                check(&case, isa, algorithm, Activation::Relu, true);
            }
        }
    }
}

/// Results on both sides of all corners, whole vectors and parts of them.
#[test]
fn every_activation_is_applied() {
    for case in [
        case([1, 6, 7, 34], 37, 3, 1, 1),
        case([1, 6, 7, 50], 50, 5, 2, 2).grouped(50),
        case([1, 6, 7, 64], 32, 1, 1, 0).grouped(4),
    ] {
        for isa in Isa::available() {
            for algorithm in case.algorithms() {
                for activation in Activation::ALL {
                    check(&case, isa, algorithm, activation, true);
                }
            }
        }
    }
}

/// The transforms' rounding errors, with as many channels as the models have. The tolerance of features is 1e-4 of the
/// largest; a layer has to stay far below, as its errors add to those of the others.
#[test]
fn transforms_round_little() {
    let mut random = Random::new(31);
    for (channels, algorithm, tolerance) in [
        (256, Algorithm::Direct, 2e-6),
        (256, Algorithm::Winograd4, 5e-6),
        (512, Algorithm::Winograd4, 5e-6),
        (256, Algorithm::Winograd6, 2.5e-5),
    ] {
        let dims = [1, 14, 17, channels];
        let input = random.tensor(&dims).relu().unwrap();
        let weight = random.tensor(&[16, channels, 3, 3]);
        let bias = random.tensor(&[16]);
        let params = Conv2dParams::new(1, 1);
        let expected = reference::conv2d(
            &values(&input),
            dims,
            &values(&weight),
            [16, channels, 3, 3],
            &values(&bias),
            params,
            None,
            Activation::None,
        );
        let expected = Tensor::from_vec(expected, (1, 14, 17, 16), &Device::Cpu).unwrap();
        for isa in Isa::available() {
            let prepared =
                PreparedConv2d::with_choice(isa, |_, _| algorithm, &weight, &bias, params).unwrap();
            let found = conv2d(&input, &prepared, None, Activation::None).unwrap();
            assert_close_relative(&found, &expected, tolerance);
        }
    }
}

#[test]
fn is_linear_in_the_input() {
    let mut random = Random::new(37);
    let zero = Tensor::zeros(40, DType::F32, &Device::Cpu).unwrap();
    for (window, stride) in [(1, 1), (3, 1), (3, 2), (7, 2)] {
        let weight = random.tensor(&[40, 36, window, window]);
        let params = Conv2dParams::new(stride, window / 2);
        let prepared = PreparedConv2d::new(&weight, &zero, params).unwrap();
        let (a, b) = (random.tensor(&[1, 11, 18, 36]), random.tensor(&[1, 11, 18, 36]));
        let run = |input: &Tensor| conv2d(input, &prepared, None, Activation::None).unwrap();
        let of_sum = run(&((&a * 2.0).unwrap() - &b).unwrap());
        let sum = ((run(&a) * 2.0).unwrap() - run(&b)).unwrap();
        assert_close_relative(&of_sum, &sum, 2.0 * TOLERANCE);
        assert!(values(&run(&a.zeros_like().unwrap())).iter().all(|v| *v == 0.0));
    }
}

#[test]
fn padding_is_zeros() {
    let mut random = Random::new(41);
    let (weight, bias) = (random.tensor(&[33, 34, 3, 3]), random.tensor(&[33]));
    let input = random.tensor(&[2, 7, 10, 34]);
    let padded = input.pad_with_zeros(1, 1, 1).unwrap().pad_with_zeros(2, 1, 1).unwrap();
    let run = |input: &Tensor, padding| {
        let params = Conv2dParams::new(1, padding);
        let prepared = PreparedConv2d::new(&weight, &bias, params).unwrap();
        conv2d(input, &prepared, None, Activation::None).unwrap()
    };
    assert_close_relative(&run(&input, 1), &run(&padded, 0), TOLERANCE);
}

/// A result may not depend on how many threads share the work.
#[test]
fn threads_change_nothing() {
    let mut random = Random::new(43);
    for (window, stride, groups) in [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 64), (3, 1, 8)] {
        let outputs = if groups == 1 { 72 } else { 64 };
        let weight = random.tensor(&[outputs, 64 / groups, window, window]);
        let bias = random.tensor(&[outputs]);
        let params = Conv2dParams::new(stride, window / 2).with_groups(groups);
        let prepared = PreparedConv2d::new(&weight, &bias, params).unwrap();
        let input = random.tensor(&[1, 37, 41, 64]);
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| conv2d(&input, &prepared, None, Activation::Relu).unwrap())
        };
        assert_eq!(values(&run(1)), values(&run(5)));
    }
}

#[test]
fn nan_passes_through_the_activation() {
    let weight = Random::new(1).tensor(&[4, 4, 1, 1]);
    let bias = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
    let prepared = PreparedConv2d::new(&weight, &bias, Conv2dParams::new(1, 0)).unwrap();
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
    let prepared = PreparedConv2d::new(&weight, &bias, Conv2dParams::new(1, 1)).unwrap();
    let view = planes.permute((0, 2, 3, 1)).unwrap();
    let copy = view.force_contiguous().unwrap();
    let a = conv2d(&view, &prepared, None, Activation::None).unwrap();
    let b = conv2d(&copy, &prepared, None, Activation::None).unwrap();
    assert_eq!(values(&a), values(&b));
}

fn message_of<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let (weight, bias) = (random.tensor(&[6, 4, 3, 3]), random.tensor(&[6]));
    let params = Conv2dParams::new(1, 0);
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
    let refusal = |params| message_of(PreparedConv2d::new(&weight, &bias, params));
    for params in [Conv2dParams::new(0, 0), params.with_groups(0), params.with_dilation(0)] {
        assert!(refusal(params).contains("at least 1"));
    }
    assert!(refusal(params.with_groups(4)).contains("a multiple of the 4 groups"));
    let grouped = PreparedConv2d::new(&weight, &bias, params.with_groups(2)).unwrap();
    assert_eq!(grouped.in_channels(), 8);
    let result = conv2d(&random.tensor(&[1, 5, 5, 4]), &grouped, None, Activation::None);
    assert!(message(result).contains("[N, H, W, 8]"));
    let wide = PreparedConv2d::new(&weight, &bias, params.with_dilation(3)).unwrap();
    let result = conv2d(&random.tensor(&[1, 6, 9, 4]), &wide, None, Activation::None);
    assert!(message(result).contains("7×7"));
    let trainable = TrainableConv2d::new(&weight, None, &bias, params.with_groups(4));
    assert!(message_of(trainable).contains("a multiple of the 4 groups"));
}

/// Whichever way the sums are computed: by cuDNN, or by cuBLAS from windows laid out in memory.
#[cfg(feature = "cudnn")]
#[test]
fn both_ways_on_cuda_agree_with_the_definition() {
    let Ok(device) = crate::device::parse("cuda") else {
        eprintln!("skipped: no GPU");
        return;
    };
    for case @ Case { input: dims, outputs, params, .. } in cases() {
        let mut random = Random::new(7);
        let input = random.tensor(&dims);
        let weight = random.tensor(&case.weight());
        let bias = random.tensor(&[outputs]);
        let on_cpu = PreparedConv2d::new(&weight, &bias, params).unwrap();
        for activation in Activation::ALL {
            let plain = conv2d(&input, &on_cpu, None, activation).unwrap();
            let residual = random.tensor(plain.dims());
            let sum = conv2d(&input, &on_cpu, Some(&residual), activation).unwrap();
            let upload = |tensor: &Tensor| tensor.to_device(&device).unwrap();
            for algorithm in [cuda::Algorithm::Windows, cuda::Algorithm::Cudnn] {
                let layer = cuda::Weights::new(algorithm, &upload(&weight), &upload(&bias), params)
                    .unwrap();
                let on_gpu = PreparedConv2d {
                    device: device.clone(),
                    weights: Weights::Cuda(Arc::new(layer)),
                    ..on_cpu.clone()
                };
                let run = |residual: Option<&Tensor>| {
                    let found = conv2d(&upload(&input), &on_gpu, residual, activation).unwrap();
                    found.to_device(&Device::Cpu).unwrap()
                };
                assert_close_relative(&run(None), &plain, TOLERANCE);
                assert_close_relative(&run(Some(&upload(&residual))), &sum, TOLERANCE);
            }
        }
    }
}
