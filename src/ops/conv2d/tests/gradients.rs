//! Gradients of the convolution against differences of its twin and against sums in f64.

use candle_core::Var;

use super::*;
use crate::ops::support::testing::{SMALL_STEP, assert_gradients, exact};

/// Small ones, as each entry compared takes two passes of the twin: all strides and windows, odd sizes, single pixels,
/// windows that cover the input, channels that Winograd's method takes.
fn gradient_cases() -> Vec<Case> {
    let mut cases = vec![
        case([2, 5, 4, 3], 4, 3, 1, 1),
        case([1, 7, 6, 3], 2, 3, 2, 1),
        case([1, 6, 9, 2], 3, 3, 2, 1),
        case([1, 9, 12, 3], 2, 7, 2, 3),
        case([2, 4, 5, 6], 3, 1, 1, 0),
        case([1, 5, 7, 4], 3, 1, 2, 0),
        case([1, 1, 1, 3], 2, 3, 1, 1),
        case([1, 1, 1, 3], 2, 3, 2, 1),
        case([1, 8, 7, 2], 3, 3, 1, 0),
        case([1, 5, 6, 2], 3, 3, 1, 2),
        case([1, 7, 5, 2], 3, 2, 3, 0),
        case([1, 3, 5, 4], 6, 1, 1, 1),
        case([3, 4, 4, 5], 6, 4, 1, 0),
        case([1, 3, 4, 32], 33, 3, 1, 1),
        case([1, 6, 3, 35], 32, 3, 1, 0),
        case([1, 2, 5, 33], 34, 3, 1, 2),
    ];
    cases.push(Case {
        input: [1, 5, 6, 2],
        outputs: 3,
        window: [3, 5],
        params: Conv2dParams::new(1, 1),
    });
    cases.extend([
        case([2, 5, 4, 3], 3, 3, 1, 1).grouped(3),
        case([1, 7, 6, 5], 5, 3, 2, 1).grouped(5),
        case([1, 9, 8, 2], 2, 5, 2, 2).grouped(2),
        case([1, 5, 6, 18], 18, 3, 1, 0).grouped(18),
        case([1, 7, 5, 3], 3, 2, 3, 0).grouped(3),
        case([1, 9, 7, 3], 3, 3, 2, 2).grouped(3).dilated(2),
        case([2, 5, 4, 6], 4, 3, 1, 1).grouped(2),
        case([1, 6, 7, 8], 12, 3, 2, 1).grouped(4),
        case([1, 4, 5, 6], 9, 1, 1, 0).grouped(3),
        case([1, 3, 4, 3], 6, 3, 1, 1).grouped(3),
        case([1, 3, 4, 64], 66, 3, 1, 1).grouped(2),
        case([1, 7, 8, 3], 2, 3, 1, 2).dilated(2),
        case([1, 9, 8, 2], 3, 3, 1, 6).dilated(6),
        case([2, 8, 9, 3], 2, 3, 2, 1).dilated(3),
        case([1, 9, 8, 4], 4, 3, 2, 2).grouped(2).dilated(2),
        Case { window: [2, 3], ..case([1, 7, 8, 2], 3, 3, 1, 1).dilated(2) },
    ]);
    cases
}

#[test]
fn gradients_are_those_of_the_definition() {
    for case @ Case { input: dims, outputs, params, .. } in gradient_cases() {
        let mut random = Random::new(41);
        let (weight_dims, out_dims) = (case.weight(), case.output());
        let inputs =
            [&dims[..], &weight_dims, &[outputs], &out_dims].map(|dims| random.tensor(dims));
        for (activation, scale) in [
            (Activation::None, None),
            (Activation::Relu, None),
            (Activation::Relu, Some(random.tensor(&[outputs]))),
            (Activation::HardSwish, Some(random.tensor(&[outputs]))),
            (Activation::HardSigmoid, None),
            (Activation::Relu6, None),
        ] {
            let factors = scale.as_ref().map_or(vec![1.0; outputs], |s| exact(&values(s)));
            assert_gradients(
                &inputs,
                SMALL_STEP,
                |inputs| {
                    let [input, weight, bias, residual] = inputs else { unreachable!() };
                    let weights = TrainableConv2d::new(weight, scale.as_ref(), bias, params);
                    conv2d_trainable(input, &weights.unwrap(), Some(residual), activation).unwrap()
                },
                |inputs| {
                    let filter = inputs[1].len() / outputs;
                    let scaled = inputs[1].iter().enumerate().map(|(i, w)| factors[i / filter] * w);
                    let tensors = reference::Tensors {
                        input: &inputs[0],
                        weight: &scaled.collect::<Vec<_>>(),
                        bias: &inputs[2],
                        residual: Some(&inputs[3]),
                    };
                    reference::conv2d_exact(tensors, dims, weight_dims, params, activation)
                },
            );
        }
    }
}

