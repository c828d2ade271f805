//! Gradients of every op that training uses: on CUDA against the CPU's, by the same graph.

use candle_core::{DType, Device, Tensor, Var};
use candle_detection::ops::{
    Activation, Conv2dParams, FilledRows, MaxPool2dParams, PreparedConv2d, PreparedConvTranspose2d,
    PreparedLinear, RoiAlignParams, Rounding, TrainableConv2d, TrainableConvTranspose2d,
    TrainableLinear, batch_norm, class_mask_logits, conv_transpose2d, conv_transpose2d_trainable,
    conv2d, conv2d_trainable, gather_rows, linear, linear_trainable, max_pool2d, roi_align,
    upsample_add, upsample_bilinear,
};

use super::counters::{Counts, alone, count};
use super::support::{Random, assert_close, cuda, upload, values};

/// Of a gradient, relative to its largest entry: sums have another order.
const TOLERANCE: f32 = 1e-5;

pub const ACTIVATIONS: [Activation; 2] = [Activation::None, Activation::Relu];

/// Output, and gradients of a weighted sum of the output by each input, on the CPU; none for an input that nothing depends on.
fn differentiate(
    inputs: &[Tensor],
    device: &Device,
    op: &dyn Fn(&[Tensor], &Device) -> Tensor,
) -> (Tensor, Vec<Option<Tensor>>) {
    let variables: Vec<Var> = inputs
        .iter()
        .map(|input| Var::from_tensor(&input.to_device(device).unwrap()).unwrap())
        .collect();
    let tensors: Vec<Tensor> = variables.iter().map(|var| var.as_tensor().clone()).collect();
    let output = op(&tensors, device);
    let weights = Random::new(99).tensor(output.dims()).to_device(device).unwrap();
    let gradients = (&output * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let host = |tensor: &Tensor| tensor.to_device(&Device::Cpu).unwrap();
    let of_inputs = tensors.iter().map(|tensor| gradients.get(tensor).map(host)).collect();
    (host(&output), of_inputs)
}

#[track_caller]
pub fn assert_near(found: &Tensor, expected: &Tensor, tolerance: f32) {
    let largest =
        values(expected).iter().filter(|v| v.is_finite()).fold(1e-6f32, |m, v| m.max(v.abs()));
    assert_close(found, expected, tolerance * largest);
}

/// Compares output and all gradients, of which there must be one for each input, and not all zero.
#[track_caller]
fn compare(inputs: &[Tensor], op: impl Fn(&[Tensor], &Device) -> Tensor) {
    compare_within(TOLERANCE, inputs, op);
}

#[track_caller]
pub fn compare_within(
    tolerance: f32,
    inputs: &[Tensor],
    op: impl Fn(&[Tensor], &Device) -> Tensor,
) {
    let (expected, expected_gradients) = differentiate(inputs, &Device::Cpu, &op);
    let (found, gradients) = differentiate(inputs, &cuda(), &op);
    assert_near(&found, &expected, tolerance);
    for (i, (found, expected)) in gradients.iter().zip(&expected_gradients).enumerate() {
        let found = found.as_ref().unwrap_or_else(|| panic!("input {i} has no gradient"));
        assert_near(found, expected.as_ref().unwrap(), tolerance);
    }
}

/// Runs an op and its gradients twice, and panics unless the second time makes no copy and no wait.
#[track_caller]
pub fn assert_quiet(inputs: &[Tensor], op: impl Fn(&[Tensor]) -> Tensor) {
    let variables: Vec<Var> =
        inputs.iter().map(|input| Var::from_tensor(&upload(input)).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|var| var.as_tensor().clone()).collect();
    // The gradient of the output is ones.
    let run = || drop(op(&tensors).backward().unwrap());
    run();
    let (_, counts) = count(run);
    let Some(counts) = counts else { return };
    assert_eq!(counts, Counts { launches: counts.launches, ..Counts::default() });
}

struct Conv {
    input: [usize; 4],
    outputs: usize,
    window: (usize, usize),
    params: Conv2dParams,
}

fn convs() -> Vec<Conv> {
    let conv = |input, outputs, window, stride, padding| Conv {
        input,
        outputs,
        window,
        params: Conv2dParams::new(stride, padding),
    };
    vec![
        conv([2, 5, 7, 8], 12, (3, 3), 1, 1),
        conv([2, 6, 9, 3], 5, (3, 3), 2, 1),
        conv([1, 11, 14, 3], 8, (7, 7), 2, 3),
        conv([2, 4, 3, 8], 6, (1, 1), 1, 0),
        // Pixels that no window reads.
        conv([2, 6, 5, 4], 8, (1, 1), 2, 0),
        conv([1, 8, 9, 4], 4, (3, 2), 3, 0),
        // The window covers the input, as of a linear layer.
        conv([3, 4, 5, 2], 7, (4, 5), 1, 0),
        conv([1, 2, 2, 4], 3, (3, 3), 1, 2),
    ]
}

#[test]
fn gradients_of_convolutions_agree() {
    let _alone = alone();
    let mut random = Random::new(1);
    for Conv { input, outputs, window: (height, width), params } in convs() {
        let x = random.tensor(&input);
        let weight = random.tensor(&[outputs, input[3], height, width]);
        let (bias, scale) = (random.tensor(&[outputs]), random.tensor(&[outputs]));
        for activation in ACTIVATIONS {
            compare(&[x.clone(), weight.clone(), bias.clone()], |v, _| {
                let weights = TrainableConv2d::new(&v[1], None, &v[2], params).unwrap();
                conv2d_trainable(&v[0], &weights, None, activation).unwrap()
            });
            compare(std::slice::from_ref(&x), |v, device| {
                let (weight, bias) = (weight.to_device(device).unwrap(), bias.to_device(device));
                let prepared = PreparedConv2d::new(&weight, &bias.unwrap(), params).unwrap();
                conv2d(&v[0], &prepared, None, activation).unwrap()
            });
        }
        let plain = TrainableConv2d::new(&weight, None, &bias, params).unwrap();
        let out = conv2d_trainable(&x, &plain, None, Activation::None).unwrap();
        let residual = random.tensor(out.dims());
        compare(&[x, weight, bias, residual], |v, device| {
            let scale = scale.to_device(device).unwrap();
            let weights = TrainableConv2d::new(&v[1], Some(&scale), &v[2], params).unwrap();
            conv2d_trainable(&v[0], &weights, Some(&v[3]), Activation::Relu).unwrap()
        });
    }
}

/// More windows than are laid out at a time: their parts overlap in the input.
#[test]
fn gradients_of_a_convolution_in_parts_agree() {
    let _alone = alone();
    let mut random = Random::new(2);
    // A window of 36 KiB: 1820 fit into 64 MiB, 2450 are needed.
    let (x, weight) = (random.tensor(&[2, 35, 35, 1024]), random.tensor(&[2, 1024, 3, 3]));
    let bias = random.tensor(&[2]);
    let params = Conv2dParams::new(1, 1);
    compare_within(3e-5, &[x, weight, bias], |v, _| {
        let weights = TrainableConv2d::new(&v[1], None, &v[2], params).unwrap();
        conv2d_trainable(&v[0], &weights, None, Activation::None).unwrap()
    });
}

#[test]
fn gradients_of_transposed_convolutions_agree() {
    let _alone = alone();
    let mut random = Random::new(3);
    let sizes = [([2, 3, 5, 4], 6), ([1, 1, 1, 3], 5), ([3, 4, 2, 8], 8)];
    for (i, (input, outputs)) in sizes.iter().chain(&sizes).enumerate() {
        let x = random.tensor(input);
        let side = if i < sizes.len() { 2 } else { 4 };
        let weight = random.tensor(&[input[3], *outputs, side, side]);
        let bias = random.tensor(&[*outputs]);
        for activation in ACTIVATIONS {
            compare(&[x.clone(), weight.clone(), bias.clone()], |v, _| {
                let weights = TrainableConvTranspose2d::new(&v[1], &v[2]).unwrap();
                conv_transpose2d_trainable(&v[0], &weights, activation).unwrap()
            });
            compare(std::slice::from_ref(&x), |v, device| {
                let (weight, bias) = (weight.to_device(device).unwrap(), bias.to_device(device));
                let prepared = PreparedConvTranspose2d::new(&weight, &bias.unwrap()).unwrap();
                conv_transpose2d(&v[0], &prepared, activation).unwrap()
            });
        }
    }
}

#[test]
fn gradients_of_maps_twice_as_large_agree() {
    let _alone = alone();
    let mut random = Random::new(5);
    for dims in [[2, 3, 5, 4], [1, 1, 1, 3], [1, 4, 1, 17], [0, 2, 3, 4]] {
        compare(&[random.tensor(&dims)], |v, _| upsample_bilinear(&v[0]).unwrap());
    }
}

#[test]
fn gradients_of_linear_layers_agree() {
    let _alone = alone();
    let mut random = Random::new(4);
    for (rows, inputs, outputs) in [(5, 8, 12), (1, 3, 1), (67, 33, 5)] {
        let x = random.tensor(&[rows, inputs]);
        let (weight, bias) = (random.tensor(&[outputs, inputs]), random.tensor(&[outputs]));
        for activation in ACTIVATIONS {
            compare(&[x.clone(), weight.clone(), bias.clone()], |v, _| {
                let weights = TrainableLinear::new(&v[1], &v[2]).unwrap();
                linear_trainable(&v[0], &weights, activation).unwrap()
            });
            compare(std::slice::from_ref(&x), |v, device| {
                let (weight, bias) = (weight.to_device(device).unwrap(), bias.to_device(device));
                let prepared = PreparedLinear::new(&weight, &bias.unwrap()).unwrap();
                linear(&v[0], &prepared, activation).unwrap()
            });
        }
    }
}

/// A layer without any row: the gradients of its weights are zeros, not what the memory held.
#[test]
fn gradients_of_nothing_are_zeros() {
    let _alone = alone();
    let mut random = Random::new(5);
    let x = Tensor::zeros((0, 3), DType::F32, &Device::Cpu).unwrap();
    compare(&[x, random.tensor(&[4, 3]), random.tensor(&[4])], |v, _| {
        let weights = TrainableLinear::new(&v[1], &v[2]).unwrap();
        linear_trainable(&v[0], &weights, Activation::Relu).unwrap()
    });
    let x = Tensor::zeros((0, 5, 4, 3), DType::F32, &Device::Cpu).unwrap();
    for (kernel, stride) in [(1, 1), (3, 2)] {
        let params = Conv2dParams::new(stride, kernel / 2);
        let weight = random.tensor(&[4, 3, kernel, kernel]);
        compare(&[x.clone(), weight, random.tensor(&[4])], |v, _| {
            let weights = TrainableConv2d::new(&v[1], None, &v[2], params).unwrap();
            conv2d_trainable(&v[0], &weights, None, Activation::Relu).unwrap()
        });
    }
    for side in [2, 4] {
        let (weight, bias) = (random.tensor(&[3, 4, side, side]), random.tensor(&[4]));
        compare(&[x.clone(), weight, bias], |v, _| {
            let weights = TrainableConvTranspose2d::new(&v[1], &v[2]).unwrap();
            conv_transpose2d_trainable(&v[0], &weights, Activation::Relu).unwrap()
        });
    }
}

/// Kernel, stride and padding of pools that round up.
pub const ROUNDED_UP: [((usize, usize, usize), Rounding); 3] =
    [((2, 2, 0), Rounding::Up), ((3, 2, 1), Rounding::Up), ((1, 3, 0), Rounding::Up)];

/// Few different values, so that windows have several largest ones; and NaN.
#[test]
fn gradients_of_max_pools_go_to_the_same_winner() {
    let _alone = alone();
    let mut random = Random::new(7);
    let cases = [(3, 2, 1), (1, 2, 0), (2, 2, 0), (3, 1, 1), (4, 3, 2), (2, 3, 1)];
    let cases = cases.map(|case| (case, Rounding::Down)).into_iter();
    for ((kernel, stride, padding), rounding) in cases.chain(ROUNDED_UP) {
        let params = MaxPool2dParams { kernel, stride, padding, rounding };
        let dims = [2, 9, 7, 5];
        let mut numbers: Vec<f32> =
            (0..dims.iter().product()).map(|_| random.below(3) as f32).collect();
        let ties = Tensor::from_vec(numbers.clone(), &dims, &Device::Cpu).unwrap();
        compare_within(0.0, &[ties], |v, _| max_pool2d(&v[0], &params).unwrap());
        for place in [0, 17, 100, 101, 333] {
            numbers[place] = f32::NAN;
        }
        numbers[200] = f32::NEG_INFINITY;
        let hard = Tensor::from_vec(numbers, &dims, &Device::Cpu).unwrap();
        let gradient = |device: &Device| {
            let var = Var::from_tensor(&hard.to_device(device).unwrap()).unwrap();
            let pooled = max_pool2d(&var, &params).unwrap();
            let gradients = pooled.backward().unwrap();
            gradients.get(&var).unwrap().clone()
        };
        assert_close(&gradient(&cuda()), &gradient(&Device::Cpu), 0.0);
    }
}

#[test]
fn gradients_of_enlargements_agree() {
    let _alone = alone();
    let mut random = Random::new(8);
    let cases = [
        ((3, 4), (6, 8)),
        ((3, 4), (5, 7)),
        ((7, 5), (13, 10)),
        ((5, 6), (3, 2)),
        ((1, 1), (4, 3)),
    ];
    for ((h, w), (height, width)) in cases {
        for channels in [4, 3] {
            let coarse = random.tensor(&[2, h, w, channels]);
            let lateral = random.tensor(&[2, height, width, channels]);
            // The same order of additions.
            compare_within(0.0, &[coarse, lateral], |v, _| upsample_add(&v[0], &v[1]).unwrap());
        }
    }
    let (coarse, lateral) = (random.tensor(&[1, 25, 34, 1]), random.tensor(&[1, 50, 67, 1]));
    compare_within(0.0, &[coarse, lateral], |v, _| upsample_add(&v[0], &v[1]).unwrap());
}

#[test]
fn gradients_of_pooled_boxes_agree() {
    let _alone = alone();
    let mut random = Random::new(9);
    let sizes = [(20, 26), (10, 13), (5, 7)];
    for channels in [4, 3] {
        let levels: Vec<Tensor> =
            sizes.iter().map(|(h, w)| random.tensor(&[2, *h, *w, channels])).collect();
        let usual = random.boxes(10, 104.0, 80.0).flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let hard: Vec<f32> = [
            // No area; one negative side; both; outside; across the border; larger than the image.
            [30.0, 20.0, 30.0, 20.0],
            [50.0, 20.0, 40.0, 60.0],
            [50.0, 40.0, 40.0, 20.0],
            [500.0, 500.0, 600.0, 700.0],
            [-30.0, -20.0, 12.0, 9.0],
            [90.0, 70.0, 140.0, 120.0],
            [-100.0, -100.0, 300.0, 300.0],
            // Not finite; overflowing extent.
            [f32::NAN, 0.0, 10.0, 10.0],
            [0.0, 0.0, f32::INFINITY, 10.0],
            [-3e38, -3e38, 3e38, 3e38],
        ]
        .concat();
        let corners = [usual, hard].concat();
        let boxes = Tensor::from_vec(corners, (2, 10, 4), &Device::Cpu).unwrap();
        for (output, sampling) in [(7, 2), (3, 1), (2, 3)] {
            for counts in [[10u32, 10], [4, 0], [0, 0]] {
                let counts = Tensor::new(&counts, &Device::Cpu).unwrap();
                let mut params = RoiAlignParams::new(output, sampling, vec![0.25, 0.125, 0.0625]);
                params.canonical_size = 40.0;
                compare(&levels, |v, device| {
                    let (boxes, counts) = (boxes.to_device(device), counts.to_device(device));
                    let levels: Vec<&Tensor> = v.iter().collect();
                    roi_align(&levels, &boxes.unwrap(), &counts.unwrap(), &params).unwrap()
                });
            }
        }
    }
}

#[test]
fn gradients_of_pooling_no_slots_are_zeros() {
    let _alone = alone();
    let level = Random::new(10).tensor(&[2, 4, 5, 3]);
    let boxes = Tensor::zeros((2, 0, 4), DType::F32, &Device::Cpu).unwrap();
    let counts = Tensor::zeros(2, DType::U32, &Device::Cpu).unwrap();
    compare(&[level], |v, device| {
        let (boxes, counts) = (boxes.to_device(device), counts.to_device(device));
        let params = RoiAlignParams::new(7, 2, vec![0.25]);
        roi_align(&[&v[0]], &boxes.unwrap(), &counts.unwrap(), &params).unwrap()
    });
}

#[test]
fn mask_logits_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(11);
    for (labels, channels) in [(vec![1u32, 0, 3, 1, 7, 4], 8), (vec![2], 3), (vec![0, 0], 5)] {
        let features = random.tensor(&[labels.len(), 4, 6, channels]);
        let (weight, bias) = (random.tensor(&[5, channels]), random.tensor(&[5]));
        compare(&[features, weight, bias], |v, device| {
            let labels = Tensor::new(labels.as_slice(), device).unwrap();
            class_mask_logits(&v[0], &v[1], &v[2], &labels).unwrap()
        });
    }
}

