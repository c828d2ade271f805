//! Ops on pixels, features and weights: every one on the CPU against CUDA, in all compute dtypes.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    Activation, Conv2dParams, MaxPool2dParams, PixelSource, PreparedConv2d,
    PreparedConvTranspose2d, PreparedLinear, ResizeNormalizeParams, Rounding, conv_transpose2d,
    conv2d, linear, max_pool2d, resize_normalize, upsample_add, upsample_bilinear,
};

use super::counters::alone;
use super::gradients::ROUNDED_UP;
use super::support::{
    DTYPES, Random, assert_agrees, assert_equal, cuda, misaligned, quiet, rounded, tolerance,
    upload, values,
};

fn bytes(random: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| random.below(256) as u8).collect()
}

#[test]
fn images_become_a_batch_with_one_upload() {
    let _alone = alone();
    let mut random = Random::new(1);
    let sizes = [(7, 11), (1, 1), (20, 9), (6, 5)];
    let images: Vec<Vec<u8>> = sizes.iter().map(|(h, w)| bytes(&mut random, h * w * 3)).collect();
    let planes = random.tensor(&[3, 5, 8]);
    let planes_on_gpu = upload(&planes);
    let sources = |planes| {
        let rgb = images.iter().zip(sizes);
        let mut sources: Vec<PixelSource> = rgb
            .map(|(bytes, (height, width))| PixelSource::Rgb8 { bytes, height, width })
            .collect();
        sources.insert(2, PixelSource::Planar(planes));
        sources
    };
    for dtype in DTYPES {
        let params = ResizeNormalizeParams {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            resized: vec![(13, 20), (3, 2), (10, 16), (11, 4), (6, 5)],
            padded: (14, 24),
            dtype,
        };
        let found =
            quiet(1, || resize_normalize(&sources(&planes_on_gpu), &params, &cuda()).unwrap());
        let expected = resize_normalize(&sources(&planes), &params, &Device::Cpu).unwrap();
        assert_equal(&found, &expected);
        let only_planes = [PixelSource::Planar(&planes_on_gpu)];
        let params = ResizeNormalizeParams { resized: vec![(5, 8)], ..params };
        let found = quiet(0, || resize_normalize(&only_planes, &params, &cuda()).unwrap());
        let expected = resize_normalize(&[PixelSource::Planar(&planes)], &params, &Device::Cpu);
        assert_equal(&found, &expected.unwrap());
        let params = ResizeNormalizeParams { resized: vec![], ..params };
        assert_eq!(resize_normalize(&[], &params, &cuda()).unwrap().dims(), [0, 14, 24, 3]);
    }
}

/// Bytes go up through memory that is used again; no upload may overwrite another's.
#[test]
fn batches_of_growing_and_shrinking_images_keep_apart() {
    let _alone = alone();
    let mut random = Random::new(2);
    let params = |size| ResizeNormalizeParams {
        mean: [0.0; 3],
        std: [1.0; 3],
        resized: vec![(size, size)],
        padded: (size, size),
        dtype: DType::F32,
    };
    let images: Vec<(usize, Vec<u8>)> = [3, 40, 5, 100, 60, 2]
        .into_iter()
        .map(|size| (size, bytes(&mut random, size * size * 3)))
        .collect();
    let run = |device: &Device| -> Vec<Tensor> {
        let batch = |(size, bytes): &(usize, Vec<u8>)| {
            let image = PixelSource::Rgb8 { bytes, height: *size, width: *size };
            resize_normalize(&[image], &params(*size), device).unwrap()
        };
        images.iter().map(batch).collect()
    };
    for (found, expected) in run(&cuda()).iter().zip(run(&Device::Cpu)) {
        assert_equal(found, &expected);
    }
}

#[derive(Debug, Clone, Copy)]
struct Conv {
    input: [usize; 4],
    outputs: usize,
    window: (usize, usize),
    stride: usize,
    padding: usize,
}

const fn conv(
    input: [usize; 4],
    outputs: usize,
    window: (usize, usize),
    stride: usize,
    padding: usize,
) -> Conv {
    Conv { input, outputs, window, stride, padding }
}

