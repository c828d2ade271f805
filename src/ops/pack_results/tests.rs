use candle_core::{DType, Device, Tensor};

use super::pack_results;

#[test]
fn parts_follow_one_another() {
    let device = &Device::Cpu;
    let scores = Tensor::new(&[[0.5f32, 0.25, 0.0]], device).unwrap().narrow(1, 0, 2).unwrap();
    let labels = Tensor::new(&[[16_777_215u32]], device).unwrap();
    let none = Tensor::zeros((0, 4), DType::F32, device).unwrap();
    let packed = pack_results(&[&scores, &none, &labels]).unwrap();
    assert_eq!(packed.to_vec1::<f32>().unwrap(), [0.5, 0.25, 16_777_215.0]);
}

#[test]
fn other_data_types_are_refused() {
    let wrong = Tensor::zeros(2, DType::F64, &Device::Cpu).unwrap();
    assert!(pack_results(&[&wrong]).unwrap_err().to_string().contains("F64"));
}