/// Constants get no gradient, and pass on the others, whatever form their weights have.
#[test]
fn gradients_pass_through_prepared_weights() {
    let mut random = Random::new(43);
    for (dims, outputs, window, stride, algorithm) in [
        ([1, 5, 6, 3], 4, 3, 2, Algorithm::Direct),
        ([1, 5, 6, 34], 33, 3, 1, Algorithm::Winograd4),
        ([1, 7, 6, 33], 40, 3, 1, Algorithm::Winograd6),
        ([2, 3, 2, 5], 4, 1, 1, Algorithm::Direct),
        ([1, 5, 6, 24], 36, 3, 1, Algorithm::Grouped),
        ([1, 7, 6, 12], 12, 3, 2, Algorithm::Depthwise),
    ] {
        let groups = match algorithm {
            Algorithm::Grouped | Algorithm::Depthwise => 12,
            _ => 1,
        };
        let params = Conv2dParams::new(stride, window / 2).with_groups(groups);
        let weight = random.tensor(&[outputs, dims[3] / groups, window, window]);
        let bias = random.tensor(&[outputs]);
        let input = Var::from_tensor(&random.tensor(&dims)).unwrap();
        let gradient = |output: &Tensor| {
            let weights = Random::new(47).tensor(output.dims());
            let sum = (output * weights).unwrap().sum_all().unwrap();
            sum.backward().unwrap().get(input.as_tensor()).unwrap().clone()
        };
        let constants = TrainableConv2d::new(&weight, None, &bias, params).unwrap();
        let expected = conv2d_trainable(&input, &constants, None, Activation::Relu).unwrap();
        let expected = gradient(&expected);
        for isa in Isa::available() {
            let prepared =
                PreparedConv2d::with_choice(isa, |_, _| algorithm, &weight, &bias, params).unwrap();
            let found = conv2d(&input, &prepared, None, Activation::Relu).unwrap();
            assert_close_relative(&gradient(&found), &expected, TOLERANCE);
        }
    }
}

/// A gradient of the output that is zero at some pixels.
fn thinned(gradient: &mut [f32], outputs: usize, keep: impl Fn(usize) -> bool) {
    for (pixel, gradient) in gradient.chunks_exact_mut(outputs).enumerate() {
        if !keep(pixel) {
            gradient.fill(0.0);
        }
    }
}

/// Gradients of weight and input, summed up in f64 as the definition says.
fn exact_gradients(sizes: &sizes::Sizes, [input, weight, gradient]: [&[f32]; 3]) -> [Tensor; 2] {
    let [outputs, inputs, height, width] = sizes.weight;
    let [_, out_height, out_width, _] = sizes.output;
    let channels = sizes.input[3];
    let taps = height * width;
    let mut of_weight = vec![0f64; weight.len()];
    let mut of_input = vec![0f64; input.len()];
    for (pixel, gradient) in gradient.chunks_exact(outputs).enumerate() {
        let (x, y) = (pixel % out_width, pixel / out_width % out_height);
        let image = pixel / out_width / out_height;
        for tap in 0..taps {
            let stride = sizes.params.stride;
            let row = (y * stride + tap / width).wrapping_sub(sizes.params.padding);
            let column = (x * stride + tap % width).wrapping_sub(sizes.params.padding);
            if row >= sizes.input[1] || column >= sizes.input[2] {
                continue;
            }
            let pixel = (image * sizes.input[1] + row) * sizes.input[2] + column;
            for (output, gradient) in gradient.iter().enumerate() {
                let first = pixel * channels + output / (outputs / sizes.params.groups) * inputs;
                for channel in 0..inputs {
                    let place = (output * inputs + channel) * taps + tap;
                    let gradient = f64::from(*gradient);
                    of_weight[place] += gradient * f64::from(input[first + channel]);
                    of_input[first + channel] += gradient * f64::from(weight[place]);
                }
            }
        }
    }
    let tensor = |values: Vec<f64>, dims: &[usize; 4]| {
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    };
    [tensor(of_weight, &sizes.weight), tensor(of_input, &sizes.input)]
}