const CONVS: [Conv; 8] = [
    conv([2, 5, 7, 16], 8, (1, 1), 1, 0),
    conv([1, 9, 6, 12], 5, (1, 1), 2, 0),
    conv([2, 9, 11, 8], 12, (3, 3), 1, 1),
    conv([1, 13, 9, 6], 7, (3, 3), 2, 1),
    conv([2, 17, 15, 3], 16, (7, 7), 2, 3),
    conv([1, 4, 5, 1], 1, (2, 3), 1, 0),
    conv([1, 1, 1, 20], 4, (3, 3), 1, 1),
    conv([0, 8, 8, 4], 4, (3, 3), 1, 1),
];

fn check_conv(case: Conv, dtype: DType, output: DType, activation: Activation, seed: u64) {
    let Conv { input, outputs, window, stride, padding } = case;
    let mut random = Random::new(seed);
    let (input_cpu, input_gpu) = rounded(&random.tensor(&input), dtype);
    let weight = random.tensor(&[outputs, input[3], window.0, window.1]);
    let (weight_cpu, weight_gpu) = rounded(&weight, dtype);
    let bias = random.tensor(&[outputs]);
    let params = Conv2dParams::new(stride, padding);
    let on_cpu = PreparedConv2d::new(&weight_cpu, &bias, params).unwrap();
    let on_gpu = PreparedConv2d::new(&weight_gpu, &upload(&bias), params).unwrap();
    let on_gpu = on_gpu.with_output(output);
    let expected = conv2d(&input_cpu, &on_cpu, None, activation).unwrap();
    let found = quiet(0, || conv2d(&input_gpu, &on_gpu, None, activation).unwrap());
    assert_eq!(found.dtype(), output);
    assert_agrees(&found, &expected, tolerance(dtype));
    let (residual_cpu, residual_gpu) = rounded(&random.tensor(expected.dims()), dtype);
    let expected = conv2d(&input_cpu, &on_cpu, Some(&residual_cpu), activation).unwrap();
    let found = quiet(0, || conv2d(&input_gpu, &on_gpu, Some(&residual_gpu), activation).unwrap());
    assert_agrees(&found, &expected, tolerance(dtype));
    let found =
        conv2d(&misaligned(&input_gpu), &on_gpu, Some(&misaligned(&residual_gpu)), activation);
    assert_agrees(&found.unwrap(), &expected, tolerance(dtype));
}

#[test]
fn convolutions_agree() {
    let _alone = alone();
    for (seed, case) in CONVS.into_iter().enumerate() {
        for dtype in DTYPES {
            check_conv(case, dtype, dtype, Activation::Relu, seed as u64);
            check_conv(case, dtype, dtype, Activation::None, seed as u64);
            check_conv(case, dtype, DType::F32, Activation::None, seed as u64);
        }
    }
}

/// More windows than are laid out at a time, so that the last part is a remainder.
#[test]
fn a_convolution_in_several_parts_agrees() {
    let _alone = alone();
    check_conv(
        conv([2, 180, 170, 32], 4, (3, 3), 1, 1),
        DType::F32,
        DType::F32,
        Activation::Relu,
        9,
    );
}

#[test]
fn nan_passes_through_bias_and_activation() {
    let _alone = alone();
    let weight = Tensor::ones((4, 4, 1, 1), DType::F32, &cuda()).unwrap();
    let bias = Tensor::zeros(4, DType::F32, &cuda()).unwrap();
    let params = Conv2dParams::new(1, 0);
    let weights = PreparedConv2d::new(&weight, &bias, params).unwrap();
    let input = Tensor::new(&[[1f32, f32::NAN, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]], &Device::Cpu);
    let input = upload(&input.unwrap().reshape((1, 1, 2, 4)).unwrap());
    let found = values(&conv2d(&input, &weights, None, Activation::None).unwrap());
    assert!(found[..4].iter().all(|v| v.is_nan()) && found[4..] == [-1.0; 4], "{found:?}");
    let found = values(&conv2d(&input, &weights, None, Activation::Relu).unwrap());
    // cuDNN's fused ReLU makes 0 of NaN.
    let passes = |v: &f32| v.is_nan() || (cfg!(feature = "cudnn") && *v == 0.0);
    assert!(found[..4].iter().all(passes) && found[4..] == [0.0; 4], "{found:?}");
}

