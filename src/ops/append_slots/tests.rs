use candle_core::{DType, Device, Tensor};

use super::append_slots;

fn counts(counts: &[u32]) -> Tensor {
    Tensor::new(counts, &Device::Cpu).unwrap()
}

#[test]
fn valid_slots_follow_one_another() {
    let first =
        Tensor::new(&[[[1f32], [2.0], [9.0]], [[9.0], [9.0], [9.0]]], &Device::Cpu).unwrap();
    let second = Tensor::new(&[[[3f32], [9.0]], [[4.0], [5.0]]], &Device::Cpu).unwrap();
    let (joined, found) =
        append_slots((&first, &counts(&[2, 0])), (&second, &counts(&[1, 2]))).unwrap();
    assert_eq!(joined.dims(), [2, 5, 1]);
    let joined: Vec<f32> = joined.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(joined, [1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0, 0.0]);
    assert_eq!(found.to_vec1::<u32>().unwrap(), [3, 2]);
}

#[test]
fn a_list_may_be_empty() {
    let first = Tensor::new(&[[[1f32, 2.0]]], &Device::Cpu).unwrap();
    let none = Tensor::zeros((1, 0, 2), DType::F32, &Device::Cpu).unwrap();
    for (first, second) in [
        ((&first, &counts(&[1])), (&none, &counts(&[0]))),
        ((&none, &counts(&[0])), (&first, &counts(&[1]))),
    ] {
        let (joined, found) = append_slots(first, second).unwrap();
        assert_eq!(joined.to_vec3::<f32>().unwrap(), [[[1.0, 2.0]]]);
        assert_eq!(found.to_vec1::<u32>().unwrap(), [1]);
    }
}

#[test]
fn wrong_arguments_are_named() {
    let first = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu).unwrap();
    let second = Tensor::zeros((2, 3, 5), DType::F32, &Device::Cpu).unwrap();
    let both = counts(&[0, 0]);
    let message = append_slots((&first, &both), (&second, &both)).unwrap_err().to_string();
    assert!(message.contains("`second`"), "{message}");
    let message = append_slots((&first, &both), (&first, &counts(&[0]))).unwrap_err().to_string();
    assert!(message.contains("`counts`"), "{message}");
}
