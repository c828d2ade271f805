use candle_core::{DType, Device, Tensor};

use super::gather_slots;

#[test]
fn rows_are_picked_and_the_rest_is_zero() {
    let device = &Device::Cpu;
    let source =
        Tensor::new(&[[[1f32, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]], device).unwrap();
    let index = Tensor::new(&[[1u32, 0, 1], [1, 1, 1]], device).unwrap();
    let counts = Tensor::new(&[2u32, 1], device).unwrap();
    let found = gather_slots(&source, &index, &counts).unwrap().to_vec3::<f32>().unwrap();
    assert_eq!(found[0], [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]);
    assert_eq!(found[1], [[7.0, 8.0], [0.0, 0.0], [0.0, 0.0]]);
}

#[test]
fn whole_numbers_and_strided_views() {
    let device = &Device::Cpu;
    let labels = Tensor::new(&[[9u32, 8, 7], [6, 5, 4]], device).unwrap().narrow(1, 1, 2).unwrap();
    let index = Tensor::new(&[[1u32], [0]], device).unwrap();
    let counts = Tensor::new(&[1u32, 1], device).unwrap();
    let found = gather_slots(&labels, &index, &counts).unwrap();
    assert_eq!(found.to_vec2::<u32>().unwrap(), [[7], [5]]);
}

#[test]
fn wrong_arguments_are_named() {
    let device = &Device::Cpu;
    let index = Tensor::zeros((2, 3), DType::U32, device).unwrap();
    let counts = Tensor::zeros(2, DType::U32, device).unwrap();
    let source = Tensor::zeros((1, 4), DType::F32, device).unwrap();
    let message = gather_slots(&source, &index, &counts).unwrap_err().to_string();
    assert!(message.contains("`source` has shape [1, 4]"), "{message}");
    let source = Tensor::zeros((2, 4), DType::F64, device).unwrap();
    let message = gather_slots(&source, &index, &counts).unwrap_err().to_string();
    assert!(message.contains("F64"), "{message}");
}
