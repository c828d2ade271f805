//! ResNets with groups and with wide bottlenecks against torchvision's tensors: see `make_convs.py`, which makes the weights
//! of their names as this does.

mod common;

use candle_core::{DType, Device, Shape, Tensor};
use candle_detection::backbone::{BodyConfig, ResNetConfig};
use candle_detection::layers::Norm;
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use common::{channels_last, fixtures, largest_difference, largest_value};

/// Difference relative to the largest value.
const RELATIVE: f32 = 1e-4;

/// Makes weights of their names.
struct ByName;

/// Numbers in -1..1, as `value_of` of the script makes them.
fn value_of(name: &str, n: usize) -> Vec<f32> {
    let seed = name.bytes().fold(0u64, |seed, byte| (seed * 31 + u64::from(byte)) % (1 << 16));
    (0..n as u64)
        .map(|index| {
            let mixed = (index * 2_654_435_761 + seed * 40_503 + 1) % (1 << 32);
            let mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % (1 << 32);
            ((mixed >> 8) as f64 / f64::from(1 << 23) - 1.0) as f32
        })
        .collect()
}

impl SimpleBackend for ByName {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let values = Tensor::from_vec(value_of(name, shape.elem_count()), &shape, device)?;
        let (scale, shift) = match shape.dims() {
            [_, inputs, height, width] => ((6.0 / (inputs * height * width) as f64).sqrt(), 0.0),
            _ if name.ends_with("running_var") => (0.3, 1.0),
            _ if name.ends_with("weight") => (0.2, if name.contains("bn3") { 0.4 } else { 1.0 }),
            _ => (0.2, 0.0),
        };
        values.affine(scale, shift)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        panic!("{name} is loaded without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

#[test]
fn stages_are_torchvisions() {
    let path = fixtures().join("convs.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let image = tensors["resnet/image"].to_dtype(DType::F32).unwrap().unsqueeze(0).unwrap();
    let pixels = image.affine(1.0 / 255.0, -0.5).unwrap();
    for (name, width, groups, width_per_group) in [("grouped", 4, 4, 32), ("wide", 2, 1, 128)] {
        let config = BodyConfig::Resnet(ResNetConfig {
            depth: 50,
            width,
            groups,
            width_per_group,
            norm: Norm::FrozenBatchNorm,
            norm_eps: 1e-5,
        });
        let backend: Box<dyn SimpleBackend> = Box::new(ByName);
        let weights = VarBuilder::new_with_args(backend, DType::F32, &Device::Cpu);
        let body = config.build(&weights).unwrap();
        for (stage, found) in body.forward(&pixels).unwrap().iter().enumerate() {
            let expected = channels_last(&tensors[&format!("resnet/{name}/stage.{stage}")]);
            assert_eq!(found.dims(), expected.dims());
            let difference = largest_difference(found, &expected);
            let largest = largest_value(&expected);
            assert!(
                difference <= RELATIVE * largest && largest > 0.5,
                "{name}, stage {stage}: {difference} of {largest}"
            );
        }
    }
}
