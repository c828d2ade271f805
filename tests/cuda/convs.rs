//! Convolutions in groups, channel by channel and with taps apart, activations, and squeeze and excitation: against the
//! CPU's.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    Activation, Conv2dParams, FilledRows, PreparedConv2d, PreparedConvTranspose2d, PreparedLinear,
    TrainableConv2d, TrainableConvTranspose2d, TrainableLinear, batch_norm, conv_transpose2d,
    conv_transpose2d_trainable, conv2d, conv2d_trainable, global_avg_pool, linear,
    linear_trainable, scale_channels,
};

use super::counters::alone;
use super::gradients::{assert_quiet, compare_within};
use super::support::{
    DTYPES, Random, assert_agrees, assert_close, cuda, misaligned, quiet, rounded, tolerance,
    upload,
};

const TOLERANCE: f32 = 1e-5;

const ACTIVATIONS: [Activation; 5] = [
    Activation::None,
    Activation::Relu,
    Activation::Relu6,
    Activation::HardSigmoid,
    Activation::HardSwish,
];

/// Input, outputs, window, geometry.
type Conv = ([usize; 4], usize, (usize, usize), Conv2dParams);

fn convs() -> Vec<Conv> {
    let params = Conv2dParams::new;
    vec![
        ([2, 5, 7, 8], 8, (3, 3), params(1, 1).with_groups(8)),
        ([1, 9, 6, 7], 7, (3, 3), params(2, 1).with_groups(7)),
        ([2, 8, 11, 12], 12, (5, 5), params(2, 2).with_groups(12)),
        ([1, 7, 8, 3], 3, (5, 3), params(1, 2).with_groups(3).with_dilation(2)),
        ([2, 6, 5, 16], 8, (3, 3), params(1, 1).with_groups(4)),
        ([1, 7, 9, 6], 9, (3, 3), params(2, 1).with_groups(3)),
        ([2, 4, 5, 8], 12, (1, 1), params(1, 0).with_groups(2)),
        ([1, 8, 9, 8], 4, (3, 3), params(1, 2).with_groups(2).with_dilation(2)),
        ([1, 9, 8, 4], 8, (3, 3), params(1, 6).with_dilation(6)),
        ([2, 9, 7, 3], 5, (3, 3), params(2, 1).with_dilation(2)),
        ([0, 8, 8, 4], 4, (3, 3), params(1, 1).with_groups(4)),
    ]
}

fn check_conv((input, outputs, window, params): Conv, dtype: DType, output: DType, seed: u64) {
    let mut random = Random::new(seed);
    let (input_cpu, input_gpu) = rounded(&random.tensor(&input), dtype);
    let weight = random.tensor(&[outputs, input[3] / params.groups, window.0, window.1]);
    let (weight_cpu, weight_gpu) = rounded(&weight, dtype);
    let bias = random.tensor(&[outputs]);
    let on_cpu = PreparedConv2d::new(&weight_cpu, &bias, params).unwrap();
    let on_gpu = PreparedConv2d::new(&weight_gpu, &upload(&bias), params).unwrap();
    let on_gpu = on_gpu.with_output(output);
    for activation in ACTIVATIONS {
        let expected = conv2d(&input_cpu, &on_cpu, None, activation).unwrap();
        let found = quiet(0, || conv2d(&input_gpu, &on_gpu, None, activation).unwrap());
        assert_eq!(found.dtype(), output);
        assert_agrees(&found, &expected, tolerance(dtype));
        let (residual_cpu, residual_gpu) = rounded(&random.tensor(expected.dims()), dtype);
        let expected = conv2d(&input_cpu, &on_cpu, Some(&residual_cpu), activation).unwrap();
        let found =
            conv2d(&misaligned(&input_gpu), &on_gpu, Some(&misaligned(&residual_gpu)), activation);
        assert_agrees(&found.unwrap(), &expected, tolerance(dtype));
    }
}

