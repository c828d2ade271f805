use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::IGNORED_LABEL;
use crate::ops::support::testing::fixture;

fn run(
    keypoints: &[[f32; 3]],
    objects: usize,
    boxes: &[[f32; 4]],
    chosen: &[u32],
    counts: &[u32],
    side: usize,
) -> Result<Vec<u32>> {
    let device = &Device::Cpu;
    let images = counts.len();
    let points = keypoints.len() / (images * objects).max(1);
    let shape = (images, objects, points, 3);
    let keypoints = Tensor::from_slice(keypoints.as_flattened(), shape, device)?;
    let slots = boxes.len() / images;
    let boxes = Tensor::from_slice(boxes.as_flattened(), (images, slots, 4), device)?;
    let chosen = Tensor::from_slice(chosen, (images, slots), device)?;
    let counts = Tensor::new(counts, device)?;
    let targets = keypoint_targets(&keypoints, &boxes, &chosen, &counts, side)?;
    assert_eq!(targets.dims(), [images, slots, points]);
    Ok(targets.flatten_all()?.to_vec1()?)
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("keypoints.safetensors");
    let get = |name: &str| file[&format!("targets/{name}")].unsqueeze(0).unwrap();
    let slots = get("boxes").dim(1).unwrap() as u32;
    let counts = Tensor::new(&[slots], &Device::Cpu).unwrap();
    let found =
        keypoint_targets(&get("keypoints"), &get("boxes"), &get("objects"), &counts, 56).unwrap();
    let list = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<u32>().unwrap();
    assert_eq!(list(&found), list(&get("cells")));
}

#[test]
fn borders_belong_to_the_last_cell() {
    let bbox = [10.0, 20.0, 18.0, 24.0];
    let points = [
        [10.0, 20.0, 1.0],
        [18.0, 24.0, 2.0],
        [18.0, 20.0, 2.0],
        [13.99, 22.0, 1.0],
        [9.99, 22.0, 1.0],
        [12.0, 24.01, 1.0],
        [12.0, 22.0, 0.0],
        [f32::NAN, 22.0, 1.0],
        [12.0, f32::INFINITY, 1.0],
    ];
    let none = IGNORED_LABEL;
    let found = run(&points, 1, &[bbox], &[0], &[1], 4).unwrap();
    assert_eq!(found, [0, 15, 3, 9, none, none, none, none, none]);
    // A box without a side has only its border.
    let found = run(&[[5.0, 6.0, 1.0], [5.1, 6.0, 1.0]], 1, &[[5.0, 6.0, 5.0, 9.0]], &[0], &[1], 4);
    assert_eq!(found.unwrap(), [3, none]);
}

#[test]
fn slots_have_objects_of_their_image() {
    let at = |x: f32| [x, 0.5, 1.0];
    let keypoints = [at(0.5), at(1.5), at(2.5), at(3.5)];
    let boxes = [[0.0, 0.0, 4.0, 1.0]; 4];
    let found = run(&keypoints, 2, &boxes, &[1, 0, 1, 9], &[7, 1], 4).unwrap();
    // Four columns; the second row of cells is the lower half.
    assert_eq!(found, [8 + 1, 8, 8 + 3, IGNORED_LABEL]);
    let error = run(&keypoints, 2, &boxes, &[1, 0, 1, 9], &[2, 2], 4).unwrap_err().to_string();
    assert!(error.contains("slot 1 of image 1") && error.contains("object 9"), "{error}");
}

#[test]
fn wrong_arguments_are_named() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let (keypoints, boxes) = (zeros(&[1, 1, 3, 3], DType::F32), zeros(&[1, 2, 4], DType::F32));
    let (objects, counts) = (zeros(&[1, 2], DType::U32), zeros(&[1], DType::U32));
    let wide = zeros(&[1, 2, 5], DType::F32);
    let cases = [
        ("boxes", keypoint_targets(&keypoints, &wide, &objects, &counts, 4)),
        ("objects", keypoint_targets(&keypoints, &boxes, &zeros(&[1, 3], DType::U32), &counts, 4)),
        ("counts", keypoint_targets(&keypoints, &boxes, &objects, &zeros(&[2], DType::U32), 4)),
        (
            "keypoints",
            keypoint_targets(&zeros(&[1, 1, 3, 2], DType::F32), &boxes, &objects, &counts, 4),
        ),
        (
            "keypoints",
            keypoint_targets(&zeros(&[2, 1, 3, 3], DType::F32), &boxes, &objects, &counts, 4),
        ),
    ];
    for (name, result) in cases {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
    let error = keypoint_targets(&keypoints, &boxes, &objects, &counts, 0).unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}
