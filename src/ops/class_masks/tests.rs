use candle_core::{DType, Device, Tensor};

use super::{class_mask_logits, class_masks, reference};
use crate::error::Error;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, SMALL_STEP, assert_close, assert_gradients, fixture, values,
};

fn labels(labels: &[u32]) -> Tensor {
    Tensor::new(labels, &Device::Cpu).unwrap()
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(1);
    // 37 channels: whole blocks of sums and a rest.
    for channels in [1, 16, 37] {
        let features = random.tensor(&[5, 3, 4, channels]);
        let weight = random.tensor(&[6, channels]);
        let bias = random.tensor(&[6]);
        let chosen = [5u32, 0, 1, 3, 1];
        let found = class_masks(&features, &weight, &bias, &labels(&chosen)).unwrap();
        let expected =
            reference::run(&values(&features), &values(&weight), &values(&bias), &chosen, 12);
        let expected = Tensor::from_vec(expected, (5, 3, 4), &Device::Cpu).unwrap();
        assert_close(&found, &expected, PRODUCT_TOLERANCE);
        assert_eq!(values(&found.get(1).unwrap()), [0.0; 12]);
    }
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("ops.safetensors");
    let get = |name: &str| file[&format!("class_masks/three_classes/{name}")].clone();
    let features = get("features").permute((0, 2, 3, 1)).unwrap();
    assert!(!features.is_contiguous());
    let (weight, bias) = (get("weight"), get("bias"));
    assert_eq!(weight.dims()[2..], [1, 1]);
    let found = class_masks(&features, &weight, &bias, &get("labels")).unwrap();
    assert_close(&found, &get("probabilities"), 1e-6);
}

/// One of 91 channels is hot: a mask shows it only if it is the label's, not the one with the largest logit.
#[test]
fn the_channel_is_the_label() {
    let features = Tensor::ones((2, 2, 3, 1), DType::F32, &Device::Cpu).unwrap();
    let mut filters = [-20f32; 91];
    filters[17] = 20.0;
    let weight = Tensor::new(&filters, &Device::Cpu).unwrap().reshape((91, 1)).unwrap();
    let bias = Tensor::zeros(91, DType::F32, &Device::Cpu).unwrap();
    let masks = class_masks(&features, &weight, &bias, &labels(&[17, 18])).unwrap();
    assert!(values(&masks.get(0).unwrap()).iter().all(|p| *p > 0.999));
    assert!(values(&masks.get(1).unwrap()).iter().all(|p| *p < 0.001 && *p > 0.0));
}

#[test]
fn extreme_logits_stay_probabilities() {
    let features = Tensor::ones((2, 1, 1, 1), DType::F32, &Device::Cpu).unwrap();
    let weight = Tensor::new(&[[0f32], [1e30], [-1e30]], &Device::Cpu).unwrap();
    let bias = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
    let masks = class_masks(&features, &weight, &bias, &labels(&[1, 2])).unwrap();
    assert_eq!(values(&masks), [1.0, 0.0]);
}

#[test]
fn slots_without_a_class_are_zero() {
    let mut random = Random::new(2);
    let (features, weight, bias) =
        (random.tensor(&[3, 2, 2, 4]), random.tensor(&[3, 4]), random.tensor(&[3]));
    let masks = class_masks(&features, &weight, &bias, &labels(&[0, 3, u32::MAX])).unwrap();
    assert_eq!(values(&masks), [0.0; 12]);
    let empty = class_masks(&features.narrow(0, 0, 0).unwrap(), &weight, &bias, &labels(&[]));
    assert_eq!(empty.unwrap().dims(), [0, 2, 2]);
}

#[test]
fn wrong_arguments_are_named() {
    let mut random = Random::new(3);
    let (features, weight, bias) =
        (random.tensor(&[2, 3, 3, 4]), random.tensor(&[5, 4]), random.tensor(&[5]));
    let chosen = labels(&[1, 2]);
    let cases = [
        ("features", class_masks(&features.get(0).unwrap(), &weight, &bias, &chosen)),
        ("weight", class_masks(&features, &weight.narrow(1, 0, 3).unwrap(), &bias, &chosen)),
        ("bias", class_masks(&features, &weight, &bias.narrow(0, 0, 4).unwrap(), &chosen)),
        ("labels", class_masks(&features, &weight, &bias, &labels(&[1]))),
    ];
    for (name, result) in cases {
        let error = result.unwrap_err();
        let Error::Shape { argument, .. } = &error else { panic!("{error}") };
        assert_eq!(*argument, name);
    }
    let floats = chosen.to_dtype(DType::F32).unwrap();
    let error = class_masks(&features, &weight, &bias, &floats).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "labels", .. }), "{error}");
}

#[test]
fn bf16_features_are_widened() {
    let mut random = Random::new(67);
    let features = random.tensor(&[3, 4, 4, 37]).to_dtype(DType::BF16).unwrap();
    let (weight, bias) = (random.tensor(&[5, 37]), random.tensor(&[5]));
    let chosen = labels(&[2, 4, 0]);
    let found = class_masks(&features, &weight, &bias, &chosen).unwrap();
    let wide = features.to_dtype(DType::F32).unwrap();
    assert_eq!(values(&found), values(&class_masks(&wide, &weight, &bias, &chosen).unwrap()));
}

#[test]
fn logits_are_those_of_the_probabilities() {
    let mut random = Random::new(89);
    let (features, weight, bias) =
        (random.tensor(&[4, 3, 2, 19]), random.tensor(&[4, 19]), random.tensor(&[4]));
    let chosen = labels(&[2, 0, 3, 9]);
    let logits = class_mask_logits(&features, &weight, &bias, &chosen).unwrap();
    let probabilities = class_masks(&features, &weight, &bias, &chosen).unwrap();
    for (row, used) in [(0, true), (1, false), (2, true), (3, false)] {
        let (logits, probabilities) =
            (values(&logits.get(row).unwrap()), values(&probabilities.get(row).unwrap()));
        for (logit, probability) in logits.into_iter().zip(probabilities) {
            let expected = if used { 1.0 / (1.0 + (-logit).exp()) } else { 0.0 };
            assert!((probability - expected).abs() < 1e-6 && (used || logit == 0.0));
        }
    }
}

/// Rows of the background and of unknown classes take no part.
#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(97);
    let chosen = [2u32, 0, 3, 2, 9];
    for channels in [1, 20] {
        let inputs = [
            random.tensor(&[5, 3, 2, channels]),
            // As weight files have it.
            random.tensor(&[4, channels, 1, 1]),
            random.tensor(&[4]),
        ];
        assert_gradients(
            &inputs,
            SMALL_STEP,
            |t| class_mask_logits(&t[0], &t[1], &t[2], &labels(&chosen)).unwrap(),
            |t| {
                let mut logits = vec![0.0; 5 * 6];
                for (i, logit) in logits.iter_mut().enumerate() {
                    let class = chosen[i / 6] as usize;
                    if !(1..4).contains(&class) {
                        continue;
                    }
                    let features = &t[0][i * channels..][..channels];
                    let filter = &t[1][class * channels..][..channels];
                    let products = features.iter().zip(filter).map(|(a, b)| a * b);
                    *logit = t[2][class] + products.sum::<f64>();
                }
                logits
            },
        );
    }
}