/// Weights that change after a layer was prepared must not show in it.
#[test]
fn prepared_weights_are_copies() {
    let _alone = alone();
    let tensor = candle_core::Var::from_tensor(&Tensor::ones((2, 3), DType::F32, &cuda()).unwrap());
    let weight = tensor.unwrap();
    let bias = Tensor::zeros(2, DType::F32, &cuda()).unwrap();
    let weights = PreparedLinear::new(&weight, &bias).unwrap();
    weight.set(&weight.zeros_like().unwrap()).unwrap();
    let input = Tensor::ones((1, 3), DType::F32, &cuda()).unwrap();
    assert_eq!(values(&linear(&input, &weights, Activation::None).unwrap()), [3.0, 3.0]);
}

#[test]
fn transposed_convolutions_agree() {
    let _alone = alone();
    let mut random = Random::new(11);
    // The last makes more products than wait for their place at a time.
    let cases = [
        ([2, 3, 5, 8], 12, 2),
        ([3, 14, 14, 5], 3, 2),
        ([1, 1, 1, 1], 1, 2),
        ([0, 2, 2, 4], 4, 2),
        ([1, 190, 180, 2], 64, 2),
        ([2, 3, 5, 8], 12, 4),
        ([3, 7, 6, 5], 17, 4),
        ([1, 1, 1, 1], 1, 4),
        ([0, 2, 2, 4], 4, 4),
        ([3, 101, 90, 2], 32, 4),
    ];
    for (dims, outputs, side) in cases {
        for dtype in if dims[1] > 100 { &DTYPES[..1] } else { &DTYPES } {
            let (input_cpu, input_gpu) = rounded(&random.tensor(&dims), *dtype);
            let (weight_cpu, weight_gpu) =
                rounded(&random.tensor(&[dims[3], outputs, side, side]), *dtype);
            let bias = random.tensor(&[outputs]);
            let on_cpu = PreparedConvTranspose2d::new(&weight_cpu, &bias).unwrap();
            let on_gpu = PreparedConvTranspose2d::new(&weight_gpu, &upload(&bias)).unwrap();
            for activation in [Activation::Relu, Activation::None] {
                let expected = conv_transpose2d(&input_cpu, &on_cpu, activation).unwrap();
                let found = quiet(0, || conv_transpose2d(&input_gpu, &on_gpu, activation).unwrap());
                assert_eq!(found.dtype(), *dtype);
                assert_agrees(&found, &expected, tolerance(*dtype));
            }
            let on_gpu = on_gpu.with_output(DType::F32);
            let found =
                conv_transpose2d(&misaligned(&input_gpu), &on_gpu, Activation::None).unwrap();
            let expected = conv_transpose2d(&input_cpu, &on_cpu, Activation::None).unwrap();
            assert_eq!(found.dtype(), DType::F32);
            assert_agrees(&found, &expected, 1e-5);
        }
    }
}

#[test]
fn linear_layers_agree() {
    let _alone = alone();
    let mut random = Random::new(13);
    for (rows, inputs, outputs) in [(7, 64, 20), (1, 1, 1), (33, 50, 9), (0, 8, 4)] {
        for dtype in DTYPES {
            let (input_cpu, input_gpu) = rounded(&random.tensor(&[rows, inputs]), dtype);
            let (weight_cpu, weight_gpu) = rounded(&random.tensor(&[outputs, inputs]), dtype);
            let bias = random.tensor(&[outputs]);
            let on_cpu = PreparedLinear::new(&weight_cpu, &bias).unwrap();
            let on_gpu = PreparedLinear::new(&weight_gpu, &upload(&bias)).unwrap();
            for activation in [Activation::Relu, Activation::None] {
                let expected = linear(&input_cpu, &on_cpu, activation).unwrap();
                let found = quiet(0, || linear(&input_gpu, &on_gpu, activation).unwrap());
                assert_eq!(found.dtype(), dtype);
                assert_agrees(&found, &expected, tolerance(dtype));
            }
            let found =
                linear(&input_gpu, &on_gpu.with_output(DType::F32), Activation::None).unwrap();
            let expected = linear(&input_cpu, &on_cpu, Activation::None).unwrap();
            assert_eq!(found.dtype(), DType::F32);
            assert_agrees(&found, &expected, 1e-5);
        }
    }
}