#[test]
fn convolutions_in_parts_agree() {
    let _alone = alone();
    for (seed, case) in convs().into_iter().enumerate() {
        for dtype in DTYPES {
            check_conv(case, dtype, dtype, seed as u64);
        }
        check_conv(case, DType::BF16, DType::F32, seed as u64);
    }
}

/// More windows than are laid out at a time.
#[test]
fn groups_in_several_parts_agree() {
    let _alone = alone();
    let case = ([2, 180, 170, 64], 4, (3, 3), Conv2dParams::new(1, 1).with_groups(2));
    check_conv(case, DType::F32, DType::F32, 9);
}

#[test]
fn gradients_of_convolutions_in_parts_agree() {
    let _alone = alone();
    let mut random = Random::new(1);
    for (input, outputs, (height, width), params) in convs() {
        if input[0] == 0 {
            continue;
        }
        let x = random.tensor(&input);
        let weight = random.tensor(&[outputs, input[3] / params.groups, height, width]);
        let (bias, scale) = (random.tensor(&[outputs]), random.tensor(&[outputs]));
        for activation in [Activation::None, Activation::HardSwish] {
            compare_within(TOLERANCE, &[x.clone(), weight.clone(), bias.clone()], |v, device| {
                let scale = scale.to_device(device).unwrap();
                let weights = TrainableConv2d::new(&v[1], Some(&scale), &v[2], params).unwrap();
                conv2d_trainable(&v[0], &weights, None, activation).unwrap()
            });
        }
        compare_within(TOLERANCE, std::slice::from_ref(&x), |v, device| {
            let (weight, bias) = (weight.to_device(device).unwrap(), bias.to_device(device));
            let prepared = PreparedConv2d::new(&weight, &bias.unwrap(), params).unwrap();
            conv2d(&v[0], &prepared, None, Activation::Relu6).unwrap()
        });
    }
}

/// With parts of the windows at hand, pixels of the input collect from several of them.
#[test]
fn gradients_of_groups_in_several_parts_agree() {
    let _alone = alone();
    let mut random = Random::new(3);
    let params = Conv2dParams::new(1, 1).with_groups(2);
    let x = random.tensor(&[2, 180, 170, 64]);
    let (weight, bias) = (random.tensor(&[4, 32, 3, 3]), random.tensor(&[4]));
    compare_within(TOLERANCE, &[x, weight, bias], |v, _| {
        let weights = TrainableConv2d::new(&v[1], None, &v[2], params).unwrap();
        conv2d_trainable(&v[0], &weights, None, Activation::None).unwrap()
    });
}

#[test]
fn activations_agree_everywhere() {
    let _alone = alone();
    let mut random = Random::new(5);
    let x = random.tensor(&[2, 5, 3, 8]);
    let rows = random.tensor(&[7, 8]);
    let matrix = random.tensor(&[12, 8]).affine(4.0, 0.0).unwrap();
    let quads = random.tensor(&[8, 12, 2, 2]).affine(4.0, 0.0).unwrap();
    let bias = random.tensor(&[12]);
    let channels = [random.tensor(&[8]).affine(4.0, 0.0).unwrap(), random.tensor(&[8])];
    for activation in ACTIVATIONS {
        compare_within(TOLERANCE, &[rows.clone(), matrix.clone(), bias.clone()], |v, _| {
            let weights = TrainableLinear::new(&v[1], &v[2]).unwrap();
            linear_trainable(&v[0], &weights, activation).unwrap()
        });
        compare_within(TOLERANCE, &[x.clone(), quads.clone(), bias.clone()], |v, _| {
            let weights = TrainableConvTranspose2d::new(&v[1], &v[2]).unwrap();
            conv_transpose2d_trainable(&v[0], &weights, activation).unwrap()
        });
        let [weight, shift] = channels.clone();
        compare_within(TOLERANCE, &[x.clone(), weight, shift], |v, _| {
            batch_norm(&v[0], FilledRows::All, &v[1], &v[2], None, activation, 1e-3).unwrap().output
        });
        // Without gradients, everything is applied in one kernel.
        let on = |device: &Device| {
            let [rows, matrix, x, quads, bias] =
                [&rows, &matrix, &x, &quads, &bias].map(|t| t.to_device(device).unwrap());
            let layer = PreparedLinear::new(&matrix, &bias).unwrap();
            let enlarge = PreparedConvTranspose2d::new(&quads, &bias).unwrap();
            let a = linear(&rows, &layer, activation).unwrap();
            let b = conv_transpose2d(&x, &enlarge, activation).unwrap();
            [a, b]
        };
        for (found, expected) in on(&cuda()).iter().zip(on(&Device::Cpu)) {
            assert_agrees(found, &expected, TOLERANCE);
        }
    }
}

