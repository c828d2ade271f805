//! Selection of detections of one-stage heads against torchvision, on random predictions.

mod common;

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    BoxCoding, DecodeBoxesParams, NmsParams, Pairs, TopPairsParams, TopPerClassParams,
    decode_boxes, gather_slots, nms, top_pairs, top_per_class,
};
use common::{fixtures, largest_difference, values};

struct Case {
    name: &'static str,
    tensors: HashMap<String, Tensor>,
}

impl Case {
    fn load(name: &'static str) -> Self {
        let path = fixtures().join("dense.safetensors");
        Self { name, tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    fn get(&self, key: &str) -> Tensor {
        self.tensors[&format!("{}/{key}", self.name)].clone()
    }

    fn levels(&self, key: &str) -> Vec<Tensor> {
        (0..3).map(|level| self.get(&format!("{key}.{level}"))).collect()
    }

    /// Compares the detections of these pairs with torchvision's.
    fn assert_detections(&self, pairs: &Pairs, coding: BoxCoding, limits: &NmsParams) {
        let regression = self.levels("regression");
        let params = DecodeBoxesParams { image_sizes: vec![(61, 80), (64, 70)], coding };
        let decoded = decode_boxes(
            &self.get("anchors"),
            &regression.iter().collect::<Vec<_>>(),
            &pairs.index,
            &pairs.valid,
            &params,
        )
        .unwrap();
        let kept =
            nms(&decoded.boxes, &pairs.scores, &pairs.labels, &decoded.valid, limits).unwrap();
        let boxes = gather_slots(&decoded.boxes, &kept.index, &kept.counts).unwrap();
        let scores = gather_slots(&pairs.scores, &kept.index, &kept.counts).unwrap();
        let labels = gather_slots(&pairs.labels, &kept.index, &kept.counts).unwrap();
        for image in 0..2 {
            let get = |key: &str| self.get(&format!("{image}/{key}"));
            let n = get("scores").dims()[0];
            assert_eq!(kept.counts.to_vec1::<u32>().unwrap()[image] as usize, n);
            let row = |tensor: &Tensor| tensor.get(image).unwrap().narrow(0, 0, n).unwrap();
            let expected = get("labels").to_dtype(DType::U32).unwrap();
            assert_eq!(values(&row(&labels)), values(&expected), "image {image}");
            assert!(largest_difference(&row(&scores), &get("scores")) < 1e-6, "image {image}");
            assert!(largest_difference(&row(&boxes), &get("boxes")) < 1e-4, "image {image}");
        }
    }
}

#[test]
fn detections_of_retinanet() {
    let case = Case::load("retinanet");
    let logits = case.levels("logits");
    let params = TopPairsParams { score_threshold: 0.05, per_level: 150 };
    let pairs = top_pairs(&logits.iter().collect::<Vec<_>>(), None, &params).unwrap();
    let limits = NmsParams { iou_threshold: 0.5, capacity: 60 };
    case.assert_detections(&pairs, BoxCoding::Deltas { weights: [1.0; 4] }, &limits);
}

#[test]
fn detections_of_fcos() {
    let case = Case::load("fcos");
    let logits = case.levels("logits");
    let quality: Vec<Tensor> =
        case.levels("quality").iter().map(|level| level.squeeze(2).unwrap()).collect();
    let params = TopPairsParams { score_threshold: 0.2, per_level: 70 };
    let quality: Vec<&Tensor> = quality.iter().collect();
    let pairs = top_pairs(&logits.iter().collect::<Vec<_>>(), Some(&quality), &params).unwrap();
    let limits = NmsParams { iou_threshold: 0.6, capacity: 50 };
    case.assert_detections(&pairs, BoxCoding::Distances, &limits);
}

#[test]
fn detections_of_ssd() {
    let case = Case::load("ssd");
    let logits = case.levels("logits");
    let params = TopPerClassParams { score_threshold: 0.1, per_class: 40 };
    let pairs = top_per_class(&logits.iter().collect::<Vec<_>>(), &params).unwrap();
    let limits = NmsParams { iou_threshold: 0.45, capacity: 70 };
    case.assert_detections(&pairs, BoxCoding::Deltas { weights: [10.0, 10.0, 5.0, 5.0] }, &limits);
}
