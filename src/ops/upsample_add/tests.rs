use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{
    Random, assert_close, assert_gradients, exact, rounded, values,
};

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(23);
    for (coarse_dims, dims) in [
        ([1, 1, 1, 3], [1, 1, 1, 3]),
        ([2, 3, 5, 7], [2, 6, 10, 7]),
        ([1, 4, 9, 16], [1, 7, 17, 16]),
        ([1, 13, 19, 20], [1, 25, 38, 20]),
        ([2, 5, 3, 4], [2, 3, 8, 4]),
        ([0, 5, 3, 4], [0, 3, 8, 4]),
    ] {
        let (coarse, lateral) = (random.tensor(&coarse_dims), random.tensor(&dims));
        let expected =
            reference::upsample_add(&values(&coarse), coarse_dims, &values(&lateral), dims);
        let expected = Tensor::from_vec(expected, &dims, &Device::Cpu).unwrap();
        assert_close(&upsample_add(&coarse, &lateral).unwrap(), &expected, 0.0);
    }
}

#[test]
fn rounds_its_ratio_as_the_reference_does() {
    // `torch.nn.functional.interpolate(torch.arange(3.)[None, None, None], size=(1, 7))` and the like.
    assert_eq!(nearest(3, 7), [0, 0, 0, 1, 1, 2, 2]);
    assert_eq!(nearest(25, 50), (0..50).map(|i| i / 2).collect::<Vec<_>>());
    assert_eq!(nearest(5, 3), [0, 1, 3]);
}

#[test]
fn bf16_is_rounded_once() {
    let mut random = Random::new(61);
    let coarse = random.tensor(&[1, 4, 9, 17]).to_dtype(DType::BF16).unwrap();
    let lateral = random.tensor(&[1, 7, 17, 17]).to_dtype(DType::BF16).unwrap();
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
    let expected = upsample_add(&wide(&coarse), &wide(&lateral)).unwrap();
    let found = upsample_add(&coarse, &lateral).unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(values(&found), values(&expected.to_dtype(DType::BF16).unwrap()));
    assert!(upsample_add(&wide(&coarse), &lateral).is_err());
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let lateral = random.tensor(&[1, 4, 6, 3]);
    let message = |coarse: &Tensor| upsample_add(coarse, &lateral).unwrap_err().to_string();
    assert!(message(&random.tensor(&[1, 2, 3, 4])).contains("[1, h, w, 3]"));
    assert!(message(&random.tensor(&[2, 2, 3, 3])).contains("[1, h, w, 3]"));
    assert!(message(&random.tensor(&[2, 3, 3])).contains("coarse"));
    assert!(
        message(&Tensor::zeros((1, 0, 3, 3), DType::F32, &Device::Cpu).unwrap()).contains("coarse")
    );
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(79);
    for (coarse_dims, dims) in [
        ([1, 1, 1, 3], [1, 1, 1, 3]),
        ([2, 3, 2, 3], [2, 6, 4, 3]),
        ([1, 3, 5, 2], [1, 5, 9, 2]),
        ([2, 5, 3, 2], [2, 3, 8, 2]),
    ] {
        assert_gradients(
            &[random.tensor(&coarse_dims), random.tensor(&dims)],
            1.0,
            |t| upsample_add(&t[0], &t[1]).unwrap(),
            |t| {
                let (coarse, lateral) = (rounded(&t[0]), rounded(&t[1]));
                exact(&reference::upsample_add(&coarse, coarse_dims, &lateral, dims))
            },
        );
    }
}

/// A map that two ops read has the sum of both gradients, in whatever order they come.
#[test]
fn gradients_of_two_readers_add_up() {
    let coarse = candle_core::Var::ones((1, 2, 2, 1), DType::F32, &Device::Cpu).unwrap();
    let zeros = Tensor::zeros((1, 4, 4, 1), DType::F32, &Device::Cpu).unwrap();
    let small = Tensor::zeros((1, 2, 2, 1), DType::F32, &Device::Cpu).unwrap();
    for order in [[0, 1], [1, 0]] {
        let middle = upsample_add(&coarse, &small).unwrap();
        let readers =
            [upsample_add(&middle, &zeros).unwrap(), upsample_add(&middle, &small).unwrap()];
        let sums = order.map(|reader: usize| readers[reader].sum_all().unwrap());
        let gradients = (&sums[0] + &sums[1]).unwrap().backward().unwrap();
        assert_eq!(values(gradients.get(coarse.as_tensor()).unwrap()), [5.0; 4]);
    }
}