/// Values of any sign, with the ones that a maximum stumbles over.
fn with_specials(random: &mut Random, dims: &[usize]) -> Tensor {
    let mut raw = values(&random.tensor(dims));
    for special in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0] {
        if !raw.is_empty() {
            let place = random.below(raw.len());
            raw[place] = special;
        }
    }
    Tensor::from_vec(raw, dims, &Device::Cpu).unwrap()
}

#[test]
fn pools_are_the_same() {
    let _alone = alone();
    let mut random = Random::new(17);
    for dims in [[2, 9, 12, 8], [1, 23, 16, 5], [1, 1, 1, 4], [0, 4, 5, 3], [1, 3, 2, 300]] {
        let down = [(3, 2, 1), (1, 2, 0), (2, 1, 1), (3, 1, 1)].map(|case| (case, Rounding::Down));
        for ((kernel, stride, padding), rounding) in down.into_iter().chain(ROUNDED_UP) {
            let params = MaxPool2dParams { kernel, stride, padding, rounding };
            for dtype in DTYPES {
                let (on_cpu, on_gpu) = rounded(&with_specials(&mut random, &dims), dtype);
                let expected = max_pool2d(&on_cpu, &params).unwrap().to_dtype(dtype).unwrap();
                assert_equal(&quiet(0, || max_pool2d(&on_gpu, &params).unwrap()), &expected);
                assert_equal(&max_pool2d(&misaligned(&on_gpu), &params).unwrap(), &expected);
            }
        }
    }
}

#[test]
fn enlarged_sums_are_the_same() {
    let _alone = alone();
    let mut random = Random::new(19);
    for (coarse, fine) in [
        ((3, 4), (6, 8)),
        ((4, 5), (7, 9)),
        ((1, 1), (3, 5)),
        ((7, 3), (13, 5)),
        ((25, 42), (50, 83)),
    ] {
        for (batch, channels) in [(2, 4), (1, 3), (0, 4)] {
            for dtype in DTYPES {
                let small = with_specials(&mut random, &[batch, coarse.0, coarse.1, channels]);
                let large = with_specials(&mut random, &[batch, fine.0, fine.1, channels]);
                let (small_cpu, small_gpu) = rounded(&small, dtype);
                let (large_cpu, large_gpu) = rounded(&large, dtype);
                let expected =
                    upsample_add(&small_cpu, &large_cpu).unwrap().to_dtype(dtype).unwrap();
                assert_equal(
                    &quiet(0, || upsample_add(&small_gpu, &large_gpu).unwrap()),
                    &expected,
                );
                let found = upsample_add(&misaligned(&small_gpu), &large_gpu).unwrap();
                assert_equal(&found, &expected);
            }
        }
    }
}

#[test]
fn maps_twice_as_large_agree() {
    let _alone = alone();
    let mut random = Random::new(23);
    for dims in [[2, 3, 5, 8], [1, 1, 1, 3], [3, 6, 1, 17], [0, 2, 3, 4]] {
        let input = random.tensor(&dims);
        let expected = upsample_bilinear(&input).unwrap();
        let on_gpu = upload(&input);
        assert_equal(&quiet(0, || upsample_bilinear(&on_gpu).unwrap()), &expected);
        assert_equal(&upsample_bilinear(&misaligned(&on_gpu)).unwrap(), &expected);
    }
}

#[test]
fn other_dtypes_are_refused_by_name() {
    let _alone = alone();
    let doubles = Tensor::zeros((1, 4, 4, 4), DType::F64, &cuda()).unwrap();
    let params = MaxPool2dParams { kernel: 1, stride: 1, padding: 0, rounding: Rounding::Down };
    let message = max_pool2d(&doubles, &params).unwrap_err().to_string();
    assert!(message.contains("max_pool2d") && message.contains("F64"), "{message}");
    let halves = Tensor::zeros((1, 4, 4, 4), DType::F16, &cuda()).unwrap();
    let floats = Tensor::zeros((1, 4, 4, 4), DType::F32, &cuda()).unwrap();
    let message = upsample_add(&halves, &floats).unwrap_err().to_string();
    assert!(message.contains("coarse") && message.contains("F16"), "{message}");
}
