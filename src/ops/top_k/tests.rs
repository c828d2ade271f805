use candle_core::{DType, Device, Tensor};

use super::{reference, top_k};
use crate::ops::support::testing::Random;

/// Values on a coarse grid, so that ties abound; some NaN.
fn coarse(random: &mut Random, n: usize, length: usize) -> Vec<Vec<f32>> {
    let value = |random: &mut Random| match random.below(50) {
        0 => f32::NAN,
        _ => random.below(40) as f32 / 8.0 - 2.0,
    };
    (0..n).map(|_| (0..length).map(|_| value(random)).collect()).collect()
}

#[test]
fn equals_a_stable_sort_on_every_segment() {
    let mut random = Random::new(1);
    for (lengths, k) in
        [(vec![7, 3], 5), (vec![1025, 64, 1], 100), (vec![32_000], 1000), (vec![4], 0)]
    {
        let rows: Vec<_> = lengths.iter().map(|length| coarse(&mut random, 2, *length)).collect();
        let tensors: Vec<Tensor> =
            rows.iter().map(|row| Tensor::new(row.clone(), &Device::Cpu).unwrap()).collect();
        let best = top_k(&tensors.iter().collect::<Vec<_>>(), k).unwrap();
        for image in 0..2 {
            let mut expected = Vec::new();
            let mut offset = 0;
            for row in &rows {
                expected.extend(reference::top_k(&row[image], k).iter().map(|i| i + offset));
                offset += row[image].len() as u32;
            }
            let found: Vec<u32> = best.index.get(image).unwrap().to_vec1().unwrap();
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_full_pyramid_level_is_no_limit() {
    let values: Vec<f32> = (0..163_200).map(|i| ((i * 7919) % 163_200) as f32).collect();
    let best =
        top_k(&[&Tensor::from_vec(values, (1, 163_200), &Device::Cpu).unwrap()], 1000).unwrap();
    let found: Vec<f32> = best.values.flatten_all().unwrap().to_vec1().unwrap();
    let expected: Vec<f32> = (0..1000).map(|i| (163_199 - i) as f32).collect();
    assert_eq!(found, expected);
}

#[test]
fn segments_are_numbered_and_empty_ones_allowed() {
    let fine = Tensor::new(&[[1f32, 2.0]], &Device::Cpu).unwrap();
    let empty = Tensor::zeros((1, 0), DType::F32, &Device::Cpu).unwrap();
    let best = top_k(&[&fine, &empty, &fine], 1).unwrap();
    assert_eq!(best.segment.to_vec2::<u32>().unwrap(), [[0, 2]]);
    assert_eq!(best.index.to_vec2::<u32>().unwrap(), [[1, 3]]);
}

#[test]
fn wrong_arguments_are_named() {
    let row = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let other = Tensor::zeros((1, 3), DType::F32, &Device::Cpu).unwrap();
    let message = top_k(&[&row, &other], 1).unwrap_err().to_string();
    assert!(message.contains("top_k: `segments` has shape [1, 3]"), "{message}");
    let whole = Tensor::zeros((2, 3), DType::U32, &Device::Cpu).unwrap();
    assert!(top_k(&[&whole], 1).unwrap_err().to_string().contains("U32"));
    assert!(top_k(&[], 1).is_err());
}