#[test]
fn rows_of_several_tables_and_their_gradients_agree() {
    let _alone = alone();
    let mut random = Random::new(12);
    let tables =
        [random.tensor(&[2, 3, 4, 8]), random.tensor(&[2, 1, 2, 8]), random.tensor(&[0, 4])];
    for rows in [vec![0u32, 55, 48, 47, 13], vec![5, 5, 5], vec![]] {
        compare(&tables, |v, device| {
            let rows = Tensor::new(rows.as_slice(), device).unwrap();
            gather_rows(&[&v[0], &v[1], &v[2]], 4, &rows).unwrap()
        });
    }
    let rows = Tensor::new(&[56u32], &cuda()).unwrap();
    let on_gpu: Vec<Tensor> = tables.iter().map(upload).collect();
    let beyond = gather_rows(&[&on_gpu[0], &on_gpu[1]], 4, &rows).unwrap();
    assert!(values(&beyond).iter().all(|value| value.is_nan()));
}

/// Neither the forward nor the backward pass of any op copies or waits.
#[test]
fn gradients_make_no_copies() {
    let _alone = alone();
    let mut random = Random::new(13);
    let params = Conv2dParams::new(2, 1);
    let scale = upload(&random.tensor(&[6]));
    let inputs = [random.tensor(&[2, 6, 5, 4]), random.tensor(&[6, 4, 3, 3]), random.tensor(&[6])];
    assert_quiet(&inputs, |v| {
        let weights = TrainableConv2d::new(&v[1], Some(&scale), &v[2], params).unwrap();
        conv2d_trainable(&v[0], &weights, None, Activation::Relu).unwrap()
    });
    let inputs = [random.tensor(&[2, 3, 5, 4]), random.tensor(&[4, 6, 2, 2]), random.tensor(&[6])];
    assert_quiet(&inputs, |v| {
        let weights = TrainableConvTranspose2d::new(&v[1], &v[2]).unwrap();
        conv_transpose2d_trainable(&v[0], &weights, Activation::Relu).unwrap()
    });
    let inputs = [random.tensor(&[5, 4]), random.tensor(&[6, 4]), random.tensor(&[6])];
    assert_quiet(&inputs, |v| {
        let weights = TrainableLinear::new(&v[1], &v[2]).unwrap();
        linear_trainable(&v[0], &weights, Activation::Relu).unwrap()
    });
    let inputs = [random.tensor(&[2, 4, 5, 6]), random.tensor(&[6]), random.tensor(&[6])];
    assert_quiet(&inputs, |v| {
        batch_norm(&v[0], FilledRows::All, &v[1], &v[2], None, Activation::Relu, 1e-5)
            .unwrap()
            .output
    });
    assert_quiet(&[random.tensor(&[2, 7, 5, 4])], |v| {
        max_pool2d(
            &v[0],
            &MaxPool2dParams { kernel: 3, stride: 2, padding: 1, rounding: Rounding::Up },
        )
        .unwrap()
    });
    let inputs = [random.tensor(&[1, 3, 4, 4]), random.tensor(&[1, 6, 7, 4])];
    assert_quiet(&inputs, |v| upsample_add(&v[0], &v[1]).unwrap());
    let boxes = upload(&random.boxes(6, 40.0, 30.0).reshape((2, 3, 4)).unwrap());
    let counts = upload(&Tensor::new(&[3u32, 2], &Device::Cpu).unwrap());
    let roi = RoiAlignParams::new(7, 2, vec![0.25, 0.125]);
    assert_quiet(&[random.tensor(&[2, 8, 10, 4]), random.tensor(&[2, 4, 5, 4])], |v| {
        roi_align(&[&v[0], &v[1]], &boxes, &counts, &roi).unwrap()
    });
    let labels = upload(&Tensor::new(&[2u32, 0, 1], &Device::Cpu).unwrap());
    let inputs = [random.tensor(&[3, 4, 4, 8]), random.tensor(&[3, 8]), random.tensor(&[3])];
    assert_quiet(&inputs, |v| class_mask_logits(&v[0], &v[1], &v[2], &labels).unwrap());
    let rows = upload(&Tensor::new(&[7u32, 1, 3], &Device::Cpu).unwrap());
    assert_quiet(&[random.tensor(&[6, 4]), random.tensor(&[2, 4])], |v| {
        gather_rows(&[&v[0], &v[1]], 4, &rows).unwrap()
    });
}