#[test]
fn squeeze_and_excitation_agrees() {
    let _alone = alone();
    let mut random = Random::new(7);
    for dims in [[2, 5, 7, 8], [1, 1, 1, 3], [3, 20, 17, 12], [0, 4, 4, 4]] {
        let (features, scale) = (random.tensor(&dims), random.tensor(&[dims[0], 1, 1, dims[3]]));
        for dtype in DTYPES {
            let (features_cpu, features_gpu) = rounded(&features, dtype);
            let (scale_cpu, scale_gpu) = rounded(&scale, dtype);
            let expected = global_avg_pool(&features_cpu).unwrap();
            let found = quiet(0, || global_avg_pool(&features_gpu).unwrap());
            assert_agrees(&found, &expected, tolerance(dtype));
            let expected = scale_channels(&features_cpu, &scale_cpu).unwrap();
            let found = quiet(0, || scale_channels(&features_gpu, &scale_gpu).unwrap());
            assert_agrees(&found, &expected, tolerance(dtype));
            let found = scale_channels(&misaligned(&features_gpu), &scale_gpu).unwrap();
            assert_agrees(&found, &expected, tolerance(dtype));
        }
        if dims[0] > 0 {
            compare_within(TOLERANCE, std::slice::from_ref(&features), |v, _| {
                global_avg_pool(&v[0]).unwrap()
            });
            compare_within(TOLERANCE, &[features, scale], |v, _| {
                scale_channels(&v[0], &v[1]).unwrap()
            });
        }
    }
}

#[test]
fn gradients_copy_and_wait_for_nothing() {
    let _alone = alone();
    let mut random = Random::new(11);
    for (input, outputs, (height, width), params) in convs() {
        if input[0] == 0 {
            continue;
        }
        let weight = random.tensor(&[outputs, input[3] / params.groups, height, width]);
        let inputs = [random.tensor(&input), weight, random.tensor(&[outputs])];
        let scale = upload(&random.tensor(&[outputs]));
        assert_quiet(&inputs, |v| {
            let weights = TrainableConv2d::new(&v[1], Some(&scale), &v[2], params).unwrap();
            conv2d_trainable(&v[0], &weights, None, Activation::HardSwish).unwrap()
        });
    }
    let inputs = [random.tensor(&[2, 5, 7, 8]), random.tensor(&[2, 1, 1, 8])];
    assert_quiet(&inputs, |v| scale_channels(&v[0], &v[1]).unwrap());
    assert_quiet(&inputs[..1], |v| global_avg_pool(&v[0]).unwrap());
}

#[test]
fn nan_stays_nan_behind_every_activation() {
    let _alone = alone();
    let weight = Tensor::ones((4, 1, 1, 1), DType::F32, &cuda()).unwrap();
    let bias = Tensor::zeros(4, DType::F32, &cuda()).unwrap();
    let params = Conv2dParams::new(1, 0).with_groups(4);
    let weights = PreparedConv2d::new(&weight, &bias, params).unwrap();
    let input = Tensor::full(f32::NAN, (1, 2, 3, 4), &Device::Cpu).unwrap();
    for activation in ACTIVATIONS {
        let found = conv2d(&upload(&input), &weights, None, activation).unwrap();
        assert_close(&found, &input, 0.0);
    }
}
