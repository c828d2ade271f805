use candle_core::{DType, Device, Tensor};

use super::scale_boxes;
use crate::ops::support::testing::{assert_close, values};

#[test]
fn axes_and_images_have_their_own_factors() {
    let boxes =
        Tensor::new(&[[[10f32, 20.0, 30.0, 40.0]], [[1.0, 2.0, 3.0, 4.0]]], &Device::Cpu).unwrap();
    let scaled = scale_boxes(&boxes, &[(900.0 / 800.0, 1000.0 / 888.0), (2.0, 3.0)]).unwrap();
    let expected = [11.261_261, 22.5, 33.783_784, 45.0, 3.0, 4.0, 9.0, 8.0];
    assert_close(
        &scaled,
        &Tensor::new(&expected[..], &Device::Cpu).unwrap().reshape((2, 1, 4)).unwrap(),
        1e-5,
    );
}

#[test]
fn no_box_is_fine_and_a_wrong_count_is_named() {
    let none = Tensor::zeros((2, 0, 4), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(values(&scale_boxes(&none, &[(1.0, 1.0); 2]).unwrap()), [0f32; 0]);
    let message = scale_boxes(&none, &[(1.0, 1.0)]).unwrap_err().to_string();
    assert!(message.contains("`boxes` has shape [2, 0, 4]"), "{message}");
}
