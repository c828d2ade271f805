use candle_core::{Device, Tensor};

use super::*;
use crate::ops::support::geometry::encode;
use crate::ops::support::matches::{IGNORED_LABEL, Match};
use crate::ops::support::testing::{Random, values};

const WEIGHTS: [f32; 4] = [10.0, 10.0, 5.0, 5.0];

fn whole(values: &[u32], dims: (usize, usize)) -> Tensor {
    Tensor::from_vec(values.to_vec(), dims, &Device::Cpu).unwrap()
}

fn corners(boxes: &[[f32; 4]], dims: (usize, usize, usize)) -> Tensor {
    Tensor::from_vec(boxes.as_flattened().to_vec(), dims, &Device::Cpu).unwrap()
}

#[test]
fn samples_get_the_labels_and_deltas_of_their_objects() {
    let mut random = Random::new(9);
    let (boxes, objects) = (random.boxes(6, 50.0, 40.0), random.boxes(4, 50.0, 40.0));
    let (object, background) = (|index| Match::Object(index).code(), Match::Background.code());
    let matches = whole(&[object(1), background, object(0), background, object(1), 0], (2, 3));
    let index = whole(&[2, 0, 1, 1, 0, 0], (2, 3));
    let counts = Tensor::new(&[3u32, 2], &Device::Cpu).unwrap();
    let object_boxes = corners(&objects, (2, 2, 4));
    let labels = whole(&[7, 8, 9, 5], (2, 2));
    let all = corners(&boxes, (2, 3, 4));
    let set = BoxSet::PerImage { boxes: &all, counts: &counts };
    let objects_of = Objects { boxes: &object_boxes, labels: &labels };
    let found = box_targets((&index, &counts), &matches, set, objects_of, WEIGHTS).unwrap();
    let list = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<u32>().unwrap();
    assert_eq!(list(&found.labels), [7, 8, 0, 5, 0, IGNORED_LABEL]);
    assert_eq!(list(&found.objects), [0, 1, 0, 1, 0, 0]);
    let rows = |tensor: &Tensor| values(tensor).as_chunks::<4>().0.to_vec();
    let expected = [boxes[2], boxes[0], boxes[1], boxes[4], boxes[3], [0.0; 4]];
    assert_eq!(rows(&found.boxes), expected);
    let deltas = rows(&found.deltas);
    assert_eq!(deltas[0], encode(objects[0], boxes[2], WEIGHTS));
    assert_eq!(deltas[1], encode(objects[1], boxes[0], WEIGHTS));
    assert_eq!(deltas[3], encode(objects[3], boxes[4], WEIGHTS));
    assert_eq!([deltas[2], deltas[4], deltas[5]], [[0.0; 4]; 3]);
}

#[test]
fn shared_boxes_serve_every_image() {
    let boxes = Tensor::new(&[[0f32, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0]], &Device::Cpu).unwrap();
    let objects = Tensor::zeros((2, 0, 4), DType::F32, &Device::Cpu).unwrap();
    let labels = Tensor::zeros((2, 0), DType::U32, &Device::Cpu).unwrap();
    let counts = Tensor::new(&[1u32, 1], &Device::Cpu).unwrap();
    let found = box_targets(
        (&whole(&[0, 1], (2, 1)), &counts),
        &whole(&[1; 4], (2, 2)),
        BoxSet::Shared(&boxes),
        Objects { boxes: &objects, labels: &labels },
        WEIGHTS,
    )
    .unwrap();
    assert_eq!(values(&found.boxes), [0.0, 0.0, 2.0, 2.0, 1.0, 1.0, 3.0, 3.0]);
    assert_eq!(values(&found.deltas), [0.0; 8]);
}

#[test]
fn what_is_no_box_or_object_is_an_error() {
    let boxes = Tensor::zeros((2, 4), DType::F32, &Device::Cpu).unwrap();
    let objects = Tensor::zeros((1, 1, 4), DType::F32, &Device::Cpu).unwrap();
    let labels = whole(&[1], (1, 1));
    let counts = Tensor::new(&[1u32], &Device::Cpu).unwrap();
    let message = |index: u32, code: u32| {
        let objects = Objects { boxes: &objects, labels: &labels };
        let matches = whole(&[code; 2], (1, 2));
        let index = whole(&[index], (1, 1));
        box_targets((&index, &counts), &matches, BoxSet::Shared(&boxes), objects, WEIGHTS)
            .unwrap_err()
            .to_string()
    };
    assert!(message(2, 1).contains("`index`"), "{}", message(2, 1));
    assert!(message(0, 3).contains("`matches`"), "{}", message(0, 3));
}