/// Products over many pixels are split into blocks and parts, and skip pixels without a gradient; every instruction set
/// has its own.
#[test]
fn gradients_over_many_pixels_are_sums() {
    let mut random = Random::new(53);
    for (dims, outputs, window, stride, groups) in [
        ([2, 40, 37, 20], 17, 3, 1, 1),
        ([2, 41, 38, 70], 75, 3, 1, 1),
        ([3, 30, 30, 33], 100, 3, 1, 1),
        ([1, 50, 71, 300], 5, 1, 1, 1),
        ([1, 41, 38, 7], 9, 1, 2, 1),
        ([1, 33, 29, 3], 70, 7, 2, 1),
        ([600, 2, 2, 40], 300, 2, 1, 1),
        ([2, 41, 38, 64], 64, 3, 1, 16),
        ([3, 40, 37, 40], 40, 3, 1, 40),
        ([3, 41, 38, 24], 24, 5, 2, 24),
    ] {
        let padding = if window == 2 { 0 } else { window / 2 };
        let params = Conv2dParams::new(stride, padding).with_groups(groups);
        let size = |size: usize| (size + 2 * params.padding - window) / stride + 1;
        let output = [dims[0], size(dims[1]), size(dims[2]), outputs];
        let weight = [outputs, dims[3] / groups, window, window];
        let sizes = sizes::Sizes { weight, input: dims, output, params };
        let [input, weight, full] = [dims, weight, output].map(|d| values(&random.tensor(&d)));
        let keeps: [fn(usize) -> bool; 4] =
            [|_| true, |pixel| pixel % 23 == 5, |pixel| pixel / 40 % 3 == 1, |_| false];
        for keep in keeps {
            let mut gradient = full.clone();
            thinned(&mut gradient, outputs, keep);
            let expected = exact_gradients(&sizes, [&input, &weight, &gradient]);
            for isa in Isa::available() {
                let of_weight = cpu::weight_gradient(isa, &input, &gradient, &sizes, None);
                let of_input = cpu::input_gradient(isa, &weight, &gradient, &sizes);
                for (found, expected) in [of_weight, of_input].into_iter().zip(&expected) {
                    let found = Tensor::from_vec(found, expected.shape(), &Device::Cpu).unwrap();
                    assert_close_relative(&found, expected, TOLERANCE);
                }
            }
        }
    }
}

/// With 256 channels, as the pyramid has them, against sums in f64: rounding of Winograd's method with reversed filters.
#[test]
fn input_gradients_round_little() {
    let mut random = Random::new(59);
    let (dims, params) = ([1, 12, 14, 16], Conv2dParams::new(1, 1));
    let (gradient_dims, weight_dims) = ([1, 12, 14, 256], [256, 16, 3, 3]);
    let (gradient, weight) = (random.tensor(&gradient_dims), random.tensor(&weight_dims));
    let sizes = sizes::Sizes { weight: weight_dims, input: dims, output: gradient_dims, params };
    let flipped = weight.transpose(0, 1).unwrap().contiguous().unwrap().flip(&[2, 3]).unwrap();
    let expected = reference::conv2d(
        &values(&gradient),
        gradient_dims,
        &values(&flipped),
        [16, 256, 3, 3],
        &[0.0; 16],
        params,
        None,
        Activation::None,
    );
    let expected = Tensor::from_vec(expected, &dims, &Device::Cpu).unwrap();
    for isa in Isa::available() {
        let found = cpu::input_gradient(isa, &values(&weight), &values(&gradient), &sizes);
        let found = Tensor::from_vec(found, &dims, &Device::Cpu).unwrap();
        assert_close_relative(&found, &expected, 2.5e-5);
    }
}

/// A layer over pooled features: the matrix is the variable, and has the gradient of the filters that it holds.
#[test]
fn a_matrix_over_windows_is_a_convolution() {
    let mut random = Random::new(61);
    let (input, bias) = (random.tensor(&[3, 4, 4, 5]), random.tensor(&[6]));
    let filters = Var::from_tensor(&random.tensor(&[6, 5, 4, 4])).unwrap();
    let matrix = Var::from_tensor(&filters.flatten_from(1).unwrap()).unwrap();
    let params = Conv2dParams::new(1, 0);
    let [as_filters, as_matrix] = [
        TrainableConv2d::new(&filters, None, &bias, params).unwrap(),
        TrainableConv2d::over_windows(&matrix, (4, 4), &bias).unwrap(),
    ]
    .map(|weights| {
        let rows = conv2d_trainable(&input, &weights, None, Activation::Relu).unwrap();
        (values(&rows), rows.sqr().unwrap().sum_all().unwrap().backward().unwrap())
    });
    assert_eq!(as_filters.0, as_matrix.0);
    let (expected, found) =
        (as_filters.1.get(&filters).unwrap(), as_matrix.1.get(&matrix).unwrap());
    assert_eq!(found.dims(), [6, 80]);
    assert_eq!(values(found), values(expected));
    let error = TrainableConv2d::over_windows(&matrix, (4, 3), &bias).unwrap_err();
    assert!(error.to_string().contains("[O, I·kh·kw]"), "{error}");
}

#[test]
fn relu_at_zero_has_no_gradient() {
    let weight = Var::ones((1, 1, 1, 1), DType::F32, &Device::Cpu).unwrap();
    let bias = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let params = Conv2dParams::new(1, 0);
    let weights = TrainableConv2d::new(&weight, None, &bias, params).unwrap();
    let input = Var::new(&[[[[0f32], [-0.0], [2.0], [-2.0]]]], &Device::Cpu).unwrap();
    let output = conv2d_trainable(&input, &weights, None, Activation::Relu).unwrap();
    let gradients = output.sum_all().unwrap().backward().unwrap();
    assert_eq!(values(gradients.get(input.as_tensor()).unwrap()), [0.0, 0.0, 1.0, 0.0]);
}
